"""A server that refuses a connection for another reason than too many of them is no reason to wait for the others."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import psycopg
import pytest

import leasehold
from leasehold import StoreUnavailable

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]


def call(locks: leasehold.Locks) -> None:
    with pytest.raises(StoreUnavailable):
        locks.inspect("name")


def test_refused_connection_is_reported_at_once_and_as_it_is(postgresql_server: Any) -> None:
    """Though another thread has a connection, and waits for an answer on it."""
    name = f"closed_{os.urandom(4).hex()}"
    url = f"postgresql://postgres@127.0.0.1:{postgresql_server.port}/{name}"
    with psycopg.connect(postgresql_server.url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        with psycopg.connect(url) as blocker, leasehold.connect(f"{url}?push=off", ttl=20) as locks:
            locks.lock("name").acquire().release()
            blocker.execute("LOCK TABLE leasehold IN ACCESS EXCLUSIVE MODE")
            stuck = threading.Thread(target=call, args=(locks,))
            stuck.start()
            while admin.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone() == (0,):
                time.sleep(0.01)
            admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            begun = time.monotonic()
            with pytest.raises(StoreUnavailable, match="not currently accepting connections"):
                locks.inspect("other")
            assert time.monotonic() - begun < 2.0
            stuck.join()
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
