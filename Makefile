# make demo       train on handwritten digits, read others (out/digits.png); run networks depth first
# make test       linters, types and tests, as CI runs them (under 9 minutes on 2 cores)
# make test SAMPLE=  the same with all of what the commit draws cases of
# make test-full  the same with every long variant, and all of what CI samples
# make test-versions  tests with the oldest and newest versions of all dependencies (build/versions)
# make test-faults  whether tests notice the faults that tests/faults injects, one after another
# make quick      linters, types, the core on the reference and one network on the CPU engine
# make docs       the site of the documentation (build/site/index.html)
# make clean      remove .venv and everything that was built or cached in the tree
#
# Each target sets up what it needs in .venv, once, and sees to ISPC, the CPU engine's compiler: one
# in PATH or named by MINIDNN_ISPC, or a private copy in minidnn's cache folder.  PYTHON=... chooses
# the interpreter, WORKERS=... how many tests run at once (0: all in one process; those that measure
# time run alone).  What tests compile is kept for the next run in MINIDNN_TEST_CACHE
# (tests/kept.py).

VENV := .venv
PY := $(VENV)/bin/python
SOURCES := $(wildcard minidnn models tests tools demo benchmarks docs/conf.py)
# One more than a small machine has cores: a fifth of the time tests wait, for processes, clocks and
# each other.
WORKERS := 3
# Cases of tests marked "sampled" are drawn by the commit (tests/sampling.py); SAMPLE= runs all.
SAMPLE := $(or $(shell git rev-parse --short HEAD 2>/dev/null),none)
# Which worker runs what: tests/schedule.py and forks.py.  Libraries whose threads spin would keep the
# other workers from the cores.
PYTEST := OMP_NUM_THREADS=1 $(PY) -W error -m pytest --timeout 900 --durations 25 --forks $(WORKERS)

# Says whether the GPU tests ran with these sources; that they did not is no failure.
PROVEN := $(PY) -m tests.gpu_proof

export PYTHON

# Hundreds of processes import the same files; each would compile them anew.
export PYTHONDONTWRITEBYTECODE :=

# Exit status 2: ISPC could not be installed, and standard error says why and what to do.  What else
# the doctor finds does not matter here.
INSTALL_ISPC = $(PY) -m minidnn doctor --install-ispc >/dev/null || test $$? -ne 2 || \
	echo "continuing without ISPC: device 'cpu' is not used, its tests are skipped" >&2

.PHONY: demo docs test test-full test-versions test-faults run-test run-test-full quick quick-tests \
	check lint types ready versions ispc imported clean
.DELETE_ON_ERROR:

demo: $(VENV)/.demo
	@$(INSTALL_ISPC)
	$(PY) demo/digits.py
	$(PY) demo/depth_first.py

# Linters take seconds; types and the oldest versions are checked beside the tests.
test test-full: $(VENV)/.test
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory --jobs 3 types versions run-$@
	@$(PROVEN)

# Tests that start make are not to take part in this one's jobs.
run-test: ispc
	MAKEFLAGS= MFLAGS= MINIDNN_TEST_SAMPLE=$(SAMPLE) $(PYTEST)

run-test-full: ispc
	MAKEFLAGS= MFLAGS= HYPOTHESIS_PROFILE=full $(PYTEST) -m "full or not full"

test-versions: $(VENV)/.test
	$(PY) -m tools.versions

# The oldest version of all that is supported, and the tests that tell most (tools/versions).
versions: $(VENV)/.test
	@nice $(PY) -m tools.versions quick

test-faults: $(VENV)/.test
	@$(MAKE) --no-print-directory ready
	$(PY) -m tests.faults.run --jobs $(WORKERS)

# What the core is made of, on the reference, and one network on the CPU engine.
QUICK := tests/graph tests/states tests/layers tests/passes tests/runtime tests/storage tests/compile \
	--ignore=tests/passes/test_zoo.py \
	tests/operators/test_cases.py \
	"tests/cpu/test_backend_networks.py::test_numbers_between_guard_pages[squeezenet1_1]"

quick: $(VENV)/.test
	@$(MAKE) --no-print-directory --jobs 2 check quick-tests

quick-tests: $(VENV)/.test
	OMP_NUM_THREADS=1 $(PY) -W error -m pytest -q $(QUICK)

docs: $(VENV)/.docs
	$(PY) -m sphinx -q -W -b dirhtml docs build/site

# What tests need that begin in several processes at once.
ready: ispc imported

ispc: $(VENV)/.test
	@$(INSTALL_ISPC)

# A first import of all tests and of what they import compiles it (see tools/setup_venv.sh); each
# worker would.
imported: $(VENV)/.test
	@OMP_NUM_THREADS=1 $(PY) -m pytest --collect-only -q >/dev/null || true
	@$(PY) -W ignore -c "import onnxruntime, scipy.signal, sklearn.datasets, torch._dynamo"

check: lint types

lint: $(VENV)/.test
	$(PY) -m ruff check $(SOURCES)
	$(PY) -m ruff format --check $(SOURCES)

types: $(VENV)/.test
	nice $(PY) -m mypy $(SOURCES)

$(VENV)/.demo $(VENV)/.docs $(VENV)/.test: $(VENV)/.%: setup.cfg pyproject.toml tools/setup_venv.sh
	@tools/setup_venv.sh $*

clean:
	rm -rf $(VENV) build dist out minidnn.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
