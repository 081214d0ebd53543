# make demo | make test | make docs : each sets up .venv from the pinned constraints first, then runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.base
STAMP := $(VENV)/.installed

.PHONY: demo test test-long test-all docs generated tutorials lint format clean install dist release

demo: $(BASE)
	$(BIN)/parley demo

# Three processes for two cores: some tests wait.
test: install lint
	$(BIN)/python -m pytest -n 3

test-long: install
	$(BIN)/python -m pytest -n 3 -m "long and not slow"

test-all: install lint
	$(BIN)/python -m pytest -n 2 -m "long or slow or not slow"

docs: install
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build
	@echo docs/_build/index.html

# Everything that is made from the code or from recorded results; tests compare.
generated: install
	$(BIN)/python -m parley.cli.index
	for each in configuration algorithms commands reproduction peers bench; do $(BIN)/python docs/make_$$each.py || exit 1; done

# The tutorials executed anew, with what they show stored in them; minutes.
tutorials: install
	$(BIN)/python docs/make_tutorials.py

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

install: $(STAMP)

# What the library itself needs.
$(BASE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Parley needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	@touch $(BASE)

# What developing it needs besides.
$(STAMP): $(BASE)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps byzfl  # its aggregators need no torchvision
	@touch $(STAMP)

# The wheel, installed and tried in an environment of its own.
dist: $(BASE)
	rm -rf dist build $(VENV)/wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	$(PYTHON) -m venv $(VENV)/wheel
	$(VENV)/wheel/bin/python -m pip install --quiet -c constraints.txt torch==2.13.0
	$(VENV)/wheel/bin/python -m pip install --quiet -c constraints.txt dist/*.whl
	cd dist && ../$(VENV)/wheel/bin/parley --version && ../$(VENV)/wheel/bin/parley doctor

# Everything that must hold, then the tag; pushing it is left to a person.
release: test test-long docs dist
	git diff --quiet HEAD
	git tag -a "v$$($(BIN)/python -c 'import parley; print(parley.__version__)')" -m "Release"

clean:
	rm -rf $(VENV) build dist docs/_build docs/api *.egg-info .pytest_cache .mypy_cache .ruff_cache
