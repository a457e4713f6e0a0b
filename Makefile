# Needs Python 3.11 or newer with pip, and make. Everything else comes from requirements/*.txt, by hash.
PYTHON ?= python3
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test check fmt bench lock
.DELETE_ON_ERROR:

# pip of the outer Python, aimed at the environment: works where Python came without ensurepip.
PIP := $(PYTHON) -m pip --disable-pip-version-check --python .venv/bin/python install --quiet
BIN := .venv/bin
# pyright's wrapper would ask for newer releases of itself on each start.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

help:
	@echo 'make demo    an agent works, its host is killed, it comes back and finishes'
	@echo 'make test    the test suite'
	@echo 'make check   lint, format, types, layers'
	@echo 'make fmt     format and fix'
	@echo 'make bench   measure; writes bench/results/latest.json'
	@echo 'make lock    pin the dependencies again (UPGRADE=1 for newer ones)'

# Enough to run, test and measure; `lev` is the checkout itself.
.venv/.ready-test: requirements/test.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "leviath needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + ": say make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv --without-pip .venv
	$(PIP) --require-hashes -r requirements/test.txt
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

# With the checkers.
.venv/.ready-dev: .venv/.ready-test requirements/dev.txt
	$(PIP) --require-hashes -r requirements/dev.txt
	@touch $@

demo: .venv/.ready-test
	PYTHONPATH=src $(BIN)/python examples/demo/run.py

test: .venv/.ready-test
	$(BIN)/python -m pytest -n $(JOBS)

check: .venv/.ready-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pyright
	PYTHONPATH=src $(BIN)/lint-imports

fmt: .venv/.ready-dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: .venv/.ready-test
	PYTHONPATH=src $(BIN)/python bench/run.py

LOCK := $(BIN)/uv pip compile pyproject.toml --quiet --universal --generate-hashes \
	--no-emit-index-url --custom-compile-command 'make lock' $(if $(UPGRADE),--upgrade)
lock: .venv/.ready-dev
	$(LOCK) -o requirements/runtime.txt
	$(LOCK) --group test -c requirements/runtime.txt -o requirements/test.txt
	$(LOCK) --group dev -c requirements/test.txt -o requirements/dev.txt
