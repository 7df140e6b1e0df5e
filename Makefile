# Everything runs in .venv, made here from the python3 on the PATH (3.11 or newer); nothing else is touched.
PYTHON ?= python3
BIN := .venv/bin

# What verdicts are compared with: those of the small settings, or without these, all committed ones.
KNOWN ?= $(or $(wildcard benchmarks/quick.tsv),results)

.PHONY: help digits test lint docs nightly clean

help:
	@echo "make digits   install, then compare seven algorithms on real handwritten digits"
	@echo "make test     install with the test extra, then run all tests"
	@echo "make lint     ruff and mypy"
	@echo "make docs     build the documentation into site/"
	@echo "make nightly  every reproduction in its small setting, two at a time; fails where a verdict got worse"
	@echo "make clean    remove .venv, site/ and caches"

digits: .venv/installed
	$(BIN)/resolvent run digits

test: .venv/installed-test
	$(BIN)/python -m pytest -n auto --dist loadgroup

lint: .venv/installed-lint
	$(BIN)/ruff check
	$(BIN)/mypy

docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

nightly: .venv/installed
	$(BIN)/resolvent reproduce --all --quick --jobs 2 --out "$$(mktemp -d)" --against $(KNOWN)

clean:
	rm -rf .venv site .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

.venv/installed-%: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@
