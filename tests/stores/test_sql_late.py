"""Statements that were given up on: whatever becomes of them on the server, they grant nothing any more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import sqlalchemy
from sql_servers import Database, ask, at_rest, before, inside, is_join, is_swap, is_swap_of_all, weigh
from sqlalchemy.ext.asyncio import create_async_engine

import leasehold
from leasehold import StoreUnavailable, aio
from leasehold.core.lease import state_of
from leasehold.core.protocol import Busy, Grant
from leasehold.testing.handles import eventually
from servers.proxy import Proxy

pytestmark = pytest.mark.server


@contextmanager
def locked(database: Database, namespace: str, name: str = "name") -> Iterator[None]:
    """Somebody's open transaction has the row."""
    theirs = database.connect(autocommit=False)
    theirs.cursor().execute("SELECT 1 FROM leasehold WHERE namespace = %s AND name = %s FOR UPDATE", (namespace, name))
    try:
        yield
    finally:
        theirs.rollback()
        theirs.close()


def busy(database: Database) -> int:
    """How many statements about the table run or wait at this moment, beside this one."""
    if database.is_postgresql:
        here = "pid <> pg_backend_pid() AND query LIKE '%%leasehold%%' AND state = 'active'"
        return len(database.sql(f"SELECT 1 FROM pg_stat_activity WHERE {here} AND query NOT LIKE %s", "LISTEN%"))
    where = "COMMAND = 'Query' AND ID <> CONNECTION_ID() AND INFO NOT LIKE %s"
    return len(database.sql(f"SELECT 1 FROM information_schema.PROCESSLIST WHERE {where}", "%SLEEP(%"))


def state(database: Database, namespace: str) -> Any:
    return database.sql("SELECT state, more FROM leasehold WHERE namespace = %s", namespace)


@contextmanager
def refused(replies: list[Any]) -> Iterator[None]:
    """What asks for a locked row gets nothing: busy, or no answer within a time so short."""
    with suppress(StoreUnavailable):
        yield
        assert not isinstance(replies[-1], (Grant, list))


@pytest.mark.parametrize("contended", [False, True], ids=["uncontended", "contended"])
@pytest.mark.parametrize("held", [False, True], ids=["free", "held"])
def test_an_acquire_that_waited_for_a_row_too_long(
    own_of_all: Database, namespace: str, held: bool, contended: bool
) -> None:
    """D3: the row is locked, and an acquire that fails leaves it as it was. It is free: the fast path. It is held: the
    attempt would get a place in the queue, at once if the name is known to be contended."""
    database = own_of_all
    with leasehold.connect(f"{database.url}?push=off", namespace=namespace, ttl=30) as locks:
        lease = locks.lock("name").acquire()
        core: Any = inside(locks)
        if contended:  # one that has joined the queue, and has left it
            early = ask("name", queue=True)
            assert isinstance(core.driver.run(core.store.acquire(early), 5.0), Busy)
            core.driver.run(core.store.abandon("name", early.attempt), 5.0)
        if not held:
            lease.release()
        before = state(database, namespace)
        late = ask("name", queue=True)
        with locked(database, namespace):
            with refused(replies := []):
                replies.append(core.driver.run(core.store.acquire(late), 0.6))
            assert core.driver.run(core.store.abandon("name", late.attempt), 5.0) is False
        eventually(lambda: not busy(database))
        assert state(database, namespace) == before
        lease.release()


def test_several_names_of_which_one_was_waited_for_too_long(own_of_all: Database, namespace: str) -> None:
    """Not even those before it are granted, whose rows the statement had already."""
    database = own_of_all
    names = ("a", "name", "z")
    with leasehold.connect(f"{database.url}?push=off", namespace=namespace, ttl=30) as locks:
        locks.all_of(*names).acquire().release()
        found = state(database, namespace)
        core: Any = inside(locks)
        asks = [ask(each) for each in names]
        with locked(database, namespace):
            with refused(replies := []):
                replies.append(core.driver.run(core.store.acquire_all(asks), 0.6))
            for each in asks:
                assert core.driver.run(core.store.abandon(each.name, each.attempt), 5.0) is False
        eventually(lambda: not busy(database))
        assert state(database, namespace) == found
        assert locks.all_of(*names).acquire(20).release()


def test_statements_that_were_given_up_on_are_ended(own_of_all: Database, namespace: str) -> None:
    """Else each try would leave another connection behind that waits in the server."""
    database = own_of_all
    with leasehold.connect(f"{database.url}?push=off", namespace=namespace, ttl=30) as locks:
        lease = locks.lock("name").acquire()
        core: Any = inside(locks)
        with locked(database, namespace):
            for _ in range(3):
                with pytest.raises(StoreUnavailable):
                    core.driver.run(core.store.release("name", state_of(lease).claim.attempt, lease.token, None), 0.3)
            eventually(lambda: not busy(database))
        assert lease.release()


@pytest.mark.parametrize("what", ["new", "free", "held", "permit", "several"])
def test_an_acquire_that_reaches_the_server_too_late(own_of_all: Database, namespace: str, what: str) -> None:
    database = own_of_all
    with (
        leasehold.connect(f"{database.url}?push=off", namespace=namespace, ttl=30) as others,
        Proxy(database.port) as proxy,
        leasehold.connect(f"{database.at(proxy.port)}?push=off", namespace=namespace, ttl=30) as locks,
    ):
        core: Any = inside(locks)
        permit = {"shape": "semaphore"}
        locks.lock("name").acquire().release()
        at_rest(locks)  # it opens no connection any more
        for _ in range(3):  # connected, and prepared
            locks.lock("name").acquire().release()
            locks.all_of("name", "third").acquire().release()
            assert isinstance(core.driver.run(core.store.acquire(ask("other")), 5.0), Grant | Busy)
            assert isinstance(core.driver.run(core.store.acquire(ask("permit", **permit)), 5.0), Grant | Busy)
        found = state(database, namespace)
        here = connections(database)
        name = {"held": "other", "permit": "permit", "new": "never used"}.get(what, "name")
        late = ask(name, queue=True, **(permit if what == "permit" else {}))
        steps = core.store.acquire(late)
        if what in ("new", "free"):
            proxy.blackhole()
        elif what == "held":  # it has not got the name, and what would give it a place is late
            steps = before(is_join, steps, proxy.blackhole)
        elif what == "permit":  # it has read the row, and its swap is late
            steps = before(is_swap, steps, proxy.blackhole)
        else:
            steps = before(is_swap_of_all, core.store.acquire_all([late, ask("third")]), proxy.blackhole)
        with pytest.raises(StoreUnavailable):
            core.driver.run(steps, 0.6)
        theirs: Any = inside(others)
        assert theirs.driver.run(theirs.store.abandon(late.name, late.attempt), 5.0) is False
        proxy.all_well()
        eventually(lambda: connections(database) <= here)  # the server has come to the end of that one
        assert state(database, namespace) == found


def connections(database: Database) -> int:
    if database.is_postgresql:
        return len(database.sql("SELECT 1 FROM pg_stat_activity WHERE application_name = 'leasehold'"))
    return len(database.sql("SELECT 1 FROM information_schema.PROCESSLIST"))


async def test_a_cancelled_acquire_that_waits_for_a_row(own_of_all: Database, namespace: str) -> None:
    database = own_of_all
    async with aio.connect(f"{database.url}?push=off", namespace=namespace, ttl=60) as locks:
        async with locks.lock("name"):
            pass
        before = state(database, namespace)
        core: Any = inside(locks)
        with locked(database, namespace):
            task = asyncio.ensure_future(locks.lock("name").acquire().__aenter__())
            while not busy(database) and not task.done():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert not task.done(), task
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(1.5)  # longer than giving up waits for it
        while busy(database) or core.unsettled:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert [row[0] for row in state(database, namespace)] == [row[0] for row in before] == [0]


@pytest.mark.parametrize("level", [None, "SERIALIZABLE"])
def test_an_engine_whose_row_is_locked(postgresql_server: Any, namespace: str, level: str | None) -> None:
    """The server bounds the wait, whatever driver the engine has."""
    database = Database(postgresql_server)
    options = {"isolation_level": level} if level else {}
    engine = sqlalchemy.create_engine(database.url.replace("postgresql:", "postgresql+psycopg:"), **options)
    with leasehold.connect(engine, namespace=namespace, ttl=30) as locks:
        locks.lock("name").acquire().release()
        core: Any = inside(locks)
        with locked(database, namespace):
            with refused(replies := []):
                replies.append(core.driver.run(core.store.acquire(ask("name")), 0.6))
        assert state(database, namespace) == [(0, None)]
    engine.dispose()


@pytest.mark.parametrize("side", ["threads", "asyncio"])
@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_an_engine_that_waits_a_second_for_a_row(
    kind: str, side: str, request: pytest.FixtureRequest, namespace: str
) -> None:
    """What docs/stores/mysql.md tells users to set: nothing of ours ends the wait of a statement through an engine."""
    database = Database(request.getfixturevalue(f"{kind}_server"))
    where = database.url.partition("://")[2]
    setting: dict[str, Any] = {"init_command": "SET SESSION innodb_lock_wait_timeout = 1"}

    def in_threads() -> None:
        engine = sqlalchemy.create_engine(f"mysql+pymysql://{where}", connect_args={**setting, "read_timeout": 10})
        with leasehold.connect(engine, namespace=namespace, ttl=30) as locks:
            locks.lock("name").acquire().release()
            core: Any = inside(locks)
            with locked(database, namespace):
                with refused(replies := []):
                    replies.append(core.driver.run(core.store.acquire(ask("name")), 0.6))
        engine.dispose()

    async def in_tasks() -> None:
        engine = create_async_engine(f"mysql+aiomysql://{where}", connect_args=setting)
        async with aio.connect(engine, namespace=namespace, ttl=30) as locks:
            await (await locks.lock("name").acquire()).release()
            core: Any = inside(locks)
            with locked(database, namespace):
                with refused(replies := []):
                    replies.append(await core.driver.run(core.store.acquire(ask("name")), 0.6))
                await asyncio.sleep(1.5)
        await engine.dispose()

    if side == "threads":
        in_threads()
    else:
        asyncio.run(in_tasks())
    time.sleep(0.2)  # what still waited for the row would have it now
    assert state(database, namespace) == [(0, None)]


def test_one_locked_row_does_not_keep_others_from_being_renewed(database: Database, namespace: str) -> None:
    """They are renewed in one statement, which waits for all of its rows."""
    with leasehold.connect(f"{database.url}?push=off", namespace=namespace, ttl=12, renew_every=2) as locks:
        one, two, three = (locks.lock(name).acquire() for name in ("one", "two", "three"))
        with locked(database, namespace, "two"):
            assert two.lost.wait(20)
            assert not one.lost.wait(1)  # which had the same deadline
            assert one.valid
            assert three.valid
            info = locks.inspect("two")
            assert info is None or info.token == two.token
        assert one.release()
        assert three.release()


def test_a_lease_whose_row_is_unlocked_in_time_is_kept(database: Database, namespace: str) -> None:
    """And one that was taken away meanwhile is told so, not tried again and again."""
    with leasehold.connect(f"{database.url}?push=off", namespace=namespace, ttl=12, renew_every=2) as locks:
        kept, taken = (locks.lock(name).acquire() for name in ("kept", "taken"))
        core: Any = inside(locks)
        theirs = database.connect(autocommit=False)
        cursor = theirs.cursor()
        weigh(database, cursor)  # on a busy machine a renewal may come between the next two
        cursor.execute("UPDATE leasehold SET token = token + 1 WHERE namespace = %s AND name = 'taken'", (namespace,))
        cursor.execute("SELECT 1 FROM leasehold WHERE namespace = %s AND name = 'kept' FOR UPDATE", (namespace,))
        eventually(lambda: core.renewal_failures)
        theirs.commit()
        theirs.close()
        assert taken.lost.wait(20)
        eventually(lambda: core.renewals)
        assert not kept.lost.wait(6)  # three failures in a row would have cost it
        assert kept.release()
