# Two commands do everything: `make demo` and `make test`. Both make their own virtual environment first.
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
# The first tier: no test that starts processes, builds networks, or takes seconds. The marks are explained in pyproject.toml.
FIRST_TIER := not (process or lab or docs or slow or nightly)
TOOLS   := binutils chromium clang ethtool frr git iproute2 libclang-rt-dev nftables openssl prometheus tshark
SANITIZE_TESTS ?= tests/unit tests/property tests/vectors tests/swarm tests/udp tests/collectives tests/nccl
THREAD_TESTS ?= tests/udp tests/collectives tests/nccl tests/sim/test_cores.py

.PHONY: help figures cli-reference docs-serve demo demo-lab demo-gpu test test-rest test-all test-nightly test-torch test-programs tools torch-suite lint format bench sanitize sanitize-threads sanitize-short fuzz arm64 swarm soak paper answers spec-map settings api openssl wheel wheel-check wheel-arm64 docs build clean
.DEFAULT_GOAL := help

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.torch ## Train on four ranks while their planes break, and show that nothing changed
	@$(BIN)/softmrc demo

demo-lab: $(VENV)/.torch ## The same over a kernel SRv6 fabric whose spine reboots (root)
	@$(BIN)/softmrc demo --lab

demo-gpu: build ## Train with NCCL on a GPU over our plugin while its planes break (torch with CUDA in .venv)
	@$(BIN)/softmrc demo --gpu

test: test-programs ## Run the tests that need no other processes: on every change
	$(BIN)/python -m pytest -n $(JOBS) -m '$(FIRST_TIER)'

test-rest: test-programs ## Run what `make test` leaves out: processes, namespaces, pages, models
	$(BIN)/python -m pytest -n $(JOBS) -m 'not nightly and not ($(FIRST_TIER))'

test-all: test test-rest ## Run both: before merging

test-nightly: test-all build/plain/trace ## Run everything: many seeds, sanitizers, fuzzers, other torch versions, soak, aarch64, wheels
	$(BIN)/python -m pytest -n $(JOBS) -m nightly
	SOFTMRC_SWARM_SEEDS=4000 SOFTMRC_GROUP_SEEDS=1500 $(BIN)/python -m pytest -n $(JOBS) tests/swarm tests/collectives/test_sittings.py
	$(MAKE) sanitize sanitize-threads fuzz test-torch soak arm64 wheel wheel-arm64

test-torch: $(VENV)/.test ## Run tests/torch with other versions of torch: make test-torch TORCH='2.10.0 2.15.0'
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

lint: $(VENV)/.dev ## Check style and types
	$(BIN)/ruff check src benchmarks tests tools examples
	$(BIN)/ruff format --check -q src benchmarks tests
	$(BIN)/mypy
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

sanitize-short: ## The core's own tests with both, and the fuzzers ten seconds each where clang is; needs no Python
	@$(firstword $(wildcard $(BIN)/python) $(PYTHON)) tools/portable.py $(JOBS) sanitize

sanitize-threads: $(VENV)/.test ## Run what has threads with ThreadSanitizer
	$(BIN)/python tools/sanitize.py thread $(THREAD_TESTS)

fuzz: ## Run the fuzzers, SECONDS each (needs clang)
	@command -v clang++ >/dev/null || { echo "Fuzzing needs clang++ (on Debian: apt install clang)."; exit 1; }
	@cmake -S . -B build/fuzz -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSOFTMRC_FUZZ=ON -DSOFTMRC_SANITIZE=address >/dev/null
	@cmake --build build/fuzz -j $(JOBS)
	@for program in build/fuzz/fuzz_*; do \
	  name=$${program##*/fuzz_}; mkdir -p build/fuzz/corpus-$$name; echo "== $$name"; \
	  $$program -max_total_time=$(SECONDS) -print_final_stats=1 -verbosity=0 build/fuzz/corpus-$$name fuzz/corpus/$$name || exit 1; done

wheel: ## Build sdists and manylinux wheels into dist/, and try them in clean environments
	@$(PYTHON) tools/wheel.py

wheel-check: ## The same with one Python, and quickly
	@$(PYTHON) tools/wheel.py --quick

wheel-arm64: ## A wheel of Python 3.11 for aarch64, tried under QEMU
	@$(PYTHON) tools/wheel_arm64.py

docs: $(VENV)/.docs ## Build the documentation site, site/index.html, and check its links
	@$(BIN)/python tools/site.py

docs-serve: docs ## Build the documentation site and serve it at http://127.0.0.1:8000
	@$(BIN)/python -m http.server --bind 127.0.0.1 --directory site 8000

arm64: ## Build the core for aarch64 too, run its tests under QEMU, and compare with this machine
	@$(firstword $(wildcard $(BIN)/python) $(PYTHON)) tools/portable.py $(JOBS)

spec-map: $(VENV)/.built ## Write docs/reference/spec-coverage.md
	$(BIN)/python tools/spec_map.py

api: $(VENV)/.built ## Write docs/reference/api.md
	$(BIN)/python tools/api.py

cli-reference: $(VENV)/.built ## Write the reference of the commands from their help
	$(BIN)/python tools/cli_reference.py

settings: $(VENV)/.built ## Write src/softmrc/config/settings.py, docs/reference/configuration.md and src/softmrc/engine/counters.py
	$(BIN)/python tools/settings.py
	$(BIN)/python tools/formats.py
	$(BIN)/python tools/counters.py

swarm: $(VENV)/.test ## Replay one seed of the swarm: make swarm SEED=7
	$(BIN)/python -m tests.swarm.swarm --seed $(SEED)

answers: build ## Ask every scenario its question and write docs/evidence/scenario-answers.md
	$(BIN)/python tools/answers.py

paper: build ## Run the published experiments, beside RoCE, and write docs/evidence/results.md
	$(BIN)/python tools/paper.py

soak: build ## Random faults over real sockets, for an hour (SOAK_SECONDS=...)
	$(BIN)/python -P -m softmrc_bench.soak $(SOAK_SECONDS) $(SEED)

openssl: ## Build a recent libcrypto, and the extension with it: sealed packets go faster than with an old system's
	@mkdir -p build/openssl
	@$(PYTHON) tools/libcrypto.py > build/openssl/made && mv build/openssl/made build/openssl/used
	@$(MAKE) --no-print-directory build

build: $(VENV)/.built $(VENV)/.bench ## Install softmrc and softmrc-bench into .venv, as they are edited

clean: ## Remove everything that make made
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

# A distribution of its own, whose extension needs nothing of the core.
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
