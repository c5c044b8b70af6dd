#!/usr/bin/env bash
# Write requirements/operator.txt and requirements/trainer.txt again: the newest versions that pyproject.toml allows,
# each with the hashes of all its files. Takes a few minutes.
# Usage: [PYTHON=.venv/bin/python] hack/lock.sh [operator] [trainer]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
# Where packages come from is each machine's own setting and must not get into the files.
unset PIP_FIND_LINKS

requirements() { # requirements EXTRA LEFT_OUT...: what pyproject.toml asks for, one requirement a line
  "$python" - "$@" <<'PYTHON'
import pathlib
import re
import sys
import tomllib

extra, *left_out = sys.argv[1:]
project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]
for requirement in project["dependencies"] + project["optional-dependencies"][extra]:
    if re.split(r"[^\w.-]", requirement)[0] not in left_out:
        print(requirement)
PYTHON
}

lock() { # lock EXTRA COMMENT LEFT_OUT...: compile one extra into requirements/EXTRA.txt
  local out=requirements/$1.txt new
  new=$(mktemp)
  requirements "$1" "${@:3}" | "$python" -m piptools compile --quiet --generate-hashes --strip-extras --no-header \
    --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options --output-file "$new" -
  { printf '%s\n' "$2"; sed 's/-r -$/heterotrain (pyproject.toml)/' "$new"; } > "$out"
  rm -f "$new"
}

(( $# )) || set -- operator trainer
for extra in "$@"; do
  case $extra in
    operator) lock operator '# The operator image: what extra `operator` needs. Written by `make lock`; do not edit.' ;;
    trainer) lock trainer '# The trainer image: what extra `trainer` needs, but for torch and numpy (and so the CUDA libraries that torch brings):
# the image takes python3-torch and python3-numpy from Debian, built against each other and for CPUs. On another base
# image, install torch and numpy there. Written by `make lock`; do not edit.' torch numpy ;;
    *) echo "extra must be operator or trainer, not $extra" >&2; exit 2 ;;
  esac
done
