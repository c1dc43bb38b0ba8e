PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 3

.PHONY: quickstart test slow check docs bench clean

# A fresh machine with Python >= 3.11: a venv, install, generate a small dataset, run it on a local Ray, print the summary, write the report.
quickstart: $(VENV)/.installed
	$(BIN)/rayio run unet3d-small

# A venv with the test extras, and the suite (without the slow tier). One of three processes begins with the tests on Ray,
# which often wait (tests/beside.py).
test: $(VENV)/.installed-test
	$(BIN)/python -m pytest --numprocesses $(WORKERS)

# What is long, and every law over more examples than there, new ones each time.
slow: $(VENV)/.installed-test $(VENV)/.installed-cluster
	$(BIN)/python -m pytest --numprocesses $(WORKERS) -m "slow or hypothesis" --hypothesis-profile deep

# What every commit must pass: format, lint, types, language (tests/prose.py).
check: $(VENV)/.installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python tests/prose.py

# The documentation as a site, in build/site; a link that leads nowhere is an error.
docs: $(VENV)/.installed-docs
	$(BIN)/python -m mkdocs build --strict

# Every benchmark, each prints its table; see benchmarks/README.md.
bench: $(VENV)/.installed-test
	for script in benchmarks/[a-z]*.py; do $(BIN)/python $$script || exit 1; done

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rayio needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

# torch comes first and alone, so that pip takes its CPU build where there is one.
$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@

# Ray's dashboard, for the tests of jobs. Each Ray that is started takes 1.5 CPU seconds more with it.
$(VENV)/.installed-cluster: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet --editable '.[cluster]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

clean:
	rm -rf build $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
