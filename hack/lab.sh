#!/usr/bin/env bash
# The heterogeneity lab, one set-up after the other; tables, plots and logs in lab-report/SETUP-LEVEL/.
# Usage: [PYTHON=.venv/bin/python] [LEVEL=2] [SETUPS="straggler-4 ladder"] hack/lab.sh [option of `heterotrain lab`...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
level=${LEVEL:-2}
setups=${SETUPS:-equal het-2 het-4 het-8 straggler-4 ladder transient step-change slow-link churn}

HETEROTRAIN_DATA=$(hack/fetch-fashion-mnist.sh)
export HETEROTRAIN_DATA
failed=0
for setup in $setups; do
  echo "== $setup"
  "$(dirname "$python")/heterotrain" lab "$setup" --level "$level" --report "lab-report/$setup-$level" "$@" || failed=1
done
exit "$failed"
