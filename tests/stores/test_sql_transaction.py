"""Leases in the caller's own transaction: whose connections are taken, what a refusal leaves, what old ones see.

The rest is in ``test_sql``."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy
from sql_servers import KINDS, Database, at_rest, inside
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import leasehold
from leasehold import AcquireTimeout, LeaseLost, aio
from leasehold.stores import callers as sql_callers
from leasehold.testing.handles import eventually

pytestmark = pytest.mark.server


class OwnSession(Session):
    """As many applications have one."""


CALLERS: dict[str, Callable[[Any], Any]] = {
    "connection": lambda engine: engine.connect(),
    "session": Session,
    "own session": OwnSession,
    "scoped session": lambda engine: scoped_session(sessionmaker(engine)),
    "raw": lambda engine: engine.raw_connection(),
}


def where(database: Database, is_async: bool = False) -> str:
    driver = "postgresql+psycopg" if database.is_postgresql else f"mysql+{'aiomysql' if is_async else 'pymysql'}"
    return f"{driver}://{database.url.partition('://')[2]}"


def is_locked(database: Database, namespace: str) -> bool:
    """Whether a transaction has one of the rows locked."""
    row = "SELECT 1 FROM leasehold WHERE namespace = %s FOR UPDATE NOWAIT"
    try:
        return not database.sql(row, namespace)
    except (psycopg.errors.LockNotAvailable, pymysql.err.OperationalError):
        return True


@pytest.mark.parametrize("kind", CALLERS)
def test_a_transaction_of_sqlalchemys(database: Database, namespace: str, locks: leasehold.Locks, kind: str) -> None:
    engine = sqlalchemy.create_engine(where(database))
    lease = locks.lock("name").acquire()
    caller = CALLERS[kind](engine)
    assert lease.in_transaction(caller) == lease.token
    assert is_locked(database, namespace)
    caller.rollback()
    lease.release()
    assert locks.lock("name").in_transaction(caller) > lease.token
    assert is_locked(database, namespace)
    caller.rollback()
    caller.close()
    engine.dispose()


@pytest.mark.parametrize(
    ("kind", "whose"),
    # The engine's options are not those of its raw connections.
    [(kind, whose) for kind in CALLERS for whose in ("engine", "options") if (kind, whose) != ("raw", "options")],
)
def test_a_connection_of_sqlalchemys_in_autocommit_is_refused(
    database: Database, locks: leasehold.Locks, kind: str, whose: str
) -> None:
    """However it was told: the lock would be gone with the statement that took it."""
    if whose == "engine":
        engine = sqlalchemy.create_engine(where(database), isolation_level="AUTOCOMMIT")
    else:
        engine = sqlalchemy.create_engine(where(database)).execution_options(isolation_level="AUTOCOMMIT")
    lease = locks.lock("name").acquire()
    caller = CALLERS[kind](engine)
    with pytest.raises(ValueError, match="autocommit"):
        lease.in_transaction(caller)
    with pytest.raises(ValueError, match="autocommit"):
        locks.lock("other").in_transaction(caller)
    caller.close()
    engine.dispose()


@pytest.mark.parametrize(
    ("database", "driver"),
    [*((kind, "own") for kind in KINDS), ("postgresql", "asyncpg")],
    indirect=["database"],
)
@pytest.mark.parametrize("kind", ["connection", "session"])
async def test_the_same_under_asyncio(database: Database, namespace: str, kind: str, driver: str) -> None:
    url = where(database, True)
    if driver == "asyncpg":
        url = url.replace("+psycopg", "+asyncpg")
    async with aio.connect(database.url, namespace=namespace) as locks, locks.lock("name") as lease:
        for level in ("AUTOCOMMIT", "READ COMMITTED"):
            engine = create_async_engine(url, isolation_level=level)
            caller: Any = await engine.connect() if kind == "connection" else AsyncSession(engine)
            if level == "AUTOCOMMIT":
                with pytest.raises(ValueError, match="autocommit"):
                    await lease.in_transaction(caller)
                with pytest.raises(ValueError, match="autocommit"):
                    await locks.lock("other").in_transaction(caller)
            else:
                assert await lease.in_transaction(caller) == lease.token
                assert await locks.lock("other").in_transaction(caller) > 0
                with pytest.raises(AcquireTimeout):
                    await locks.lock("name").in_transaction(caller)
            await caller.close()
            await engine.dispose()


def test_a_transaction_that_was_begun_in_autocommit(database: Database, locks: leasehold.Locks) -> None:
    """By hand: it is one, whatever the connection's mode."""
    lease = locks.lock("name").acquire()
    connection = database.connect(autocommit=True)
    connection.cursor().execute("BEGIN")
    assert lease.in_transaction(connection) == lease.token
    connection.rollback()
    with pytest.raises(ValueError, match="autocommit"):
        lease.in_transaction(connection)
    connection.close()


def test_connections_of_psycopg2(postgresql_server: Any, namespace: str) -> None:
    psycopg2 = pytest.importorskip("psycopg2")
    with leasehold.connect(postgresql_server.url, namespace=namespace) as locks, locks.lock("name") as lease:
        connection = psycopg2.connect(postgresql_server.url)
        assert lease.in_transaction(connection) == lease.token
        connection.rollback()
        connection.autocommit = True
        with pytest.raises(ValueError, match="autocommit"):
            lease.in_transaction(connection)
        connection.close()


class Connector:
    """As mysql-connector's connections are asked."""

    def __init__(self, autocommit: Any, in_transaction: bool = False) -> None:
        self.autocommit = autocommit
        self.in_transaction = in_transaction


class AsyncConnector:
    """As those of its async part are: by what has to be awaited."""

    async def get_autocommit(self) -> bool:
        return False


def test_a_driver_is_asked_or_refused() -> None:
    sql_callers.refuse_autocommit(Connector(False))
    sql_callers.refuse_autocommit(Connector(True, in_transaction=True))
    sql_callers.refuse_autocommit(object(), Connector(0))
    with pytest.raises(ValueError, match="autocommit"):
        sql_callers.refuse_autocommit(Connector(True))
    for unknown in (object(), AsyncConnector(), Connector(None), Connector(lambda on: None)):
        with pytest.raises(TypeError, match=f"cannot ask a .*{type(unknown).__name__} whether"):
            sql_callers.refuse_autocommit(unknown)


# A refusal costs the holder nothing.


def test_a_refusal_locks_nothing(database: Database, namespace: str, locks: leasehold.Locks) -> None:
    """Else the holder could not renew for as long as the refused one's transaction lasts."""
    lease = locks.lock("name").acquire()
    connection = database.connect(autocommit=False)
    with pytest.raises(AcquireTimeout):
        locks.lock("name").in_transaction(connection)
    eventually(lambda: not is_locked(database, namespace))  # but for a moment, by a renewal
    lease.renew()
    connection.cursor().execute("SELECT 1")  # and its transaction goes on
    connection.commit()
    connection.close()


def test_a_refusal_after_a_look_that_came_too_soon(
    database: Database, namespace: str, locks: leasehold.Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another takes the name between the look and the lock."""
    lease = locks.lock("name").acquire()
    driver: Any = inside(locks).driver
    free = "SELECT true" if database.is_postgresql else "SELECT 1"
    monkeypatch.setattr(driver.session.dialect, "CAN_HOLD", free)
    connection = database.connect(autocommit=False)
    cursor = connection.cursor()
    with pytest.raises(AcquireTimeout) as caught:
        locks.lock("name").in_transaction(connection)
    if database.is_postgresql:
        eventually(lambda: not is_locked(database, namespace))  # but for a moment, by a renewal
        cursor.execute("SELECT 1")
    else:
        assert "End this transaction now" in str(caught.value)
    connection.rollback()
    eventually(lambda: not is_locked(database, namespace))  # but for a moment, by a renewal
    lease.renew()
    connection.close()


@pytest.fixture
def counters(database: Database) -> Iterator[str]:
    table = f"counters_{os.urandom(3).hex()}"
    database.sql(f"CREATE TABLE {table} (id INT PRIMARY KEY, value INT)")
    database.sql(f"INSERT INTO {table} VALUES (1, 0)")
    yield table
    database.sql(f"DROP TABLE {table}")


def waits_for_a_row(database: Database) -> bool:
    if database.is_postgresql:
        return bool(database.sql("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))
    return bool(database.sql("SELECT 1 FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"))


def test_who_gets_the_name_after_another_transaction_sees_what_that_wrote(
    database: Database, namespace: str, locks: leasehold.Locks, counters: str
) -> None:
    """Also where a transaction's first look decides what all its later ones see, as is the default in InnoDB."""
    locks.lock("name").acquire().release()
    first, second = database.connect(autocommit=False), database.connect(autocommit=False)
    token = locks.lock("name").in_transaction(first)
    seen: list[Any] = []

    def follow() -> None:
        seen.append(locks.lock("name").in_transaction(second))
        cursor = second.cursor()
        cursor.execute(f"SELECT value FROM {counters}")
        seen.extend(cursor.fetchone())
        second.commit()

    following = threading.Thread(target=follow)
    following.start()
    eventually(lambda: waits_for_a_row(database))
    first.cursor().execute(f"UPDATE {counters} SET value = 1")
    first.commit()
    following.join()
    assert seen[0] > token
    assert seen[1] == 1
    first.close()
    second.close()


def test_a_pool_of_one_that_is_in_the_transaction_is_enough(database: Database, namespace: str) -> None:
    engine = sqlalchemy.create_engine(where(database), pool_size=1, max_overflow=0, pool_timeout=1)
    with leasehold.connect(engine, namespace=namespace, ttl=60) as locks:
        listening: Any = inside(locks).driver
        eventually(lambda: listening.listen("", None))
        lease = locks.lock("name").acquire()
        at_rest(locks)  # neither listener nor keeper needs the one connection any more
        with engine.begin() as connection:
            assert lease.in_transaction(connection) == lease.token
            assert locks.lock("other").in_transaction(connection) > 0
        lease.release()
    engine.dispose()


# Transactions that are older than a lease.


@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE"])
@pytest.mark.parametrize("used", [True, False], ids=["used before", "never used"])
def test_a_transaction_that_is_older_than_the_lease(
    postgresql_server: Any, namespace: str, level: str, used: bool
) -> None:
    """It does not see the lease, and that is what it says: the lease is held."""
    with leasehold.connect(f"{postgresql_server.url}?push=off", namespace=namespace, ttl=600) as locks:
        locks.lock("name" if used else "other").acquire().release()
        connection = psycopg.connect(postgresql_server.url)
        connection.isolation_level = psycopg.IsolationLevel[level]
        connection.execute("SELECT 1 FROM leasehold LIMIT 1")
        lease = locks.lock("name", renew=False).acquire()
        with pytest.raises(ValueError, match="older than the lease"):
            lease.in_transaction(connection)
        connection.rollback()
        assert lease.in_transaction(connection) == lease.token
        connection.rollback()

        # One that is really lost is told as that, by a transaction that can see it.
        Database(postgresql_server).sql(
            "UPDATE leasehold SET attempt = 'other', token = token + 1 WHERE namespace = %s AND name = 'name'",
            namespace,
        )
        with pytest.raises(LeaseLost):
            lease.in_transaction(connection)
        connection.close()
        Database(postgresql_server).sql("DELETE FROM leasehold WHERE namespace = %s", namespace)


def test_a_transaction_that_is_older_than_the_last_renewals(postgresql_server: Any, namespace: str) -> None:
    """By what it sees, the lease has run out since."""
    # Nobody but the test touches the lease, which for a moment has run out for all.
    with leasehold.connect(f"{postgresql_server.url}?push=off", namespace=namespace, ttl=600) as locks:
        lease = locks.lock("name", renew=False).acquire()
        database = Database(postgresql_server)
        expires = "UPDATE leasehold SET expires = expires %s 3600000000 WHERE namespace = '%s'"
        database.sql(expires % ("-", namespace))
        connection = psycopg.connect(postgresql_server.url)
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT 1 FROM leasehold LIMIT 1")
        database.sql(expires % ("+", namespace))
        with pytest.raises(ValueError, match="older than the lease"):
            lease.in_transaction(connection)
        connection.rollback()
        assert lease.in_transaction(connection) == lease.token
        connection.close()
