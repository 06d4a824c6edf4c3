# Start with `make demo` or `make test`. Every target makes the virtual environment that it needs.
PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
PIP     := $(BIN)/pip --disable-pip-version-check -q
NATIVE  := CMakeLists.txt pyproject.toml cmake/qualify_stubs.cmake $(shell find core -name '*.h' -o -name '*.cpp')
OPENSSL := $(wildcard build/openssl/used)
SEED    ?= 1
SECONDS ?= 60
JOBS    ?= 2
SOAK_SECONDS ?= 3600
DEV     := build/dev
INSTALL := PATH="$(abspath $(BIN)):$$PATH" $(PIP) install --no-build-isolation
TORCH   ?= 2.10.0 2.15.0
# No test that starts processes, builds networks, or takes seconds. The marks are explained in pyproject.toml.
FIRST_TIER := not (process or lab or docs or slow or nightly)
TOOLS   := binutils chromium clang ethtool frr git iproute2 libclang-rt-dev nftables openssl prometheus tshark
SANITIZE_TESTS ?= tests/unit tests/property tests/vectors tests/swarm tests/udp tests/collectives tests/nccl
THREAD_TESTS ?= tests/udp tests/collectives tests/nccl tests/sim/test_cores.py

.PHONY: help figures cli-reference docs-serve demo demo-lab demo-gpu test test-rest test-all test-nightly test-torch test-programs tools torch-suite lint format bench sanitize sanitize-threads sanitize-short fuzz arm64 swarm soak paper answers spec-map settings api openssl wheel wheel-check wheel-arm64 docs build clean
.DEFAULT_GOAL := help

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.torch ## Train on four ranks while their planes fail; the result is bit-identical
	@$(BIN)/softmrc demo

demo-lab: $(VENV)/.torch ## Train over an SRv6 fabric of network namespaces whose spine reboots (root)
	@$(BIN)/softmrc demo --lab

demo-gpu: build ## Train with NCCL over the plugin while its planes fail (GPU; torch with CUDA in .venv)
	@$(BIN)/softmrc demo --gpu

test: test-programs ## Run the first tier of tests: no other processes, minutes; on every change
	$(BIN)/python -m pytest -n $(JOBS) -m '$(FIRST_TIER)'

test-rest: test-programs ## Run the second tier of tests: processes, namespaces, documentation, models
	$(BIN)/python -m pytest -n $(JOBS) -m 'not nightly and not ($(FIRST_TIER))'

test-all: test test-rest ## Run both tiers: before merging

test-nightly: test-all build/plain/trace ## Run everything: many seeds, sanitizers, fuzzers, torch versions, soak, aarch64, wheels
	$(BIN)/python -m pytest -n $(JOBS) -m nightly
	SOFTMRC_SWARM_SEEDS=4000 SOFTMRC_GROUP_SEEDS=1500 $(BIN)/python -m pytest -n $(JOBS) tests/swarm tests/collectives/test_sittings.py
	$(MAKE) sanitize sanitize-threads fuzz test-torch soak arm64 wheel wheel-arm64

test-torch: $(VENV)/.test ## Run tests/torch with other torch versions: make test-torch TORCH='2.10.0 2.15.0'
	@for version in $(TORCH); do \
	  $(PIP) install --target build/torch-$$version torch==$$version && \
	  PYTHONPATH=$(CURDIR)/build/torch-$$version $(BIN)/python -m pytest -n $(JOBS) -m 'not nightly' tests/torch || exit 1; done

build/plain/trace: $(VENV)/.made $(NATIVE)
	@$(BIN)/cmake -S . -B build/plain -DCMAKE_BUILD_TYPE=Debug -DSOFTMRC_NATIVE_TESTS=ON > /dev/null
	@$(BIN)/cmake --build build/plain --target trace -j $(JOBS) > /dev/null
	@touch $@

test-programs: $(VENV)/.test ## Build the C++ programs that tests run
	@$(BIN)/cmake --build $(DEV) --target test_programs -j $(JOBS) > $(DEV)/test_programs.log 2>&1 || { cat $(DEV)/test_programs.log; exit 1; }

tools: ## Install the programs that some tests and commands need (Debian, root)
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(TOOLS)

torch-suite: $(VENV)/.test ## Run torch's own distributed tests on our backend and on Gloo, and compare
	$(BIN)/python -m tests.torch_suite.suite

lint: $(VENV)/.dev ## Check style, types, retired words and C++ (clang-tidy)
	$(BIN)/ruff check src benchmarks tests tools examples
	$(BIN)/ruff format --check -q src benchmarks tests
	$(BIN)/mypy
	$(BIN)/python tools/words.py
	$(BIN)/python tools/lint_cpp.py $(JOBS)

format: $(VENV)/.dev ## Format Python and C++
	$(BIN)/ruff check --select I --fix -q src benchmarks tests tools examples
	$(BIN)/ruff format -q src benchmarks tests
	$(BIN)/clang-format -i $$(git ls-files '*.h' '*.cpp')

bench: build ## Measure the protocol engine
	$(BIN)/softmrc bench engine

figures: build ## Run the benchmarks and write docs/evidence/benchmarks.md: make figures ONLY=udp,join QUICK=1
	$(BIN)/python tools/figures.py measure --only '$(ONLY)' $(if $(QUICK),--quick)

sanitize: $(VENV)/.test ## Run the tests with AddressSanitizer and UndefinedBehaviorSanitizer
	$(BIN)/python tools/sanitize.py address $(SANITIZE_TESTS)

sanitize-short: ## Run the core's tests with both sanitizers, and each fuzzer for ten seconds; needs no Python
	@$(firstword $(wildcard $(BIN)/python) $(PYTHON)) tools/portable.py $(JOBS) sanitize

sanitize-threads: $(VENV)/.test ## Run the tests of threads with ThreadSanitizer
	$(BIN)/python tools/sanitize.py thread $(THREAD_TESTS)

fuzz: ## Run each fuzzer for SECONDS (needs clang)
	@command -v clang++ >/dev/null || { echo "Fuzzing needs clang++ (on Debian: apt install clang)."; exit 1; }
	@cmake -S . -B build/fuzz -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSOFTMRC_FUZZ=ON -DSOFTMRC_SANITIZE=address >/dev/null
	@cmake --build build/fuzz -j $(JOBS)
	@for program in build/fuzz/fuzz_*; do \
	  name=$${program##*/fuzz_}; mkdir -p build/fuzz/corpus-$$name; echo "== $$name"; \
	  $$program -max_total_time=$(SECONDS) -print_final_stats=1 -verbosity=0 build/fuzz/corpus-$$name fuzz/corpus/$$name || exit 1; done

wheel: ## Build sdists and manylinux wheels into dist/, and test them in clean environments
	@$(PYTHON) tools/wheel.py

wheel-check: ## Build and test the wheel of one Python only
	@$(PYTHON) tools/wheel.py --quick

wheel-arm64: ## Build a Python 3.11 wheel for aarch64, and test it under QEMU
	@$(PYTHON) tools/wheel_arm64.py

docs: $(VENV)/.docs ## Build the documentation site, site/index.html, and check its links
	@$(BIN)/python tools/site.py

docs-serve: docs ## Build the documentation site and serve it at http://127.0.0.1:8000
	@$(BIN)/python -m http.server --bind 127.0.0.1 --directory site 8000

arm64: ## Build the core for aarch64, run its tests under QEMU, and compare with this machine
	@$(firstword $(wildcard $(BIN)/python) $(PYTHON)) tools/portable.py $(JOBS)

spec-map: $(VENV)/.built ## Write docs/reference/spec-coverage.md: each protocol rule with its code and test
	$(BIN)/python tools/spec_map.py

api: $(VENV)/.built ## Write docs/reference/api.md from docstrings
	$(BIN)/python tools/api.py

cli-reference: $(VENV)/.built ## Write the reference of the commands from their help
	$(BIN)/python tools/cli_reference.py

settings: $(VENV)/.built ## Write the settings and counters that the core declares: Python classes and docs/reference/configuration.md
	$(BIN)/python tools/settings.py
	$(BIN)/python tools/formats.py
	$(BIN)/python tools/counters.py

swarm: $(VENV)/.test ## Replay one seed of the swarm: make swarm SEED=7
	$(BIN)/python -m tests.swarm.swarm --seed $(SEED)

answers: build ## Run every scenario and write docs/evidence/scenario-answers.md
	$(BIN)/python tools/answers.py

paper: build ## Run the published experiments, also with RoCE, and write docs/evidence/results.md
	$(BIN)/python tools/paper.py

soak: build ## Inject random faults over real sockets for an hour (SOAK_SECONDS=...)
	$(BIN)/python -P -m softmrc_bench.soak $(SOAK_SECONDS) $(SEED)

openssl: ## Build with a recent libcrypto: encryption is faster than with an old system's
	@mkdir -p build/openssl
	@$(PYTHON) tools/libcrypto.py > build/openssl/made && mv build/openssl/made build/openssl/used
	@$(MAKE) --no-print-directory build

build: $(VENV)/.built $(VENV)/.bench ## Install softmrc and softmrc-bench into .venv, editable

clean: ## Remove everything that make built
	rm -rf $(VENV) build dist site

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "SoftMRC needs Python 3.11 or newer: install it, or name it with PYTHON=/path/to/python3."; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments: install python3-venv (on Debian: apt install python3-venv)."; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || { echo "$(PYTHON) has no headers: install python3-dev (on Debian: apt install python3-dev)."; exit 1; }
	@command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || { echo "SoftMRC needs a C++ compiler: install g++ 11 or newer, or clang 14 or newer (on Debian: apt install g++)."; exit 1; }
	@echo "Making a virtual environment in $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install 'scikit-build-core>=0.11,<2' 'nanobind>=2.4,<4' 'cmake>=3.26,<5' 'ninja>=1.11,<2'
	@touch $@

# Without build isolation the build directory is reused, so that a change costs seconds.
$(VENV)/.built: $(VENV)/.made $(NATIVE) $(OPENSSL)
	@echo "Building the extension ..."
	@$(if $(OPENSSL),SKBUILD_CMAKE_DEFINE="SOFTMRC_OPENSSL=$(file <$(OPENSSL))") $(INSTALL) --config-settings=build-dir=$(DEV) -e .
	@touch $@

# A separate distribution, whose extension needs nothing of the core.
$(VENV)/.bench: benchmarks/CMakeLists.txt benchmarks/pyproject.toml $(wildcard benchmarks/native/*) | $(VENV)/.built
	@echo "Building the benchmarks ..."
	@$(INSTALL) --no-deps --config-settings=build-dir=$(CURDIR)/build/bench -e benchmarks
	@touch $@

$(VENV)/.test: $(VENV)/.built $(VENV)/.bench
	@$(PIP) install $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["test"])')
	@touch $@

# The version that the tests use, and nothing else of theirs.
$(VENV)/.torch: $(VENV)/.built
	@echo "Installing torch ..."
	@$(PIP) install $$($(BIN)/python -c 'import tomllib; print(*(one for one in tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["test"] if one.startswith("torch")))')
	@touch $@

$(VENV)/.docs: $(VENV)/.built
	@$(PIP) install $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	@touch $@

$(VENV)/.dev: $(VENV)/.test
	@$(PIP) install $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["dev"])')
	@touch $@
