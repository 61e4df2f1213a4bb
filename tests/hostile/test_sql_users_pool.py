"""Renewals and releases come first in a pool of the user's, too."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg_pool import ConnectionPool

import leasehold

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

ACQUIRES = 8


@pytest.fixture(params=["pool", "engine"])
def client(request: pytest.FixtureRequest, postgresql_server: Any) -> Iterator[Any]:
    url = postgresql_server.url
    if request.param == "pool":
        with ConnectionPool(url, min_size=2, max_size=2, open=True) as pool:
            yield pool
    else:
        url = url.replace("postgresql:", "postgresql+psycopg:")
        engine = sqlalchemy.create_engine(url, pool_size=2, max_overflow=0)
        yield engine
        engine.dispose()


def test_acquires_that_wait_for_locked_rows_leave_a_connection_to_renewals(client: Any, postgresql_server: Any) -> None:
    namespace = os.urandom(5).hex()
    names = [f"locked-{number}" for number in range(ACQUIRES)]
    with leasehold.connect(client, namespace=namespace, ttl=30) as locks:
        held = locks.lock("held").acquire()
        for name in names:
            locks.lock(name).acquire().release()
        with psycopg.connect(postgresql_server.url) as blocker:
            rows = "SELECT name FROM leasehold WHERE namespace = %s AND name LIKE 'locked%%' FOR UPDATE"
            assert len(blocker.execute(rows, [namespace]).fetchall()) == ACQUIRES
            acquires = [threading.Thread(target=locks.lock(name).try_acquire, args=(4,)) for name in names]
            for acquire in acquires:
                acquire.start()
            with psycopg.connect(postgresql_server.url, autocommit=True) as watcher:
                while watcher.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone() == (0,):
                    time.sleep(0.01)
            slowest = 0.0
            for _ in range(10):
                begun = time.monotonic()
                held.renew()
                slowest = max(slowest, time.monotonic() - begun)
                time.sleep(0.1)  # so that others come in between
            assert slowest < 1.0
            assert held.release()
        for acquire in acquires:
            acquire.join()
