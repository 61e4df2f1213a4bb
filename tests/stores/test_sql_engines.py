"""A user's own engine: its errors are told as those of a URL are, and its limits kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sql_servers import KINDS, Database, at_rest, before, inside, is_swap
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

import leasehold
from leasehold import StoreNotReady, StoreUnavailable, aio
from leasehold.core.lease import state_of
from leasehold.core.protocol import GONE, RENEWED, Renewal
from leasehold.stores.sqlalchemy import tasks as engine_tasks
from leasehold.testing.handles import eventually
from servers.proxy import Proxy

pytestmark = pytest.mark.server
DRIVERS = [("postgresql", "psycopg"), ("mariadb", "pymysql"), ("mysql", "pymysql")]
ASYNC_DRIVERS = [("postgresql", "psycopg"), ("postgresql", "asyncpg"), ("mariadb", "aiomysql"), ("mysql", "aiomysql")]


def with_ann(start_server: Callable[..., Any], kind: str) -> Database:
    """A server with a user that has a password."""
    database = Database(start_server(KINDS[kind]))
    database.add_ann()
    return database


def url(database: Database, driver: str, secret: str = "hunter2") -> str:
    scheme = "postgresql" if database.is_postgresql else "mysql"
    return f"{scheme}+{driver}://{database.as_user('ann', secret).partition('://')[2]}"


@pytest.mark.parametrize(("kind", "driver"), DRIVERS)
def test_a_wrong_password(kind: str, driver: str, start_server: Callable[..., Any]) -> None:
    """At once, not after 30 s, and in the library's own words."""
    engine = sqlalchemy.create_engine(url(with_ann(start_server, kind), driver))
    with leasehold.connect(engine) as locks:
        with pytest.raises(StoreNotReady, match="login failed") as caught:
            locks.lock("name").acquire()
        assert "hunter2" not in str(caught.value)
        assert caught.value.__cause__ is not None
    engine.dispose()


@pytest.mark.parametrize(("kind", "driver"), ASYNC_DRIVERS)
async def test_a_wrong_password_under_asyncio(kind: str, driver: str, start_server: Callable[..., Any]) -> None:
    engine = create_async_engine(url(with_ann(start_server, kind), driver))
    async with aio.connect(engine) as locks:
        with pytest.raises(StoreNotReady, match="login failed") as caught:
            await locks.lock("name").acquire()
        assert "hunter2" not in str(caught.value)
    await engine.dispose()


@pytest.mark.parametrize(("kind", "driver"), DRIVERS)
def test_a_server_that_is_not_there(kind: str, driver: str) -> None:
    """Outcome unknown: may be tried again."""
    scheme = "postgresql" if kind == "postgresql" else "mysql"
    engine = sqlalchemy.create_engine(f"{scheme}+{driver}://ann@127.0.0.1:1/leasehold")
    with leasehold.connect(engine) as locks, pytest.raises(StoreUnavailable):
        locks.lock("name").acquire(timeout=0.5)
    engine.dispose()


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_pool_of_the_users_that_is_used_up(kind: str, request: pytest.FixtureRequest, namespace: str) -> None:
    database = Database(request.getfixturevalue(f"{kind}_server"))
    driver = "postgresql+psycopg" if database.is_postgresql else "mysql+pymysql"
    where = f"{driver}://{database.url.partition('://')[2]}"
    engine = sqlalchemy.create_engine(where, pool_size=1, max_overflow=0, pool_timeout=1)
    with leasehold.connect(engine, namespace=namespace, ttl=120) as locks:
        listening: Any = inside(locks).driver
        eventually(lambda: listening.listen("", None))
        lease = locks.lock("name").acquire()
        at_rest(locks)  # neither listener nor keeper needs the one connection any more
        with engine.connect(), pytest.raises(StoreUnavailable, match="QueuePool"):
            locks.lock("other").acquire(timeout=1)
        begun = time.monotonic()
        assert lease.release()
        assert time.monotonic() - begun < 5
    engine.dispose()


def test_a_table_that_was_dropped_is_made_again(mariadb_server: Any, namespace: str) -> None:
    """PyMySQL gives a number and an SQLSTATE; it is the number that we know errors by."""
    database = Database(mariadb_server)
    engine = sqlalchemy.create_engine(f"mysql+pymysql://{database.url.partition('://')[2]}")
    table = f"gone_{namespace}"
    with leasehold.connect(engine.execution_options(leasehold_table=table), namespace=namespace) as locks:
        locks.lock("name").acquire().release()
        database.sql(f"DROP TABLE {table}")
        locks.lock("name").acquire().release()  # 1146: made again
        database.sql(f"DROP TABLE {table}")
    engine.dispose()


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_limits_of_the_engines_own_end_a_call(kind: str, request: pytest.FixtureRequest, namespace: str) -> None:
    """As the docs advise: also while a new connection is made, when the server takes it and says nothing."""
    database = Database(request.getfixturevalue(f"{kind}_server"))
    with Proxy(database.port) as proxy:
        where = f"mysql+pymysql://{database.at(proxy.port).partition('://')[2]}"
        engine = sqlalchemy.create_engine(where, connect_args={"read_timeout": 2, "write_timeout": 2})
        with leasehold.connect(engine, namespace=namespace, ttl=30) as locks:
            with locks.lock("name"):  # whose end bears that a busy machine needs as long as that to answer
                pass
            proxy.blackhole()
            for _ in range(2):
                with pytest.raises(StoreUnavailable):
                    locks.lock("name").try_acquire()
            proxy.reset()
            proxy.all_well()
            with locks.lock("name", timeout=60):
                pass
        engine.dispose()


@pytest.mark.parametrize("what", ["an operation", "the listener"])
async def test_a_connection_that_is_cancelled_before_it_is_ready_is_given_up(
    postgresql_server: Any, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """One for an operation goes back to the pool. The listener's is not in it any more: nobody else would close it."""
    begun = asyncio.Event()
    made: list[Any] = []

    async def hang(raw: Any, *_: Any, **__: Any) -> None:
        made.append(raw)
        begun.set()
        await asyncio.Event().wait()

    engine = create_async_engine(postgresql_server.url.replace("postgresql:", "postgresql+psycopg:"), pool_size=1)
    async with aio.connect(engine) as locks:
        driver: Any = inside(locks).driver
        if what == "the listener":
            monkeypatch.setattr(psycopg.AsyncConnection, "set_autocommit", hang)
            opening: Any = engine_tasks.listener(engine, driver.session).run(bool, bool)  # type: ignore[union-attr]
        else:
            monkeypatch.setattr(AsyncConnection, "execution_options", hang)
            opening = driver.source.take(30.0)
        task = asyncio.create_task(opening)
        await asyncio.wait_for(begun.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        monkeypatch.undo()
        assert [raw.closed for raw in made] == [True]
        assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    await engine.dispose()


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_what_one_statement_has_renewed_is_recognised(
    kind: str, request: pytest.FixtureRequest, namespace: str
) -> None:
    """Though one of its leases is gone: SQLAlchemy tells when that was, as the driver does."""
    where = Database(request.getfixturevalue(f"{kind}_server")).url.partition("://")[2]
    written: list[None] = []

    def renewal(core: Any, leases: list[Any]) -> Any:
        claims = [state_of(lease).claim for lease in leases]
        batch = [Renewal(each.name, each.attempt, each.token, 60_000_000) for each in claims]
        return before(is_swap, core.store.renew(batch), lambda: written.append(None))

    def in_threads() -> Any:
        engine = sqlalchemy.create_engine(f"mysql+pymysql://{where}")
        with leasehold.connect(engine, namespace=namespace, ttl=30) as locks:
            core: Any = inside(locks)
            leases = [locks.lock(name).acquire() for name in ("gone", "kept", "kept too")]
            leases[0].release()
            found = core.driver.run(renewal(core, leases), 5.0)
        engine.dispose()
        return found

    async def in_tasks() -> Any:
        engine = create_async_engine(f"mysql+aiomysql://{where}")
        async with aio.connect(engine, namespace=namespace, ttl=30) as locks:
            core: Any = inside(locks)
            leases = [await locks.lock(name).acquire() for name in ("gone", "kept", "kept too")]
            await leases[0].release()
            found = await core.driver.run(renewal(core, leases), 5.0)
        await engine.dispose()
        return found

    assert in_threads() == asyncio.run(in_tasks()) == [GONE, RENEWED, RENEWED]
    assert not written
