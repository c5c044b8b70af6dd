#!/usr/bin/env bash
# Run the end-to-end tests on the kind cluster, which is made first and brought up to date with this tree.
# Usage: [PYTHON=.venv/bin/python] [CLUSTER_CACHE=folder] hack/test-e2e.sh [option of pytest...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
export PATH=${CLUSTER_CACHE:-$HOME/.cache/heterotrain-cluster}/bin:$PATH

hack/install.sh
hack/monitoring.sh images
exec "$python" -m pytest "${@:-tests/e2e}"
