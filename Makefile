# `make demo` and `make test` set up what they need; `make lint` is what CI runs beside them.
# Everything is installed at the versions of constraints.txt, what builds the package included.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --constraint constraints.txt

.PHONY: demo test soak lint format docs benchmarks audit clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) setuptools
	$(INSTALL) --no-build-isolation --editable '.[dev]'
	touch $@

demo: .venv/installed
	$(BIN)/python examples/demo.py

# Tests of the report's page need a browser, and are skipped where there is none and none can be installed.
.venv/browser: .venv/installed
	if ! command -v chromium || ! command -v chromedriver; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends \
				chromium chromium-driver || true; \
		fi; \
	fi >/dev/null
	touch $@

test: .venv/installed .venv/browser
	$(BIN)/pytest --numprocesses auto --dist loadscope

# The long forms of tests: many kills, many epochs, many spoiled files.
soak: .venv/installed
	$(BIN)/pytest -m soak --numprocesses auto --dist load

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/installed
	$(BIN)/mkdocs build --strict --quiet

.venv/benchmarks: .venv/installed
	$(INSTALL) --no-build-isolation --editable '.[benchmarks]'
	touch $@

benchmarks: .venv/benchmarks
	$(BIN)/python -m benchmarks.sigreg
	$(BIN)/python -m benchmarks.views
	$(BIN)/python -m benchmarks.step
	$(BIN)/python -m benchmarks.vje
	$(BIN)/python -m benchmarks.mixture
	$(BIN)/python -m benchmarks.gje
	$(BIN)/python -m benchmarks.neural_gas
	$(BIN)/python -m benchmarks.bank
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.communication
	$(BIN)/python -m benchmarks.scaling

.venv/audit: .venv/installed
	$(INSTALL) --no-build-isolation --editable '.[audit]'
	touch $@

audit: .venv/audit
	$(BIN)/python tools/audit.py

clean:
	rm -rf .venv site build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
