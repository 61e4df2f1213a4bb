# make test     sets up .venv and the servers, then runs the tests: every store, threads and asyncio
# make full     the same, the long tests on servers, and every store in its other deployments (cluster, replica sets …)
# make hostile  SECONDS=60: interrupts, cancellations, a crowd of 300 threads, on one store after the other
# make latest   make test with the newest release of every dependency, in an environment of its own
# make quick    no servers, no slow tests: under a minute
# make matrix   make quick, and the conformance of Redis and PostgreSQL, on every Python that can be had: a table
# make check    ruff, mypy
# make docs     the documentation, into site/
# make mutants  breaks a copy of the library on purpose, in some 80 ways: each must be noticed
# make chaos    STORE=redis MINUTES=5: real processes and servers, faults aimed at whoever holds the lease
#               PEERS=1 (or names): other lock libraries under the same faults, and leasehold beside them
#               FULL=1: what of the fault matrix is not in KEEP yet, at most MINUTES per store; REPORT=1: the table of what is there
# make simulate SEEDS=5000: more simulated worlds than the 200 of make test
# make bench    STORE=redis: the figures of docs/performance.md, SQLite's unless another store is named
#               BENCH="--rtt 1ms": acquire, release and hand-off, with a round trip of 1 ms to the server
# make bench-all  all of them, into bench/published; again, to go on after it was stopped
# make demo     what leasehold does, in a few seconds
# make clean    removes what these have made, bar .venv and the fetched servers
# make distclean  removes those too

VENV ?= .venv
export VENV
BIN := $(VENV)/bin

# Tests mostly wait, so far more workers than cores. Each starts the servers that its tests need, once.
WORKERS ?= 5
QUICK_WORKERS ?= 12
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --tb=short
QUICK := tests/core tests/docs tests/conformance/test_memory.py tests/conformance/test_sqlite.py tests/stores/test_sqlite.py \
	tests/simulation/test_small_worlds.py tests/mutants
# What to give pytest besides: make test ARGS="-k sqlite"
ARGS ?=
# What chaos is made on (nothing: every store and deployment), for how long each, how often a fault comes, and where the histories are kept
STORE ?=
MINUTES ?= 5
EVERY ?= 1
FULL ?=
REPORT ?=
# Instead of leasehold's stores: 1 for all other libraries, or some of those that tests/chaos/peers/usages.py names
PEERS ?=
KEEP ?= .cache/chaos
CHAOS_OPTIONS = $(if $(REPORT),--report $(abspath $(KEEP)),$(if $(STORE),--store $(STORE)) --minutes $(MINUTES) --every $(EVERY) $(if $(FULL),--full) --keep $(abspath $(KEEP)))
PEER_OPTIONS = $(if $(REPORT),page $(abspath $(KEEP))/peers,run $(if $(filter-out 1,$(PEERS)),--only $(PEERS)) --minutes $(MINUTES) --every $(EVERY) --keep $(abspath $(KEEP))/peers)
SEEDS ?= 5000
# How long each hostile test goes on
SECONDS ?= 60
# What to give the benchmark: make bench STORE=redis BENCH="--only pair,handoff"
BENCH ?=

.PHONY: test full latest hostile quick check format docs bench bench-all mutants matrix chaos simulate demo servers clean distclean

test: servers
	scripts/venv test
	$(BIN)/python scripts/run-tests -n $(WORKERS) --tb=short -m "not variant and not (server and slow)" $(ARGS)

full: servers
	scripts/venv test
	$(PYTEST) $(ARGS)

latest:
	LATEST=1 VENV=.venv-latest $(MAKE) test

hostile: servers
	scripts/venv test
	HOSTILE_SECONDS=$(SECONDS) HOSTILE_THREADS=300 $(BIN)/python -m pytest -n 0 --tb=short tests/hostile $(ARGS)

quick:
	scripts/venv test
	$(BIN)/python -m pytest -n $(QUICK_WORKERS) --dist worksteal -m "not server and not slow" $(QUICK) $(ARGS)

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
	scripts/venv test bench
	$(BIN)/python -m bench.run $(if $(STORE),--store $(STORE)) $(BENCH)

bench-all:
	scripts/venv test bench
	$(BIN)/python -m bench.all $(STORE)

mutants: servers
	cd tests && $(abspath $(BIN))/python -m mutants.run

matrix:
	scripts/matrix

chaos: servers
	$(if $(PEERS),scripts/venv test bench)
	cd tests && $(abspath $(BIN))/python -m $(if $(PEERS),chaos.peers.$(PEER_OPTIONS),chaos.run $(CHAOS_OPTIONS))

simulate:
	scripts/venv test
	SEEDS=$(SEEDS) $(PYTEST) tests/simulation $(ARGS)

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
