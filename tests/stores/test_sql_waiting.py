"""The waiters of one process: how few statements they cost, how their places are kept, when push is not relied upon."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sql_servers import HOLD, Database, ask, python, statements

import leasehold
from leasehold import aio
from leasehold.core import clock, timing
from leasehold.core.entry import Entry
from leasehold.core.protocol import ALL, SECOND, Busy
from leasehold.core.timing import FALLBACK, FIRST_TERM
from leasehold.stores.sql import waiting as sql_waiting
from leasehold.stores.sql.waiting import Waiter, Waiters
from leasehold.testing.handles import eventually, in_time


@pytest.mark.parametrize("now", ["lapsed", "another's", "held", "waits", "late", "never answered"])
def test_a_grant_that_lapsed_is_seen_in_the_row(now: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a waiter that was not notified; one that comes late itself blames nobody."""
    time_now = 1000.0
    monkeypatch.setattr(clock, "now", lambda: time_now)
    entry, waiter, mine = Entry("x", 0), Waiter(), ask("x", queue=True)
    if now != "never answered":
        waiter.answered(Busy(None, 0, 30.0))
    if now in ("another's", "waits"):
        entry.acquire(ask("x"), "there", 0, 0)
    if now in ("held", "waits"):
        entry.acquire(mine, "here", 0, 0)
    time_now += FALLBACK + (2 * FIRST_TERM if now == "late" else 0)
    assert waiter.missed_its_grant(mine.attempt, entry, 1) is (now in ("lapsed", "another's"))


def test_when_wake_ups_may_have_been_missed_all_are_taken_for_notified() -> None:
    waiters = Waiters()
    for attempt in "ab":
        waiters[attempt] = Waiter()
    waiters.ring("nobody")
    assert not any(waiter.called for waiter in waiters.values())
    waiters.ring(ALL)
    assert all(waiter.called for waiter in waiters.values())


# With servers.


def places(database: Database, namespace: str) -> list[tuple[str, int]]:
    """The attempts in the queue of the only row, and when their places expire."""
    [(more,)] = database.sql("SELECT more FROM leasehold WHERE namespace = %s", namespace)
    return [(waiting[0], waiting[8]) for waiting in json.loads(more)[7]]


@pytest.mark.server
@pytest.mark.parametrize("side", ["threads", "asyncio"])
def test_places_are_kept_while_their_waiters_sleep(
    database: Database, namespace: str, locks: leasehold.Locks, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    """The keeper refreshes them."""
    for module in (timing, sql_waiting):
        monkeypatch.setattr(module, "FALLBACK", 1.0)
    monkeypatch.setattr("leasehold.core.entry._WAITER_TTL", 60 * SECOND)  # so that each of theirs is nearly used up
    taken: list[int] = []
    lease = locks.lock("name", ttl=300).acquire()
    with SIDES[side](database.url, namespace, 3, taken):
        try:
            queued(locks, 3)
            before = places(database, namespace)
            last = max(expires for _, expires in before)
            eventually(lambda: min(expires for _, expires in places(database, namespace)) > last + SECOND)
            assert [attempt for attempt, _ in places(database, namespace)] == [attempt for attempt, _ in before]
        finally:
            lease.release()
    assert len(taken) == 3


@contextmanager
def in_threads(url: str, namespace: str, count: int, taken: list[int]) -> Iterator[None]:
    """So many threads of one Locks that take the name once each, in the order of their numbers."""
    with leasehold.connect(url, namespace=namespace) as locks:

        def take(number: int) -> None:
            with locks.lock("name").acquire() as lease:
                taken.append(lease.token)

        threads = [threading.Thread(target=take, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            for thread in threads:
                thread.join()


@contextmanager
def in_tasks(url: str, namespace: str, count: int, taken: list[int]) -> Iterator[None]:
    async def work() -> None:
        async with aio.connect(url, namespace=namespace) as locks:

            async def take() -> None:
                async with locks.lock("name") as lease:
                    taken.append(lease.token)

            await asyncio.gather(*(take() for _ in range(count)))

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    try:
        yield
    finally:
        thread.join()


SIDES = {"threads": in_threads, "asyncio": in_tasks}


def queued(locks: leasehold.Locks, count: int) -> None:
    eventually(lambda: (info := locks.inspect("name")) is not None and info.waiters == count, within=60)


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize("side", list(SIDES))
def test_ten_who_wait_cost_what_one_does(
    database: Database, namespace: str, locks: leasehold.Locks, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    """Everything counted that their session sends, in two checks of the keeper."""
    taken: list[int] = []
    lease = locks.lock("name", ttl=300).acquire()
    with SIDES[side](database.url, namespace, 10, taken):
        queued(locks, 10)
        time.sleep(2 * FALLBACK)  # until all are in step
        sent = statements(monkeypatch)

        def looks() -> int:
            sent.clear()
            time.sleep(2 * FALLBACK + 1)
            found = sum("version" in each and "namespace =" in each for each in sent)  # of a row, not of the server
            assert found
            return found

        in_time(looks, 5, tries=3)
        lease.release()
    assert taken == sorted(taken)
    assert len(taken) == 10


@pytest.mark.server
@pytest.mark.parametrize("side", list(SIDES))
def test_a_killed_holder_is_replaced_by_the_first_of_many(
    database: Database, namespace: str, locks: leasehold.Locks, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When its lease is over: nobody looks for any other reason here. (How late that is: in ``test_sql``.)"""
    for module in (timing, sql_waiting):
        monkeypatch.setattr(module, "FALLBACK", 1000.0)
    taken: list[int] = []
    child = python(HOLD, database.url, namespace, "name", 2)
    assert child.stdout is not None
    assert child.stdin is not None
    token = int(child.stdout.readline())
    with SIDES[side](database.url, namespace, 5, taken):
        # It may have stood still and lost its lease alive: then they do not all wait at the same time.
        eventually(lambda: taken or ((info := locks.inspect("name")) is not None and info.waiters == 5), within=60)
        child.send_signal(signal.SIGKILL)
        child.wait()
        eventually(lambda: len(taken) == 5, within=60)
    child.stdout.close()
    child.stdin.close()
    assert token < taken[0]
    assert taken == sorted(taken)


@pytest.mark.server
async def test_a_crowd_is_served_in_order(database: Database, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nobody misses its turn, however long the machine stands still.
    monkeypatch.setattr("leasehold.core.entry._FIRST_TERM", 60 * SECOND)
    served: list[int] = []
    tokens: list[int] = []
    missed: list[Any] = []
    async with (
        aio.connect(database.url, namespace=namespace) as locks,
        aio.connect(database.url, namespace=namespace) as crowd,
    ):
        crowd.on_event(lambda event: missed.append(event) if event.type == "taken_over" else None)
        lease = await locks.lock("name", ttl=300).acquire()

        async def take(number: int) -> None:
            async with crowd.lock("name") as lease:
                served.append(number)
                tokens.append(lease.token)

        tasks = []
        for number in range(200):
            tasks.append(asyncio.ensure_future(take(number)))
            if number % 20 == 0:
                await _waiting(locks, number + 1)
        await _waiting(locks, 200)
        in_line = [number for number in range(200) if number % 20 == 0]
        await lease.release()
        await asyncio.wait_for(asyncio.gather(*tasks), 90)
    assert sorted(served) == list(range(200))
    assert tokens == sorted(tokens)
    assert [number for number in served if number in in_line] == in_line
    assert missed == []


async def _waiting(locks: aio.Locks, count: int) -> None:
    ends = time.monotonic() + 60
    while (info := await locks.inspect("name")) is None or info.waiters != count:
        assert time.monotonic() < ends
        await asyncio.sleep(0.05)


@pytest.mark.server
@pytest.mark.parametrize("side", list(SIDES))
def test_a_lost_place_is_got_anew(database: Database, namespace: str, locks: leasehold.Locks, side: str) -> None:
    """Somebody has set the row to what it was before they came. They learn of it when they look."""
    taken: list[int] = []
    lease = locks.lock("name", ttl=300).acquire()
    with SIDES[side](database.url, namespace, 4, taken):
        queued(locks, 4)
        where = "WHERE namespace = %s AND name = %s"
        database.sql(f"UPDATE leasehold SET more = NULL, version = version + 1 {where}", namespace, "name")
        assert locks.inspect("name") is not None
        queued(locks, 4)
        lease.release()
    assert taken == sorted(taken)
    assert len(taken) == 4
