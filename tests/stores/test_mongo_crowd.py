"""More calls at a time than the client has connections: they wait for their turn, and are not mistaken for failures."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pymongo
import pytest
from mongo_databases import own_url
from mongo_listeners import eventually, opened
from mongo_sent import Sent

import leasehold
from leasehold import aio
from leasehold.core import timing
from leasehold.core.protocol import SECOND, Ask, Grant, Renewal, TaskDriver, ThreadDriver
from leasehold.stores import mongodb
from leasehold.stores.mongodb.requests import Urgency
from leasehold.stores.mongodb.store import MongoStore
from leasehold.stores.mongodb.waiters import WaitingAttempt
from servers.proxy import Proxy

pytestmark = pytest.mark.server
TASKS = 300
MOST = 32


@pytest.fixture
def url(mongodb_server: Any) -> Iterator[str]:
    yield from own_url(mongodb_server)


def ask(name: str, attempt: str = "a") -> Ask:
    return Ask(name, attempt * 16, "me", "lock", None, 60 * SECOND)


# What an operation says.


def test_operation_says_how_urgent_it_is() -> None:
    store = MongoStore()
    settle = [
        store.release("x", "a", 1, None),
        store.abandon("x", "a"),
        store.inspect("x"),
        store.scan("", "", 1),
        store.interrupt("x", True),
        store.read_note("x"),
        store.write_note("x", "a", 1, None),
        store.tidy(),
    ]
    assert next(store.acquire(ask("x"))) is Urgency.ACQUIRE
    assert next(store.renew([])) is Urgency.RENEW
    assert {next(steps) for steps in settle} == {Urgency.SETTLE}


def test_waiter_that_was_called_does_not_wait_behind_acquires() -> None:
    """What it was granted would lapse."""
    store = MongoStore()
    waits = ask("x")._replace(queue=True)
    store.waiters[waits.attempt] = WaitingAttempt(alone=True, asked=1000.0)
    assert next(store.acquire(waits)) is Urgency.ACQUIRE
    store.waiters[waits.attempt].called = True
    assert next(store.acquire(waits)) is Urgency.SETTLE


# Threads.


class Crowd:
    """Acquires that are answered when the test says so."""

    def __init__(self, driver: ThreadDriver) -> None:
        self.driver = driver
        self.begun = 0
        self.answer = threading.Semaphore(0)
        self.threads: list[threading.Thread] = []

    def join(self, count: int) -> None:
        for _ in range(count):
            self.threads.append(threading.Thread(target=self._acquire))
            self.threads[-1].start()

    def _acquire(self) -> None:
        def steps() -> Any:
            yield Urgency.ACQUIRE
            self.begun += 1
            yield lambda access: self.answer.acquire()

        self.driver.run(steps(), 120.0)

    def disperse(self) -> None:
        self.answer.release(len(self.threads))
        for thread in self.threads:
            thread.join()


@contextmanager
def crowd(driver: ThreadDriver, count: int) -> Iterator[Crowd]:
    found = Crowd(driver)
    found.join(count)
    try:
        yield found
    finally:
        found.disperse()


@pytest.mark.parametrize(("size", "turns"), [(1, 1), (2, 1), (5, 1), (10, 4), (66, 32), (100, 32), (None, 32), (0, 32)])
def test_how_many_acquires_are_under_way_at_a_time(url: str, size: int | None, turns: int) -> None:
    with pymongo.MongoClient[Any](url, maxPoolSize=size) as client, opened(client) as (_, driver):
        with crowd(driver, turns + 3) as acquires:
            eventually(lambda: acquires.begun == turns)
            time.sleep(0.1)
            assert acquires.begun == turns


def test_lease_is_renewed_and_released_while_a_crowd_acquires(url: str) -> None:
    with opened(url) as (store, driver):
        grant = driver.run(store.acquire(ask("x")), 20.0)
        assert isinstance(grant, Grant)
        with crowd(driver, MOST) as acquires:
            eventually(lambda: acquires.begun == MOST)
            renewal = Renewal("x", ask("x").attempt, grant.token, 60 * SECOND)
            assert driver.run(store.renew([renewal]), 20.0) == ["renewed"]
            with pytest.raises(leasehold.StoreUnavailable, match=r"too many concurrent calls .* 0\.05 s for a turn"):
                driver.run(store.acquire(ask("y")), 0.1)
            assert driver.run(store.release("x", ask("x").attempt, grant.token, None), 20.0)


def test_renewals_wait_for_nobody(url: str) -> None:
    """Nor for a crowd of releases."""

    def stuck() -> Any:
        yield Urgency.SETTLE
        yield lambda access: answer.wait(60)

    answer = threading.Event()
    with opened(url) as (store, driver):
        grant = driver.run(store.acquire(ask("x")), 20.0)
        assert isinstance(grant, Grant)
        threads = [threading.Thread(target=lambda: driver.run(stuck(), 120.0)) for _ in range(MOST)]
        for thread in threads:
            thread.start()
        eventually(lambda: raises_for_want_of_a_turn(driver, store))
        renewal = Renewal("x", ask("x").attempt, grant.token, 60 * SECOND)
        assert driver.run(store.renew([renewal]), 20.0) == ["renewed"]
        answer.set()
        for thread in threads:
            thread.join()


def raises_for_want_of_a_turn(driver: ThreadDriver, store: MongoStore) -> bool:
    try:
        driver.run(store.inspect("x"), 0.1)
    except leasehold.StoreUnavailable as error:
        return "for a turn" in str(error)
    return False


@pytest.mark.parametrize("moves", [True, False], ids=["it moves", "it stands"])
def test_queue_that_moves_is_no_failure(url: str, moves: bool) -> None:
    """However long it takes. One that stands still is: the server may be away."""
    with opened(url) as (store, driver), crowd(driver, MOST) as acquires:
        eventually(lambda: acquires.begun == MOST)
        acquires.join(1)
        time.sleep(0.2)  # it is next
        answering = threading.Timer(0.3 if moves else 60, acquires.answer.release)
        answering.start()
        with pytest.raises(leasehold.StoreUnavailable) as caught:
            driver.run(store.acquire(ask("x")), 2.0)
        answering.cancel()
        assert caught.value.queued == moves


# Tasks.


async def test_crowd_that_has_few_connections_is_served(
    url: str, mongodb_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All acquires together take longer than a call may take. In the pool, most would wait in vain for a connection."""
    limit = 3.0
    monkeypatch.setattr(timing, "CALL_LIMIT", limit)
    sent = Sent()
    with Proxy(mongodb_server.port) as proxy:
        through = url.replace(f":{mongodb_server.port}/", f":{proxy.port}/")
        proxy.delay(0.01)
        async with (
            pymongo.AsyncMongoClient[Any](through, maxPoolSize=5, event_listeners=[sent]) as client,
            aio.connect(client) as locks,
        ):
            had = []

            async def work(number: int) -> None:
                async with locks.lock(f"name {number}", ttl=120):
                    had.append(number)

            began = time.monotonic()
            await asyncio.gather(*(work(number) for number in range(TASKS)))
            answered = [began, *sent.answered]
            assert answered[-1] - answered[0] > 4.5  # or it shows nothing
            assert sorted(had) == list(range(TASKS))
            # A call may take too long on a busy machine; the crowd may not, unless nobody at all was answered.
            stood_still = sum(later - earlier >= limit for earlier, later in pairwise(answered))
            assert locks.counters().unavailable < TASKS / 10 + TASKS * stood_still


@pytest.fixture
async def tasks(url: str) -> Any:
    found = mongodb.open_url(url, "")
    driver = found.tasks()
    yield found.store, driver
    await driver.close()


async def turns_of(driver: TaskDriver) -> int:
    """How many acquires are under way at a time."""
    begun = 0
    answer = asyncio.Event()

    def steps() -> Any:
        nonlocal begun
        yield Urgency.ACQUIRE
        begun += 1
        yield lambda access: answer.wait()

    calls = [asyncio.create_task(driver.run(steps(), 60.0)) for _ in range(MOST + 3)]
    await asyncio.sleep(0.5)
    found = begun
    answer.set()
    await asyncio.gather(*calls)
    return found


async def test_cancelled_acquire_takes_no_turn_along(tasks: tuple[MongoStore, TaskDriver]) -> None:
    """Before its turn, and in the middle of its call."""
    store, driver = tasks
    answer = asyncio.Event()

    def steps() -> Any:
        yield Urgency.ACQUIRE
        yield lambda access: answer.wait()

    stuck = [asyncio.create_task(driver.run(steps(), 60.0)) for _ in range(MOST)]
    await asyncio.sleep(0.1)
    waiting = [asyncio.create_task(driver.run(store.acquire(ask(f"w{number}")), 20.0)) for number in range(5)]
    await asyncio.sleep(0.1)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    answer.set()
    await asyncio.gather(*stuck)
    for number, pause in enumerate((0, 0, 0.001)):
        task = asyncio.create_task(driver.run(store.acquire(ask(f"x{number}")), 20.0))
        for _ in range(3):
            await asyncio.sleep(pause)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await driver.run(store.inspect("x2"), 20.0)  # after the one that was cancelled
    await asyncio.sleep(0.5)
    assert await turns_of(driver) == MOST


async def test_call_that_is_cancelled_before_it_has_begun_gives_its_turn_back(
    tasks: tuple[MongoStore, TaskDriver],
) -> None:
    """As when somebody cancels every task there is."""
    store, driver = tasks
    await driver.run(store.inspect("x"), 20.0)  # connected
    before = asyncio.all_tasks()
    call = asyncio.create_task(driver.run(store.acquire(ask("x")), 20.0))
    await asyncio.sleep(0)
    [inner] = asyncio.all_tasks() - before - {call}
    inner.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert inner.cancelled()
    assert await turns_of(driver) == MOST
