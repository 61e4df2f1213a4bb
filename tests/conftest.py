"""Which tests need servers, and which are for ``make full`` alone."""

import gc
import re
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["servers.plugin", "failures"]

# How fast a machine is that runs many tests at once says nothing about the code.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Which a shell ignores for what it starts in the background, and nohup for what it starts.
for _signal in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, signal.default_int_handler if _signal == signal.SIGINT else signal.SIG_DFL)

HERE = Path(__file__).parent
SHARED = (HERE / "conformance", HERE / "stores")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Modules of variants are not even imported where no variant is run: they are half of all tests."""
    left_out = "not variant" in config.option.markexpr
    return True if left_out and collection_path.parent in SHARED and collection_path.stem in VARIANTS else None


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.path.parent not in SHARED:
        return
    callspec = getattr(item, "callspec", None)
    server = [str(value) for key, value in callspec.params.items() if key in SERVERS] if callspec else []
    if item.path.stem not in EMBEDDED:
        item.add_marker(pytest.mark.server)
    if item.path.parent == HERE / "conformance" and (item.path.stem in VARIANTS or set(server) & VARIANTS):
        item.add_marker(pytest.mark.variant)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What a test shows on MariaDB it shows on MySQL in `make full`: the code is the same but for a few statements, and
    MySQL takes five times as long to start. `make test` runs these statements, by the conformance tests that ask the
    most of the store itself, with threads."""
    tests = {item.nodeid for item in items}
    for item in items:
        twin = MYSQL.sub("mariadb", item.nodeid)
        if twin != item.nodeid and twin in tests:
            item.add_marker(pytest.mark.variant)
        if item.path == HERE / "conformance" / "test_mysql.py" and not _of_statements(item):
            item.add_marker(pytest.mark.variant)


def _of_statements(item: pytest.Item) -> bool:
    module = str(getattr(getattr(item, "function", None), "__module__", "")).rpartition(".")[2]
    return module in STATEMENTS and "asyncio" not in item.keywords


def pytest_collection_finish() -> None:
    """Many tests look for what is left over, after a collection of garbage: what is here for good is left out of it."""
    gc.collect()
    gc.freeze()


EMBEDDED = {
    *("test_memory", "test_memory_far_away", "test_sqlite", "test_sqlite_without_push"),
    *("test_third_party", "test_checker"),
}
VARIANTS = {
    *("test_memory_far_away", "test_sqlite_without_push", "test_postgresql_engine", "test_mariadb_engine"),
    *("test_postgresql_pool", "test_mysql_pool"),
    "test_sql_isolation",
    *("test_redis_client", "test_redis_acl", "test_redis_cluster", "test_redis_sentinel", "valkey_server"),
    *("test_redlock", "test_etcd_cluster"),
    *("mongodb_replica_set", "mongodb_three_members"),
    *("test_zookeeper_ensemble", "test_zookeeper_model"),
}
"""The same store in another deployment: in ``make full``."""
STATEMENTS = {"operations", "heirs", "notes", "queue", "together", "tokens", "permits", "listing", "names", "breaking"}
"""Modules of the conformance suite that ask the most of the statements of a store."""
MYSQL = re.compile(r"(?<=[\[-])mysql(?=[\]-])")
"""The server among the parameters of a test."""
SERVERS = ("store", "deployment")
"""Fixtures of the conformance tests that choose a server by their parameter."""
