#!/usr/bin/env bash
# Generate the gRPC stubs and their type stubs from the .proto files, in place.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
PATH="$(dirname "$python"):$PATH"
"$python" -m grpc_tools.protoc -I api --python_out=api --grpc_python_out=api --mypy_out=api --mypy_grpc_out=api \
  api/heterotrain_rpc/control.proto api/heterotrain_rpc/session.proto api/heterotrain_rpc/shard.proto
