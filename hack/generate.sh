#!/usr/bin/env bash
# Write every generated file again, in place: gRPC stubs, the CRDs, the chart's copy of them, the REST API's reference.
# Usage: [PYTHON=.venv/bin/python] hack/generate.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}

PYTHON=$python hack/generate-stubs.sh

new=$(mktemp)
trap 'rm -f "$new"' EXIT
for plural in heterotrainjobs collectionrules processingrules; do
  crd=crds/$plural.yaml
  "$python" -m heterotrain_api.crd "$plural" > "$new"   # not straight into place: a failing generator must not empty the file
  cat "$new" > "$crd"
  for chart in charts/*/Chart.yaml; do
    [[ -e $chart ]] || continue
    install -D -m 644 "$crd" "$(dirname "$chart")/files/crds/$(basename "$crd")"
  done
done

"$python" -m heterotrain_operator.rest.reference > "$new"
cat "$new" > docs/rest-api.md
