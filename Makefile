# make demo       classify handwritten digits; writes out/digits.png
# make test       linters, types and tests, as CI runs them (under 20 minutes on 2 cores)
# make test-full  the same with every long variant
# make clean      remove .venv and everything that was built or cached in the tree
#
# Each target sets up what it needs in .venv, once.  PYTHON=... chooses the interpreter.

VENV := .venv
PY := $(VENV)/bin/python
SOURCES := $(wildcard minidnn models tests tools demo benchmarks)
PYTEST := $(PY) -W error -m pytest -W error --timeout 900

export PYTHON

.PHONY: demo test test-full check clean
.DELETE_ON_ERROR:

demo: $(VENV)/.demo
	$(PY) demo/digits.py

test: $(VENV)/.test check
	$(PYTEST)

test-full: $(VENV)/.test check
	HYPOTHESIS_PROFILE=full $(PYTEST) -m "full or not full"

check: $(VENV)/.test
	$(PY) -m ruff check $(SOURCES)
	$(PY) -m ruff format --check $(SOURCES)
	$(PY) -m mypy $(SOURCES)

$(VENV)/.demo $(VENV)/.test: $(VENV)/.%: setup.cfg pyproject.toml tools/setup_venv.sh
	@tools/setup_venv.sh $*

clean:
	rm -rf $(VENV) build dist out minidnn.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
