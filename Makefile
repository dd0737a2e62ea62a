# make demo   set up, draw a small dataset, train and evaluate a detector and a segmenter on it
# make test   set up and run the tests in two processes (make test-slow: those that take minutes, or
#             a part of them with PART=3/8; make test-faults: the slow ones of tests/faults, those
#             of launchers, and longer fuzzing)
# make lint   check the style
# make docs   build the pages of docs/ into build/docs; warnings are errors
# make audit  list known vulnerabilities of what make env installs; asks pypi.org
# make clean  remove the environment and build outputs; work_dirs and data stay
#
# VENV is the environment, PYTHON the interpreter that makes it. COMPILED_MMCV=1, given each time or
# exported, compiles mmcv's own operators, which takes minutes and a compiler.
VENV ?= .venv
PYTHON ?= python3
COMPILED_MMCV ?=
PART ?= 1/1
BIN = $(VENV)/bin
GENERATOR = build/docs-generator
AUDITOR = build/auditor
LORA = build/lora
NOTEBOOKS = build/notebooks
DATUMARO = build/datumaro
ROOMS = backbones common datasets engine evaluation export heads inference models necks recipes \
    runtime settings tools visualization weights
# the package as it is installed, by links: only so does mypy follow "from colonnade import ..."
TYPES = build/types/colonnade

.PHONY: demo test test-slow test-faults lint docs audit env clean

demo: env
	@$(BIN)/python tools/demo.py

test: env $(LORA)/installed $(NOTEBOOKS)/installed $(DATUMARO)/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal
	PYTHONPATH=$(LORA):$(CURDIR)/$(NOTEBOOKS):$(DATUMARO):$$PYTHONPATH OMP_NUM_THREADS=1 \
	    $(BIN)/python -m pytest -n 2 --dist load \
	    tests/test_lora.py tests/test_notebooks.py tests/test_datumaro.py

test-slow: env
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m slow --part $(PART) \
	    -o faulthandler_timeout=3600

test-faults: env
	$(BIN)/python -m pytest -m slow -s -o faulthandler_timeout=3600 tests/faults \
	    tests/test_launchers.py --ignore-glob='*/test_fuzzing_*.py'
	HYPOTHESIS_PROFILE=thousands $(BIN)/python -m pytest -m "slow or not slow" -q \
	    --hypothesis-show-statistics tests/faults/test_fuzzing_*.py

lint: env
	$(BIN)/python -m flake8
	rm -rf $(TYPES)
	mkdir -p $(TYPES)/configs
	ln -s $(CURDIR)/api/*.py $(addprefix $(CURDIR)/,$(ROOMS)) $(TYPES)
	ln -s $(CURDIR)/configs/__init__.py $(TYPES)/configs
	MYPYPATH=$(dir $(TYPES)) $(BIN)/python -m mypy -p colonnade
	$(BIN)/python -m isort --check --diff .
	$(BIN)/python -m yapf --diff --recursive api configs tests $(ROOMS)

# Generator, auditor, peft, Jupyter and datumaro stay out of the environment, in folders of their own.
docs: env $(GENERATOR)/installed
	PYTHONPATH=$(GENERATOR):$$PYTHONPATH $(BIN)/python -m sphinx --fail-on-warning --keep-going \
	    --nitpicky --quiet docs build/docs
	@echo build/docs/index.html

audit: env $(AUDITOR)/installed
	@$(BIN)/python -c "from urllib.request import urlopen; \
	    urlopen('https://pypi.org/pypi/pip/25.0/json', timeout=20)" 2>/dev/null \
	|| { echo 'make audit: pypi.org does not answer, which lists known vulnerabilities: nothing' \
	    'was audited. Is the network there?' >&2; exit 1; }
	PYTHONPATH=$(AUDITOR) $(BIN)/python -m pip_audit --strict --require-hashes --disable-pip \
	    --progress-spinner off --requirement requirements.txt --requirement requirements-setup.txt

$(GENERATOR)/installed: docs/requirements.txt
$(AUDITOR)/installed: requirements-audit.txt
$(LORA)/installed: requirements-lora.txt
$(NOTEBOOKS)/installed: requirements-notebooks.txt
$(DATUMARO)/installed: requirements-datumaro.txt
$(GENERATOR)/installed $(AUDITOR)/installed $(LORA)/installed $(NOTEBOOKS)/installed \
        $(DATUMARO)/installed: | env
	rm -rf $(@D)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
	    --target $(@D) --requirement $<
	touch $@

env:
	@$(PYTHON) tools/bootstrap.py $(VENV) $(if $(filter-out 0,$(COMPILED_MMCV)),--compiled-mmcv)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
