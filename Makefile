# Everything here needs Python 3.11 to 3.13, git and make, and installs into .venv (and .venv-adapters), nowhere else.
#   make demo   trains DevNet on two ranks, on data that ships with scikit-learn
#   make test   runs the test suite (TESTS="-m slow" and the like choose another part of it)
#   make test-adapters   runs what concerns DeepSpeed, Accelerate and Fabric, which it installs into .venv-adapters
#   make lint   runs the linters, the type checker and the layer rules
#   make clean  removes what these made, runs and caches included
VENV := .venv
BIN := $(VENV)/bin
ADAPTERS := .venv-adapters
SUITABLE := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3; do \
	$$python -c '$(SUITABLE)' >/dev/null 2>&1 && { echo $$python; break; }; done)
INPUTS := pyproject.toml constraints.txt
PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
TESTS ?=

.PHONY: demo test test-adapters lint lint-rules lint-format lint-types lint-layers clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

demo: $(VENV)/installed
	$(BIN)/zoo train devnet --parallel ddp

test: $(VENV)/installed-test
	$(BIN)/python -m pytest $(TESTS)

# Whatever DeepSpeed should compile is built with the ninja of this environment, and kept there.
test-adapters: $(ADAPTERS)/installed
	PATH="$(CURDIR)/$(ADAPTERS)/bin:$$PATH" TORCH_EXTENSIONS_DIR="$(CURDIR)/$(ADAPTERS)/extensions" \
		$(ADAPTERS)/bin/python -m pytest tests/adapters tests/contract tests/resume/test_layouts.py \
		-k "adapters or accelerate or fabric or deepspeed" $(TESTS)

lint: lint-rules lint-format lint-types lint-layers  # with --keep-going, what all four say

lint-rules: $(VENV)/installed-test
	$(BIN)/ruff check .

lint-format: $(VENV)/installed-test
	$(BIN)/ruff format --check .

lint-types: $(VENV)/installed-test
	$(BIN)/mypy

lint-layers: $(VENV)/installed-test
	$(BIN)/lint-imports --no-logo

clean:
	rm -rf $(VENV) $(ADAPTERS) runs dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

# A stamp is older than its inputs when they changed: then pip looks again.
$(VENV)/installed: $(INPUTS) | $(VENV)/created
	@echo "Installing into $(VENV) (PyTorch is large: the first time takes some minutes)"
	$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/installed-test: $(INPUTS) | $(VENV)/created
	@echo "Installing into $(VENV) with the test tools (PyTorch is large: the first time takes some minutes)"
	$(PIP_INSTALL) --editable ".[test,parquet,kedro]"
	@touch $@ $(VENV)/installed

# Behind its own packages it sees those of the test environment (6 GB), whose .pth files count for nothing here.
$(ADAPTERS)/installed: $(INPUTS) $(VENV)/installed-test
	@echo "Installing the engines into $(ADAPTERS)"
	$(BIN)/python -m venv --clear $(ADAPTERS)
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
		> "$$($(ADAPTERS)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/dependencies.pth"
	$(ADAPTERS)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable ".[accelerate,deepspeed,fabric]"
	@touch $@

$(VENV)/created:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 to 3.13 with venv found: install one, or say make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@
