#!/usr/bin/env bash
# Run the end-to-end tests on the cluster of `make cluster`.
# Usage: [PYTHON=.venv/bin/python] hack/test-e2e.sh [option of pytest...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
shopt -s nullglob globstar

tests=(tests/e2e/**/test_*.py)
if (( ${#tests[@]} == 0 )); then
  echo "There are no such tests yet: tests/e2e is empty." >&2
  exit 1
fi
exec "$python" -m pytest "$@" tests/e2e
