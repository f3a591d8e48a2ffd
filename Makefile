# Every target sets up what it needs in .venv and reuses it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0
STAMP := $(VENV)/.installed
# Rebuilt when the C sources or the packaging change.
CORE := $(wildcard src/argand/_core/*.[ch] src/argand/_core/*/*.[ch] src/argand/runtime/kernels/texts/*.h) setup.py pyproject.toml

.PHONY: demo test test-gpu test-libraries lint bench bench-quick clean format

$(STAMP): $(CORE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check "setuptools>=77" wheel
	$(BIN)/python -m pip install -q --disable-pip-version-check $(TORCH) "numpy>=1.26"
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation -e ".[test,lint,demo]"
	touch $@

# The main job on real models; DEMO="--short --no-torch" for a quick one.
demo: $(STAMP)
	$(BIN)/python bench/compare.py $(DEMO)

# NPROC workers: on two cores others run while two or three wait for compilers and child processes (three in all leave a fifth of the time idle). SWEEPS=whole runs the sweeps with all their cases (tests/sweeps.py).
# Hundreds of tests start processes that import the same modules: these are compiled once, where they may be kept.
NPROC ?= 5
SWEEPS ?= part
test: $(STAMP)
	env -u PYTHONDONTWRITEBYTECODE SWEEPS=$(SWEEPS) $(BIN)/python tests/run_all.py $(NPROC) $(TESTARGS)

# What only a GPU can show (docs/gpu.md). GPU_PYTHON has a torch with CUDA, triton and pytest; ZOO is a folder of models; GPUARGS="--short tools".
GPU_PYTHON ?= $(PYTHON)
test-gpu:
	$(GPU_PYTHON) tests/gpu/run.py $(if $(ZOO),--zoo $(ZOO)) $(GPUARGS)

# Programs over real libraries (docs/libraries.md), the half that takes little time; LIBRARIES="--torch" compares, LIBRARIES="" runs all.
LIBRARIES ?= --fast --seconds 0
test-libraries: $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation -e ".[libraries]"
	$(BIN)/python bench/libraries.py $(LIBRARIES)

# Imports one way, sizes of files and functions, names in the tables of natives, the budget of natives without a row.
RULES := tests/test_imports.py tests/test_ground_rules.py tests/capture/natives/test_names_in_tables.py tests/capture/natives/test_native_surface.py
lint: $(STAMP)
	$(BIN)/ruff check src tests bench examples
	$(BIN)/ruff format --check src tests bench examples
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -n 0 $(RULES)

format: $(STAMP)
	$(BIN)/ruff check --fix src tests bench examples
	$(BIN)/ruff format src tests bench examples

# Every target of DESIGN.md, measured side by side with eager and torch.compile: one table, a verdict each, exit status 1 where one is
# missed beyond noise. `bench` takes more than an hour (BENCH="--parts demo,calls" for less), `bench-quick` less than five minutes.
bench: $(STAMP)
	$(BIN)/python bench/targets.py $(BENCH)

bench-quick: $(STAMP)
	$(BIN)/python bench/targets.py --quick $(BENCH)

clean:
	rm -rf $(VENV) build *.egg-info src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
