#!/usr/bin/env bash
# Installs what the build needs from Debian's packages: scripts/setup.sh [build] [bench] [lint] [interop] [fuzz] [package] [containers]
# Idempotent; takes a fraction of a second when nothing is missing. Set LOCKSTEP_NO_INSTALL=1 to never install.
set -euo pipefail

build_packages=(
  g++ cmake ninja-build ccache mold pkg-config python3
  libtorch-dev        # the engine
  libopenblas-dev     # Debian's libtorch otherwise falls back to the reference BLAS, some 30 times slower
  libgloo-dev libopenmpi-dev openmpi-bin
  libcli11-dev libyaml-cpp-dev nlohmann-json3-dev libfmt-dev libsqlite3-dev libutf8proc-dev
  libboost-dev libssl-dev zlib1g-dev  # lockstep serve
  libgtest-dev
  pybind11-dev python3-dev  # the Python package
  python3-yaml        # tests read the manifests we write
)
bench_packages=(libbenchmark-dev)
lint_packages=(clang-format clang-tidy)
interop_packages=(python3-venv)
fuzz_packages=(clang libclang-rt-14-dev)
package_packages=(dpkg-dev python3-venv)      # make deb, make wheel
container_packages=(debootstrap buildah)      # the slow tests of packages and images

wanted=()
for group in "${@:-build}"; do
  case "$group" in
    build) wanted+=("${build_packages[@]}") ;;
    bench) wanted+=("${bench_packages[@]}") ;;
    lint) wanted+=("${lint_packages[@]}") ;;
    interop) wanted+=("${interop_packages[@]}") ;;
    fuzz) wanted+=("${fuzz_packages[@]}") ;;
    package) wanted+=("${package_packages[@]}") ;;
    containers) wanted+=("${container_packages[@]}") ;;
    *) echo "setup: unknown group '$group'; use build, bench, lint, interop, fuzz, package, containers" >&2; exit 2 ;;
  esac
done

if ! command -v dpkg-query >/dev/null; then
  echo "setup: not a Debian system; install the equivalents of: ${wanted[*]}" >&2
  exit 0  # the build itself says what it does not find
fi

missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "${LOCKSTEP_NO_INSTALL:-}" = 1 ]; then
  echo "setup: missing packages: ${missing[*]}; install them or unset LOCKSTEP_NO_INSTALL" >&2
  exit 4
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "setup: missing packages: ${missing[*]}; run as root or install sudo" >&2; exit 4; }
  as_root=(sudo)
fi
echo "setup: installing ${#missing[@]} packages: ${missing[*]}"
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
