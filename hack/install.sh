#!/usr/bin/env bash
# Bring the kind cluster up to date with this tree: cluster, images, images in the nodes, operator. What is there already
# is left as it is. The operator's namespace enforces Pod Security `restricted`.
# Usage: [CLUSTER_CACHE=folder] hack/install.sh [option of `helm upgrade`...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH=${CLUSTER_CACHE:-$HOME/.cache/heterotrain-cluster}/bin:$PATH
namespace=heterotrain-system
release=heterotrain-operator

if kubectl --context kind-heterotrain --request-timeout 10s get --raw /readyz >/dev/null 2>&1; then
  hack/cluster/connect-pods.sh
else
  hack/cluster.sh
fi
kubectl config use-context kind-heterotrain >/dev/null
hack/build-images.sh
# The operator runs on the node that nobody slows down.
control_plane=$(kubectl get nodes -l node-role.kubernetes.io/control-plane -o jsonpath='{.items[0].metadata.name}')
hack/load-images.py --nodes "$control_plane" heterotrain/operator:dev
hack/load-images.py heterotrain/trainer:dev heterotrain/examples:dev

kubectl create namespace "$namespace" --dry-run=client -o yaml | kubectl apply -f - >/dev/null
kubectl label --overwrite namespace "$namespace" pod-security.kubernetes.io/enforce=restricted >/dev/null
# Trees before this one named the release `heterotrain`. A Deployment cannot get the new name's labels, so it goes; the
# CRDs stay, and with them all jobs, and are taken over.
if helm status heterotrain --namespace "$namespace" >/dev/null 2>&1; then
  helm uninstall heterotrain --namespace "$namespace" --wait --timeout 3m
fi
# The tag is always dev: the annotation makes a new pod for a new image.
helm upgrade --install "$release" charts/heterotrain-operator --namespace "$namespace" --take-ownership --wait --timeout 3m \
  --set image.tag=dev --set trainerImage.tag=dev \
  --set "nodeSelector.node-role\.kubernetes\.io/control-plane=" \
  --set-string "podAnnotations.heterotrain\.io/image-id=$(docker image inspect -f '{{.Id}}' heterotrain/operator:dev)" "$@"
