#!/usr/bin/env bash
# Run the end-to-end tests on the kind cluster, which is made first and brought up to date with this tree.
# Usage: [PYTHON=.venv/bin/python] [CLUSTER_CACHE=folder] hack/test-e2e.sh [option of pytest...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
export PATH=${CLUSTER_CACHE:-$HOME/.cache/heterotrain-cluster}/bin:$PATH

hack/install.sh
hack/monitoring.sh images
if (($#)); then
  exec "$python" -m pytest "$@"
fi

# First the tests that may run side by side; their pods keep off the node that some of them take away.
leave() { kubectl taint nodes -l pool=tiny heterotrain.io/e2e- > /dev/null || true; }
trap leave EXIT
kubectl taint --overwrite nodes -l pool=tiny heterotrain.io/e2e=taken-away:NoSchedule > /dev/null
"$python" -m pytest -n 4 --dist load --maxschedchunk 1 -m "not alone" tests/e2e
trap - EXIT
leave
"$python" -m pytest -m alone tests/e2e
