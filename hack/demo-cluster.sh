#!/usr/bin/env bash
# Cluster, images, operator, then examples/fashion.yaml on four unequal nodes: once the pods are ready, the nodes get 0.8,
# 0.4, 0.2 and 0.1 CPU. The job starts with shares 4 : 3 : 2 : 1; after a while it is asked for shares that fit its nodes.
# At the end (or Ctrl-C) the nodes are as before.
# Usage: [CLUSTER_CACHE=folder] hack/demo-cluster.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH=${CLUSTER_CACHE:-$HOME/.cache/heterotrain-cluster}/bin:$PATH
started=$SECONDS
job=fashion
htj() { kubectl --namespace heterotrain-demo "$@"; }
succeeded() { htj get htj "$job" -o jsonpath='{.status.conditions[?(@.type=="Succeeded")].status}'; }

hack/install.sh
echo "== a namespace that enforces Pod Security restricted"
kubectl create namespace heterotrain-demo --dry-run=client -o yaml | kubectl apply -f -
kubectl label --overwrite namespace heterotrain-demo pod-security.kubernetes.io/enforce=restricted >/dev/null
htj delete htj "$job" --ignore-not-found --wait --timeout=60s
htj wait pod --selector "heterotrain.io/job=$job" --for=delete --timeout=90s

echo "== kubectl apply -f examples/fashion.yaml"
applied=$SECONDS
htj apply -f examples/fashion.yaml
htj wait htj "$job" --for=condition=PodsReady --timeout=5m
restore() { for node in $(kind get nodes --name heterotrain); do docker update --cpus "$(nproc)" "$node" >/dev/null; done; }
trap restore EXIT
while read -r pool cpus; do
  node=$(kubectl get nodes -l "pool=$pool" -o jsonpath='{.items[0].metadata.name}')
  docker update --cpus "$cpus" "$node" >/dev/null
  echo "node $node (pool $pool): $cpus CPU"
done <<< $'new 0.8\nmid 0.4\nold 0.2\ntiny 0.1'

echo "== kubectl get htj, until it is over"
for (( round = 0; ; round++ )); do
  state=$(succeeded)
  if (( round == 8 )); then
    echo "== a plan that fits the nodes: 8 : 4 : 2 : 1"
    htj annotate --overwrite htj "$job" 'heterotrain.io/plan-request={"id": "demo-1", "reason": "as the nodes are",
      "shares": {"new-0": 267, "mid-0": 133, "old-0": 67, "tiny-0": 33}}'
  fi
  if (( round % 6 == 0 )) || [[ $state == True || $state == False ]]; then htj get htj "$job"; fi
  [[ $state == True || $state == False ]] && break
  if (( SECONDS - applied > 2400 )); then echo "The job is not over after 40 minutes." >&2; break; fi
  sleep 5
done
finished=$SECONDS
restore

echo "== kubectl describe htj $job"
htj describe htj "$job"
htj wait htj "$job" --for=condition=Succeeded --timeout=5s
echo "From kubectl apply to the job's end: $(( finished - applied )) s; from the start of this script: $(( finished - started )) s."
echo "The job is still there: kubectl -n heterotrain-demo get htj,pods"
