"""A row that somebody's transaction has locked is busy: the server is there, and the name is not to be had."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from sql_servers import Database, ask, before, inside, is_swap_of_all, statements
from test_sql_late import busy, locked

import leasehold
from leasehold import AcquireTimeout, StoreUnavailable, aio
from leasehold.core import clock, timing
from leasehold.stores import mysql
from leasehold.stores.sql import session
from leasehold.stores.sql import store as sql
from leasehold.stores.sql.requests import Pause
from leasehold.testing.handles import eventually

pytestmark = pytest.mark.server


@contextmanager
def in_transaction(database: Database, namespace: str, name: str = "name") -> Iterator[None]:
    """Another client holds the name in a transaction of its own."""
    with leasehold.connect(database.url, namespace=namespace) as others:
        theirs = database.connect(autocommit=False)
        assert others.lock(name).in_transaction(theirs)
        try:
            yield
        finally:
            theirs.commit()
            theirs.close()


LOCKED = {"in_transaction": in_transaction, "for_update": locked}


@pytest.mark.parametrize(("how", "used"), [("in_transaction", False), ("in_transaction", True), ("for_update", True)])
def test_who_does_not_wait_gets_none(how: str, used: bool, database: Database, namespace: str) -> None:
    with leasehold.connect(database.url, namespace=namespace, ttl=30) as locks:
        locks.lock("name" if used else "another").acquire().release()
        with LOCKED[how](database, namespace):
            for _ in range(3):
                assert locks.lock("name").try_acquire() is None
                assert locks.all_of("another", "name").try_acquire() is None
                assert locks.semaphore("name", limit=2).try_acquire() is None
            with pytest.raises(AcquireTimeout):
                locks.lock("name").acquire(timeout=0)
            assert locks.lock("another").try_acquire().release()  # type: ignore[union-attr]
        with locks.lock("name", timeout=60):
            pass


async def test_a_held_name_whose_row_is_locked_is_busy_for_its_holder(database: Database, namespace: str) -> None:
    """One that checks its lease in a transaction, say."""
    async with (
        aio.connect(database.url, namespace=namespace, ttl=60, owner="ann") as others,
        aio.connect(database.url, namespace=namespace, ttl=60) as locks,
    ):
        lease = await others.lock("name").acquire()
        with locked(database, namespace):
            for _ in range(2):
                with pytest.raises(AcquireTimeout) as refused:
                    await locks.lock("name").acquire(timeout=0)
                assert refused.value.holder is not None
                assert refused.value.holder.owner == "ann"
        await lease.release()


def test_it_does_not_matter_how_long_the_session_would_wait(
    database: Database, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MySQL can be asked only by another statement, which is sent for a minute after one has waited."""
    monkeypatch.setattr(mysql, "LOCK_WAIT", 50)
    with leasehold.connect(database.url, namespace=namespace, ttl=30) as locks:
        locks.lock("name").acquire().release()
        with in_transaction(database, namespace):
            if database.kind == "mysql":
                with pytest.raises(StoreUnavailable):
                    locks.lock("name").try_acquire()
            for _ in range(3):
                assert locks.lock("name").try_acquire() is None


@pytest.mark.parametrize("what", ["semaphore", "read"])
def test_who_asks_for_a_free_permit_has_it_when_the_row_is_unlocked(
    what: str, postgresql_server: Any, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others who ask for one have the row for the length of their commits: that is no reason to say no."""
    monkeypatch.setattr(session, "PATIENCE", 50.0)  # for a machine that stands still
    monkeypatch.setattr(timing, "CALL_LIMIT", 60.0)
    database = Database(postgresql_server)
    refused, original = threading.Event(), sql.SqlStore.acquire

    def acquire(self: sql.SqlStore, ask: Any) -> Any:
        return before(lambda request: isinstance(request, Pause), original(self, ask), refused.set)

    monkeypatch.setattr(sql.SqlStore, "acquire", acquire)
    with leasehold.connect(database.url, namespace=namespace, ttl=120) as locks:
        lock = locks.semaphore("name", limit=2) if what == "semaphore" else locks.rwlock("name").read()
        first = lock.acquire()
        found: list[Any] = []
        caller = threading.Thread(target=lambda: found.append(lock.try_acquire()))
        with locked(database, namespace):
            caller.start()
            assert refused.wait(60)
        caller.join()
        assert found[0] is not None
        assert found[0].release()
        assert first.release()


@pytest.mark.parametrize("swaps", [0, 5])
def test_several_names_of_which_one_stays_locked_are_asked_for_each_for_itself(
    swaps: int, database: Database, namespace: str
) -> None:
    """Also after swaps in vain, which do not count."""
    with leasehold.connect(database.url, namespace=namespace, ttl=60) as locks, ExitStack() as theirs:
        for name in ("first", "name"):
            locks.lock(name).acquire().release()
        core: Any = inside(locks)
        left = swaps

        def meanwhile() -> None:
            nonlocal left
            left -= 1
            if left >= 0:
                touch = "UPDATE leasehold SET version = version + 1 WHERE namespace = %s AND name = %s"
                database.sql(touch, namespace, "first")
            elif left == -1:
                theirs.enter_context(locked(database, namespace))

        steps = core.store.acquire_all([ask("first"), ask("name")])
        assert core.driver.run(before(is_swap_of_all, steps, meanwhile), 60.0) is None
        assert left < 0


@pytest.mark.parametrize("ttl", [2, 60])
def test_who_waits_has_a_whole_second_for_a_locked_row_also_with_a_short_ttl(
    ttl: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MariaDB waits whole seconds: for a fraction it would not wait at all."""
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now)
    limit = timing.make_timing(ttl=ttl).call_limit
    ends = now + limit - session.GRACE
    assert session.patience_of(True, ends) >= mysql.LOCK_WAIT  # type: ignore[operator]
    assert session.patience_of(False, ends) == session.BRIEFLY
    for left in (0.0, 0.1, 0.6, 1.1):  # what says that it was refused must arrive in time
        assert left == 0 or session.patience_of(True, now + left) < left  # type: ignore[operator]


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_what_is_locked_beside_a_new_name_is_waited_for(
    kind: str, request: pytest.FixtureRequest, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a purge does for a moment: InnoDB locks the space between rows, where the new one would be."""
    monkeypatch.setattr(mysql, "LOCK_WAIT", 50)
    database = Database(request.getfixturevalue(f"{kind}_server"))
    with leasehold.connect(database.url, namespace=namespace, ttl=30) as locks:
        for name in ("a", "z"):
            locks.lock(name).acquire().release()
        theirs = database.connect(autocommit=False)
        between = "SELECT 1 FROM leasehold WHERE namespace = %s AND name > 'b' AND name < 'y' FOR UPDATE"
        theirs.cursor().execute(between, (namespace,))
        found: list[Any] = []
        caller = threading.Thread(target=lambda: found.append(locks.lock("name").try_acquire()))
        caller.start()
        eventually(lambda: busy(database))
        theirs.rollback()
        theirs.close()
        caller.join()
        assert found[0] is not None
        assert found[0].release()


@pytest.mark.parametrize("held", [False, True], ids=["free", "held"])
def test_a_wait_ends_as_one_for_any_other_busy_name(held: bool, database: Database, namespace: str) -> None:
    with leasehold.connect(database.url, namespace=namespace, ttl=30) as locks:
        lease = locks.lock("name").acquire()
        if not held:
            lease.release()

        def timed_out() -> bool:
            with pytest.raises((AcquireTimeout, StoreUnavailable)) as ended:
                locks.lock("name").acquire(timeout=1.5)
            return ended.type is AcquireTimeout  # else this machine has stood still in its last half second

        with locked(database, namespace):
            eventually(timed_out)
        lease.release()


def test_who_waits_has_it_when_the_transaction_is_over(
    database: Database, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait_and_have() -> None:
        async with aio.connect(database.url, namespace=namespace, ttl=60) as locks:
            await (await locks.lock("name").acquire()).release()
            with in_transaction(database, namespace):
                sent = statements(monkeypatch)
                waiter = asyncio.ensure_future(locks.lock("name").acquire())
                async with asyncio.timeout(60):
                    while sum("INSERT INTO" in each for each in sent) < 3:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                assert not waiter.done()
            async with asyncio.timeout(60):
                await (await waiter).release()
            assert locks.counters().unavailable == 0

    asyncio.run(wait_and_have())
