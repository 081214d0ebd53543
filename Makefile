# make demo | make test | make docs : each sets up .venv from the pinned constraints first, then runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-long test-all docs lint format clean install

demo: install
	$(BIN)/parley demo

# Three processes for two cores: some tests wait.
test: install lint
	$(BIN)/python -m pytest -n 3

test-long: install
	$(BIN)/python -m pytest -n 2 -m "long and not slow"

test-all: install lint
	$(BIN)/python -m pytest -n 2 -m "long or slow or not slow"

docs: install
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build
	@echo docs/_build/index.html

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Parley needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

clean:
	rm -rf $(VENV) build dist docs/_build docs/api *.egg-info .pytest_cache .mypy_cache .ruff_cache
