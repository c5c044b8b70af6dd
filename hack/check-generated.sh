#!/usr/bin/env bash
# Generate everything again and fail if that changes a file, or leaves one that git does not know.
# Usage: [PYTHON=.venv/bin/python] hack/check-generated.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
generated=('api/heterotrain_rpc/*_pb2*' 'crds' 'charts/*/files/crds' 'docs/rest-api.md')

hack/generate.sh
if ! git diff --exit-code --stat -- "${generated[@]}"; then
  echo "These files differ from what their sources give: commit what is now in the tree." >&2
  exit 1
fi
unknown=$(git ls-files --others --exclude-standard -- "${generated[@]}")
if [[ -n $unknown ]]; then
  printf 'Generated, but unknown to git (add them):\n%s\n' "$unknown" >&2
  exit 1
fi
