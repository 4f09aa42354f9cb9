# make test | test-oldest | check | format | demo | bench | sanitize: each makes what it needs. PYTHON: a Python of 3.11 or later to make .venv with.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
SETUP := $(VENV)/.installed
OLDEST := $(VENV)-oldest

.PHONY: setup test test-oldest check format demo bench sanitize clean

setup: $(SETUP)

# torch goes first and pinned: an open range would fetch gigabytes of CUDA packages where a CPU build will do.
$(SETUP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Monotile needs Python 3.11 or later; name one: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

test: setup
	$(BIN)/python -m pytest -n auto $(ARGS)

# The oldest releases that pyproject.toml allows. These tests meet PyTorch's internals, which differ between releases.
test-oldest: $(OLDEST)/.installed
	CUDA_VISIBLE_DEVICES= $(OLDEST)/bin/python -m pytest -n auto $(or $(ARGS),tests/frontend tests/runtime tests/dynamo tests/generation)

$(OLDEST)/.installed: pyproject.toml constraints.txt .ci/oldest.py
	$(PYTHON) .ci/oldest.py $(OLDEST)
	touch $@

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-cache

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

demo: setup
	$(BIN)/python -m monotile.examples.demo $(ARGS)

bench: setup
	$(BIN)/python -m bench.$(if $(filter --wide,$(ARGS)),wide,table) $(filter-out --wide,$(ARGS))

# On a machine with a GPU and CUDA's compute-sanitizer.
sanitize: setup
	for tool in memcheck racecheck synccheck; do \
	  compute-sanitizer --tool $$tool --error-exitcode 1 $(BIN)/python -m pytest tests/gpu -k small $(ARGS) || exit 1; \
	done

clean:
	rm -rf $(VENV) $(OLDEST) build dist *.egg-info
