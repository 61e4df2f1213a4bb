"""Servers that only read: from the beginning, and since a failover."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy
from sql_servers import Database, at_rest, inside
from sqlalchemy.ext.asyncio import create_async_engine

import leasehold
from leasehold import StoreNotReady, StoreUnavailable, aio
from leasehold.stores.mysql.sql import MySQL
from leasehold.stores.sql import doctor as sql_doctor
from leasehold.stores.sql.dialect import Dialect, OnlyReads
from leasehold.stores.sql.requests import Result
from leasehold.stores.sql.rows import ALL_COLUMNS
from leasehold.testing.handles import eventually
from servers.mysql import MariaDB


@pytest.mark.parametrize("said", [1, "ON", b"ON", "NO_LOCK", "NO_LOCK_NO_ADMIN", "1"])
@pytest.mark.parametrize("setting", ["read_only", "innodb_read_only"])
def test_a_server_says_in_many_words_that_it_only_reads(setting: str, said: Any) -> None:
    """MariaDB does so since 12.0."""
    dialect = MySQL("leasehold", "mariadb")
    table = ("InnoDB", "namespace,name", "varbinary,varbinary", ",".join(ALL_COLUMNS))
    for off in (0, "OFF", b"OFF", "0"):
        assert dialect.lacking(Result([(1, "12.0.2-MariaDB", off, off, *table)], 1)) == ()
        both = (said, off) if setting == "read_only" else (off, said)
        with pytest.raises(OnlyReads, match=rf"primary.*\({setting} is on"):
            dialect.lacking(Result([(1, "12.0.2-MariaDB", *both, *table)], 1))


class Reader(MariaDB):
    """As those of Aurora are, once ``reads`` says so."""

    reads = False

    def command(self) -> list[str]:
        return [*super().command(), *(["--innodb-read-only"] if self.reads else [])]


@pytest.mark.server
def test_a_server_whose_innodb_only_reads_is_refused(start_server: Callable[..., Any]) -> None:
    server = start_server(Reader)
    sql_doctor.init(server.url)
    server.stop()
    server.reads = True
    server.start()
    with leasehold.connect(server.url) as locks, pytest.raises(StoreNotReady, match="innodb_read_only"):
        locks.lock("name").acquire()
    (found,) = sql_doctor.doctor(server.url)
    assert found.level == "error"
    assert "innodb_read_only" in found.message


class Demotable(Database):
    """A server with a user who may use its table, and is bound by its being read-only."""

    def __init__(self, server: Any) -> None:
        super().__init__(server)
        sql_doctor.init(self.url)
        if self.is_postgresql:
            self.sql("CREATE ROLE ann LOGIN")
            self.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold TO ann")
        else:
            self.sql("CREATE USER ann")
            self.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold.leasehold TO ann")

    def only_read(self, on: bool) -> None:
        if not self.is_postgresql:
            self.sql(f"SET GLOBAL read_only = {int(on)}")
            return
        word = "on" if on else "off"
        self.sql(f"ALTER SYSTEM SET default_transaction_read_only = {word}")
        self.reload(lambda: self.sql("SHOW default_transaction_read_only") == [(word,)])

    def engine_url(self, is_async: bool) -> str:
        driver = "postgresql+psycopg" if self.is_postgresql else f"mysql+{'aiomysql' if is_async else 'pymysql'}"
        return f"{driver}://{self.as_user('ann').partition('://')[2]}"


@pytest.fixture
def demotable(own: Database) -> Demotable:
    return Demotable(own.server)


@pytest.mark.server
def test_who_waits_goes_on_over_a_failover(demotable: Demotable, monkeypatch: pytest.MonkeyPatch) -> None:
    """New connections meet a server that only reads: it was a primary, so one will come again."""
    found = threading.Event()
    read_only = Dialect.read_only

    def noticed(self: Dialect, why: str) -> Any:
        if threading.current_thread() is waiter:
            found.set()
        return read_only(self, why)

    got: list[Any] = []

    def wait() -> None:
        try:
            got.append(waits.lock("name").acquire(timeout=110))
        except Exception as error:
            got.append(error)

    waiter = threading.Thread(target=wait)
    url = demotable.as_user("ann")
    with leasehold.connect(url, ttl=300) as holds, leasehold.connect(url, ttl=300) as waits:
        lease = holds.lock("name").acquire()
        at_rest(holds)
        waiter.start()
        eventually(lambda: (info := holds.inspect("name")) is not None and info.waiters == 1)
        monkeypatch.setattr(Dialect, "read_only", noticed)
        demotable.only_read(True)
        assert found.wait(60)
        with pytest.raises(StoreUnavailable, match="read-only"):  # as who comes now is told
            waits.lock("other").try_acquire()
        assert not got
        demotable.only_read(False)
        eventually(lambda: released(lease), 60)
        waiter.join()
        assert isinstance(got[0], leasehold.Lease), got[0]
        got[0].release()
        # One that begins with such a server is told at once, as before.
        demotable.only_read(True)
        with leasehold.connect(url) as others, pytest.raises(StoreNotReady, match="primary"):
            others.lock("name").acquire()


def released(lease: leasehold.Lease) -> bool:
    try:
        lease.renew()
        return lease.release()
    except StoreUnavailable:
        return False


@pytest.mark.server
def test_a_connection_to_a_server_that_only_reads_does_not_go_back_to_the_users_pool(demotable: Demotable) -> None:
    engine = sqlalchemy.create_engine(demotable.engine_url(False), pool_size=1, max_overflow=0)
    number = sqlalchemy.text("SELECT pg_backend_pid()" if demotable.is_postgresql else "SELECT CONNECTION_ID()")
    with leasehold.connect(engine) as locks:
        locks.lock("name").acquire().release()
        at_rest(locks)
        with engine.connect() as connection:
            before = connection.scalar(number)
        demotable.only_read(True)
        with pytest.raises(StoreUnavailable, match="read-only"):
            locks.lock("name").try_acquire()
        with engine.connect() as connection:
            assert connection.scalar(number) != before
        demotable.only_read(False)
        locks.lock("name").acquire().release()
    engine.dispose()


@pytest.mark.server
async def test_nor_to_an_async_one(demotable: Demotable) -> None:
    engine = create_async_engine(demotable.engine_url(True), pool_size=1, max_overflow=0)
    number = sqlalchemy.text("SELECT pg_backend_pid()" if demotable.is_postgresql else "SELECT CONNECTION_ID()")
    async with aio.connect(engine) as locks:
        async with locks.lock("name"):
            pass
        async with engine.connect() as connection:
            before = await connection.scalar(number)
        demotable.only_read(True)
        with pytest.raises(StoreUnavailable, match="read-only"):
            await locks.lock("name").try_acquire()
        async with engine.connect() as connection:
            assert await connection.scalar(number) != before
        demotable.only_read(False)
        async with locks.lock("name"):
            pass
    await engine.dispose()


@pytest.mark.server
def test_each_connection_of_an_engine_is_checked_once(database: Database, namespace: str) -> None:
    driver = "postgresql+psycopg" if database.is_postgresql else "mysql+pymysql"
    engine = sqlalchemy.create_engine(f"{driver}://{database.url.partition('://')[2]}", pool_size=2, max_overflow=0)
    with leasehold.connect(engine, namespace=namespace) as one, leasehold.connect(engine, namespace=namespace) as two:
        for locks in (one, two):  # each learns for itself what it has to know of a server
            source: Any = inside(locks).driver.source  # type: ignore[attr-defined]
            for new in (True, False):
                taken = [source.take(5.0) for _ in range(2)]
                assert [each[1] for each in taken] == [new, new]
                for connection, _ in taken:
                    source.give(connection, True)
        connection, new = source.take(5.0)
        assert not new
        source.give(connection, False)
        taken = [source.take(5.0) for _ in range(2)]
        assert sorted(each[1] for each in taken) == [False, True]
        for connection, _ in taken:
            source.give(connection, True)
    engine.dispose()


@pytest.mark.server
async def test_each_connection_of_an_async_engine_is_checked_once(database: Database, namespace: str) -> None:
    driver = "postgresql+psycopg" if database.is_postgresql else "mysql+aiomysql"
    engine = create_async_engine(f"{driver}://{database.url.partition('://')[2]}", pool_size=2, max_overflow=0)
    async with aio.connect(engine, namespace=namespace) as locks:
        source: Any = inside(locks).driver.source  # type: ignore[attr-defined]
        for news in ([True, True], [False, False]):
            taken = [await source.take(5.0) for _ in range(2)]
            assert [each[1] for each in taken] == news
            for connection, _ in taken:
                await source.give(connection, True)
    await engine.dispose()
