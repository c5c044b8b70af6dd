#!/usr/bin/env bash
# Run the operator's tests against a real API server and etcd on loopback, which are built when missing (needs Go).
# Usage: [PYTHON=.venv/bin/python] [CLUSTER_CACHE=folder] hack/test-integration.sh [option of pytest...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
bin=${CLUSTER_CACHE:-$HOME/.cache/heterotrain-cluster}/bin
programs=(etcd kube-apiserver kube-controller-manager)

for program in "${programs[@]}"; do
  if [[ ! -x $bin/$program ]]; then
    echo "== building ${programs[*]}: several minutes, once"
    hack/cluster/build-binaries.sh "${programs[@]}"
    break
  fi
done
# Control planes and operators of their own take seconds to start: more than a unit test may take.
exec "$python" -m pytest --timeout=180 "$@" tests/integration
