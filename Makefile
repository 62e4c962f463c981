# One environment (.venv), made by whichever target needs it first. GNU make 3.81 or later.
#   make reproduce STUDY=paper ARGS='stage=certificates'
# On the first installation, or to make it again with another Python:
#   make install PYTHON=python3.13     take this Python (default: the first fit one found)
#   make install TORCH_INDEX=URL       take torch from this index (empty: from the default one)

ifneq (3.81,$(firstword $(sort 3.81 $(MAKE_VERSION))))
$(error GNU make $(MAKE_VERSION) is too old: 3.81 or later is needed)
endif
ifeq ($(OS),Windows_NT)
$(error Windows is supported through WSL: run make in a WSL shell)
endif

PY := .venv/bin/python
PYTEST = $(PY) -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal
STUDY = mini
CODE = $(wildcard analysis conf pipeline benchmarks tools)

# What the environment has to be made for, and what it was made for (see tools/setup_env.py).
STATE := $(shell cat pyproject.toml constraints.txt | cksum | cut -d ' ' -f 1; pwd -P | cksum | cut -d ' ' -f 1)
READY := $(shell test -x $(PY) && cat .venv/ready 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help install reproduce fetch verify test test-thorough test-all check bench bench-decoding robustness check-gpu mini-models notebooks docs clean distclean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' Makefile

install: ## Make or update the environment .venv (every target below does so by itself)
ifneq ($(strip $(READY) $(PYTHON)),$(STATE))
	@PYTHON='$(PYTHON)' sh tools/setup_env.sh '$(STATE)'
endif

reproduce: install ## Compute every table and figure of a study (STUDY=mini, ARGS=overrides)
	$(PY) -m pipeline study=$(STUDY) $(ARGS)

fetch: install ## Download a study's models and prompts beforehand (STUDY=paper)
	$(PY) -m pipeline.fetch study=$(STUDY) $(ARGS)

verify: install ## Check every artifact in outputs/ against its record, set aside what is damaged
	$(PY) -m pipeline.verify

test: install ## Run the fast tests, some side by side (ARGS=pytest's arguments)
	$(PYTEST) -m 'not thorough' $(ARGS)

test-thorough: install ## Run the slow tests only
	$(PYTEST) -m thorough $(ARGS)

test-all: install ## Run all tests
	$(PYTEST) $(ARGS)

check: install ## Lint, check the formatting, check the types
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy $(CODE)

bench: install ## Time the certificate kernel
	$(PY) -m benchmarks.certificates $(ARGS)

bench-decoding: install ## Time decoding with a drafter against transformers' assisted generation
	$(PY) -m benchmarks.decoding speed $(ARGS)

robustness: install ## Kill, damage and crowd a small study, and look for what is lost
	$(PY) -m benchmarks.robustness $(ARGS)

check-gpu: install ## Check all that only a GPU can show, then time it (ARGS=--reduced: small, anywhere)
	$(PY) -m benchmarks.gpu $(ARGS)

mini-models: install ## Train the embedded models again (hours; resumes where it was stopped)
	$(PY) -m pipeline.training.mini $(ARGS)

notebooks: install ## Run the notebooks on the embedded study and keep their copies in docs/
	$(PY) -m tools.render_notebooks $(ARGS)

docs: install ## Build the site of the documentation (outputs/site/index.html)
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict $(ARGS)

clean: ## Remove what is in outputs/, except what takes hours or the network to make again
	find outputs -mindepth 1 -maxdepth 1 ! -name README.md ! -name mini_models ! -name models \
		! -name drafter_training -exec rm -rf {} +

distclean: ## Remove all that make has made: outputs, models, checkpoints, caches, .venv
	find outputs -mindepth 1 -maxdepth 1 ! -name README.md -exec rm -rf {} +
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf .venv .venv.lock .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
