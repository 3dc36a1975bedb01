# Everything runs in a virtual environment of its own, made on first use under
# .venv/, one for each version of Python. Another interpreter: make test PYTHON=python3.12

ifndef PYTHON
PYTHON := $(shell python3.11 -c 'import ensurepip' >/dev/null 2>&1 \
  && echo python3.11 || echo python3)
endif

VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
ifeq ($(VERSION),)
$(error '$(PYTHON)' is not a Python that runs: choose one with PYTHON=)
endif

VENV := .venv/$(VERSION)
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ACCELERATORS := .venv/accelerators
GPU := .venv/gpu
DOCS := .venv/docs

WORKERS ?= 2
ARGS ?=
PART ?=
BASE ?= main

.DEFAULT_GOAL := help
.PHONY: help environment demo test test-all test-changed test-quick check bench bench-gpu \
  accelerators fuzz mutants notebooks docs docs-check clean

help:  ## list what make can do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "PYTHON=     the interpreter (now $(PYTHON), $(VERSION))"
	@echo "ARGS=       further arguments to pytest, the demo, the benchmark or the campaign"
	@echo "PART=       a folder of tests/, for make test"
	@echo "WORKERS=    how many tests run side by side (now $(WORKERS))"

environment: $(READY)  ## make the virtual environment; the others below do so too

demo: $(READY)  ## run the example that needs no data: examples/function_names.py
	$(BIN)/python examples/function_names.py $(ARGS)

test: $(READY)  ## run the tests and the examples in docstrings; PART=device some
	$(BIN)/python -m pytest -n $(WORKERS) $(PART:%=tests/%) $(ARGS)

test-all: $(READY)  ## the same, with long tests and all cases of sampled ones
	$(BIN)/python -m pytest -n $(WORKERS) --all $(PART:%=tests/%) $(ARGS)

test-changed: $(READY)  ## the quick tests of the rooms that differ from BASE (now $(BASE))
	$(BIN)/python -m pytest -n $(WORKERS) -m 'not slow' $(ARGS) \
	  $$($(BIN)/python tests/support/changed.py $(BASE))

test-quick: $(READY)  ## the same without the slow ones
	$(BIN)/python -m pytest -n $(WORKERS) -m 'not slow' $(ARGS)

check: $(READY)  ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## measure everything, in hours; ARGS=--quick in minutes
	$(BIN)/python benchmarks/suite.py $(ARGS)

bench-gpu: $(GPU)/.ready  ## measure what there is to measure on a GPU, in 45 minutes
	$(GPU)/bin/python benchmarks/gpu.py $(ARGS)

accelerators: $(ACCELERATORS)/.ready  ## compile for a GPU and a TPU, there or not (downloads 1 GB)
	JAX_PLATFORMS=cpu $(ACCELERATORS)/bin/python -m pytest $(ARGS) tests/accelerators

fuzz: $(READY)  ## look for faults by drawing cases; ARGS='--minutes 60 --workers 2'
	$(BIN)/python tests/fuzz/campaign.py $(ARGS)

mutants: $(READY)  ## make the code wrong in one place after another: do tests see it?
	$(BIN)/python tests/support/mutants.py $(ARGS)

notebooks: $(DOCS)/.ready  ## execute the notebooks; ARGS=first_model some
	JAX_PLATFORMS=cpu $(DOCS)/bin/python docs/site/notebooks.py $(ARGS)

docs: $(DOCS)/.ready  ## build the site of the documentation, in build/docs
	rm -rf build/docs
	JAX_PLATFORMS=cpu $(DOCS)/bin/sphinx-build -W --keep-going -q -E \
	  -d build/doctrees -c docs . build/docs

docs-check: docs  ## check the site: links, search, widths (needs Chromium)
	$(DOCS)/bin/python docs/site/check.py $(ARGS)

clean:  ## remove the environments, caches and build products
	rm -rf .venv .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check \
	  --editable '.[dev,examples]'
	@touch $@

# With drivers in place, `jax[cuda12]` is all that a GPU takes.
$(GPU)/.ready: $(READY)
	$(PYTHON) -m venv $(GPU)
	$(GPU)/bin/python -m pip install -qq --disable-pip-version-check \
	  --editable '.[examples]' \
	  "jax[cuda12]==$$($(BIN)/python -c 'import jax; print(jax.__version__)')"
	@touch $@

# Sphinx imports the package, and notebooks run: JAX and what examples need are here too.
$(DOCS)/.ready: pyproject.toml
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install -qq --disable-pip-version-check \
	  --editable '.[docs]'
	@touch $@

# The same JAX as the tests have: its plugins must be of one version with it.
$(ACCELERATORS)/.ready: $(READY)
	$(PYTHON) -m venv $(ACCELERATORS)
	$(ACCELERATORS)/bin/python -m pip install -qq --disable-pip-version-check \
	  --editable '.[accelerators]' \
	  "jax==$$($(BIN)/python -c 'import jax; print(jax.__version__)')"
	@touch $@
