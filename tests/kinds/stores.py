"""The stores that these tests run on, each as other processes open it."""

from __future__ import annotations

from pathlib import Path

import pytest

from leasehold.testing import StoreUnderTest

STORES = ("sqlite", "redis", "postgresql", "mariadb", "mysql", "mongodb", "etcd", "zookeeper")
REDLOCK = "redlock"
"""For what it has: it refuses semaphores, read/write locks, once and groups."""


class NoProbe:
    """These tests look with the API."""

    def names(self, namespace: str) -> list[str]:
        return []


def open_store(name: str, request: pytest.FixtureRequest, folder: Path) -> StoreUnderTest:
    if name == "sqlite":
        url = f"sqlite:///{folder}/leases.db"
    elif name == REDLOCK:
        url = "redlock://" + ",".join(request.getfixturevalue("redlock_nodes"))
    else:
        url = str(request.getfixturevalue(f"{name}_server").url)
    return StoreUnderTest(name, url, NoProbe())  # type: ignore[arg-type]
