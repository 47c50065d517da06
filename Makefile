# `make` lists what there is. Every target first brings .venv up to date, which is free when nothing changed:
# each step leaves a stamp in .make/ that is named after the content of whatever the step depends on.

PYTHON ?= python3
WORKERS ?= 3
# The rest of a test or bench command line: make test ARGS="tests/log -x"
ARGS ?=

BIN := .venv/bin
PY := $(BIN)/python
UV := $(BIN)/uv

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
MAKEFLAGS += --no-builtin-rules
# Tests and pipelines start interpreters by the hundred; none of them should compile again what another has compiled
unexport PYTHONDONTWRITEBYTECODE

key = $(shell sha256sum $(1) 2>/dev/null | sha256sum | cut -c 1-16)
done = @mkdir -p .make && rm -f .make/$(1)-* && touch $@

NATIVE_SOURCES := $(sort $(shell find src -name '_*.pyx' -o -name '_*.pxd' -o -name '_*.h' -o -name '*.proto') \
  src/rivven/wire/kafka/generate.py src/rivven/wire/kafka/messages.json)
HAS_UV := .make/uv-$(call key,requirements/uv.txt)
HAS_LOCKED := .make/locked-$(call key,requirements/dev.txt)
HAS_PEERS := .make/peers-$(call key,requirements/bench.txt)
HAS_JAVA := .make/java-$(call key,requirements/java.txt)
HAS_CLASSES := .make/classes-$(call key,requirements/dev.txt requirements/java.txt)
HAS_PACKAGE := .make/package-$(call key,pyproject.toml setup.py)
# Named after the compiler too: whoever installs one later gets the native code
HAS_NATIVE := .make/native-$(call key,$(NATIVE_SOURCES) setup.py)-$(if $(shell command -v cc gcc),built,pure)

## Everyday

.PHONY: help setup demo test lint docs bench bench-quick soak classes lock clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: $(HAS_NATIVE) $(HAS_JAVA) ## create or renew .venv with everything the other targets need

demo: setup ## a first look, start to end
	$(PY) -m demo.demo $(ARGS)

test: setup ## lint, then every test but the soak
	@$(MAKE) --no-print-directory classes & $(MAKE) --no-print-directory lint; linted=$$?; wait; exit $$linted
	$(PY) -m pytest -n $(WORKERS) --dist loadgroup -m "not soak" $(ARGS)

lint: setup ## ruff and mypy, changing nothing
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

docs: setup ## the documentation, into site/
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	@! grep -rlE --include='*.html' '<(script|link|img|iframe)[^>]* (src|href)="?(https?:)?//' site \
	  || { echo "docs: these pages load something from outside" >&2; exit 1; }

bench: setup $(HAS_PEERS) ## measure, beside Kafka, Redis, NATS and others: more than an hour
	$(PY) -m bench $(ARGS)

bench-quick: setup $(HAS_PEERS) ## the same in under five minutes, only to see that it runs
	$(PY) -m bench --quick $(ARGS)

soak: setup classes ## the tests that run for minutes
	$(PY) -m pytest -n $(WORKERS) --dist loadgroup -m soak --hypothesis-profile=soak --timeout=0 $(ARGS)

## Dependencies: `make lock` after a change in pyproject.toml; `make lock UPGRADE=1` takes the newest of all

LOCK = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes $(if $(UPGRADE),--upgrade) \
  --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

lock: $(HAS_UV) ## write requirements/*.txt anew from pyproject.toml
	$(LOCK) --group bootstrap --output-file requirements/uv.txt
	$(LOCK) pyproject.toml --extra full --group build --group lint --group test --group docs \
	  --output-file requirements/dev.txt
	$(LOCK) pyproject.toml --constraint requirements/dev.txt --no-annotate --output-file requirements/runtime.txt
	$(LOCK) --group java --no-annotate --output-file requirements/java.txt
	$(LOCK) --group bench --constraint requirements/dev.txt --no-annotate --output-file requirements/bench.txt

clean: ## remove what was built, keep .venv
	rm -rf build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis bench/out .make/package-* .make/native-*
	rm -rf src/rivven/wire/kafka/made
	find src -name '_*.so' -delete -o -name '*.desc' -delete
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove .venv as well
	rm -rf .venv .make src/*.egg-info

# Whom `make bench` measures us against. A peer that cannot be installed is named in the results, and the rest goes on.
$(HAS_PEERS): $(HAS_LOCKED)
	@echo "bench: installing requirements/bench.txt"
	@if if [ -x $(UV) ]; then $(UV) pip install --quiet --python $(PY) --require-hashes -r requirements/bench.txt; \
	    else $(PY) -m pip install --quiet --require-hashes -r requirements/bench.txt; fi; \
	  then mkdir -p .make && rm -f .make/peers-* && touch $@; \
	  else echo "bench: not all peers can be installed here; the results will say which"; fi

# Tests start Spark a dozen times; this halves what a start takes.
classes: $(HAS_CLASSES)
	@:

$(HAS_CLASSES): | $(HAS_JAVA)
	@if $(BIN)/rivven-connect prepare; then mkdir -p .make && rm -f .make/classes-* && touch $@; \
	else echo "test: Spark will start as slowly as ever"; fi

# The five steps of `setup`

.venv/pyvenv.cfg:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "rivven needs Python 3.11 or newer, and there is no $(PYTHON) here;" \
	    "name one: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "rivven needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) -V 2>&1);" \
	    "name another: make setup PYTHON=python3.12" >&2; exit 1; }
	@echo "setup: creating .venv with $$($(PYTHON) -V)"
	@$(PYTHON) -m venv .venv || { rm -rf .venv; \
	  echo "$(PYTHON) cannot create a venv; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

$(HAS_UV): .venv/pyvenv.cfg
	@$(PY) -m pip install --quiet --require-hashes -r requirements/uv.txt \
	  || echo "setup: no uv for this machine; pip does its work, slower"
	$(call done,uv)

$(HAS_LOCKED): $(HAS_UV)
	@echo "setup: installing requirements/dev.txt"
	@if [ -x $(UV) ]; then $(UV) pip install --quiet --python $(PY) --require-hashes -r requirements/dev.txt; \
	  else $(PY) -m pip install --quiet --require-hashes -r requirements/dev.txt; fi
	$(call done,locked)

# Metadata and commands only. What an older setup.py or Cython generated goes, since timestamps don't show that.
$(HAS_PACKAGE): export RIVVEN_NO_NATIVE = 1
$(HAS_PACKAGE): $(HAS_LOCKED)
	@rm -rf build
	@if [ -x $(UV) ]; then $(UV) pip install --quiet --python $(PY) --no-deps --no-build-isolation -e .; \
	  else $(PY) -m pip install --quiet --no-deps --no-build-isolation -e .; fi
	$(call done,package)

$(HAS_NATIVE): $(HAS_PACKAGE)
	@$(PY) setup.py --quiet build_ext --inplace
	$(call done,native)

# What Spark runs on. A machine that has Java 17 or newer needs no other; a Python package brings one to any other.
$(HAS_JAVA): $(HAS_NATIVE)
	@if $(PY) -c 'from rivven.spark import java_home; java_home()' 2>/dev/null; then mkdir -p .make && touch $@; \
	elif echo "setup: no Java 17 or newer here; installing requirements/java.txt" && \
	  if [ -x $(UV) ]; then $(UV) pip install --quiet --python $(PY) --require-hashes -r requirements/java.txt; \
	  else $(PY) -m pip install --quiet --require-hashes -r requirements/java.txt; fi; \
	then mkdir -p .make && rm -f .make/java-* && touch $@; \
	else echo "setup: no Java for this machine there either; install Java 17 or newer to use Spark"; fi
