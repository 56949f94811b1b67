# Everything runs in .venv, which the targets make and fill by themselves: python3 (3.11 or newer) and make are enough.

PYTHON ?= python3
PYTEST_ARGS ?=
BENCH_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.installed
TEST := $(VENV)/.installed-test
DOCS := $(VENV)/.installed-docs
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# As a path, not as an import hook: mypy and pyright run none, and would not find the packages from another directory.
EDITABLE := --config-settings editable_mode=compat --editable

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test lint format docs dist bench bench-peers clean

help: ## Say what can be made.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(BASE) ## Run the sign-up example, from the client to the user's row.
	$(BIN)/python -m examples.user_signup

test: $(TEST) ## Run all tests, in two processes for each core; PYTEST_ARGS="tests/unit -n 0" narrows it down.
	$(BIN)/python -m pytest -n auto --dist worksteal $(PYTEST_ARGS)

lint: $(TEST) ## Check style, types and the arrows between the packages.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo

format: $(TEST) ## Rewrite the code in the house style.
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(DOCS) ## Build the documentation into site/; a warning is an error.
	$(BIN)/mkdocs build --strict

dist: $(TEST) ## Build the wheel and the source distribution into dist/.
	rm -rf build dist
	$(BIN)/python -m build

bench: $(TEST) ## Measure on SQLite; BENCH_ARGS="--url ... --repeat 3" and more, see benchmarks/README.md.
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-peers: $(TEST) ## Measure beside other engines, each installed into .bench-peers/.
	$(BIN)/python -m benchmarks --peers $(BENCH_ARGS)

clean: ## Remove the environments and everything that was built or cached.
	rm -rf $(VENV) .bench-peers build dist site *.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp stands for one set of extras, installed after pyproject.toml last changed.

$(BASE): pyproject.toml
	@$(check_python)
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) $(EDITABLE) .
	@touch $@

$(TEST): pyproject.toml
	@$(check_python)
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) $(EDITABLE) '.[test]'
	@touch $(BASE) $@

$(DOCS): pyproject.toml
	@$(check_python)
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) $(EDITABLE) '.[docs]'
	@touch $(BASE) $@

define check_python
command -v $(PYTHON) >/dev/null || { \
	echo "There is no $(PYTHON) here. Install Python 3.11 or newer, or name one: make PYTHON=python3.12 ..." >&2; exit 1; }; \
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo "$(PYTHON) is $$($(PYTHON) -V 2>&1), and xdb needs Python 3.11 or newer." \
		"Install one and name it: make PYTHON=python3.12 ..." >&2; exit 1; }; \
$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	echo "$(PYTHON) cannot make virtual environments. Install its venv module (Debian: apt install python3-venv)." >&2; \
	exit 1; }
endef
