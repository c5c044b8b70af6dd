#!/usr/bin/env bash
# Cluster, images, operator and examples/fashion.yaml on four unequal nodes.
# Usage: [PYTHON=.venv/bin/python] hack/demo-cluster.sh
set -euo pipefail
echo "The operator does not run jobs on a cluster yet. The same job on this machine: make demo" >&2
exit 1
