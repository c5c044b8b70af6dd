#!/usr/bin/env bash
# Write requirements/*.txt again: the newest versions that pyproject.toml allows, each with the hashes of all its files:
# what the operator and trainer images hold, what builds the wheel in them, what the examples image adds. A few minutes.
# Usage: [PYTHON=.venv/bin/python] hack/lock.sh [operator] [trainer] [build] [examples]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
# Where packages come from is each machine's own setting and must not get into the files.
unset PIP_FIND_LINKS

requirements() { # requirements NAME LEFT_OUT...: what pyproject.toml asks for, one requirement a line
  "$python" - "$@" <<'PYTHON'
import pathlib
import re
import sys
import tomllib

extra, *left_out = sys.argv[1:]
document = tomllib.loads(pathlib.Path("pyproject.toml").read_text())
project = document["project"]


def name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement)[0]


match extra:
    case "build":
        wanted = document["build-system"]["requires"]
    case "examples":
        wanted = project["optional-dependencies"]["examples"]
    case _:
        wanted = project["dependencies"] + project["optional-dependencies"][extra]
print("\n".join(line for line in wanted if name(line) not in left_out))
PYTHON
}

lock() { # lock NAME COMMENT LEFT_OUT...: compile one set of requirements into requirements/NAME.txt
  local out=requirements/$1.txt new
  new=$(mktemp)
  requirements "$1" "${@:3}" | "$python" -m piptools compile --quiet --generate-hashes --strip-extras --no-header \
    --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options --output-file "$new" -
  {
    printf '%s\n' "$2"
    # What the base image gives is no line of ours, even where something else asks for it.
    sed 's/-r -$/heterotrain (pyproject.toml)/' "$new" |
      awk -v left_out=" ${*:3} " '/^[^ #]/ { split($0, part, "=="); skip = index(left_out, " " part[1] " ") } !skip'
  } > "$out"
  rm -f "$new"
}

(( $# )) || set -- operator trainer build examples
for extra in "$@"; do
  case $extra in
    operator) lock operator '# The operator image: what extra `operator` needs. Written by `make lock`; do not edit.' ;;
    trainer) lock trainer '# The trainer image: what extra `trainer` needs, but for torch and numpy (and so the CUDA libraries that torch brings):
# the image takes python3-torch and python3-numpy from Debian, built against each other and for CPUs. On another base
# image, install torch and numpy there. Written by `make lock`; do not edit.' torch numpy ;;
    build) lock build '# What builds the wheel inside the images. Written by `make lock`; do not edit.' ;;
    examples) lock examples '# Where the examples image takes a data set from: nothing of it is run. Written by `make lock`; do not edit.' \
      numpy scipy joblib threadpoolctl narwhals cloudpickle ;;
    *) echo "extra must be operator, trainer, build or examples, not $extra" >&2; exit 2 ;;
  esac
done
