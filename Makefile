# Two commands set up a fresh machine: `make run` and `make test`. They need Python >= 3.11 only.
# The commands are those of pixi.toml's tasks; tests/packaging holds the two equal.

PYTHON ?= python3.11
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

RUN_STAMP := $(VENV)/.installed-run
TEST_STAMP := $(VENV)/.installed-test
BENCH_STAMP := $(VENV)/.installed-bench

# Whatever is started here sends nothing to Modular unless the user says so.
export MODULAR_TELEMETRY_ENABLED ?= 0
export MODULAR_CRASH_REPORTING_ENABLED ?= 0

BENCHMARKS := bench-conv1d bench-ssm-scan bench-gated-rms-norm bench-attention bench-linear bench-moe bench-sample \
              bench-copy bench-engine bench-batch bench-serve

.PHONY: run generate serve test lint bench bench-kernels $(BENCHMARKS) clean
.DELETE_ON_ERROR:

run: generate

generate: $(RUN_STAMP)
	$(BIN)/python -m coachwhip generate $(ARGS)

serve: $(RUN_STAMP)
	$(BIN)/python -m coachwhip serve $(ARGS)

test: lint
	$(BIN)/python -m pytest $(ARGS)

lint: $(TEST_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

bench: bench-kernels

bench-conv1d: $(BENCH_STAMP)
	$(BIN)/python -m bench.kernels conv1d $(ARGS)

bench-ssm-scan: $(BENCH_STAMP)
	$(BIN)/python -m bench.kernels ssm_scan $(ARGS)

bench-gated-rms-norm: $(BENCH_STAMP)
	$(BIN)/python -m bench.kernels gated_rms_norm $(ARGS)

bench-attention: $(BENCH_STAMP)
	$(BIN)/python -m bench.kernels attention $(ARGS)

bench-linear: $(BENCH_STAMP)
	$(BIN)/python -m bench.kernels linear $(ARGS)

bench-moe: $(BENCH_STAMP)
	$(BIN)/python -m bench.kernels moe $(ARGS)

bench-sample: $(BENCH_STAMP)
	$(BIN)/python -m bench.kernels sample $(ARGS)

bench-copy: $(BENCH_STAMP)
	$(BIN)/python -m bench.kernels copy_slots $(ARGS)

bench-kernels: $(BENCH_STAMP)
	$(BIN)/python -m bench.kernels all $(ARGS)

bench-engine: $(BENCH_STAMP)
	$(BIN)/python -m bench.engine $(ARGS)

bench-serve: $(BENCH_STAMP)
	$(BIN)/python -m bench.serve $(ARGS)

bench-batch: $(BENCH_STAMP)
	$(BIN)/python -m bench.batch $(ARGS)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "PYTHON=$(PYTHON) is missing or older than 3.11; name a newer one: make PYTHON=python3.12 ..." >&2; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV)

$(RUN_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing MAX, Mojo and coachwhip into $(VENV) (about 1 GB, minutes when cold)"
	@$(PIP) --editable .
	@touch $@

$(TEST_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing coachwhip and its test tools, torch among them, into $(VENV)"
	@$(PIP) --editable ".[test]"
	@touch $@ $(RUN_STAMP)

$(BENCH_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing coachwhip and what its benchmarks compare with, torch among them, into $(VENV)"
	@$(PIP) --editable ".[bench]"
	@touch $@ $(RUN_STAMP)

clean:
	rm -rf $(VENV) build dist bench/results .pytest_cache .ruff_cache .hypothesis .import_linter_cache
