# Everything from a clone: `make demo` shows the package at work, `make test` runs all checks.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := $(VENV)/.demo
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo test quick lint types imports pytest docs format bench campaign paper oldest dist clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## create .venv and install everything, pinned

$(DEMO): pyproject.toml constraints.txt # only what the demo needs
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable ".[digits,report]"
	touch $@

$(INSTALLED): $(DEMO) # what development needs in addition
	$(PIP) --editable ".[dev]"
	touch $@

demo: $(DEMO) ## train on images of digits for a few minutes; writes runs/demo/
	TORCHMULTISET_MNIST=bundled $(BIN)/multiset train --preset demo --out runs/demo --resume
	@echo "For comparison: a count head, trained for two epochs."
	@TORCHMULTISET_MNIST=bundled $(BIN)/multiset train --preset demo --objective counts --epochs 2 --out runs/demo-counts --resume > /dev/null
	$(BIN)/multiset compare data/demo runs/demo runs/demo-counts

test: lint types imports pytest ## run every check: format, lint, types, import contract, tests

lint: $(INSTALLED) ## check format and style
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(INSTALLED) ## check types
	$(BIN)/mypy

imports: $(INSTALLED) ## check that imports go down only
	$(BIN)/lint-imports

pytest: $(INSTALLED) ## run the tests and the examples in the documentation
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

quick: $(INSTALLED) ## run the fast tests, about a minute
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal -m "not slow" src tests

format: $(INSTALLED) ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(INSTALLED) ## measure speed and memory; writes results/bench/
	$(BIN)/python -m benchmarks

campaign: $(INSTALLED) ## inject thousands of faults, about an hour; writes results/campaign.json: ARGS="--minutes 30"
	$(BIN)/python -m campaign $(ARGS)

SCALE ?= smoke
TABLES ?= all
paper: $(INSTALLED) ## run the paper's tables and write docs/results/: SCALE=small TABLES="table-3 entropy" ARGS="--workers 2"
	$(BIN)/python -m paper run $(TABLES) --scale $(SCALE) $(ARGS)
	$(BIN)/python -m paper report --scale $(SCALE)
	$(BIN)/python tools/quote_results.py

docs: $(INSTALLED) ## build the documentation; writes site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "To read it: $(PYTHON) -m http.server --directory site, then open http://localhost:8000"

oldest: ## check the lower bounds of pyproject.toml, some gigabytes; writes results/oldest.json
	$(PYTHON) tools/oldest.py

dist: $(INSTALLED) ## build sdist and wheel, and check their metadata; writes dist/
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python tools/check_dist.py dist

clean: ## remove installed and cached files
	rm -rf $(VENV) .venv-oldest site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
