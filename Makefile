# Everything runs in .venv, which the first target you call sets up from pyproject.toml and constraints.txt.

PYTHON ?= python3
PYTEST_ARGS ?= -n 2 --dist worksteal

VENV := .venv
BIN := $(VENV)/bin
# INSTALLING holds the process that sets up, and is renamed to READY once that succeeded. Where it outlives its
# process, pip was cut off midway and may take half a package for a whole one: then the set-up starts from nothing.
READY := $(VENV)/.ready
INSTALLING := $(VENV)/.installing
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
ROOM := build/wheel-check
# timm's tests are in its source distribution only; the version is that of constraints.txt
TIMM := $(shell sed -n 's/^timm==//p' constraints.txt)
TIMM_SUITE := build/timm-suite
TIMM_TESTS := $(TIMM_SUITE)/timm-$(TIMM)/tests/test_models.py
TIMM_PYTEST := HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/pytest -p support.timm_plugin -q -W ignore $(TIMM_TESTS)

# packages of the extra `clients`, in an environment of their own that finds all others in .venv
CLIENTS := build/clients-venv

RESULTS := docs/results
BUDGET ?= 60
# for larger machines: SCALE multiplies the epochs, TRAIN_IMAGES is 50000 at most; another scale or
# other images need a RUNS folder of their own
SCALE ?= 1
TRAIN_IMAGES ?= 20000
RUNS ?= build/experiment-cifar10
CIFAR10 ?= build/cifar10-$(TRAIN_IMAGES)
SMALL := "E(ViT-S)" "E(ResMLP-S24)" "E(ConvNeXt-S (iso.))"

.DEFAULT_GOAL := help
.PHONY: help demo test test-long clients lint timm-suite bench-layers bench-models results experiment-cifar10 experiment-cifar10-resnet experiment-rotations pack-weights wheel-check docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-26s %s\n", $$1, $$2}' Makefile

demo: $(READY) ## train a small transformer and its equivariant twin, and show them mirrored images (minutes)
	@$(BIN)/flopping demo -o build/demo

test: lint $(TIMM_TESTS) ## lint, run all tests, then timm's own suite on the small models
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/pytest $(PYTEST_ARGS)
	FLOPPING_TIMM_MODELS='*test*' $(TIMM_PYTEST) $(PYTEST_ARGS)

test-long: $(READY) ## what takes too long for every change: networks at real sizes, runs killed many times (two hours)
	HF_HUB_OFFLINE=1 $(BIN)/pytest -m long --durations 10 tests

clients: $(CLIENTS)/.ready ## test what users put around a backbone: segmentation, detection, transformers (minutes)
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(CLIENTS)/bin/python -m pytest -q -W ignore tests/clients

timm-suite: $(TIMM_TESTS) ## timm's own suite on every model that we register (an hour, 12 GB; goes on where it was stopped)
	@files="$$(find flopping -name '*.py' | sort) constraints.txt tests/support/timm_plugin.py"; \
	passed=$(TIMM_SUITE)/passed-$$(cat $$files | sha256sum | cut -c1-12); \
	find $(TIMM_SUITE) -maxdepth 1 -name 'passed-*' ! -path $$passed -delete; \
	FLOPPING_TIMM_PASSED=$$passed $(TIMM_PYTEST) $(PYTEST_ARGS) --durations 10 && rm -f $$passed

lint: $(READY) ## check style (ruff), types (mypy) and layers (import-linter)
	$(BIN)/ruff check --quiet flopping flopping_cli tests examples tools
	$(BIN)/ruff format --quiet --check flopping flopping_cli tests examples tools
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache >/dev/null || $(BIN)/lint-imports --no-cache

bench-models: $(READY) ## measure every speed-up that is promised, and see whether it is reached (an hour; goes on where it was stopped)
	@mkdir -p build
	@$(BIN)/flopping bench --goals -o build/goals.jsonl

results: $(READY) ## measure what docs/results shows, add it there, and make the table and its figure anew (BUDGET minutes and an hour)
	@mkdir -p $(RESULTS)
	$(BIN)/flopping bench $(SMALL) --own -o $(RESULTS)/own.jsonl
	$(BIN)/flopping bench --goals -o $(RESULTS)/goals.jsonl
	$(BIN)/flopping bench $(SMALL) --batch 1 --mode compiled --mode compiled-frozen -o $(RESULTS)/latency.jsonl
	$(BIN)/flopping bench --paper --budget $(BUDGET) -o $(RESULTS)/paper.jsonl
	$(BIN)/flopping report $(RESULTS)/*.jsonl -o $(RESULTS)/table.md --force

experiment-cifar10: $(READY) $(CIFAR10) ## train small networks and their twins on CIFAR-10, write docs/results/cifar10.md (two hours; goes on where it was stopped)
	@$(BIN)/flopping experiment cifar10 --data $(CIFAR10) -o $(RUNS) --scale $(SCALE) --report $(RESULTS)/cifar10.md

experiment-cifar10-resnet: $(READY) build/cifar10-50000 ## train a small ResNet and its twin on all of CIFAR-10, write docs/results/cifar10_resnet.md (hours; goes on where it was stopped)
	@$(BIN)/flopping experiment cifar10_resnet --data build/cifar10-50000 -o $(RUNS)-resnet --scale $(SCALE) --report $(RESULTS)/cifar10_resnet.md

experiment-rotations: $(READY) ## train small networks for several groups, test them in all orientations, write docs/results/rotations.md (half an hour)
	@$(BIN)/flopping experiment rotations --data fashion-mnist -o build/experiment-rotations --no-compile --workers 0 --report $(RESULTS)/rotations.md

pack-weights: $(READY) ## put the weights of RUN, with a model card, into the package: make pack-weights RUN=build/experiment-cifar10-resnet/cifar10_resnet-e-time-0
	@$(BIN)/python tools/pack_weights.py $(RUN)

bench-layers: $(READY) ## time equivariant layers against ordinary ones
	@$(BIN)/flopping bench layers

docs: $(READY) ## build the documentation as a site in build/site; a warning is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict && echo "The site is build/site/index.html; for its search box, serve it: $(BIN)/python -m http.server -d build/site"

wheel-check: $(READY) ## build the wheel, install it with its dependencies in a new virtualenv, use it (minutes, 6 GB)
	@rm -rf $(ROOM) && mkdir -p $(ROOM)
	@trap 'rm -rf $(ROOM)' EXIT; trap 'exit 130' INT TERM; set -e; \
	echo "Building the wheel"; \
	$(BIN)/python -m build --wheel --no-isolation --outdir $(ROOM)/dist . >$(ROOM)/log 2>&1 || { cat $(ROOM)/log; exit 1; }; \
	echo "Installing $$(cd $(ROOM)/dist && echo *.whl) and its dependencies in a new virtualenv"; \
	$(BIN)/python -m venv $(ROOM)/venv; \
	$(ROOM)/venv/bin/python $(PIP_INSTALL) $(ROOM)/dist/*.whl; \
	(cd $(ROOM); \
	venv/bin/python -m pip --disable-pip-version-check check; \
	venv/bin/flopping --version; \
	venv/bin/python -c "$$WHEEL_SCRIPT"); \
	echo "The wheel works"

build/cifar10-%: | $(READY)
	@echo "Fetching CIFAR-10 and laying it out as a folder of images (a minute)"
	@$(BIN)/python tools/cifar10_folder.py $@ --train-images $*

$(TIMM_TESTS): $(READY)
	@echo "Fetching the source distribution of timm $(TIMM), for its tests"
	@mkdir -p $(TIMM_SUITE)
	@$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: \
	--dest $(TIMM_SUITE) timm==$(TIMM)
	@tar -xzf $(TIMM_SUITE)/timm-$(TIMM).tar.gz -C $(TIMM_SUITE) && touch $@

$(CLIENTS)/.ready: $(READY)
	@echo "Setting up $(CLIENTS)"
	@rm -rf $(CLIENTS) && $(BIN)/python -m venv $(CLIENTS)
	@$(BIN)/python -c 'import sys, sysconfig; print(f"import site; site.addsitedir({sysconfig.get_path(sys.argv[1])!r})")' purelib \
	>"$$($(CLIENTS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/beside.pth"
	@$(CLIENTS)/bin/python $(PIP_INSTALL) --no-build-isolation --editable '.[clients]'
	@touch $@

clean: ## remove .venv, caches and built files
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find flopping flopping_cli tests examples tools -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit(1)' || { \
	echo "flopping needs Python 3.10 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." \
	"Name another one: make PYTHON=python3.12" >&2; exit 1; }
	@if kill -0 "$$(cat $(INSTALLING) 2>/dev/null)" 2>/dev/null; then \
	echo "Another make is setting up $(VENV): wait for it" >&2; exit 1; fi
	@if [ -e $(INSTALLING) ]; then echo "The last set-up of $(VENV) was interrupted: starting over"; rm -rf $(VENV); fi
	@echo "Setting up $(VENV) (the first time this downloads PyTorch: minutes, 6 GB)"
	@mkdir -p $(VENV) && rm -f $(READY) && echo $$PPID >$(INSTALLING)
	@{ $(PYTHON) -m venv $(VENV) && \
	$(BIN)/python $(PIP_INSTALL) hatchling editables setuptools && \
	$(BIN)/python $(PIP_INSTALL) --no-build-isolation --editable '.[dev]'; } || { rm -f $(INSTALLING); exit 1; }
	@mv $(INSTALLING) $(READY)

define WHEEL_SCRIPT
import flopping
from flopping import Layout, flop, nn, testing

assert "wheel-check" in flopping.__file__, flopping.__file__
layout = Layout.regular(flop, 8)
testing.assert_equivariant(testing.randomize_(nn.Linear(layout, layout)), layout.random(5))
endef
export WHEEL_SCRIPT
