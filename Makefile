# make test     sets up .venv and the servers, then runs the tests: every store, threads and asyncio
# make full     the same, the long tests on servers, and every store in its other deployments (cluster, replica sets …)
# make quick    no servers, no slow tests: under a minute
# make check    ruff, mypy
# make docs     the documentation, into site/
# make bench    the figures of docs/performance.md
# make demo     what leasehold does, in a few seconds
# make clean    removes what these have made, bar .venv and the fetched servers
# make distclean  removes those too

VENV ?= .venv
export VENV
BIN := $(VENV)/bin

# Tests mostly wait, so far more workers than cores; those of a store stay together and share its server.
WORKERS ?= 6
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup
QUICK := tests/core tests/docs tests/conformance/test_memory.py tests/conformance/test_sqlite.py tests/stores/test_sqlite.py
# What to give pytest besides: make test ARGS="-k sqlite"
ARGS ?=
# What to give the benchmark: make bench BENCH="--only pair,handoff"
BENCH ?=

.PHONY: test full quick check format docs bench demo servers clean distclean

test: servers
	scripts/venv test
	$(PYTEST) -m "not variant and not (server and slow)" $(ARGS)

full: servers
	scripts/venv test
	$(PYTEST) $(ARGS)

quick:
	scripts/venv test
	$(BIN)/python -m pytest -n 6 -m "not server and not slow" $(QUICK) $(ARGS)

check:
	scripts/venv test check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format:
	scripts/venv check
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs:
	scripts/venv docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench:
	scripts/venv bench
	$(BIN)/python -m bench.run $(BENCH)

demo:
	scripts/demo

# Servers that are missing are unpacked into .cache; those that are here already cost a second.
servers:
	scripts/venv test
	$(BIN)/python scripts/install-servers

clean:
	rm -rf site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis bench/results
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) .cache
