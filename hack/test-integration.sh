#!/usr/bin/env bash
# Run the operator's tests against a real API server.
# Usage: [PYTHON=.venv/bin/python] hack/test-integration.sh [option of pytest...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
shopt -s nullglob globstar

tests=(tests/integration/**/test_*.py)
if (( ${#tests[@]} == 0 )); then
  echo "There are no such tests yet: tests/integration is empty." >&2
  exit 1
fi
exec "$python" -m pytest "$@" tests/integration
