# Everything runs in .venv, which is made here from the python3 on the PATH (3.11 or newer).
PYTHON ?= python3
BIN := .venv/bin

# The verdicts that `make nightly` compares with: those of the small settings.
KNOWN ?= experiments/quick.tsv

# The campaign of faults: numbers of cases, the seed, and the number of processes; see python tests/torture --help.
TORTURE ?= --kills 100 --corrupted 500 --tables 5000 --experiments 3000 --seed 0

# What `make nightly` runs: names of reproductions, or all of them.
REPRODUCTIONS ?= all

.PHONY: help figures federation federation-test flower-test digits test test-fast lint typed docs wheel versions compile-sweep nightly torture clean extras

help:
	@echo "make digits     install, then compare five methods on real handwritten digits"
	@echo "make test       install with the test extra, then run all tests"
	@echo "make test-fast  the same without the slow tests and those of browsers, kills and devices"
	@echo "make lint       ruff and mypy"
	@echo "make typed      mypy --strict and pyright of a user's script, with the installed package"
	@echo "make docs       build the documentation into site/"
	@echo "make figures    write the numbers and tables of the benchmarks into README and the pages, from their JSON files"
	@echo "make wheel      build into dist/, check both files, install the wheel into a fresh environment and run digits there"
	@echo "make versions   run digits, the contract and the models of the benchmark with the lowest and the newest dependencies"
	@echo "make compile-sweep  compile 2,000 programs with and without call metadata; fails if a result differs"
	@echo "make nightly    the tests that run at night only; all reproductions, small; fails if a verdict got worse"
	@echo "make federation       a federation on this machine: server, three sites, certificates; compared with a simulation"
	@echo "make federation-test  the tests of NVIDIA FLARE, in an environment of their own"
	@echo "make flower-test      the tests of Flower, in an environment of their own"
	@echo "make torture    a campaign of faults: kills, damaged files, hostile input, missing resources; fails if one is wrong"
	@echo "make clean      remove .venv, dist/, site/ and caches"

digits: .venv/installed
	$(BIN)/resolvent run digits

# NVIDIA FLARE has an environment of its own: its requirements do not fit those of the other extras.
federation: .venv-federation/installed
	.venv-federation/bin/resolvent lead start digits --rehearse --out "$$(mktemp -d)/digits"

federation-test: .venv-federation/installed
	.venv-federation/bin/python -m pip install --quiet --disable-pip-version-check pytest pytest-xdist psutil
	timeout 600 .venv-federation/bin/python -m pytest tests/federation/test_nvflare.py tests/federation/test_plans.py

# With RESOLVENT_NIGHTLY=1 also the processes that are connected with TLS.
flower-test: .venv-flower/installed
	.venv-flower/bin/python -m pip install --quiet --disable-pip-version-check pytest pytest-xdist psutil
	timeout 600 .venv-flower/bin/python -m pytest tests/federation/test_flower.py

test: .venv/installed-test
	$(BIN)/python -m pytest -n auto --dist loadfile

test-fast: .venv/installed-test
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not slow and not browser and not kill and not devices"

lint: .venv/installed-lint
	$(BIN)/ruff check
	$(BIN)/mypy

# In the folder tests/, where mypy does not read the settings of the project.
typed: .venv/installed-lint
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pyright[nodejs]'
	cd tests && ../$(BIN)/mypy --strict --config-file= typed_script.py
	cd tests && ../$(BIN)/pyright --pythonpath ../$(BIN)/python typed_script.py

docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The documentation is in site/. This shows it at http://localhost:8000:"
	@echo "    $(BIN)/python -m http.server --directory site"

figures: .venv/installed
	$(BIN)/python benchmarks/figures.py

# An environment of its own, so that it can be made while the extras are installed into the other.
wheel: .venv-build/installed
	rm -rf dist
	.venv-build/bin/python -m build --outdir dist
	.venv-build/bin/python .ci/check_wheel.py dist/*.whl dist/*.tar.gz

versions: .venv/bin/python
	$(BIN)/python .ci/check_versions.py --speed

compile-sweep: .venv/installed-test
	$(BIN)/python tests/xla/compile_sweep.py

nightly: .venv/installed .venv/installed-test
	RESOLVENT_NIGHTLY=1 $(BIN)/python -m pytest -n auto --dist loadfile -m "nightly or when_changed"
	RESOLVENT_NIGHTLY=1 $(BIN)/python -m pytest -n auto --dist loadfile tests/algorithms/test_compositions.py \
		tests/simulator/test_schedulers.py tests/comparisons/test_estimators.py tests/xla/test_compile_sweep.py
	$(BIN)/python -m experiments $(REPRODUCTIONS) --quick --jobs 2 --out "$$(mktemp -d)" --against $(KNOWN) || \
		{ test $$? -eq 4 && echo "Some reproductions were skipped: their data are missing."; }

torture: .venv/installed-test
	$(BIN)/python tests/torture $(TORTURE)

clean:
	rm -rf .venv .venv-build .venv-federation .venv-flower dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .compiled

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv .venv

# Without --no-compile, pip compiles thousands of modules that nothing imports, which takes longer than the installation.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable

.venv-federation/installed: pyproject.toml
	test -x .venv-federation/bin/python || $(PYTHON) -m venv .venv-federation
	.venv-federation/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[nvflare,statistics]'
	@touch $@

.venv-flower/installed: pyproject.toml
	test -x .venv-flower/bin/python || $(PYTHON) -m venv .venv-flower
	.venv-flower/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[flower,statistics]'
	@touch $@

.venv-build/installed: pyproject.toml
	test -x .venv-build/bin/python || $(PYTHON) -m venv .venv-build
	.venv-build/bin/python -m pip install --quiet --disable-pip-version-check 'build>=1.2'
	@touch $@

.venv/installed: pyproject.toml | .venv/bin/python
	$(INSTALL) .
	@touch $@

.venv/installed-%: pyproject.toml | .venv/bin/python
	$(INSTALL) '.[$*]'
	@touch $@

# All extras of the checks in one installation.
extras: | .venv/bin/python
	$(INSTALL) '.[test,lint,docs]'
	@touch .venv/installed-test .venv/installed-lint .venv/installed-docs
