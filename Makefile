# Every target does its own set-up; `make help` lists them.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
PY_SOURCES := policy agent backend operator tests tools bench
C_SOURCES := $(wildcard bpf/*.h bpf/*.c bpf/lib/*.h bpf/lib/*.c bpf/interpreters/*.h bpf/interpreters/*.c bpf/shim/include/*/*.h tests/unwinder/*.c tests/fuzz/*.c tests/programs/*.c tests/programs/*.cc tests/programs/cpython/*.c tests/programs/hotspot/*.c tests/programs/v8/*.c)
# Node and npm of one version from .venv, whatever the machine has.
NPM := PATH="$(CURDIR)/$(BIN):$$PATH" npm --prefix backend/ui --loglevel error
UI_SOURCES := $(shell find backend/ui/src backend/ui/public backend/ui/index.html backend/ui/vite.config.ts -type f)
UI_BUILT := backend/flameherd_backend/static/index.html

.PHONY: help setup ui up test check format generate soak fuzz test-cluster images test-kernels bench-agent bench-backend bench-operator clean runtimes

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: $(VENV)/.ready ui ## install Debian packages, make .venv, build the page (quick when it is there)

SETUP := tools/setup.sh uv.lock pyproject.toml $(wildcard */pyproject.toml)

$(VENV)/.ready: $(SETUP)
	@tools/setup.sh

# Only what `make up` needs: no compilers, browsers and virtual machines.
$(VENV)/.runs: $(SETUP)
	@tools/setup.sh run

ui: $(UI_BUILT) ## build the page that the backend serves (quick when nothing changed)

$(UI_BUILT): backend/ui/node_modules/.ready $(UI_SOURCES)
	@echo "setup: building the page"
	@$(NPM) run --silent build -- --logLevel warn

backend/ui/node_modules/.ready: backend/ui/package.json backend/ui/package-lock.json | $(VENV)/.runs
	@echo "setup: npm packages of the page"
	@$(NPM) ci --silent && touch $@

up: $(VENV)/.runs ui ## profile this machine and print the address of the page
	@$(BIN)/flameherd up

check: setup ## format, lint, types, import contracts, generated files up to date
	$(BIN)/ruff format --check $(PY_SOURCES)
	$(BIN)/ruff check $(PY_SOURCES)
	clang-format-14 --dry-run --Werror $(C_SOURCES)
	$(BIN)/mypy
	PYTHONPATH=policy:agent:backend:operator $(BIN)/lint-imports
	$(BIN)/python -m tools.generate --check
	$(NPM) run --silent check

format: setup ## rewrite the sources in the house format
	$(BIN)/ruff format $(PY_SOURCES)
	$(BIN)/ruff check --fix $(PY_SOURCES)
	clang-format-14 -i $(C_SOURCES)
	$(NPM) run --silent format

generate: setup ## rewrite the generated files (abi.py, docs/reference)
	$(BIN)/python -m tools.generate

test: setup ## all tests in their short form
	$(NPM) test --silent
	$(BIN)/pytest

soak: setup ## all tests in their full length (about an hour)
	$(BIN)/pytest --soak -m soak

FUZZ_SECONDS ?= 600
FUZZ_TARGETS ?=

fuzz: setup ## fuzz the readers of hostile input, FUZZ_SECONDS for each of FUZZ_TARGETS
	@tools/setup.sh fuzz
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) $(FUZZ_TARGETS)

test-cluster: setup ## the tests on a real Kubernetes node, with the built images
	$(BIN)/pytest tests/cluster

images: setup ## build the container images of operator, agent and backend
	$(BIN)/python -m tools.images

test-kernels: setup ## boot older kernels under qemu and unwind there
	$(BIN)/pytest tests/kernels --kernels

runtimes: setup ## run the truth programs of the runtimes everywhere; write the table of docs/runtimes
	$(BIN)/python -m tests.runtimes

bench-agent: setup ## measure the agent against the budgets of the design
	$(BIN)/python -m bench.agent

bench-operator: setup ## measure the operator with 1,000 policies against a real API server
	$(BIN)/python -m bench.reconcile

bench-backend: setup ## measure the backend: decoding, inserting, queries at ten million rows
	$(BIN)/python -m bench.backend

clean: ## remove .venv, the built page and caches
	rm -rf backend/ui/node_modules backend/flameherd_backend/static
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache
