# Everything a person does with the project. `make help` lists it.
# On a fresh machine with Python and make, `make demo` and `make test` need nothing else.

PYTHON ?= python3
VENV ?= .venv
# The version we test with. Where there is no GPU, a CPU build of it is enough.
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
DEMO_HOME ?= $(CURDIR)/.demo-home
# More processes than cores: most tests wait for a cluster, a server or a clock. Long ones load the machine more.
WORKERS ?= 4
SLOW_WORKERS ?= 3
# Tests of one cluster stay together in one process: starting a cluster takes longer than most tests.
PYTEST := $(BIN)/python tools/run_tests.py --dist loadgroup

.PHONY: help setup setup-dev demo test test-fast test-slow test-kubernetes system frameworks check format bench bench-quick clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.installed ## the package and PyTorch in a virtual environment

setup-dev: $(VENV)/.installed-dev ## and what tests and checks need

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Windlass needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	@echo "installing PyTorch and Windlass (a few minutes the first time)"
	@$(PIP) '$(TORCH)' numpy
	@$(PIP) --editable '.[torch]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing what tests and checks need"
	@$(PIP) --editable '.[torch,postgres,secrets,dev]'
	@touch $@

demo: setup ## train a tiny language model on two processes, on this machine
	@WINDLASS_HOME=$(DEMO_HOME) $(BIN)/windlass run --file examples/tiny_lm/spec.yaml
	@echo "to go on in this shell:  source $(BIN)/activate; export WINDLASS_HOME=$(DEMO_HOME)"

test: setup-dev system ## all tests but the slow ones and those of Kubernetes
	$(PYTEST) -n $(WORKERS) -m "not slow and not kubernetes" tests

test-fast: setup-dev ## the inner loop: no servers, no PyTorch
	$(PYTEST) -n $(WORKERS) -m "not slow and not torch" tests/unit

test-slow: setup-dev system frameworks ## crash sweeps, fuzzing, load, the same training run on every engine
	$(PYTEST) -n $(SLOW_WORKERS) -m "slow and not kubernetes" tests

test-kubernetes: setup-dev ## the Kubernetes engine on a real control plane; builds that once (10 minutes)
	tools/kubernetes/build.sh
	$(PYTEST) -m kubernetes tests

system: ## Debian packages that tests use, where they can be installed
	@tools/system_packages.sh "tests of the Slurm engine need a Slurm" slurm-wlm=slurmctld munge=munged
	@tools/system_packages.sh "tests of the Helm chart need Helm, or what renders it" golang-go=go

frameworks: $(VENV)/.installed-frameworks ## JAX, XGBoost, Lightning, Accelerate, Transformers; TensorFlow apart

$(VENV)/.installed-frameworks: $(VENV)/.installed-dev
	@echo "installing other frameworks that tests train with"
	@$(PIP) --editable '.[frameworks]'
	@$(PYTHON) -m venv $(VENV)-tensorflow  # it pins versions of what others need newer
	@$(VENV)-tensorflow/bin/python -m pip install --quiet --disable-pip-version-check tensorflow-cpu
	@touch $@

check: setup-dev ## format, lint, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup-dev ## format and sort imports
	$(BIN)/ruff check --fix --select I .
	$(BIN)/ruff format .

bench: setup-dev ## every benchmark; writes docs/benchmarks.md
	@$(PIP) --editable '.[bench]'
	$(BIN)/python -m bench

bench-quick: setup-dev ## the same in a few minutes
	@$(PIP) --editable '.[bench]'
	$(BIN)/python -m bench --quick

clean: ## remove what make made; runs and records stay
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
