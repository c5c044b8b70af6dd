#!/usr/bin/env bash
# Train Fashion-MNIST on this machine twice, on 2 parameter servers and 4 workers of speeds 4:3:2:1 that begin with equal
# shares: once they stay equal, once adaptation moves them. Then show both side by side.
# Usage: [PYTHON=.venv/bin/python] [REPORT=demo-report] hack/demo.sh [option of `heterotrain run`...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
report=${REPORT:-demo-report}
heterotrain=$(dirname "$python")/heterotrain
epochs=2

HETEROTRAIN_DATA=$(hack/fetch-fashion-mnist.sh)
export HETEROTRAIN_DATA

train() {  # train NAME [option...]: into the report's folder of this name
  local name=$1 group equal=()
  shift
  for group in new mid old tiny; do equal+=(--set "spec.workers.$group.batch.initial=125"); done
  "$heterotrain" run examples/fashion.yaml --speeds 4:3:2:1 --report "$report/$name" "${equal[@]}" \
    --set "spec.command=[python, -m, fashion_cnn, --epochs, \"$epochs\"]" "$@"
}

echo "1 of 2: equal shares, which stay equal: every round waits for the slowest worker"
train equal --set spec.adaptation.mode=Off "$@"
echo
echo "2 of 2: adaptation moves the shares until all workers finish together"
train adaptation "$@"
echo
"$heterotrain" compare "$report/equal" "$report/adaptation" --output "$report"
echo
echo "Side by side: $report/comparison.md and comparison.png; each run with its plots, model and logs: $report/equal/, $report/adaptation/"
