#!/usr/bin/env bash
# Run every benchmark in bench/ (files that begin with _ are helpers), one after the other, on this machine.
# Usage: [PYTHON=.venv/bin/python] hack/bench.sh [NAME...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
shopt -s nullglob

if (( $# )); then files=("${@/#/bench/}"); files=("${files[@]/%/.py}"); else files=(bench/[!_]*.py); fi
if (( ${#files[@]} == 0 )); then
  echo "There is no benchmark yet: bench/ is empty." >&2
  exit 1
fi
for file in "${files[@]}"; do
  echo "== $file"
  "$python" "$file"
done
