"""Places in queues that the keeper refreshes for all waiters of a process: what it asks, in how few commands."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pymongo
import pytest
from mongo_databases import own_url
from mongo_listeners import SETTLE, eventually, hearing, listening, opened, queue
from mongo_sent import Sent
from test_mongo_rules import Bench, bench

import leasehold
from leasehold import aio
from leasehold.core.protocol import SECOND, Ask, Busy, Grant, run_steps
from leasehold.core.timing import FALLBACK, FIRST_TERM, STAGGER, WAITER_TTL
from leasehold.stores import mongodb
from leasehold.stores.mongodb import driver as mongo_driver
from leasehold.stores.mongodb import listening as mongo_listening
from leasehold.stores.mongodb import store as mongo
from leasehold.stores.mongodb.requests import PassOn, Sender, Urgency
from leasehold.stores.mongodb.waiters import WaitingAttempt

__all__ = ["bench"]  # a fixture


def ask(attempt: str, name: str = "n", ttl: float = 30.0) -> Ask:
    queue = not attempt.startswith("holder")
    return Ask(name, attempt, "o", "lock", None, int(ttl * SECOND), queue=queue)


def line_up(bench: Bench, *attempts: str, name: str = "n", ttl: float = 30.0) -> Grant:
    """One holds the name, and the attempts wait for it."""
    grant = bench.run(bench.store.acquire(ask(f"holder-{name}", name, ttl)))
    assert isinstance(grant, Grant)
    for attempt in attempts:
        assert isinstance(bench.run(bench.store.acquire(ask(attempt, name))), Busy)
    bench.rings.clear()
    return grant


def check(bench: Bench, *asks: Ask) -> tuple[Sequence[Busy | None], list[Any]]:
    """What the keeper is answered, and the commands that it takes."""
    commands: list[Any] = []

    def handle(request: Any) -> Any:
        if callable(request):
            commands.append(request)
        return bench.handle(request)

    return run_steps(bench.store.keep_waiting(asks), handle), commands


def left(bench: Bench, name: str = "n") -> dict[str, float]:
    """For how long each place of a queue lasts."""
    found = bench.collection.find_one({"_id.name": name})
    assert found is not None
    return {one["attempt"]: (one["expires"] - bench.now).total_seconds() for one in found["queue"]}


@pytest.mark.server
def test_one_command_for_all_who_wait(bench: Bench) -> None:
    line_up(bench, "a", "b")
    line_up(bench, "c", name="m")
    bench.now += timedelta(seconds=FALLBACK)
    answers, commands = check(bench, ask("a"), ask("b"), ask("c", "m"))
    assert [busy and busy.place for busy in answers] == [0, 1, 0]
    assert commands == [mongo.Find(["m", "n"])]


@pytest.mark.server
def test_places_of_one_name_are_refreshed_in_one_change(bench: Bench) -> None:
    """Each change writes the whole queue: with one for each of a thousand, a check took seconds."""
    line_up(bench, "a", "b", "c")
    line_up(bench, "d", name="m")
    bench.now += timedelta(seconds=2 * FALLBACK)
    answers, commands = check(bench, ask("c"), ask("a"), ask("d", "m"))
    assert [busy and busy.place for busy in answers] == [2, 0, 0]
    [_, kept] = commands
    assert sorted(each.name for each in kept.changes) == ["m", "n"]
    assert left(bench) == {"a": WAITER_TTL, "b": WAITER_TTL - 2 * FALLBACK, "c": WAITER_TTL}  # b is not ours
    assert left(bench, "m") == {"d": WAITER_TTL}


@pytest.mark.server
def test_no_place_lapses_between_two_checks(bench: Bench) -> None:
    line_up(bench, "a", "b", ttl=600.0)
    for _ in range(20):
        bench.now += timedelta(seconds=FALLBACK + 1)  # a little late each time
        answers, _ = check(bench, ask("a"), ask("b"))
        assert [busy and busy.place for busy in answers] == [0, 1]
    assert bench.rings == []


@pytest.mark.server
def test_answer_of_a_check_is_that_of_an_acquire(bench: Bench) -> None:
    line_up(bench, "a", "b")
    bench.now += timedelta(seconds=FALLBACK)
    [answer], _ = check(bench, ask("b"))
    assert answer == bench.run(bench.store.acquire(ask("b")))
    assert bench.rings == []


@pytest.mark.server
def test_waiter_whose_place_is_gone_has_to_acquire(bench: Bench) -> None:
    """Its wake-up got lost, or its place has expired."""
    grant = line_up(bench, "a", "b", "c")
    assert bench.run(bench.store.abandon("n", "b"))
    answers, _ = check(bench, ask("a"), ask("b"), ask("c"))
    assert [busy and busy.place for busy in answers] == [0, None, 1]
    assert bench.run(bench.store.release("n", "holder-n", grant.token, None))
    answers, _ = check(bench, ask("a"), ask("c"))  # a was granted it
    assert [busy and busy.place for busy in answers] == [None, 0]
    bench.now += timedelta(seconds=WAITER_TTL + 1)
    answers, _ = check(bench, ask("c"))
    assert answers == [None]
    assert left(bench)["c"] < 0  # nor is a place that has expired refreshed


@pytest.mark.server
def test_waiters_acquire_one_after_the_other_when_the_holder_has_expired(bench: Bench) -> None:
    """The next one at once, and those behind it a little later, for it may be dead too."""
    line_up(bench, "a", "b", ttl=3.0)
    bench.now += timedelta(seconds=3 + STAGGER / 2)
    answers, _ = check(bench, ask("a"), ask("b"))
    assert [busy and busy.place for busy in answers] == [None, 1]
    bench.now += timedelta(seconds=STAGGER)
    answers, _ = check(bench, ask("a"), ask("b"))
    assert answers == [None, None]


@pytest.mark.server
def test_damaged_record_does_not_take_the_others_along(bench: Bench) -> None:
    line_up(bench, "a")
    line_up(bench, "c", name="m")
    bench.collection.update_one({"_id.name": "m"}, {"$set": {"holders": "nobody"}})
    answers, _ = check(bench, ask("a"), ask("c", "m"), ask("x", "nowhere"))
    assert [busy and busy.place for busy in answers] == [0, None, None]


@pytest.mark.server
def test_waiter_that_was_checked_hears_all_calls_since(mongodb_server: Any) -> None:
    """As one that has asked: it need not ask again after the cursor was opened."""
    [url] = [mongodb_server.url]
    waits = Ask("checked", "a", "me", "lock", None, 30 * SECOND, queue=True)
    with leasehold.connect(url) as ours, ours.lock("checked", ttl=60), opened(url) as (store, driver):
        busy = driver.run(store.acquire(waits), 20.0)
        assert not driver.listen("a", busy)
        eventually(lambda: driver.listen("", None))
        assert not driver.listen("a", busy)
        [busy] = driver.run(store.keep_waiting([waits]), 20.0)
        assert driver.listen("a", busy)
        driver.run(store.abandon("checked", "a"), 20.0)


def test_next_waiter_of_a_semaphore_asks_when_another_was_granted_it() -> None:
    """Another holder may expire sooner than the first term of the one that the call is about."""
    rung: list[Any] = []
    found = mongodb.open_url("mongodb://127.0.0.1:9/db", "")
    assert isinstance(found.store, mongo.MongoStore)
    driver: Any = found.threads()
    driver.on_ring = lambda attempt, news=None: rung.append((attempt, news))
    for attempt, alone in (("lock", True), ("semaphore", False)):
        found.store.waiters[attempt] = WaitingAttempt(alone, 0.0)
    at = 1_700_000_000_000
    session = driver.run(sender(), 5.0)
    text = f"{at} {session}/other/7 {session}/lock/ {session}/semaphore/"
    driver.run(passing(text), 5.0)
    driver.close()
    soon = Busy(None, 0, FIRST_TERM, now=at * 1000)
    assert rung == [("other", Grant(7, at=at * 1000)), ("lock", soon), ("semaphore", None)]


def sender() -> Any:
    yield Urgency.SETTLE
    session, _ = yield Sender()
    return session


def passing(text: str) -> Any:
    yield Urgency.SETTLE
    yield PassOn(text)


# On servers.


@pytest.fixture(params=["mongodb_server", "mongodb_replica_set"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    yield from own_url(request.getfixturevalue(request.param))


NAMES = ["a", "b", "c"]
WAIT = 20.5
COMMANDS = 0.45
"""A second: a check every 5 s, places refreshed every 10 s, a request for calls every 30 s; and one of each more."""


def attempts(url: str) -> list[list[str]]:
    """Who waits for each name, in order."""
    with pymongo.MongoClient[Any](url) as client:
        leases = client.get_default_database()["leasehold"]
        return [[one["attempt"] for one in leases.find_one({"_id.name": name})["queue"]] for name in NAMES]  # type: ignore[index]


def check_idle(names: list[str], before: list[list[str]], after: list[list[str]]) -> None:
    assert len(names) <= WAIT * COMMANDS, names
    assert after == before  # nobody has lost its place, though all are older than a place lasts without a sign of life
    assert [len(queue) for queue in after] == [2, 2, 2]


@contextmanager
def watched(url: str) -> Iterator[tuple[Sent, leasehold.Locks, leasehold.Locks]]:
    """What the second of two sends."""
    sent = Sent()
    with (
        pymongo.MongoClient[Any](url, event_listeners=[sent]) as client,
        leasehold.connect(url) as ours,
        leasehold.connect(client) as theirs,
    ):
        yield sent, ours, theirs


@pytest.mark.server
@pytest.mark.slow
def test_many_idle_waiters_send_as_little_as_one(url: str) -> None:
    with watched(url) as (sent, ours, theirs):
        leases = [ours.lock(name, ttl=120).acquire() for name in NAMES]
        threads = [
            threading.Thread(target=lambda name=name: theirs.lock(name).acquire().release()) for name in NAMES * 2
        ]
        for thread in threads:
            thread.start()
        ends = time.monotonic() + 30
        while [len(queue) for queue in attempts(url)] != [2, 2, 2]:
            assert time.monotonic() < ends
        time.sleep(FALLBACK + 1)
        before = attempts(url)
        sent.names.clear()
        time.sleep(WAIT)
        counted = list(sent.names)
        check_idle(counted, before, attempts(url))
        for lease in leases:
            lease.release()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()


@pytest.mark.server
@pytest.mark.slow
def test_an_idle_waiter_sends_next_to_nothing_also_when_the_holder_has_a_short_ttl(url: str) -> None:
    with watched(url) as (sent, ours, theirs):
        lease = ours.lock("x", ttl=5).acquire()
        thread = threading.Thread(target=lambda: theirs.lock("x").acquire().release())
        thread.start()
        with pymongo.MongoClient[Any](url) as plain:
            hearing(plain.get_default_database())
        time.sleep(6)  # by then the holder has renewed
        sent.names.clear()
        time.sleep(30.5)
        counted = list(sent.names)
        lease.release()
        thread.join(20)
        assert not thread.is_alive()
    assert len(counted) <= 30.5 * COMMANDS, counted


@pytest.mark.server
@pytest.mark.slow
async def test_many_idle_tasks_send_as_little_as_one(url: str) -> None:
    sent = Sent()
    async with pymongo.AsyncMongoClient[Any](url, event_listeners=[sent]) as client:
        async with aio.connect(url) as ours, aio.connect(client) as theirs:
            leases = [await ours.lock(name, ttl=120).acquire() for name in NAMES]

            async def wait(name: str) -> None:
                await (await theirs.lock(name).acquire()).release()

            tasks = [asyncio.create_task(wait(name)) for name in NAMES * 2]
            ends = time.monotonic() + 30
            while [len(queue) for queue in attempts(url)] != [2, 2, 2]:
                assert time.monotonic() < ends
                await asyncio.sleep(0.01)
            await asyncio.sleep(FALLBACK + 1)
            before = attempts(url)
            sent.names.clear()
            await asyncio.sleep(WAIT)
            counted = list(sent.names)
            check_idle(counted, before, attempts(url))
            for lease in leases:
                await lease.release()
            await asyncio.wait_for(asyncio.gather(*tasks), 20)


TURNS = 40


@pytest.mark.server
async def test_each_of_many_that_wait_costs_one_command(url: str) -> None:
    """It is given back, which calls who was granted it, and who is next: neither has to ask."""
    sent = Sent()
    async with pymongo.AsyncMongoClient[Any](url, event_listeners=[sent]) as client:
        async with aio.connect(url) as ours, aio.connect(client) as theirs:
            lease = await ours.lock("x", ttl=120).acquire()

            async def take() -> None:
                await (await theirs.lock("x").acquire()).release()

            tasks = [asyncio.create_task(take()) for _ in range(TURNS)]
            with pymongo.MongoClient[Any](url) as plain:
                database = plain.get_default_database()
                ends = time.monotonic() + 60
                while len(queue(database)) < TURNS:
                    assert time.monotonic() < ends
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(hearing, database)
                await asyncio.sleep(SETTLE)
            sent.commands.clear()
            began = time.monotonic()
            await lease.release()
            await asyncio.wait_for(asyncio.gather(*tasks), 60)
            took = time.monotonic() - began
    changes = [
        command["update"][0]["$set"]["ask"]["$literal"] for command in sent.commands if "findAndModify" in command
    ]
    asked = sum("permit" in change for change in changes)
    assert len(changes) - asked == TURNS
    assert asked < TURNS / 4 + TURNS * took  # one that has its turn no sooner than a first term later may ask


@pytest.mark.server
def test_waiters_are_served_also_when_all_calls_get_lost(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The push seems to be up, and is deaf."""
    for module in (mongo_listening, mongo_driver):
        monkeypatch.setattr(module, "callees", lambda call: iter(()))
    with (
        pymongo.MongoClient[Any](url) as plain,
        leasehold.connect(url) as ours,
        leasehold.connect(url) as theirs,
    ):
        ends = time.monotonic() + 30
        leases = [ours.lock(name, ttl=60).acquire() for name in NAMES]
        threads = [threading.Thread(target=lambda name=name: theirs.lock(name).acquire().release()) for name in NAMES]
        for thread in threads:
            thread.start()
        while [len(queue) for queue in attempts(url)] != [1, 1, 1]:
            assert time.monotonic() < ends
            time.sleep(0.01)
        for lease in leases:
            lease.release()
        for thread in threads:
            thread.join(FALLBACK * 6)
            assert not thread.is_alive()
        assert listening(plain.get_default_database())
