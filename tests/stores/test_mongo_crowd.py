"""More calls at a time than the client has connections: they wait for their turn, and are not mistaken for failures."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast

import pymongo
import pytest

import leasehold
from leasehold import aio
from leasehold.core import clock, timing
from leasehold.core.protocol import SECOND, Ask, Busy
from leasehold.stores.mongodb.lanes import lane_of
from leasehold.stores.mongodb.store import MongoStore, Sender
from leasehold.stores.mongodb.waiting import Waiter
from servers.proxy import Proxy

pytestmark = pytest.mark.server


@pytest.fixture
def url(mongodb_server: Any) -> Iterator[str]:
    name = f"t{uuid.uuid4().hex[:12]}"
    yield str(mongodb_server.url).replace("/leasehold", f"/{name}")
    with pymongo.MongoClient[Any](mongodb_server.url) as client:
        client.drop_database(name)


def lanes_of(locks: Any) -> Any:
    driver = locks._core.driver
    driver._open()
    return driver._lanes


def take_all(locks: Any) -> int:
    """All turns to ask, of threads."""
    taken = 0
    while lanes_of(locks)[0].turns.acquire(blocking=False):
        taken += 1
    return taken


TASKS = 300


async def test_a_crowd_that_has_few_connections_is_served(
    url: str, mongodb_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All asking takes longer than a call may take. In the pool, most would have waited in vain for a connection."""
    limit = 3.0
    monkeypatch.setattr(timing, "CALL_LIMIT", limit)
    with Proxy(mongodb_server.port) as proxy:
        through = url.replace(f":{mongodb_server.port}/", f":{proxy.port}/")
        proxy.delay(0.01)
        async with pymongo.AsyncMongoClient[Any](through, maxPoolSize=5) as client, aio.connect(client) as locks:
            had = []

            async def work(number: int) -> None:
                async with locks.lock(f"name {number}", ttl=120):
                    had.append(number)

            answered = note_answers(lanes_of(locks)[0])
            await asyncio.gather(*(work(number) for number in range(TASKS)))
            assert answered[-1] - answered[0] > 4.5  # or it shows nothing
            assert sorted(had) == list(range(TASKS))
            # A call may take too long on a busy machine; the crowd may not, unless nobody at all was answered.
            stood_still = sum(later - earlier >= limit for earlier, later in pairwise(answered))
            assert locks.counters().unavailable < TASKS / 10 + TASKS * stood_still


def note_answers(lane: Any) -> list[float]:
    """When calls of the lane were answered, from now on, which is the first."""
    done, answered = lane.done, [clock.now()]

    def note(was_answered: bool) -> None:
        if was_answered:
            answered.append(clock.now())
        done(was_answered)

    lane.done = note
    return answered


def test_an_operation_has_its_lane() -> None:
    store = MongoStore()
    ask = Ask("x", "a", "me", "lock", None, SECOND, queue=True)
    assert [lane_of(steps) for steps in (store.acquire(ask), store.renew([]))] == [0, None]
    assert [lane_of(steps) for steps in (store.release("x", "a", 1, None), store.abandon("x", "a"))] == [1, 1]
    assert lane_of(store.inspect("x")) == 1


def test_who_was_called_does_not_wait_behind_those_who_ask() -> None:
    """What it was granted would lapse."""
    store = MongoStore()
    ask = Ask("x", "a", "me", "lock", None, SECOND, queue=True)
    store.waiters["a"] = Waiter(ask, Busy(None, 0, 10.0), 1000.0)
    assert lane_of(store.acquire(ask)) == 0
    store.waiters.ring("a")
    assert lane_of(store.acquire(ask)) == 1


@pytest.mark.parametrize(("size", "turns"), [(1, 1), (2, 1), (5, 1), (10, 4), (66, 32), (100, 32), (None, 32), (0, 32)])
def test_how_many_calls_a_lane_has_at_a_time(url: str, size: int | None, turns: int) -> None:
    with pymongo.MongoClient[Any](url, maxPoolSize=size) as client, leasehold.connect(client) as locks:
        assert take_all(locks) == turns


def test_what_is_held_is_kept_and_given_back_while_a_crowd_asks(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with leasehold.connect(url) as locks:
        lease = locks.lock("x").acquire()
        take_all(locks)
        lease.renew()
        with monkeypatch.context() as patch:
            patch.setattr(timing, "CALL_LIMIT", 0.1)
            with pytest.raises(leasehold.StoreUnavailable, match=r"too many concurrent calls .* 0\.0\d+ s for a turn"):
                locks.lock("y").try_acquire()
        assert lease.release()


@pytest.mark.parametrize("moves", [True, False], ids=["it moves", "it stands"])
def test_a_queue_that_moves_is_no_failure(url: str, monkeypatch: pytest.MonkeyPatch, moves: bool) -> None:
    """However long it takes. One that does not is: the server may be away."""
    outcome: list[object] = []
    with leasehold.connect(url) as locks:
        locks.inspect("x")  # connected
        monkeypatch.setattr(timing, "CALL_LIMIT", 0.4)
        monkeypatch.setattr(timing, "UNAVAILABLE_LIMIT", 0.8)
        taken, [lane, _] = take_all(locks), lanes_of(locks)
        lane._answered = clock.now() + 60 if moves else 0.0  # at any time until then

        def wait() -> None:
            try:
                with locks.lock("x").acquire():  # its calls have 0.4 s, also the one that gives it back
                    outcome.append(True)
            except leasehold.StoreUnavailable as error:
                outcome.append(error.queued)

        thread = threading.Thread(target=wait)
        thread.start()
        if moves:
            time.sleep(2.5)
            assert not outcome
            assert locks._core.unavailable == 0
            monkeypatch.undo()
            for _ in range(taken):
                lane.done(True)
        thread.join(60)
        assert outcome == [moves]


def test_a_timeout_is_kept_while_others_are_before_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "CALL_LIMIT", 0.2)
    with leasehold.connect(url) as locks:
        take_all(locks)
        lanes_of(locks)[0]._answered = clock.now() + 60
        began = time.monotonic()
        with pytest.raises(leasehold.StoreUnavailable) as caught:
            locks.lock("x").acquire(timeout=1)
        assert caught.value.queued
        assert 1 <= time.monotonic() - began < 10


async def test_who_is_cancelled_takes_no_turn_along(url: str) -> None:
    """Before its turn, and in the middle of its call."""
    async with aio.connect(url) as locks:
        [lane, _] = lanes_of(locks)
        turns = lane.turns._value
        for _ in range(turns):
            await lane.turns.acquire()
        waiting = [asyncio.create_task(locks.lock(f"w{number}").acquire()) for number in range(5)]
        await asyncio.sleep(0.1)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for _ in range(turns):
            lane.done(True)
        for pause in (0, 0, 0.001):
            task = asyncio.create_task(locks.lock("x").acquire())
            for _ in range(3):
                await asyncio.sleep(pause)
            task.cancel()
            [had] = await asyncio.gather(task, return_exceptions=True)
            if isinstance(had, aio.Lease):  # it was too late for that
                await had.release()
        ends = time.monotonic() + 60
        while lane.turns._value < turns:
            assert time.monotonic() < ends
            await asyncio.sleep(0.01)
        assert lane.turns._value == turns
        async with locks.lock("x").acquire(timeout=60):
            pass


async def test_a_call_that_is_cancelled_before_it_has_begun_gives_its_turn_back(url: str) -> None:
    """As when somebody cancels every task there is."""

    def nothing() -> Iterator[Any]:
        yield Sender()

    async with aio.connect(url) as locks:
        [_, lane] = lanes_of(locks)
        turns = lane.turns._value
        before = asyncio.all_tasks()
        call = asyncio.create_task(locks._core.driver.run(cast(Any, nothing()), 20.0))
        await asyncio.sleep(0)
        [inner] = asyncio.all_tasks() - before - {call}
        assert lane.turns._value == turns - 1
        inner.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert inner.cancelled()
        assert lane.turns._value == turns
