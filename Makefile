# Everything works from a bare checkout: the first target that needs it creates .venv and installs into it, once.
PYTHON ?= $(shell command -v python3.12 >/dev/null 2>&1 && python3.12 --version >/dev/null 2>&1 && echo python3.12 || echo python3)
BIN := .venv/bin

.PHONY: demo test test-all quick hostile lint format docs release clean

demo: .venv/usable
	$(BIN)/leanformer demo

test: .venv/installed
	$(BIN)/python -m pytest -n 3 -m "not exhaustive"

# what breaks most often, in less than a minute and a half
quick: .venv/installed
	$(BIN)/python -m pytest -n 3 -m "quick and not exhaustive"

# CASES generated inputs for each of nine fuzzers, and fewer of two that train: more than 100,000 together
CASES ?= 11500
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

# the site in dist/site, to be opened without a server; a warning is an error
docs: .venv/installed
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(BIN)/mkdocs build --strict --quiet
	@echo dist/site/index.html

# source distribution and wheel, checked, and the wheel tried alone in a fresh environment of each Python that is there;
# TORCH="torch==2.11.*" tries them with another torch than the newest
PYTHONS ?= python3.11 python3.12 python3.13
release: .venv/installed
	$(BIN)/pip install --quiet -e '.[release]'
	rm -f dist/*.whl dist/*.tar.gz
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*.whl dist/*.tar.gz
	for python in $(PYTHONS); do \
		if $$python --version >/dev/null 2>&1; then sh lab/try_wheel.sh $$python dist/*.whl $(TORCH) || exit 1; \
		else echo "$$python is not here"; fi; done

# what users install, and then what tests and docs need beside it
.venv/usable: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -e .
	touch $@

.venv/installed: .venv/usable
	$(BIN)/pip install --quiet -e '.[dev,onnx,openvino,serve,track,data,predict,scale,dense,docs,notebooks,hub]'
	touch $@

clean:
	rm -rf .venv
