# Every target sets itself up: a fresh clone needs Python 3.11 or newer, make and git, nothing else.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
venv := .venv
bin := $(venv)/bin
installed := $(venv)/.installed
# What jobs and the examples need, without the operator and the tools of development.
for_jobs := $(venv)/.installed-for-jobs
jobs_extras := trainer,plots,examples
all_extras := operator,$(jobs_extras),dev
# A process of pytest a core and one more, up to five: tests of real jobs and control planes wait half of their time.
parallel := -n $(shell cores=$$(nproc); echo $$((cores < 4 ? cores + 1 : 5)))

.PHONY: help venv fmt lint types imports tree chart generate verify test test-gpu test-integration test-e2e \
  data demo lab bench cluster demo-cluster images install lock clean

help: ## Show this list
	@grep -hE '^[a-z][a-z0-9-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | \
	  while IFS=$$'\t' read -r target text; do printf '%-18s %s\n' "$$target" "$$text"; done

venv: $(installed) ## Create .venv and install the project with all extras (again when pyproject.toml changed)

define install # install EXTRAS
test -x $(bin)/python || $(PYTHON) -m venv $(venv)
@echo "== Installing into $(venv), this once: heterotrain with the extras $(1)."
@echo "== Of 6 GB on the disk, 5 are PyTorch with its CUDA libraries; it takes minutes, as fast as the network is. What"
@echo "== $(venv) has already is kept: a build of PyTorch for CPUs alone, put there before, spares nine tenths."
$(bin)/python -m pip install --disable-pip-version-check $(if $(CI),--quiet) --editable '.[$(1)]'
endef

$(installed): pyproject.toml
	$(call install,$(all_extras))
	touch $(for_jobs) $@

$(for_jobs): pyproject.toml
	$(call install,$(jobs_extras))
	touch $@

fmt: venv ## Format the code and mend what ruff can mend
	$(bin)/ruff format
	$(bin)/ruff check --fix

lint: venv ## Check format and lint rules
	$(bin)/ruff format --check
	$(bin)/ruff check

types: venv ## Check types (mypy --strict)
	$(bin)/mypy

imports: venv ## Check which package may import which
	$(bin)/lint-imports

tree: ## Check the tree: source roots without __init__.py, shell syntax, no machine paths
	hack/check-tree.sh

chart: venv ## Lint the Helm chart and test what it renders (where helm is)
	PYTHON=$(bin)/python hack/check-chart.sh

generate: venv ## Write the generated files again: gRPC stubs, CRD, the chart's copy of it
	PYTHON=$(bin)/python hack/generate.sh

verify: lint types imports tree chart ## All static checks, and that every generated file is fresh
	PYTHON=$(bin)/python hack/check-generated.sh

test: venv ## Run the unit and component tests
	$(bin)/python -m pytest $(parallel) --dist loadgroup --no-loadscope-reorder --durations=15 --durations-min=5 tests/unit tests/component

test-gpu: venv ## Run the tests of workers on CUDA; skipped where there is no NVIDIA GPU
	$(bin)/python -m pytest -rs tests/gpu

test-integration: venv ## Run the operator's tests against a real API server
	PYTHON=$(bin)/python hack/test-integration.sh $(parallel) --dist worksteal

test-e2e: venv ## Make or update the kind cluster, and run the end-to-end tests on it
	PYTHON=$(bin)/python hack/test-e2e.sh

data: ## Fetch the Fashion-MNIST files into a cache folder (no root)
	hack/fetch-fashion-mnist.sh

demo: $(for_jobs) data ## Train Fashion-MNIST on 4 unequal workers, with equal shares and with adaptation; demo-report/
	PYTHON=$(bin)/python hack/demo.sh

lab: $(for_jobs) data ## Unequal workers beside PyTorch DDP and the ideal, every set-up (1.5 h; SETUPS=straggler-4: 10 min)
	PYTHON=$(bin)/python hack/lab.sh

bench: venv ## Run the benchmarks in bench/ on this machine
	PYTHON=$(bin)/python hack/bench.sh

images: ## Build the operator, trainer and examples images with Docker
	hack/build-images.sh

install: ## Cluster, images and operator as this tree has them
	hack/install.sh

cluster: ## Create a kind cluster from packages, without an image registry (Debian, root)
	hack/cluster.sh

demo-cluster: ## Cluster, images, operator, and examples/fashion.yaml on four unequal nodes
	hack/demo-cluster.sh

lock: venv ## Write the hash-pinned requirement files of both images again
	PYTHON=$(bin)/python hack/lock.sh

clean: ## Remove caches, reports and runs (not .venv)
	rm -rf demo-report lab-report report runs dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
