# `make demo` and `make test` set up what they need; `make lint` is what CI runs beside them.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint format docs benchmarks clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: .venv/installed
	$(BIN)/python examples/demo.py

test: .venv/installed
	$(BIN)/pytest --numprocesses auto --dist loadscope

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
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[benchmarks]'
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

clean:
	rm -rf .venv site build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
