"""A primary that becomes read-only grants nothing more on the connections that are open, whoever the user is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy

import leasehold
from leasehold import aio
from leasehold.testing.handles import eventually
from servers.mysql import MariaDB, MySQL
from servers.plugin import shared
from servers.postgresql import PostgreSQL

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

SETTINGS = {
    "postgresql": (PostgreSQL, "default_transaction_read_only"),
    "mariadb": (MariaDB, "read_only"),
    "mysql": (MySQL, "read_only"),
}


class Primary:
    """A server, and its administrator, who may write even when it is read-only."""

    def __init__(self, server: Any, setting: str) -> None:
        self.url: str = server.url
        self._port = server.port
        self._setting = setting

    def only_read(self, on: bool) -> None:
        if self._setting != "default_transaction_read_only":
            with pymysql.connect(host="127.0.0.1", port=self._port, user="root") as connection:
                connection.cursor().execute(f"SET GLOBAL {self._setting} = {int(on)}")
            return
        word = "on" if on else "off"
        with psycopg.connect(self.url, autocommit=True, options=f"-c {self._setting}=off") as connection:
            connection.execute(f"ALTER SYSTEM SET {self._setting} = {word}")
            connection.execute("SELECT pg_reload_conf()")
        eventually(lambda: self._says() == word)

    def _says(self) -> object:
        with psycopg.connect(self.url) as connection:
            row = connection.execute(f"SHOW {self._setting}").fetchone()
        return row and row[0]

    def engine(self) -> sqlalchemy.Engine:
        scheme, _, rest = self.url.partition("://")
        driver = {"postgresql": "postgresql+psycopg"}.get(scheme, f"{scheme}+pymysql")
        return sqlalchemy.create_engine(f"{driver}://{rest}", pool_size=1, max_overflow=0)


@pytest.fixture(scope="module", params=SETTINGS)
def primary(request: pytest.FixtureRequest) -> Iterator[Primary]:
    kind, setting = SETTINGS[request.param]
    with contextmanager(shared)(kind) as server:
        yield Primary(server, setting)


def refused(primary: Primary, locks: leasehold.Locks) -> None:
    lease = locks.lock(os.urandom(4).hex(), renew=False).acquire(timeout=30)
    assert locks.lock("free").acquire(timeout=30).release()
    for operation in (
        lease.renew,
        lambda: locks.lock("new").try_acquire(),
        lambda: locks.lock("free").try_acquire(),
        lambda: locks.semaphore("several", limit=2).try_acquire(),
        lambda: locks.all_of("a", "b").try_acquire(),
    ):
        assert locks.lock("free").acquire(timeout=30).release()  # its connection is open
        primary.only_read(True)
        with pytest.raises(leasehold.StoreUnavailable, match="read-only"):
            operation()
        primary.only_read(False)
    lease.renew()
    assert lease.release()


def test_open_connections_of_threads_grant_nothing_on_a_read_only_server(primary: Primary) -> None:
    with leasehold.connect(f"{primary.url}?push=off&pool_size=1", ttl=60) as locks:
        refused(primary, locks)


def test_an_engine_grants_nothing_on_a_read_only_server(primary: Primary) -> None:
    engine = primary.engine()
    with leasehold.connect(engine, ttl=60) as locks:
        refused(primary, locks)
    engine.dispose()


async def test_open_connections_of_tasks_grant_nothing_on_a_read_only_server(primary: Primary) -> None:
    async with aio.connect(f"{primary.url}?push=off&pool_size=1", ttl=60) as locks:
        lease = await locks.lock("held", renew=False).acquire(timeout=30)
        for operation in (lease.renew, locks.lock("new").try_acquire, locks.semaphore("two", limit=2).try_acquire):
            await (await locks.lock("free").acquire(timeout=30)).release()
            primary.only_read(True)
            with pytest.raises(leasehold.StoreUnavailable, match="read-only"):
                await operation()
            primary.only_read(False)
        assert await lease.release()
