PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 4

.PHONY: quickstart test slow check docs bench clean

# For a new machine with Python >= 3.11: a venv, install, a small dataset, a run on a local Ray, summary and report.
quickstart: $(VENV)/.installed
	$(BIN)/rayio run unet3d-small

# A venv with the test extras, and the suite without the slow tier. One of four processes begins with the tests on Ray
# (tests/beside.py).
test: $(VENV)/.installed-test
	$(BIN)/python -m pytest --numprocesses $(WORKERS)

# The slow tier, and every law over more and new examples.
slow: $(VENV)/.installed-test $(VENV)/.installed-cluster
	$(BIN)/python -m pytest --numprocesses $(WORKERS) -m "slow or hypothesis" --hypothesis-profile deep

# Format, lint, types and language (tests/prose.py). Every commit must pass.
check: $(VENV)/.installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python tests/prose.py

# The documentation as a site, in build/site; a broken link is an error.
docs: $(VENV)/.installed-docs
	$(BIN)/python -m mkdocs build --strict

# Every benchmark prints its table; see benchmarks/README.md.
bench: $(VENV)/.installed-test
	for script in benchmarks/[a-z]*.py; do $(BIN)/python $$script || exit 1; done

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rayio needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

# torch is installed first and alone, so that pip takes its CPU build if there is one.
$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@

# Ray's dashboard, for the tests of jobs. It adds 1.5 CPU seconds to each start of Ray.
$(VENV)/.installed-cluster: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet --editable '.[cluster]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

clean:
	rm -rf build $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
