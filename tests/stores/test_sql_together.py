"""Several names in one statement: all of their rows are swapped, or none."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import aiomysql
import pytest
import sqlalchemy
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sql_servers import Counter, Database, ask, at_rest, before, inside, is_swap_of_all
from sqlalchemy.ext.asyncio import create_async_engine

import leasehold
from leasehold import aio
from leasehold.core.protocol import Grant, Refusal
from leasehold.stores.sql import doctor as sql_doctor
from leasehold.stores.sql import session as sql_session
from leasehold.stores.sql.rows import NEVER
from leasehold.testing.handles import eventually

pytestmark = pytest.mark.server
NAMES = ("a", "b", "c")


def rows(database: Database, namespace: str) -> dict[str, Any]:
    """Every row of the namespace, whole."""
    found = database.sql("SELECT * FROM leasehold WHERE namespace = %s", namespace)
    return {name if isinstance(name, str) else name.decode(): facts for _, name, *facts in found}


def held(database: Database, namespace: str) -> list[str]:
    found = database.sql("SELECT name FROM leasehold WHERE namespace = %s AND state <> 0", namespace)
    return sorted(name if isinstance(name, str) else name.decode() for (name,) in found)


@contextmanager
def opened(database: Database, through: str, namespace: str) -> Iterator[Any]:
    place = database.url.partition("://")[2]
    if through == "url":
        target: Any = f"{database.url}?push=off"
    elif through == "pool":
        target = ConnectionPool(database.url, min_size=1, max_size=1, open=True)
    elif database.is_postgresql:
        target = sqlalchemy.create_engine(f"postgresql+psycopg://{place}")
    else:  # and a server that lets much pass
        lax = {"init_command": "SET SESSION sql_mode = ''"}
        target = sqlalchemy.create_engine(f"mysql+pymysql://{place}", connect_args=lax)
    with leasehold.connect(target, namespace=namespace, ttl=30) as locks:
        yield locks
    if through != "url":
        target.close() if through == "pool" else target.dispose()


@asynccontextmanager
async def opened_for_tasks(database: Database, through: str, namespace: str) -> AsyncIterator[Any]:
    place = database.url.partition("://")[2]
    if through == "url":
        async with aio.connect(f"{database.url}?push=off", namespace=namespace, ttl=30) as locks:
            yield locks
    elif through == "pool":
        where = {"host": "127.0.0.1", "port": database.port, "user": "root", "db": "leasehold"}
        made = (
            AsyncConnectionPool(database.url, min_size=1, max_size=1, open=False)
            if database.is_postgresql
            else aiomysql.create_pool(minsize=1, maxsize=1, charset="utf8mb4", **where)
        )
        async with made as pool, aio.connect(pool, namespace=namespace, ttl=30) as locks:
            yield locks
    else:
        engine = create_async_engine(f"{through}://{place}")
        async with aio.connect(engine, namespace=namespace, ttl=30) as locks:
            yield locks
        await engine.dispose()


class Another:
    """Somebody who takes a name when he is called for the first time, and may give it back at once."""

    def __init__(self, locks: leasehold.Locks, name: str, stays: bool) -> None:
        self._locks, self.name, self._stays = locks, name, stays
        self.lease: Any = None

    def __call__(self) -> None:
        if self.lease is None:
            self.lease = self._locks.lock(self.name).acquire()
            if not self._stays:
                self.lease.release()


def check(database: Database, namespace: str, another: Another, stays: bool, asks: Any, reply: Any, was: Any) -> None:
    if stays:
        assert isinstance(reply, Refusal)
        assert asks[reply.place].name == another.name
        assert held(database, namespace) == [another.name]
        now = rows(database, namespace)
        assert {name: now.get(name) for name in NAMES if name != another.name} == {
            name: was.get(name) for name in NAMES if name != another.name
        }, "the others are left as they were, to the last column"
        assert another.lease.release(), "nobody has touched it"
    else:
        assert [type(each) for each in reply] == [Grant] * 3
        tokens = dict(zip(NAMES, (each.token for each in reply), strict=True))
        assert tokens[another.name] > another.lease.token
        assert held(database, namespace) == list(NAMES)
        found = database.sql("SELECT name, token, attempt FROM leasehold WHERE namespace = %s", namespace)
        named = {name if isinstance(name, str) else name.decode(): facts for name, *facts in found}
        assert named == {each.name: [tokens[each.name], each.attempt] for each in asks}


@pytest.mark.parametrize("stays", [True, False], ids=["stays", "goes"])
@pytest.mark.parametrize("known", [True, False], ids=["known", "new"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("through", ["url", "engine"])
def test_another_takes_one_just_before_the_swap(
    database: Database, namespace: str, through: str, name: str, known: bool, stays: bool
) -> None:
    """What was read is no longer so: nothing of it is written. Whether there were rows, and which is first."""
    sql_doctor.init(database.url)
    with opened(database, through, namespace) as locks, opened(database, "url", namespace) as others:
        if known:
            locks.all_of(*NAMES).acquire().release()
        was = rows(database, namespace)
        another, asks = Another(others, name, stays), [ask(each) for each in NAMES]
        core: Any = inside(locks)
        reply = core.driver.run(before(is_swap_of_all, core.store.acquire_all(asks), another), 20.0)
        check(database, namespace, another, stays, asks, reply, was)


@pytest.mark.parametrize("through", ["url", "pool", "engine"])
async def test_the_same_under_asyncio(database: Database, namespace: str, through: str) -> None:
    if through == "engine":
        through = "postgresql+psycopg" if database.is_postgresql else "mysql+aiomysql"
    await overtaken(database, namespace, through)


async def test_the_same_with_an_engine_of_asyncpg(postgresql_server: Any, namespace: str) -> None:
    await overtaken(Database(postgresql_server), namespace, "postgresql+asyncpg")


async def overtaken(database: Database, namespace: str, through: str) -> None:
    with opened(database, "url", namespace) as others:
        async with opened_for_tasks(database, through, namespace) as locks:
            async with locks.all_of(*NAMES, data={"é": None}):
                pass
            was = rows(database, namespace)
            core: Any = inside(locks)
            for stays in (True, False):
                another, asks = Another(others, "b", stays), [ask(each) for each in NAMES]
                steps = before(is_swap_of_all, core.store.acquire_all(asks), another)
                check(database, namespace, another, stays, asks, await core.driver.run(steps, 20.0), was)


def test_a_psycopg_pool_takes_several_in_one_step(postgresql_server: Any, namespace: str) -> None:
    database = Database(postgresql_server)
    with opened(database, "pool", namespace) as locks, opened(database, "url", namespace) as others:
        another, asks = Another(others, "b", True), [ask(each) for each in NAMES]
        core: Any = inside(locks)
        reply = core.driver.run(before(is_swap_of_all, core.store.acquire_all(asks), another), 20.0)
        check(database, namespace, another, True, asks, reply, {})


def test_several_names_are_two_round_trips_however_many(database: Database, namespace: str) -> None:
    counter = Counter(database.port)
    names = [f"name-{number}" for number in range(50)]
    try:
        with leasehold.connect(f"{database.at(counter.port)}?push=off", namespace=namespace, ttl=60) as locks:
            locks.lock("first").acquire().release()
            at_rest(locks)
            for _ in range(3):  # connected, prepared where the driver does that, and no row is new
                locks.all_of(*names).acquire().release()
            trips = counter.trips
            lease = locks.all_of(*names).try_acquire()
            assert counter.trips - trips == 2
            assert lease is not None
            assert held(database, namespace) == sorted(names)
            lease.release()
    finally:
        counter.close()


def test_any_names_and_any_data(database: Database, namespace: str) -> None:
    names = (
        "Job",
        "job",
        "job ",
        "é",
        "e",
        "🔒" * 512,
        "'; DROP TABLE leasehold; --",
        "%s %(name0)s",
        '\\" \\',
        "{rows}",
    )
    data = {"text": "quotes \" ' \\ \n 🔓 %s", "none": None, "number": 2**60}
    with leasehold.connect(f"{database.url}?push=off", namespace=namespace, ttl=60, owner="o'\"\\é") as locks:
        for _ in range(2):  # as new rows, and as known ones
            lease = locks.all_of(*names, data=data).acquire(20)
            found = {info.name: (info.token, info.data, info.owner) for info in locks.leases()}
            assert found == {name: (lease.tokens[name], data, "o'\"\\é") for name in names}
            assert lease.release()


def test_what_has_a_note_keeps_it(database: Database, namespace: str) -> None:
    """And is no more in the way of a purge than before."""
    with opened(database, "url", namespace) as locks:
        locks.once("b").run(lambda: 3)
        locks.all_of(*NAMES).acquire().release()
        with locks.all_of(*NAMES):
            found = database.sql("SELECT name, expires_day FROM leasehold WHERE namespace = %s", namespace)
            assert [day == NEVER for _, day in sorted(found)] == [False, True, False]
        assert locks.once("b").run(lambda: 4).result == 3


def test_rows_that_were_purged_between_the_look_and_the_swap(database: Database, namespace: str) -> None:
    """They were free, and still are."""
    with opened(database, "url", namespace) as locks:
        earlier = locks.all_of(*NAMES).acquire()
        earlier.release()
        core: Any = inside(locks)

        def purge() -> None:
            database.sql("DELETE FROM leasehold WHERE namespace = %s AND name <> %s", namespace, "b")

        grants = core.driver.run(
            before(is_swap_of_all, core.store.acquire_all([ask(each) for each in NAMES]), purge), 20.0
        )
        assert all(grant.token > earlier.tokens[name] for name, grant in zip(NAMES, grants, strict=True))
        assert held(database, namespace) == list(NAMES)


def test_many_who_want_several_in_any_order(database: Database, namespace: str) -> None:
    """Nobody shares a name, nobody waits in a circle, and no server's deadlock gets through to anybody."""
    inside = dict.fromkeys("abcde", 0)
    wrong: list[Any] = []
    done = [0]

    def work(locks: leasehold.Locks, seed: int) -> None:
        chance = random.Random(seed)
        try:
            for _ in range(15):
                names = chance.sample("abcde", chance.choice((2, 3)))
                with locks.all_of(*names, timeout=120):
                    for name in names:
                        inside[name] += 1
                        wrong.extend([name] * (inside[name] != 1))
                    time.sleep(0.001)
                    for name in names:
                        inside[name] -= 1
                done[0] += 1
        except Exception as error:
            wrong.append(error)

    with (
        leasehold.connect(database.url, namespace=namespace, ttl=60) as one,
        leasehold.connect(database.url, namespace=namespace, ttl=60) as two,
    ):
        threads = [threading.Thread(target=work, args=(locks, seed)) for seed, locks in enumerate((one, two) * 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        eventually(lambda: not held(database, namespace))
    assert wrong == []
    assert done == [90]


async def test_one_who_is_cancelled_is_given_up_after_what_he_asked_for(
    database: Database, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement waits for a row when its caller goes: giving up waits for it, whichever name it is about."""
    monkeypatch.setattr(sql_session, "BRIEFLY", 30.0)  # for which it does not usually wait long
    async with aio.connect(f"{database.url}?push=off", namespace=namespace, ttl=60) as locks:
        async with locks.all_of(*NAMES):
            pass
        driver: Any = inside(locks).driver
        theirs = database.connect(autocommit=False)
        select = "SELECT 1 FROM leasehold WHERE namespace = %s AND name = %s FOR UPDATE"
        theirs.cursor().execute(select, (namespace, "c"))
        asks = [ask(each) for each in NAMES]
        begun = asyncio.Event()
        store: Any = inside(locks).store
        asking = asyncio.ensure_future(driver.run(before(is_swap_of_all, store.acquire_all(asks), begun.set), 20.0))
        await begun.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        given_up = [asyncio.ensure_future(driver.run(store.abandon(each.name, each.attempt), 20.0)) for each in asks]
        await asyncio.sleep(0.1)
        theirs.rollback()
        theirs.close()
        assert await asyncio.gather(*given_up) == [True] * 3, "each comes after the grant"
        gc.collect()
        # isinstance would ask weak proxies, which may be dead.
        tasks = [each for each in gc.get_objects() if issubclass(type(each), asyncio.Task)]
        done = [task for task in tasks if task.done()]
        assert [task for task in done if "SqlTasks._answer" in repr(task)] == [], "nobody keeps what has ended"
        assert held(database, namespace) == []
