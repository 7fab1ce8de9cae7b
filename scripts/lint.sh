#!/usr/bin/env bash
# Formatting of everything; clang-tidy over the torch-free half (parsing libtorch per file would take an hour).
# Pass `all` to run clang-tidy over the libtorch half too.
set -euo pipefail
cd "$(dirname "$0")/.."
git ls-files '*.h' '*.cpp' '*.cu' | xargs clang-format --dry-run --Werror
echo "clang-format: clean"
[ -f build/release/compile_commands.json ] || make build
torch_half='lockstep/(kernels|nn|parallel|data|checkpoint|engine)/'
files=$(git ls-files 'lockstep/*.cpp' | grep -v nccl)
[ "${1:-}" = all ] || files=$(grep -vE "$torch_half" <<<"$files")
# GCC-only flags (the precompiled header's) mean nothing to clang.
mkdir -p build/lint
sed -e 's/-fpch-preprocess//g' -e 's/-Winvalid-pch//g' -e 's/-include [^ ]*cmake_pch.hxx//g' \
  build/release/compile_commands.json >build/lint/compile_commands.json
xargs -P "$(nproc)" -n 4 clang-tidy -p build/lint --quiet <<<"$files"
echo "clang-tidy: clean"
