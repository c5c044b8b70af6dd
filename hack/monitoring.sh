#!/usr/bin/env bash
# A Prometheus in the kind cluster of hack/cluster.sh, which scrapes node_exporters, the kubelets' cAdvisor, and whatever jobs
# and the operator tell: examples/monitoring with images of Debian's packages. The operator is told of it, so that its rule
# packs for a Prometheus are in force.
# Usage: [CLUSTER_CACHE=folder] hack/monitoring.sh [images]    # images: only build and load them
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH=${CLUSTER_CACHE:-$HOME/.cache/heterotrain-cluster}/bin:$PATH

control_plane=$(kubectl get nodes -l node-role.kubernetes.io/control-plane -o jsonpath='{.items[0].metadata.name}')
hack/build-images.sh prometheus node-exporter
hack/load-images.py --nodes "$control_plane" heterotrain/prometheus:dev
hack/load-images.py heterotrain/node-exporter:dev
[[ ${1:-} == images ]] && exit

kubectl apply -k hack/monitoring
kubectl --namespace monitoring rollout status deployment/prometheus daemonset/node-exporter --timeout=90s
helm upgrade heterotrain-operator charts/heterotrain-operator --namespace heterotrain-system --reset-then-reuse-values --wait \
  --timeout 3m --set information.prometheus.url=http://prometheus.monitoring:9090
echo "Prometheus: kubectl -n monitoring port-forward service/prometheus 9090"
echo "What the operator makes of it: kubectl -n heterotrain-system get collectionrules,processingrules"
