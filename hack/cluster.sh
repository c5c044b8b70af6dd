#!/usr/bin/env bash
# Create the kind cluster `heterotrain` (a control plane, 4 workers) where no image registry can be reached: Docker,
# Kubernetes, node and base images are made from Debian packages and Go modules. About 20 minutes the first time, then
# 30 seconds; every step is skipped when its result is there. Needs Debian 12, root, Go 1.26.
# Usage: [CLUSTER_CACHE=folder] hack/cluster.sh
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/cluster" && pwd)
cache=${CLUSTER_CACHE:-$HOME/.cache/heterotrain-cluster}

[[ $(id -u) == 0 ]] || { echo "hack/cluster.sh must run as root: it starts Docker and makes root file systems." >&2; exit 1; }
for step in start-docker build-binaries build-node-image build-base-images; do
  echo "== $step"
  "$here/$step.sh"
done
export PATH=$cache/bin:$PATH
answers() { kubectl --context kind-heterotrain --request-timeout 10s get --raw /readyz; }
# A Docker engine that was stopped leaves dead nodes behind: such a cluster is listed and does not answer.
if kind get clusters 2>/dev/null | grep -qx heterotrain && ! answers >/dev/null 2>&1; then
  echo "cluster heterotrain does not answer: it is made again"
  kind delete cluster --name heterotrain
fi
if kind get clusters 2>/dev/null | grep -qx heterotrain; then
  "$here/connect-pods.sh"
  echo "cluster heterotrain is there; remove it with: kind delete cluster --name heterotrain"
else
  echo "== create-cluster"
  "$here/create-cluster.sh"
fi
echo "kubectl, kind and helm: $cache/bin"
