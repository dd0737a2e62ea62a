# make demo   set up, draw a small data set, train and evaluate a detector and a segmenter on it
# make test   set up and run the tests in two processes (make test-slow: those that take minutes,
#             make test-faults: of these the faults of docs/faults.md)
# make lint   check the style
# make docs   build the pages of docs/ into build/docs; warnings are errors
# make clean  remove the environment and what was built; work_dirs and data stay
#
# VENV is where the environment lies, PYTHON what it is made with. COMPILED_MMCV=1, given each time or
# exported, compiles mmcv's own operators, which takes minutes and a compiler.
VENV ?= .venv
PYTHON ?= python3
COMPILED_MMCV ?=
BIN = $(VENV)/bin
GENERATOR = build/docs-generator

.PHONY: demo test test-slow test-faults lint docs env clean

demo: env
	@$(BIN)/python tools/demo.py

test: env
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: env
	$(BIN)/python -m pytest -m slow -s

test-faults: env
	$(BIN)/python -m pytest -m slow -s tests/faults

lint: env
	$(BIN)/python -m flake8
	$(BIN)/python -m mypy api backbones configs/__init__.py engine heads necks runtime tools weights
	$(BIN)/python -m isort --check --diff .
	$(BIN)/python -m yapf --diff --recursive api backbones configs engine heads necks runtime tests \
	    tools weights

# The generator stays out of the environment: its packages have a folder of their own.
docs: env $(GENERATOR)/installed
	PYTHONPATH=$(GENERATOR):$$PYTHONPATH $(BIN)/python -m sphinx --fail-on-warning --keep-going \
	    --nitpicky --quiet docs build/docs
	@echo build/docs/index.html

$(GENERATOR)/installed: docs/requirements.txt | env
	rm -rf $(GENERATOR)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
	    --target $(GENERATOR) --requirement docs/requirements.txt
	touch $@

env:
	@$(PYTHON) tools/bootstrap.py $(VENV) $(if $(filter-out 0,$(COMPILED_MMCV)),--compiled-mmcv)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
