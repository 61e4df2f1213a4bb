"""Which tests need servers, and which share them."""

from pathlib import Path

import pytest

pytest_plugins = ["servers.plugin"]

HERE = Path(__file__).parent
SHARED = (HERE / "conformance", HERE / "stores")


def pytest_itemcollected(item: pytest.Item) -> None:
    """With ``--dist loadgroup`` the tests of a store go to one worker, one after the other, and share its server.

    They mostly wait, so there can be far more workers than cores; but each worker that met a store would start one.
    """
    if item.path.parent not in SHARED:
        return
    callspec = getattr(item, "callspec", None)
    server = [str(value) for key, value in callspec.params.items() if key in SERVERS] if callspec else []
    item.add_marker(pytest.mark.xdist_group(" ".join([item.path.stem, *server])))
    if item.path.stem not in EMBEDDED:
        item.add_marker(pytest.mark.server)
    if item.path.parent == HERE / "conformance" and (item.path.stem in VARIANTS or set(server) & VARIANTS):
        item.add_marker(pytest.mark.variant)


EMBEDDED = {
    *("test_memory", "test_memory_far_away", "test_sqlite", "test_sqlite_without_push"),
    *("test_third_party", "test_checker"),
}
VARIANTS = {
    *("test_memory_far_away", "test_sqlite_without_push", "test_postgresql_engine", "test_mariadb_engine"),
    *("test_redis_client", "test_redis_acl", "test_redis_cluster", "test_redis_sentinel", "valkey_server"),
    "test_redlock",
    *("mongodb_replica_set", "mongodb_three_members"),
}
"""The same store in another deployment: in ``make full``."""
SERVERS = ("store", "deployment")
"""Fixtures of the conformance tests that choose a server by their parameter."""
