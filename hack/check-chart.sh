#!/usr/bin/env bash
# Lint the chart, and test what helm renders from it. Without helm: says so and does nothing, but in CI (variable CI set)
# builds helm first, as `make cluster` does.
# Usage: [PYTHON=.venv/bin/python] [CLUSTER_CACHE=folder] hack/check-chart.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
export PATH=${CLUSTER_CACHE:-$HOME/.cache/heterotrain-cluster}/bin:$PATH

if ! command -v helm >/dev/null; then
  if [[ -n ${CI:-} ]] && command -v go >/dev/null; then
    hack/cluster/build-binaries.sh helm
  else
    echo "The chart is not checked: there is no helm here (make cluster builds it)." >&2
    exit 0
  fi
fi
helm lint --strict --quiet --kube-version 1.34.0 charts/*/
"$python" -m pytest tests/chart
