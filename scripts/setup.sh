#!/usr/bin/env bash
# Installs what the build needs from Debian's packages: scripts/setup.sh [build] [page] [bench] [lint] [interop]
# [fuzz] [package] [containers] [browser] [prometheus]
# Idempotent; takes a fraction of a second when nothing is missing. Set LOCKSTEP_NO_INSTALL=1 to never install.
set -euo pipefail

build_packages=(
  g++ cmake ninja-build ccache mold pkg-config python3
  libtorch-dev        # the engine
  libopenblas-dev     # Debian's libtorch otherwise falls back to the reference BLAS, some 30 times slower
  libgloo-dev libopenmpi-dev openmpi-bin
  libcli11-dev libyaml-cpp-dev nlohmann-json3-dev libfmt-dev libsqlite3-dev libutf8proc-dev zlib1g-dev
  libpng-dev libturbojpeg0-dev  # pictures
  libboost-dev libssl-dev  # lockstep serve
  libgtest-dev
  pybind11-dev python3-dev  # the Python package
  python3-yaml        # tests read the manifests we write
  tmux                # tests watch a run in a terminal
  poppler-utils       # tests read the PDFs we write
)
# The page of `lockstep serve`. Debian's two are 384 packages (48 MB to fetch, 350 MB on disk): not where another Node.js
# >= 18 brings its own npm, nor with LOCKSTEP_NO_PAGE=1.
page_packages=(nodejs npm)
if [ "${LOCKSTEP_NO_PAGE:-}" = 1 ] ||
   { command -v npm >/dev/null && node -e 'process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)' 2>/dev/null; }; then
  page_packages=()
fi
bench_packages=(libbenchmark-dev)
lint_packages=(clang-format clang-tidy)
interop_packages=(python3-venv)
fuzz_packages=(clang libclang-rt-14-dev)
package_packages=(dpkg-dev python3-venv)      # make deb, make wheel
container_packages=(debootstrap buildah)      # the slow tests of packages and images
prometheus_packages=(prometheus prometheus-alertmanager)  # tests of alert rules; slow ones start both on loopback
browser_packages=(chromium fonts-dejavu-core fonts-liberation)  # the slow tests of the page

wanted=()
page=()
for group in "${@:-build}"; do
  case "$group" in
    build) wanted+=("${build_packages[@]}"); page=("${page_packages[@]}") ;;
    page) page=("${page_packages[@]}") ;;
    bench) wanted+=("${bench_packages[@]}") ;;
    lint) wanted+=("${lint_packages[@]}") ;;
    interop) wanted+=("${interop_packages[@]}") ;;
    fuzz) wanted+=("${fuzz_packages[@]}") ;;
    package) wanted+=("${package_packages[@]}") ;;
    containers) wanted+=("${container_packages[@]}") ;;
    browser) wanted+=("${browser_packages[@]}") ;;
    prometheus) wanted+=("${prometheus_packages[@]}") ;;
    *) echo "setup: unknown group '$group'; use build, page, bench, lint, interop, fuzz, package, containers, browser, prometheus" >&2; exit 2 ;;
  esac
done

if ! command -v dpkg-query >/dev/null; then
  echo "setup: not a Debian system; install the equivalents of: ${wanted[*]} ${page[*]}" >&2
  exit 0  # the build itself says what it does not find
fi

# Those of its arguments that are not installed.
missing_of() {
  local package
  for package in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || echo "$package"
  done
}
mapfile -t missing < <(missing_of "${wanted[@]}")
mapfile -t missing_page < <(missing_of "${page[@]}")
[ $((${#missing[@]} + ${#missing_page[@]})) -eq 0 ] && exit 0

without_page="without ${missing_page[*]} the page of \`lockstep serve\` is left out"
if [ "${LOCKSTEP_NO_INSTALL:-}" = 1 ]; then
  [ ${#missing_page[@]} -eq 0 ] || echo "setup: $without_page" >&2
  [ ${#missing[@]} -gt 0 ] || exit 0
  echo "setup: missing packages: ${missing[*]}; install them or unset LOCKSTEP_NO_INSTALL" >&2
  exit 4
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "setup: missing packages: ${missing[*]} ${missing_page[*]}; run as root or install sudo" >&2; exit 4; }
  as_root=(sudo)
fi
install_packages() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}
echo "setup: installing packages: ${missing[*]} ${missing_page[*]}"
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
[ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"
[ ${#missing_page[@]} -eq 0 ] || install_packages "${missing_page[@]}" || echo "setup: $without_page" >&2
