# Everything works from a bare checkout: the first target that needs it creates .venv and installs into it, once.
PYTHON ?= $(shell command -v python3.12 >/dev/null 2>&1 && python3.12 --version >/dev/null 2>&1 && echo python3.12 || echo python3)
BIN := .venv/bin

.PHONY: demo test test-all quick hostile lint format clean

demo: .venv/installed
	$(BIN)/leanformer demo

test: .venv/installed
	$(BIN)/python -m pytest -n 2 -m "not exhaustive"

# what breaks most often, in less than a minute and a half
quick: .venv/installed
	$(BIN)/python -m pytest -n 2 -m "quick and not exhaustive"

# CASES generated inputs for each of the six fuzzers, 102,000 together
CASES ?= 17000
hostile: .venv/installed
	HOSTILE_CASES=$(CASES) $(BIN)/python -m pytest -n 2 -W ignore --show-capture=no tests/hostile

test-all: .venv/installed
	$(BIN)/python -m pytest -n 2

lint: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	PYTHONPATH=. $(BIN)/lint-imports

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.venv/installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -e '.[dev,onnx,openvino,serve,track,data,predict,dense]'
	touch $@

clean:
	rm -rf .venv
