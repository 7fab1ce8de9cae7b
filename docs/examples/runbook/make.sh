#!/bin/bash
# Writes the runbooks of this folder anew, and pictures of their pages: docs/examples/runbook/make.sh [LOCKSTEP]
set -euo pipefail
cd "$(dirname "$0")/../../.."
lockstep=${1:-build/release/lockstep}
folder=docs/examples/runbook
rm -f "$folder"/*.pdf "$folder"/*.png
write() {
  "$lockstep" runbook "$2" -o "$folder/$1.pdf"
  pdftoppm -r 70 -png "$folder/$1.pdf" "$folder/$1"
}
write 13b-32xH100 specs/jobs/llama2-13b-32xH100.yaml
write 70b-256xH100 specs/jobs/llama2-70b-256xH100.yaml
write 7b-fine-tune-8xH100 specs/jobs/7b-instruct.yaml
