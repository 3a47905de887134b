VENV ?= .venv
export CUDA_AGENT_VENV := $(VENV)
PY := $(VENV)/bin/python

.PHONY: help setup demo test lint doctor clean

help:
	@echo "make demo    set up .venv, then optimize the six examples and print one table"
	@echo "make test    set up .venv, then run the tests"
	@echo "make lint    ruff and mypy"
	@echo "make doctor  what this machine offers, and the command that mends what is missing"
	@echo "make clean   remove .venv and caches"

setup:
	@command -v python3 >/dev/null || { echo "setup: python3 is missing; install Python 3.11 or newer (sudo apt install python3)." >&2; exit 1; }
	@python3 scripts/setup.py

demo: setup
	@$(PY) -m cuda_agent.cli demo

test: setup
	@$(PY) -m pytest -q $(PYTEST_ARGS)

lint: setup
	@$(PY) -m ruff check . && $(PY) -m ruff format --check . && $(PY) -m mypy

doctor: setup
	@$(PY) -m cuda_agent.cli doctor

clean:
	rm -rf $(VENV) build .pytest_cache .ruff_cache .mypy_cache .hypothesis
