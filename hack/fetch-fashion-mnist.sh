#!/usr/bin/env bash
# Find Fashion-MNIST (four idx.gz files), or take it out of Debian's package without installing it. Needs no root.
# Prints the folder. The examples look at the same places in the same order (examples/fashion_cnn.py).
# Usage: [HETEROTRAIN_DATA=folder] hack/fetch-fashion-mnist.sh
set -euo pipefail
package=dataset-fashion-mnist
inside=usr/share/datasets/fashion-mnist
cache=${XDG_CACHE_HOME:-$HOME/.cache}/heterotrain/fashion-mnist
files=({train,t10k}-{images-idx3,labels-idx1}-ubyte.gz)

whole() { # whole FOLDER: all four files are there and are intact
  local file
  for file in "${files[@]}"; do
    gzip -t "$1/$file" 2>/dev/null || return 1
  done
}

for folder in ${HETEROTRAIN_DATA:+"$HETEROTRAIN_DATA"} "$cache" "/$inside"; do
  if whole "$folder"; then
    echo "$folder"
    exit 0
  fi
done

if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
  cat >&2 <<TEXT
Fashion-MNIST is not on this machine, and there is no apt-get to take it from Debian's package $package.
Put these files into $cache or name their folder in HETEROTRAIN_DATA:
$(printf '  %s\n' "${files[@]}")
TEXT
  exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
download() { (cd "$work" && apt-get download -q "$package" >"$work/log" 2>&1); }
# A new machine has no package lists yet; only root may fetch them.
if ! download && ! { [[ $(id -u) == 0 ]] && apt-get update -q >"$work/log" 2>&1 && download; }; then
  cat "$work/log" >&2
  echo "Could not download $package; run 'apt-get update' as root once, then try again." >&2
  exit 1
fi
dpkg-deb -x "$work"/*.deb "$work/root"
whole "$work/root/$inside" || { echo "Package $package does not hold the expected files." >&2; exit 1; }
mkdir -p "$cache"
cp "$work/root/$inside"/*.gz "$cache/"
echo "$cache"
