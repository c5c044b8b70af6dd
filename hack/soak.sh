#!/usr/bin/env bash
# Play random runs of the synchronisation policies (joins, losses, drains, plans, bounds, modes) and of whole jobs (workers
# lost, told to end, coming back, scaled, evaluations) against their invariants.
# Usage: [PYTHON=.venv/bin/python] hack/soak.sh [RUNS]    (5000 by default of each machine of rules; many minutes)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
HETEROTRAIN_EXAMPLES=${1:-5000} exec "$python" -m pytest --timeout=0 -q tests/unit/core/sync/test_any_mode.py \
  tests/unit/core/sync/test_limits.py tests/unit/run/test_run_anything.py
