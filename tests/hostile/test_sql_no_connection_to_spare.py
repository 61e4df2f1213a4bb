"""A server that gives this user one connection and no more: its operations share it."""

from __future__ import annotations

import os
from typing import Any

import psycopg
import pymysql
import pytest

import leasehold
from leasehold import aio

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

ROUNDS = 10


@pytest.fixture(params=["postgresql", "mariadb"])
def url(request: pytest.FixtureRequest) -> str:
    """Of a user that may have one connection."""
    server: Any = request.getfixturevalue(f"{request.param}_server")
    user = f"single_{os.urandom(4).hex()}"
    if request.param == "postgresql":
        with psycopg.connect(server.url, autocommit=True) as postgresql:
            postgresql.execute(f"CREATE ROLE {user} LOGIN CONNECTION LIMIT 1")
            postgresql.execute(f"CREATE SCHEMA AUTHORIZATION {user}")
        return f"postgresql://{user}@127.0.0.1:{server.port}/postgres?table={user}.leases&push=off"
    with pymysql.connect(host="127.0.0.1", port=server.port, user="root", autocommit=True) as mariadb:
        mariadb.cursor().execute(f"CREATE USER {user}@'%' WITH MAX_USER_CONNECTIONS 1")
        mariadb.cursor().execute(f"GRANT ALL ON leasehold.* TO {user}@'%'")
    return f"mariadb://{user}@127.0.0.1:{server.port}/leasehold?table={user}&push=off"


def test_threads_share_the_only_connection(url: str) -> None:
    for _ in range(ROUNDS):
        with leasehold.connect(url, ttl=30) as locks:
            lease = locks.lock("name").acquire(timeout=30)  # the keeper, which starts now, needs a connection too
            assert lease.release()


async def test_tasks_share_the_only_connection(url: str) -> None:
    for _ in range(ROUNDS):
        async with aio.connect(url, ttl=30) as locks:
            lease = await locks.lock("name").acquire(timeout=30)
            assert await lease.release()
