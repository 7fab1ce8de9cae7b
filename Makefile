# make          installs what is missing, builds build/release/lockstep
# make demo     the same, then trains a GPT on 4 ranks of this machine
# make test     the same, then the tests (under 30 minutes on 2 cores)
# make accuracy  cross-validates the cost model on published runs (validation/results)
# make fuzz     libFuzzer over the readers of models, clusters, config.json, published rows and spaces (clang)
# make test-all slow tests, comparison with PyTorch, and everything again against PyPI's torch
SHELL := /bin/bash
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
VENV ?= .cache/venv
TORCH_REQUIREMENT ?= torch==2.13.0
CTEST = ctest --output-on-failure --timeout 600

.PHONY: all build setup demo test test-all fuzz lint format bench bench-planner bench-tune accuracy profiles install data-mnist data-cifar-like cuda dev tsan pypi venv clean
all: build

setup:
	@scripts/setup.sh build

define configure_and_build
	@cmake --preset $(1) $(2) >build/$(1).configure.log 2>&1 || { cat build/$(1).configure.log; exit 4; }
	@cmake --build --preset $(1) -j $(JOBS)
endef

build: setup
	@mkdir -p build
	$(call configure_and_build,release)

demo: build
	@build/release/lockstep demo

test: build
	cd build/release && $(CTEST) -LE 'slow|interop'

venv:
	@scripts/setup.sh build interop
	@test -x $(VENV)/bin/python3 || python3 -m venv $(VENV)
	@$(VENV)/bin/python3 -c 'import torch, transformers, tokenizers' 2>/dev/null || \
	  $(VENV)/bin/pip install --quiet '$(TORCH_REQUIREMENT)' numpy transformers tokenizers safetensors
	@$(VENV)/bin/python3 -c 'from importlib.util import find_spec as f; exit(not (f("accelerate") and f("deepspeed")))' || \
	  { $(VENV)/bin/pip install --quiet accelerate setuptools wheel && \
	    DS_BUILD_OPS=0 $(VENV)/bin/pip install --quiet --no-build-isolation deepspeed; }

pypi: setup venv
	@mkdir -p build
	$(call configure_and_build,pypi,-DLOCKSTEP_TORCH_PYTHON=$(CURDIR)/$(VENV)/bin/python3 -DLOCKSTEP_INTEROP_PYTHON=$(CURDIR)/$(VENV)/bin/python3)

test-all: venv
	@mkdir -p build
	$(call configure_and_build,release,-DLOCKSTEP_INTEROP_PYTHON=$(CURDIR)/$(VENV)/bin/python3 -DLOCKSTEP_STACKS_PYTHON=$(CURDIR)/$(VENV)/bin/python3)
	cd build/release && $(CTEST)
	$(MAKE) pypi
	cd build/pypi && $(CTEST)

dev: setup
	@mkdir -p build
	$(call configure_and_build,dev)
	cd build/dev && $(CTEST) -LE 'slow|interop'

tsan: setup
	@mkdir -p build
	$(call configure_and_build,tsan)
	cd build/tsan && $(CTEST) -LE 'slow|interop'

cuda:
	@mkdir -p build
	$(call configure_and_build,cuda,-DLOCKSTEP_TORCH_PYTHON=$(or $(LOCKSTEP_TORCH_PYTHON),$(shell command -v python3)))

# Each libFuzzer target runs for FUZZ_SECONDS.
FUZZ_SECONDS ?= 60
fuzz:
	@scripts/setup.sh build fuzz
	@mkdir -p build
	$(call configure_and_build,fuzz,-DLOCKSTEP_FUZZ_SECONDS=$(FUZZ_SECONDS))
	cd build/fuzz && ctest --output-on-failure -R '^fuzz_'

lint: setup
	@scripts/setup.sh lint
	@scripts/lint.sh

format:
	@scripts/setup.sh lint
	@git ls-files '*.h' '*.cpp' '*.cu' | xargs clang-format -i

bench: build pypi
	$(VENV)/bin/python3 bench/ddp_vs_pytorch/run.py
	$(VENV)/bin/python3 bench/parallel_vs_pytorch/run.py
	python3 bench/scaling/run.py

# Torch-free. Fits the cost model to published runs without the fold it scores; writes validation/results.
define build_validation
	@cmake -S . -B build/validation -G Ninja -DCMAKE_BUILD_TYPE=Release -DLOCKSTEP_ENGINE=OFF -DLOCKSTEP_TESTS=OFF >/dev/null
	@cmake --build build/validation -j $(JOBS) --target validation_fit
endef

accuracy: setup
	$(call build_validation)
	build/validation/validation_fit --published validation/published --report validation/results

# The same fit over all rows, as the profiles that lockstep carries.
profiles: setup
	$(call build_validation)
	build/validation/validation_fit --published validation/published --profiles specs/profiles

# Torch-free; writes bench/reports/planner.md.
bench-planner: setup
	@cmake -S . -B build/bench -G Ninja -DCMAKE_BUILD_TYPE=Release -DLOCKSTEP_ENGINE=OFF -DLOCKSTEP_BENCH=ON -DLOCKSTEP_TESTS=OFF
	@cmake --build build/bench -j $(JOBS) --target bench_planner lockstep
	python3 bench/planner/run.py

# Torch-free; Optuna and what its Gaussian process needs come from PyPI. Writes bench/reports/tune.md and
# tune_coverage.md; 40 minutes on two cores, three with BENCH_TUNE_FLAGS=--quick.
BENCH_TUNE_VENV ?= .cache/venv-bench
bench-tune: setup
	@cmake -S . -B build/bench -G Ninja -DCMAKE_BUILD_TYPE=Release -DLOCKSTEP_ENGINE=OFF -DLOCKSTEP_BENCH=ON -DLOCKSTEP_TESTS=OFF >/dev/null
	@cmake --build build/bench -j $(JOBS) --target surface_worker tune_lab tune_coverage bench_surfaces_test lockstep
	@build/bench/tests/bench_surfaces_test --gtest_brief=1
	@test -x $(BENCH_TUNE_VENV)/bin/python3 || python3 -m venv $(BENCH_TUNE_VENV)
	@$(BENCH_TUNE_VENV)/bin/python3 -c 'import optuna, scipy, torch' 2>/dev/null || \
	  $(BENCH_TUNE_VENV)/bin/pip install --quiet optuna numpy scipy '$(TORCH_REQUIREMENT)'
	$(BENCH_TUNE_VENV)/bin/python3 bench/tune/run.py $(BENCH_TUNE_FLAGS); status=$$?; \
	$(if $(findstring --quick,$(BENCH_TUNE_FLAGS)),,build/bench/tune_coverage --report bench/reports/tune_coverage.md || status=1;) \
	exit $$status

data-mnist:
	@scripts/data_mnist.sh

data-cifar-like:
	@python3 scripts/make_cifar_like.py data/cifar10

install: build
	cmake --install build/release --prefix $(PREFIX)

clean:
	rm -rf build
