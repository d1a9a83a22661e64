# What to do with tiergate. `make help` lists it. Every target makes what it needs first, and only when something changed.

PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 8080
TORCH ?= torch==2.13.0

# PyTorch's index of CPU builds, for machines where pip would bring a CUDA build that they have no use for.
TORCH_INDEX ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help install serve test bench bench-peers sanitize lint format map clean
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

help:  ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(VENV)/.lint  ## Make .venv with everything in it (PYTHON=, TORCH=, TORCH_INDEX=).

serve: $(VENV)/.run  ## Serve on HOST=127.0.0.1, PORT=8080; makes the embedded models on first use.
	$(BIN)/tiergate serve --host $(HOST) --port $(PORT) $(ARGS)

test: $(VENV)/.test  ## Run all tests, or those named in ARGS=.
	$(BIN)/pytest $(ARGS)

bench: $(VENV)/.test  ## Measure engine and gateway, and print tables.
	$(BIN)/python -P tests/bench/run.py $(ARGS)

bench-peers: $(VENV)/.test  ## Install other engines under build/peers, and measure ours beside them.
	$(BIN)/python -P tests/bench/peers/install.py --torch-index "$(TORCH_INDEX)"
	$(BIN)/python -P tests/bench/peers/run.py $(ARGS)

sanitize: $(VENV)/.test  ## Test the CPU core built with the address and undefined-behaviour sanitizers (some minutes).
	PYTHONPATH=tests $(BIN)/python -P -m support.sanitized $(ARGS)

lint: $(VENV)/.lint  ## Check style and types: ruff, mypy, pyright.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python -P tests/conftest.py
	$(BIN)/mypy build/types/tiergate
	$(BIN)/pyright

format: $(VENV)/.lint  ## Let ruff lay out all files.
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

map: $(VENV)/.run  ## Write the map of the code into README.md.
	PYTHONPATH=tests $(BIN)/python -P -m support.readme_map

clean:  ## Remove what was built and cached here; .venv stays.
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# The interpreter as a prerequisite by name, so that a new .venv is filled again.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tiergate needs Python 3.11 or newer; name one with PYTHON=")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.torch: | $(BIN)/python
	@$(PIP) install 'pip>=23'
	@if $(BIN)/python -c 'from importlib.metadata import version; version("torch")' 2>/dev/null; then \
		echo "torch is here already"; \
	elif [ -n "$(TORCH_INDEX)" ]; then \
		$(PIP) install --index-url "$(TORCH_INDEX)" "$(TORCH)"; \
	elif command -v nvidia-smi >/dev/null; then \
		$(PIP) install "$(TORCH)"; \
	elif ! $(PIP) install "$(TORCH)+cpu" 2>/dev/null; then \
		echo "pip finds no CPU build of $(TORCH) by itself; the usual one may bring some GB of CUDA along."; \
		echo "To avoid that, stop here and say: make $(or $(MAKECMDGOALS),install) TORCH_INDEX=<address of PyTorch's CPU index>"; \
		$(PIP) install "$(TORCH)"; \
	fi
	@touch $@

$(VENV)/.run: pyproject.toml | $(VENV)/.torch
	$(PIP) install --quiet --editable .
	@touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/.torch
	$(PIP) install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/.run

$(VENV)/.lint: pyproject.toml | $(VENV)/.torch
	$(PIP) install --quiet --editable '.[dev,lint]'
	@touch $@ $(VENV)/.run $(VENV)/.test
