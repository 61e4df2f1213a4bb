"""Hundreds of waiters that died in the queue of a name hold up nobody: a release passes the name on to who lives."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

import leasehold
from leasehold.testing.handles import eventually

DEAD = 800


def waiters(expires: int) -> list[list[Any]]:
    """Waiters as they are stored, each of a process of its own."""
    who = [(os.urandom(16).hex(), os.urandom(16).hex()) for _ in range(DEAD)]
    return [[attempt, "dead", "lock", None, session, 1, 30_000_000, 0, expires, 0, 0, 0] for attempt, session in who]


def test_release_passes_over_hundreds_of_waiters_that_died(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    with leasehold.connect(f"sqlite:///{path}", ttl=60) as locks:
        lease = locks.lock("name").acquire()
        connection = sqlite3.connect(path, isolation_level=None, timeout=10)
        [(state,)] = connection.execute("SELECT state FROM leasehold").fetchall()
        stored = json.loads(state)
        stored[3] = waiters(stored[2][0][8])
        for waiter in stored[3]:
            os.mkfifo(f"{path}-wake/{waiter[4]}", 0o600)  # that nobody reads: its process is dead
        connection.execute("UPDATE leasehold SET version = version + 1, state = ?", (json.dumps(stored),))
        connection.close()
        assert lease.release()
        after = locks.lock("name").try_acquire()
        assert after is not None, "the name was not passed on"
        assert after.token > lease.token


@pytest.mark.server
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_release_is_not_held_up_by_hundreds_of_waiters_that_died(request: pytest.FixtureRequest, kind: str) -> None:
    """Their places end by themselves: an SQL server cannot tell who is dead."""
    server: Any = request.getfixturevalue(f"{kind}_server")
    space = os.urandom(6).hex()
    with leasehold.connect(server.url, namespace=space, ttl=60) as locks:
        lease = locks.lock("name").acquire(timeout=30)
        soon = time.time_ns() // 1000 + 1_500_000
        more = json.dumps(["lock", 1, lease.token, 1, 60_000_000, 0, [], waiters(soon)], separators=(",", ":"))
        connection: Any = (
            psycopg.connect(server.url, autocommit=True)
            if kind == "postgresql"
            else pymysql.connect(host="127.0.0.1", port=server.port, user="root", database="leasehold", autocommit=True)
        )
        with connection:
            place = "namespace = %s" if kind == "postgresql" else "namespace = CAST(%s AS BINARY)"
            sql = f"UPDATE leasehold SET version = version + 1, more = %s WHERE {place}"
            connection.cursor().execute(sql, (more, space))
        assert lease.release()
        eventually(lambda: locks.inspect("name") is None)
        assert locks.lock("name").acquire(timeout=30).release()
