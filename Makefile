# Everything a user or a developer types. The work is done by tools/ and by the CMake presets; Ninja does the parallel part.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help serve demo build test bench asan tsan fuzz analyze format clean setup setup-dev

kvtide := build/release/apps/kvtide/kvtide

ARGS ?=
DEMO_ARGS ?= --users 6 --sessions 6 --max-context 2300 --max-reply 24 --gap-scale 0.1 --gap-cap 5 --capacity 0.7
export FUZZ_SECONDS ?= 20

help: ## this list
	@echo 'make TARGET'
	@awk -F ':[^#]*## ' '/^[a-z-]+:.*## / {printf "  %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo 'Options: ARGS="--port 9000 ..." for serve; KVTIDE_LLAMA_OPTIONS="-DGGML_CUDA=ON" for another backend;'
	@echo 'KVTIDE_LLAMA_SOURCE=DIR for your own llama.cpp; KVTIDE_CACHE=DIR for what is kept outside the checkout.'

serve: build ## install what is missing, build, fetch the default model, and serve it on 127.0.0.1:8080
	@$(kvtide) model pull
	@exec $(kvtide) serve $(ARGS)

demo: build ## replay agent sessions with and without session awareness, and show the table
	@$(kvtide) model pull
	@exec $(kvtide) replay swe $(DEMO_ARGS)

build: setup ## build the release
	@tools/build release

test: setup-dev ## every test: release, both sanitizers, the fuzzers briefly
	@tools/test

bench: build ## the micro benchmarks
	@$(kvtide) model pull
	@tools/bench $(ARGS)

asan: setup-dev ## the fast tests under AddressSanitizer and UBSan
	@tools/test asan

tsan: setup-dev ## the fast tests under ThreadSanitizer
	@tools/test tsan

fuzz: setup-dev ## every fuzzer for FUZZ_SECONDS
	@tools/test fuzz

analyze: setup-dev ## clang-tidy, findings as errors
	@tools/build analyze

format: setup-dev ## clang-format, in place
	@git ls-files -z --cached --others --exclude-standard '*.cc' '*.h' | xargs -0 clang-format-19 -i

clean: ## remove what was built in this checkout (llama.cpp and models stay in the cache)
	@rm -rf build

setup:
	@tools/setup

setup-dev:
	@tools/setup --dev
