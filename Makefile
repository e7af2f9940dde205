# The commands a person uses: `make demo` shows the product at work, `make test` runs every test, `make bench` times it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint bench clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Installed again when the dependency lists or the C++ kernel change.
SOURCES := pyproject.toml setup.py constraints.txt $(wildcard src/polaformer/ops/native/*.cpp src/polaformer/ops/native/*.h)

$(VENV)/.train: $(BIN)/python $(SOURCES)
	@echo "Installing polaformer and what training needs into $(VENV) (PyTorch is large: some minutes) ..."
	$(INSTALL) -e ".[train]"
	@touch $@

$(VENV)/.dev: $(BIN)/python $(SOURCES)
	@echo "Installing polaformer and what its tests need into $(VENV) (PyTorch is large: some minutes) ..."
	$(INSTALL) -e ".[dev]"
	@touch $@ $(VENV)/.train

demo: $(VENV)/.train
	$(BIN)/polaformer demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

# The tables of docs/performance.md, on an otherwise idle machine.
bench: $(VENV)/.train
	$(BIN)/python benchmarks/attention.py --rounds 9
	$(BIN)/python benchmarks/network.py --rounds 9

clean:
	rm -rf $(VENV) build dist src/*.egg-info
