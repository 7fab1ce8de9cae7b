#!/usr/bin/env bash
# scripts/lint.sh [all]      clang-format and clang-tidy over everything that the build of build/release compiles
# scripts/lint.sh changed    clang-format over everything, clang-tidy over the files that the last commits (and the
#                            working tree) touched, newest first, as many as fit LINT_MINUTES (5)
#
# build/release must be configured; nothing of it has to be built but what CMake generates.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=${1:-all}

git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs clang-format --dry-run --Werror
echo "clang-format: clean"

# Flags of GCC alone go: the precompiled header's, and OpenMP, whose header clang brings in a package of its own. With
# GCC's library clang reads libtorch 1.13 only if ivalue.h comes first (its vector of an incomplete type).
mkdir -p build/lint
sed -e 's#-include [^ ]*lockstep_torch_pch[^ ]*cmake_pch.hxx#-include ATen/core/ivalue.h#g' \
  -e 's#-include [^ ]*cmake_pch.hxx##g' -e 's/-fpch-preprocess//g' -e 's/-Winvalid-pch//g' -e 's/-fopenmp //g' -e 's/-fno-fat-lto-objects//g' \
  build/release/compile_commands.json >build/lint/compile_commands.json
python3 - build/lint/compile_commands.json <<'PYTHON' | sort -u >build/lint/compiled
import json, os, sys
for entry in json.load(open(sys.argv[1])):
    name = os.path.relpath(os.path.join(entry["directory"], entry["file"]))
    if name.startswith(("lockstep/", "validation/", "python/")):
        print(name)
PYTHON

if [ "$mode" = all ]; then
  files=$(cat build/lint/compiled)
else
  # A changed header is read through the source of its name; other readers see it in `all`. Parsing libtorch takes ten
  # times as long as anything else, so such a file counts ten seconds per core and the others two.
  files=$({ git diff --name-only HEAD; git log --no-merges --name-only --pretty= -n 30; } |
    sed -n 's/\.\(h\|cpp\)$/.cpp/p' | awk '!seen[$0]++' | grep -Fxf build/lint/compiled |
    awk -v budget=$((${LINT_MINUTES:-5} * 60 * $(nproc))) '
      { cost = ($0 ~ /^lockstep\/(plugin|kernels|nn|parallel|data|checkpoint|engine)\//) ? 40 : 8 }
      total + cost <= budget { total += cost; print }') || true
fi
[ -n "$files" ] || { echo "clang-tidy: nothing changed"; exit 0; }
# One file per process, so that a long one does not hold others up; what is clean prints nothing.
xargs -P "$(nproc)" -n 1 clang-tidy -p build/lint --quiet --extra-arg=-Wno-unknown-warning-option <<<"$files" 2> >(grep -v 'warnings\? generated\|^Suppressed\|^Use -' >&2)
echo "clang-tidy: clean ($(wc -l <<<"$files") files)"
