#!/usr/bin/env bash
# Connect the pods of the kind cluster: a bridge on each node, and a route to each other node's pods. A second, also where
# all is well. Routes, and the nodes' addresses, do not outlive a restart of the Docker engine, from which the nodes come
# back by themselves, ready but cut off from each other's pods.
# Usage: [CLUSTER_CACHE=folder] hack/cluster/connect-pods.sh
set -euo pipefail
export PATH="${CLUSTER_CACHE:-$HOME/.cache/heterotrain-cluster}/bin:$PATH"
nodes=$(kubectl --context kind-heterotrain get nodes -o jsonpath='{range .items[*]}{.metadata.name} {.spec.podCIDR}{"\n"}{end}')
routes=
while read -r name cidr; do
  address=$(docker inspect -f '{{.NetworkSettings.Networks.kind.IPAddress}}' "$name" < /dev/null)
  routes+="$cidr $address"$'\n'
done <<< "$nodes"
while read -r name cidr; do
  docker exec -i "$name" sh -euc '
    cat > /etc/cni/net.d/10-bridge.conflist.new
    mv /etc/cni/net.d/10-bridge.conflist.new /etc/cni/net.d/10-bridge.conflist
    echo "$2" | while read -r pods address; do
      [ -z "$pods" ] || [ "$pods" = "$1" ] || ip route replace "$pods" via "$address"
    done' sh "$cidr" "$routes" <<JSON
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "$cidr"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
JSON
done <<< "$nodes"
