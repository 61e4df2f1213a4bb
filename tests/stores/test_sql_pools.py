"""A user's own pool of a driver's: borrowed from, given back as it was, never closed."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiomysql
import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sql_servers import KINDS, Database, at_once, at_rest, begins_to_hear, hears, inside

import leasehold
from leasehold import AcquireTimeout, StoreNotReady, StoreUnavailable, aio
from leasehold.core import clock
from leasehold.core.protocol import Renewal
from leasehold.stores.postgresql import pool as postgresql_pool
from leasehold.stores.sql.requests import ASK, GIVE, RENEW, Result, Statement, Turn
from leasehold.stores.sql.tasks import AsyncSqlPool
from leasehold.stores.sql.threads import SqlPool
from leasehold.testing.handles import eventually
from servers.proxy import Proxy

pytestmark = pytest.mark.server


@pytest.fixture
def postgresql(postgresql_server: Any) -> Database:
    return Database(postgresql_server)


@pytest.fixture
def pool(postgresql: Database) -> Iterator[ConnectionPool]:
    with ConnectionPool(postgresql.url, min_size=1, max_size=1, open=True) as pool:
        yield pool


# Threads.


def test_a_pool_of_one_serves_holders_waiters_and_its_user(pool: ConnectionPool, namespace: str) -> None:
    with leasehold.connect(pool, namespace=namespace, ttl=20) as locks:
        counter = 0

        def work() -> None:
            nonlocal counter
            for _ in range(5):
                with locks.lock("name", timeout=60):
                    seen = counter
                    with pool.connection() as connection:  # a transaction of the user's, in the same pool
                        connection.execute("SELECT pg_sleep(0.001)")
                    counter = seen + 1

        at_once(6, work)
        assert counter == 30
        assert inside(locks).driver.session.prepares  # type: ignore[attr-defined]
    with pool.connection() as connection:
        assert not connection.autocommit  # as it was
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_what_is_prepared_stays_with_the_connection(pool: ConnectionPool, namespace: str) -> None:
    count = "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'leasehold%'"
    with leasehold.connect(pool, namespace=namespace, ttl=5) as locks:
        locks.lock("name").acquire().release()
        at_rest(locks)  # what it tidies with would not be kept if that took long
        for _ in range(5):
            locks.lock("name").acquire().release()
        with pool.connection() as connection:
            assert connection.execute(count).fetchone()[0] >= 2  # type: ignore[index]


def test_who_prepares_nothing_gets_nothing_prepared(postgresql: Database, namespace: str) -> None:
    options = {"prepare_threshold": None}
    with ConnectionPool(postgresql.url, min_size=1, max_size=1, kwargs=options, open=True) as pool:
        with leasehold.connect(pool, namespace=namespace, ttl=5) as locks:
            for _ in range(5):
                locks.lock("name").acquire().release()
            with pool.connection() as connection:
                assert connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)


def test_a_pool_that_resets_its_connections(postgresql: Database, namespace: str) -> None:
    """Everything that we had prepared is gone each time."""

    def reset(connection: Any) -> None:
        connection.autocommit = True
        connection.execute("DISCARD ALL")
        connection.autocommit = False

    with ConnectionPool(postgresql.url, min_size=1, max_size=1, reset=reset, open=True) as pool:
        with leasehold.connect(pool, namespace=namespace, ttl=5) as locks:
            tokens = []
            for _ in range(6):
                with locks.lock("name") as lease:
                    tokens.append(lease.token)
            assert tokens == sorted(set(tokens))


def test_another_table_and_a_role_by_configure(postgresql: Database, namespace: str) -> None:
    """The connection that listens is made the same way as the pool's own: it must look at the same table."""
    schema = f"s{namespace}"
    postgresql.sql(f"CREATE SCHEMA {schema}")

    def configure(connection: Any) -> None:
        connection.execute(f"SET search_path = {schema}")
        connection.commit()

    try:
        with ConnectionPool(postgresql.url, min_size=1, max_size=2, configure=configure, open=True) as pool:
            pool.leasehold_table = "theirs"  # type: ignore[attr-defined]
            with leasehold.connect(pool, ttl=30) as one, leasehold.connect(pool, ttl=30) as two:
                pushed(one, two)
        assert postgresql.sql("SELECT schemaname FROM pg_tables WHERE tablename = 'theirs'") == [(schema,)]
    finally:
        postgresql.sql(f"DROP SCHEMA {schema} CASCADE")


def pushed(one: Any, two: Any) -> None:
    """A release reaches a waiter, and the waiter's push was up."""
    lease = one.lock("name").acquire()
    got = threading.Event()
    waiter = threading.Thread(target=lambda: (two.lock("name").acquire().release(), got.set()))
    waiter.start()
    eventually(lambda: (info := one.inspect("name")) is not None and info.waiters == 1)
    eventually(lambda: hears(two))
    lease.release()
    waiter.join()
    assert got.is_set()


def test_a_pool_that_is_used_up(pool: ConnectionPool, namespace: str) -> None:
    with leasehold.connect(pool, namespace=namespace, ttl=60) as locks:
        lease = locks.lock("name").acquire()
        with pool.connection(), pytest.raises(StoreUnavailable):
            locks.lock("other", ttl=2).acquire(timeout=0.5)
        assert lease.release()


def test_connections_that_the_server_has_closed_are_not_noticed(pool: ConnectionPool, postgresql: Database) -> None:
    with leasehold.connect(pool, namespace="closed", ttl=5) as locks:
        locks.lock("name").acquire().release()
        at_rest(locks)
        numbers = [pid for (pid,) in pids(pool)]
        for number in numbers:
            postgresql.sql("SELECT pg_terminate_backend(%s, 5000)", number)
        lease = locks.lock("name").try_acquire()
        assert lease is not None
        lease.release()
        assert not set(numbers) & {pid for (pid,) in pids(pool)}


def pids(pool: ConnectionPool) -> list[Any]:
    with pool.connection() as connection:
        return connection.execute("SELECT pg_backend_pid()").fetchall()


def test_a_statement_that_hangs_ends_and_its_connection_goes(postgresql: Database, namespace: str) -> None:
    with Proxy(postgresql.port) as proxy:
        with ConnectionPool(postgresql.at(proxy.port), min_size=1, max_size=1, open=True) as pool:
            with leasehold.connect(pool, namespace=namespace, ttl=30) as locks:
                locks.lock("name").acquire().release()
                proxy.blackhole()
                with pytest.raises(StoreUnavailable):
                    locks.lock("name", ttl=2).try_acquire()
                proxy.reset()
                proxy.all_well()
                locks.lock("name").acquire(timeout=60).release()


def test_a_pool_that_is_closed_is_told_at_once(pool: ConnectionPool, namespace: str) -> None:
    locks = leasehold.connect(pool, namespace=namespace, ttl=5)
    locks.lock("name").acquire().release()
    at_rest(locks)
    pool.close()
    with pytest.raises(StoreNotReady, match="closed"):
        locks.lock("name").acquire()
    locks.close()


def test_a_pool_cannot_be_used_after_a_fork(pool: ConnectionPool, namespace: str) -> None:
    """Its connections are the parent's: a word on them would be the parent's."""
    with leasehold.connect(pool, namespace=namespace, ttl=30) as locks:
        lease = locks.lock("name").acquire()
        # What its keeper has locked just now would stay locked in the child: it renews when the listener is up.
        eventually(lambda: inside(locks).renewals)
        at_rest(locks)
        read, write = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                locks.lock("other").acquire(timeout=5)
                said = "acquired"
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(write, said.encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as file:
            said = file.read()
        os.waitpid(pid, 0)
        assert said.startswith("StoreNotReady"), said
        assert "fork" in said
        lease.renew()
        assert lease.release()


def test_a_pool_of_another_encoding_is_refused(postgresql: Database) -> None:
    with ConnectionPool(postgresql.url, min_size=1, kwargs={"client_encoding": "latin1"}, open=True) as pool:
        with leasehold.connect(pool) as locks, pytest.raises(StoreNotReady, match="UTF8"):
            locks.lock("name").acquire()
        with pool.connection() as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_pools_of_the_other_kind(pool: ConnectionPool, postgresql: Database) -> None:
    with pytest.raises(TypeError, match=r"leasehold\.connect"):
        aio.connect(pool)
    with pytest.raises(TypeError, match="aio"):
        leasehold.connect(AsyncConnectionPool(postgresql.url, open=False))
    connection = psycopg.connect(postgresql.url)
    with connection, pytest.raises(TypeError, match="URL or a client"):
        leasehold.connect(connection)


# asyncio.


@pytest.fixture(params=["postgresql", "mariadb", "mysql"])
async def async_pool(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Any, Database]]:
    database = Database(request.getfixturevalue(f"{request.param}_server"))
    async with make(database, database.port) as pool:
        yield pool, database


def make(database: Database, port: int) -> Any:
    if database.is_postgresql:
        return AsyncConnectionPool(database.at(port), min_size=1, max_size=1, open=False)
    where = {"host": "127.0.0.1", "port": port, "user": "root", "db": "leasehold"}
    return aiomysql.create_pool(minsize=1, maxsize=1, **where)


async def use(pool: Any, sql: str) -> Any:
    """A transaction of the user's."""
    if isinstance(pool, AsyncConnectionPool):
        async with pool.connection() as connection:
            assert not connection.autocommit
            return await (await connection.execute(sql)).fetchone()
    async with pool.acquire() as connection, connection.cursor() as cursor:
        assert not connection.get_autocommit()
        await cursor.execute(sql)
        row = await cursor.fetchone()
        await connection.rollback()
        return row


async def test_an_async_pool_of_one_serves_all(async_pool: tuple[Any, Database], namespace: str) -> None:
    pool, _ = async_pool
    async with aio.connect(pool, namespace=namespace, ttl=20) as locks:
        counter = 0

        async def work() -> None:
            nonlocal counter
            for _ in range(3):
                async with locks.lock("name", timeout=60) as lease:
                    seen = counter
                    await use(pool, "SELECT 1")
                    await lease.renew()
                    counter = seen + 1

        await asyncio.gather(*(work() for _ in range(6)))
        assert counter == 18
        async with locks.lock("name"):
            await times_out(locks.lock("name"))
    assert await use(pool, "SELECT 1") == (1,)


async def times_out(lock: Any) -> None:
    """Whoever waits is told that the time is over, if the machine does not stand still for as long as the last answer
    may take each time."""
    for _ in range(5):
        try:
            await lock.acquire(timeout=2)
        except AcquireTimeout:
            return
        except StoreUnavailable:
            continue
        raise AssertionError("it was held")
    raise AssertionError("the store has not answered in time")


async def test_an_async_pool_has_a_push(async_pool: tuple[Any, Database], namespace: str) -> None:
    pool, _ = async_pool
    async with aio.connect(pool, namespace=namespace, ttl=30) as one:
        async with aio.connect(pool, namespace=namespace, ttl=30) as two:
            lease = await one.lock("name").acquire()
            waiting = asyncio.ensure_future(two.lock("name").acquire().__aenter__())
            await begins_to_hear(two)
            await lease.release()
            got = await asyncio.wait_for(waiting, 60)
            await got.release()


async def test_an_async_pool_whose_connection_was_killed(async_pool: tuple[Any, Database], namespace: str) -> None:
    pool, database = async_pool
    async with aio.connect(pool, namespace=namespace, ttl=5) as locks:
        async with locks.lock("name"):
            pass
        number = (await use(pool, f"SELECT {'pg_backend_pid()' if database.is_postgresql else 'CONNECTION_ID()'}"))[0]
        database.sql(f"SELECT pg_terminate_backend({number}, 5000)" if database.is_postgresql else f"KILL {number}")
        async with locks.lock("name", timeout=60):
            pass


async def test_an_async_pool_whose_server_hangs(async_pool: tuple[Any, Database], namespace: str) -> None:
    _, database = async_pool
    with Proxy(database.port) as proxy:
        async with make(database, proxy.port) as pool, aio.connect(pool, namespace=namespace, ttl=2) as locks:
            async with locks.lock("name"):
                pass
            proxy.blackhole()
            with pytest.raises(StoreUnavailable):
                await locks.lock("name").try_acquire()
            waiting = asyncio.ensure_future(use(pool, "SELECT 1"))  # its user is not left waiting either
            proxy.reset()
            proxy.all_well()
            assert await asyncio.wait_for(waiting, 60) == (1,)
            async with locks.lock("name", timeout=60):
                pass


async def test_cancelled_acquires_keep_no_connection(async_pool: tuple[Any, Database], namespace: str) -> None:
    pool, _ = async_pool
    async with aio.connect(pool, namespace=namespace, ttl=20) as locks:
        for number in range(30):
            task = asyncio.ensure_future(locks.lock("name").acquire().__aenter__())
            await asyncio.sleep(number * 0.0002)
            task.cancel()
            try:
                await (await task).release()
            except asyncio.CancelledError:
                pass
        async with locks.lock("name", timeout=60):
            assert await asyncio.wait_for(use(pool, "SELECT 1"), 60) == (1,)


async def test_an_async_pool_that_is_closed(async_pool: tuple[Any, Database], namespace: str) -> None:
    _, database = async_pool
    pool = make(database, database.port)
    pool = await pool.__aenter__()
    locks = aio.connect(pool, namespace=namespace, ttl=5)
    async with locks.lock("name"):
        pass
    while inside(locks).soonest < float("inf"):  # noqa: ASYNC110 (the keeper has yet to give back what it tidies with)
        await asyncio.sleep(0.001)
    if isinstance(pool, AsyncConnectionPool):
        await pool.close()
    else:
        pool.close()
        await pool.wait_closed()
    with pytest.raises(StoreNotReady, match="closed"):
        await locks.lock("name").acquire()
    await locks.close()


@pytest.mark.parametrize("kind", list(KINDS))
def test_an_async_pool_of_another_loop(kind: str, request: pytest.FixtureRequest, namespace: str) -> None:
    database = Database(request.getfixturevalue(f"{kind}_server"))
    kept: list[Any] = []

    async def first() -> None:
        pool = await make(database, database.port).__aenter__()
        kept[:] = [pool, aio.connect(pool, namespace=namespace, ttl=5)]
        async with kept[1].lock("name"):
            pass
        # Neither listener nor keeper is in the middle of something with a connection.
        await begins_to_hear(kept[1])
        while inside(kept[1]).soonest < float("inf"):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        if not isinstance(pool, AsyncConnectionPool):
            await pool.clear()  # sockets of a loop that is gone cannot be closed in good order

    async def second() -> None:
        with pytest.raises(StoreNotReady, match="loop"):
            await kept[1].lock("name").acquire()
        await kept[1].close()

    asyncio.run(first())
    asyncio.run(second())


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_a_pool_keeps_its_size_when_giving_back_is_cancelled(
    mariadb_server: Any, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when somebody cancels every task of the loop while one of ours sets autocommit to what it was."""
    database = Database(mariadb_server)
    begun = asyncio.Event()

    async def hang(raw: Any, wanted: bool) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with make(database, database.port) as pool, aio.connect(pool) as locks:
        source = inside(locks).driver.source  # type: ignore[attr-defined]
        connection, _ = await source.take(60.0)
        with monkeypatch.context() as patch:
            patch.setattr(aiomysql.Connection, "autocommit", hang)
            giving = asyncio.create_task(source.give(connection, True))
            await asyncio.wait_for(begun.wait(), 60)
        waiting = asyncio.create_task(use(pool, "SELECT 1"))
        await asyncio.sleep(0)
        for _ in range(times):
            giving.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await giving
        assert await asyncio.wait_for(waiting, 60) == (1,)


async def test_an_aiomysql_pool_for_threads(mariadb_server: Any) -> None:
    async with make(Database(mariadb_server), mariadb_server.port) as pool:
        with pytest.raises(TypeError, match="aio"):
            leasehold.connect(pool)


# Our own.


class Slow:
    """A connection that says when it is closed."""

    def __init__(self) -> None:
        self.closed = False

    def execute(self, statement: Statement, limit: float) -> Result:
        raise NotImplementedError

    def stale(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


def test_what_is_given_back_while_the_pool_is_closed_is_closed_too() -> None:
    pool = SqlPool(lambda limit: Slow(), 1)
    lent = pool.take(1.0)
    pool.close()
    assert not lent.connection.closed  # type: ignore[attr-defined]
    pool.give(lent, True)
    assert lent.connection.closed  # type: ignore[attr-defined]


# Our own pool.


class Line:
    """A connection that nobody uses."""

    def stale(self) -> bool:
        return False

    def close(self) -> None:
        pass

    drop = close


def test_no_turn_while_others_are_answered_is_no_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = SqlPool(lambda limit: Line(), 1)  # type: ignore[arg-type, return-value]
    lent = pool.take(1)
    with pytest.raises(StoreUnavailable) as away:
        pool.take(0.05)
    assert not away.value.queued
    kept: list[Any] = []  # what nobody has any more is closed, and another may take its place
    waiting = threading.Thread(target=lambda: kept.append(pool.take(60)))
    waiting.start()
    eventually(lambda: len(lent.slots.waiting()) == 1)
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now)

    def give_and_let_time_pass() -> None:
        nonlocal now
        eventually(lambda: len(lent.slots.waiting()) == 2)
        now += 0.3
        pool.give(lent, True)  # to who waits longest
        waiting.join()
        now += 0.3

    giving = threading.Thread(target=give_and_let_time_pass)
    giving.start()
    with pytest.raises(StoreUnavailable) as busy:
        pool.take(0.5)
    assert busy.value.queued
    giving.join()


async def test_no_turn_for_a_task_while_others_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now)

    async def open_one(limit: float) -> Line:
        return Line()

    pool = AsyncSqlPool(open_one, 1)
    lent = await pool.take(1)
    with pytest.raises(StoreUnavailable) as away:
        await pool.take(0.05)
    assert not away.value.queued
    waiting = asyncio.ensure_future(pool.take(60))
    await asyncio.sleep(0)

    async def give_later() -> None:
        await asyncio.sleep(0.2)
        await pool.give(lent, True)

    giving = asyncio.ensure_future(give_later())
    with pytest.raises(StoreUnavailable) as busy:
        await pool.take(1)
    assert busy.value.queued
    await asyncio.gather(waiting, giving)


NOBODY = "postgresql://127.0.0.1:1/nothing"
LEASES = [Renewal("name", "attempt", 1, 30_000_000)]


def first_statement(core: Any) -> str:
    """What a batch of renewals sends first."""
    steps = core.store.renew(LEASES)
    assert next(steps) == Turn(RENEW)
    assert steps.send(clock.now() + 5).sql == core.driver.session.dialect.CLOCK
    sql: str = steps.send(Result([(1,)], 1)).sql
    return sql


def test_a_renewal_without_a_connection_is_no_sign_of_a_locked_row() -> None:
    """Nothing was sent, so that the next one need not look for locks first."""
    with leasehold.connect(NOBODY) as locks:
        core: Any = inside(locks)
        with pytest.raises(StoreUnavailable):
            core.driver.run(core.store.renew(LEASES), 1.0)
        assert first_statement(core) == core.driver.session.dialect.EXTEND


async def test_nor_is_one_of_a_task() -> None:
    async with aio.connect(NOBODY) as locks:
        core: Any = inside(locks)
        with pytest.raises(StoreUnavailable):
            await core.driver.run(core.store.renew(LEASES), 1.0)
        assert first_statement(core) == core.driver.session.dialect.EXTEND


async def test_what_is_held_does_not_wait_behind_those_who_ask() -> None:
    async def open_one(limit: float) -> Line:
        return Line()

    pool = AsyncSqlPool(open_one, 1)
    lent, reserved = await pool.take(1), await pool.take(1, RENEW)
    served: list[str] = []

    async def use(who: str, rank: int) -> None:
        lent = await pool.take(60, rank)
        served.append(who)
        await pool.give(lent, True)

    users = [asyncio.ensure_future(use(f"asks {number}", ASK)) for number in range(3)]
    users += [asyncio.ensure_future(use(f"gives back {number}", GIVE)) for number in range(2)]
    users += [asyncio.ensure_future(use("renews", RENEW))]
    await asyncio.sleep(0)
    await pool.give(reserved, True)
    await asyncio.gather(*users[3:])
    await pool.give(lent, True)
    await asyncio.gather(*users)
    assert served == ["renews", "gives back 0", "gives back 1", "asks 0", "asks 1", "asks 2"]


async def test_a_lease_is_given_back_before_those_who_ask(
    postgresql_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurried: list[tuple[str, bool]] = []
    original = AsyncSqlPool.take

    async def take(self: AsyncSqlPool, limit: float, rank: int = ASK) -> Any:
        hurried.append((asking, rank < ASK))
        return await original(self, limit, rank)

    monkeypatch.setattr(AsyncSqlPool, "take", take)
    async with aio.connect(postgresql_server.url, namespace=os.urandom(5).hex()) as locks:
        asking = "acquire"
        lease = await locks.lock("name").acquire()
        asking = "meanwhile"
        waiting = asyncio.create_task(locks.lock("name").acquire())
        permit = await locks.semaphore("permits", limit=2).acquire()
        other = await locks.lock("other").acquire()
        while (await locks.inspect("name")).waiters != 1:  # type: ignore[union-attr]  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        given = {"crowded": lease, "several": permit, "alone": other}
        for asking in given:
            assert await given[asking].release()
        asking = "after"
        await waiting
    assert ("acquire", False) in hurried
    for asking in ("crowded", "several", "alone"):
        assert (asking, True) in hurried
    assert ("acquire", True) not in hurried


# The connection that listens is ours alone: nobody else would close it.


class Sulky(Exception):
    """What a connection does when it is to be made ready."""


def test_a_listener_that_cannot_be_made_ready_is_closed(postgresql: Database) -> None:
    made: list[Any] = []

    def configure(raw: Any) -> None:
        made.append(raw)
        raise Sulky

    pool = ConnectionPool(postgresql.url, min_size=1, max_size=1, open=False, configure=configure)
    with leasehold.connect(pool) as locks, pytest.raises(Sulky):
        postgresql_pool.opener(pool, inside(locks).driver.session)(30.0)  # type: ignore[attr-defined]
    assert [raw.closed for raw in made] == [True]


async def test_a_listener_that_is_cancelled_before_it_is_ready_is_closed(
    async_pool: tuple[Any, Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its Locks is closed in that moment."""
    pool, database = async_pool
    made: list[Any] = []
    begun = asyncio.Event()

    async def hang(raw: Any, wanted: bool) -> None:
        if wanted:  # aiomysql turns it off while it connects
            made.append(raw)
            begun.set()
            await asyncio.Event().wait()

    async with aio.connect(pool) as locks:
        driver: Any = inside(locks).driver
        if database.is_postgresql:
            monkeypatch.setattr(psycopg.AsyncConnection, "set_autocommit", hang)
            opening = asyncio.create_task(postgresql_pool.async_opener(pool, driver.session)(30.0))
        else:
            monkeypatch.setattr(aiomysql.Connection, "autocommit", hang)
            opening = asyncio.create_task(driver.source.open(30.0))
        await asyncio.wait_for(begun.wait(), 60)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        monkeypatch.undo()
    assert [raw.closed for raw in made] == [True]
