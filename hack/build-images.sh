#!/usr/bin/env bash
# Build heterotrain/operator:dev, heterotrain/trainer:dev and heterotrain/examples:dev with Docker.
# Base images: those of hack/cluster/ where they are there, else from a registry (python:3.14-slim, and Debian with its
# CPU build of PyTorch); or name your own, for example a CUDA build of PyTorch.
# And when they are named: heterotrain/prometheus:dev and heterotrain/node-exporter:dev, of Debian's packages.
# Usage: [PYTHON_BASE=image] [TORCH_BASE=image] [REPOSITORY=heterotrain] [TAG=dev]
#        hack/build-images.sh [operator] [trainer] [examples] [prometheus] [node-exporter]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
repository=${REPOSITORY:-heterotrain} tag=${TAG:-dev}
export DOCKER_BUILDKIT=0   # the builder that every Docker has; the files use nothing that it lacks
have() { docker image inspect "$1" >/dev/null 2>&1; }

build() { # build NAME DOCKERFILE BASE_IMAGE [OPTION...]; DOCKERFILE -: standard input, which needs no file of this tree
  echo "== $repository/$1:$tag"
  local source=(--file "$2" .)
  [[ $2 != - ]] || source=(-)
  # Newer clients advertise another builder in their first lines.
  docker build --quiet --tag "$repository/$1:$tag" --build-arg "BASE_IMAGE=$3" "${@:4}" "${source[@]}" \
    2> >(sed '/^DEPRECATED: The legacy builder/,/^$/d' >&2)
}
python_base() {
  if [[ -n ${PYTHON_BASE:-} ]]; then echo "$PYTHON_BASE"
  elif have heterotrain/python-base; then echo heterotrain/python-base
  else echo python:3.14-slim; fi
}
torch_base() { # the name of a base image with PyTorch, which is made if there is none
  if [[ -z ${TORCH_BASE:-} ]] && ! have heterotrain/torch-base; then
    docker build --quiet --tag heterotrain/torch-base - >/dev/null <<'DOCKERFILE'
FROM debian:forky-slim
RUN apt-get update -q && apt-get install -y -q --no-install-recommends python3 python3-venv python3-torch python3-numpy ca-certificates && rm -rf /var/lib/apt/lists/*
DOCKERFILE
  fi
  echo "${TORCH_BASE:-heterotrain/torch-base}"
}
monitoring() { # monitoring NAME: a program of Debian's packages, alone
  local base=debian:forky-slim
  if have heterotrain/python-base; then base=heterotrain/python-base; fi
  if ! have heterotrain/prometheus-base; then
    docker build --quiet --tag heterotrain/prometheus-base - >/dev/null <<'DOCKERFILE'
FROM debian:forky-slim
RUN apt-get update -q && apt-get install -y -q --no-install-recommends prometheus prometheus-node-exporter && rm -rf /var/lib/apt/lists/*
DOCKERFILE
  fi
  build "$1" - "$base" --target "$1" < hack/monitoring/Dockerfile
}

docker info >/dev/null 2>&1 || { echo "There is no Docker engine here; on Debian hack/cluster/start-docker.sh installs one." >&2; exit 1; }
(( $# )) || set -- operator trainer examples
for image in "$@"; do
  case $image in
    operator) build operator Dockerfile.operator "$(python_base)" ;;
    trainer) build trainer Dockerfile.trainer "$(torch_base)" ;;
    examples)
      data=$(hack/fetch-fashion-mnist.sh)
      mkdir -p .data/fashion-mnist
      cp --update "$data"/*.gz .data/fashion-mnist/
      build examples examples/Dockerfile "$repository/trainer:$tag" ;;
    prometheus | node-exporter) monitoring "$image" ;;
    *) echo "There is no image $image; choose operator, trainer, examples, prometheus or node-exporter." >&2; exit 2 ;;
  esac
done
