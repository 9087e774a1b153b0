# Everything works from a bare checkout: the first target that needs it creates .venv and installs into it, once.
PYTHON ?= $(shell command -v python3.12 >/dev/null 2>&1 && python3.12 --version >/dev/null 2>&1 && echo python3.12 || echo python3)
BIN := .venv/bin

.PHONY: demo test test-all lint format clean

demo: .venv/installed
	$(BIN)/leanformer demo

test: .venv/installed
	$(BIN)/python -m pytest -n 2 -m "not exhaustive"

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
	$(BIN)/pip install --quiet -e '.[dev,onnx,openvino,serve,track,data]'
	touch $@

clean:
	rm -rf .venv
