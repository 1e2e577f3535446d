# FlashAttention Lab: `make lab` and `make test` are all a newcomer needs; `make help` lists the rest.
#
#   PYTHON=python3.12    the interpreter .venv is made from (3.11 or newer)
#   ARGS="..."           goes on to the command behind `lab`, `app`, `verify`, `measure`, `figures`
#   TORCH=1              adds torch where it is left out (Linux without a GPU: gigabytes of CUDA)
#   CUDA_MAJOR=12        CuPy for that CUDA instead of the driver's own; empty for none

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

# Deferred (=), so that nvidia-smi and uname run only for the targets that ask.
CUDA_MAJOR ?= $(shell nvidia-smi 2>/dev/null | \
	sed -n 's/.*CUDA[A-Za-z ]* Version: *\([0-9][0-9]*\).*/\1/p' | head -n 1)
PLATFORM    = $(shell uname -s)-$(shell uname -m)

# Extras of pyproject.toml, joined by "-": the name of the stamp says what is installed.
# Newer drivers (14 ...) run CUDA 13; older ones (11 ...) have no CuPy of ours: `doctor` says so.
GPU_EXTRA = $(if $(CUDA_MAJOR),$(if $(filter 12,$(CUDA_MAJOR)),gpu12,$(if $(filter-out \
	1 2 3 4 5 6 7 8 9 10 11,$(CUDA_MAJOR)),gpu13)))
WITH_TORCH = $(if $(filter 1,$(TORCH))$(GPU_EXTRA)$(filter-out Linux-%,$(PLATFORM)),torch)
# NVRTC compiles the kernels without a GPU, so the test set takes it wherever it exists.
TEST_GPU_EXTRA = $(or $(GPU_EXTRA),$(if $(filter Linux-x86_64,$(PLATFORM)),gpu13))

empty :=
space := $(empty) $(empty)
comma := ,
join_extras = $(subst $(space),-,$(strip $(1)))
LAB_STAMP  = $(VENV)/.installed-$(call join_extras,lab $(GPU_EXTRA) $(WITH_TORCH))
TEST_STAMP = $(VENV)/.installed-$(call join_extras,test $(TEST_GPU_EXTRA) torch)

# PyPI's torch is built for CUDA 13; a CUDA 12 driver needs the build from PyTorch's own index.
TORCH_INDEX = $(if $(findstring gpu12,$(1)),--extra-index-url https://download.pytorch.org/whl/cu126)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help env lab app doctor verify sanitize trace measure figures slides handout test \
	lint format types unit compile-all \
	notebooks browser pins clean

help: ## List the targets
	@echo "FlashAttention Lab"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo 'Options: PYTHON=python3.12  ARGS="..."  TORCH=1  CUDA_MAJOR=12 (see the top of the Makefile)'

# -- use ------------------------------------------------------------------------------------

env: venv-check ## Make .venv for this machine (with CuPy and torch where there is an NVIDIA driver)
	@$(MAKE) -s $(LAB_STAMP)

lab: env ## Open JupyterLab on the first notebook; ARGS="--no-browser --port 8890" goes on to it
	$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb \
		$(if $(filter 0,$(shell id -u)),--allow-root) $(ARGS)

app: env ## Open explorer, stepper and story full screen, for a talk; ARGS="--no-browser --port 8899" goes on
	$(BIN)/python -m fa_kernels.widgets.app $(ARGS)

doctor: env ## Say what is here (GPU, driver, CuPy, NVRTC, torch, browser) and what each absence costs
	$(BIN)/python -m fa_kernels doctor $(ARGS)

verify: env ## On a GPU: check every kernel against float64 and record it in data/verified
	$(BIN)/python -m fa_kernels verify $(ARGS)

sanitize: env ## On a GPU with the CUDA toolkit: memcheck, racecheck, initcheck, synccheck over small launches
	$(BIN)/python -m fa_kernels sanitize $(ARGS)

trace: env ## On a GPU: record the row traces that notebook 02 shows in data/traces
	$(BIN)/python -m fa_kernels trace $(ARGS)

measure: env ## On a GPU: measure and record a run in data/measured; ARGS="--resume RUN_ID"
	$(BIN)/python -m fa_kernels measure $(ARGS)

figures: env ## Redraw the README's picture and table; ARGS=--all: every figure of the suite into figures/
	$(BIN)/python -m fa_kernels figures $(ARGS)

slides: env ## Two decks (20 and 45 minutes) that need no network, HTML and PDF, into build/slides
	$(BIN)/python -m fa_kernels slides $(ARGS)

handout: env ## The talk as a text to read, HTML and PDF, into build/handout
	$(BIN)/python -m fa_kernels handout $(ARGS)

# -- check ----------------------------------------------------------------------------------

test: lint types unit compile-all notebooks browser ## Everything CI runs, the quick checks first

lint: test-env ## Style and formatting of package, tests and notebooks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: test-env ## Mend what lint can mend by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: test-env ## Check the types
	$(BIN)/mypy

unit: test-env ## Unit tests, without the notebooks and the browser
	$(BIN)/pytest -n 2 -m "not notebook and not browser"

compile-all: test-env ## Compile every CUDA kernel with NVRTC; needs no GPU; ARGS=--record
	$(BIN)/python -m fa_kernels compile-all $(ARGS)

notebooks: test-env ## Execute every notebook from top to bottom
	$(BIN)/pytest -n 2 -m notebook tests/test_notebooks.py

browser: test-env ## Drive JupyterLab in headless Chromium; SCREENSHOT_DIR=... keeps pictures
	$(BIN)/pytest -n 2 --dist loadfile -m browser tests/browser

# The local part of a version (torch's +cpu, +cu126) belongs to one machine: leave it off.
pins: test-env ## Rewrite constraints.txt from what .venv holds, after an upgrade that passed the tests
	@{ grep '^#' constraints.txt; $(BIN)/pip freeze --exclude-editable \
		| grep -viE '^(nvidia-|cuda-|(certifi|pip|setuptools)==)' | sed 's/+.*//'; } > constraints.new
	@mv constraints.new constraints.txt

clean: ## Remove .venv and the tools' caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info

# -- environment ----------------------------------------------------------------------------

.PHONY: venv-check test-env
test-env: venv-check
	@$(MAKE) -s $(TEST_STAMP)

# One sentence and a remedy for each way in which the interpreter cannot serve.
venv-check:
	@command -v $(PYTHON) >/dev/null || { \
		echo "$(PYTHON) was not found: install Python 3.11 or newer, or name one: make lab PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) is not Python 3.11 or newer (it says: $$($(PYTHON) -V 2>&1 | head -n 1)): name one that is: make lab PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make virtual environments: install its venv module (Debian and Ubuntu: apt install python3-venv)"; exit 1; }
ifneq ($(origin PYTHON),file)
	@test ! -x $(BIN)/python || test "$$($(PYTHON) -V)" = "$$($(BIN)/python -V)" || { \
		echo "$(VENV) holds $$($(BIN)/python -V), not $$($(PYTHON) -V): run 'make clean' first"; exit 1; }
endif

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# A stamp per set of extras; a changed pin or dependency makes it stale.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing $(subst -,$(comma) ,$*) into $(VENV): a few minutes the first time, seconds after that."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(call TORCH_INDEX,$*) \
		-c constraints.txt -e ".[$(subst -,$(comma),$*)]"
	@# No pop-up about Jupyter news, and no request for it.
	@mkdir -p $(VENV)/share/jupyter/lab/settings
	@printf '%s\n' '{"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": false}}' \
		> $(VENV)/share/jupyter/lab/settings/overrides.json
	@touch $@
