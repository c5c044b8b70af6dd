#!/usr/bin/env bash
# Train Fashion-MNIST on this machine, on 2 parameter servers and 4 workers of speeds 4:3:2:1, and show the report.
# Usage: [PYTHON=.venv/bin/python] [REPORT=demo-report] hack/demo.sh [option of `heterotrain run`...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
report=${REPORT:-demo-report}

HETEROTRAIN_DATA=$(hack/fetch-fashion-mnist.sh)
export HETEROTRAIN_DATA
"$(dirname "$python")/heterotrain" run examples/fashion.yaml --speeds 4:3:2:1 --report "$report" "$@"
echo
# The tables; the plots and events are in the folder.
sed '/^## Plots/,$d' "$report/report.md" | "$python" -m rich.markdown --width 110 -
echo "Everything else (report.json, plots, model.safetensors, logs/): $report/"
