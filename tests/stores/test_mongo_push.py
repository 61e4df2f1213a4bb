"""How a release reaches a waiter: change stream, tailable cursor, or neither; and how few commands that takes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pymongo
import pytest
from mongo_listeners import Waiter, eventually, hand_off, hearing, listening, opened, queue, threads
from mongo_sent import Sent

import leasehold
from leasehold import admin, aio
from leasehold.core import timing
from leasehold.core.protocol import SECOND, Ask, Busy, Grant
from leasehold.core.timing import FIRST_TERM
from leasehold.stores.mongodb import calls as mongo_calls
from leasehold.stores.mongodb import listening as mongo_listening
from leasehold.stores.mongodb.calls import callees, ways

pytestmark = pytest.mark.server

WAYS = [
    ("mongodb_server", "", "calls"),
    ("mongodb_replica_set", "", "stream"),
    ("mongodb_replica_set", "push=calls", "calls"),
]


@pytest.fixture(params=WAYS, ids=["standalone", "replica_set", "replica_set-calls"])
def way(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A database of its own, and how waiters receive calls there."""
    server, option, expected = request.param
    url = str(request.getfixturevalue(server).url)
    name = f"t{uuid.uuid4().hex[:12]}"
    mine = url.replace("/leasehold", f"/{name}")
    yield mine + (("&" if "?" in mine else "?") + option if option else ""), expected
    with pymongo.MongoClient[Any](url) as client:
        client.drop_database(name)


@pytest.fixture
def url(way: tuple[str, str]) -> str:
    return way[0]


@pytest.fixture
def by_calls(way: tuple[str, str]) -> str:
    """A URL whose waiters use the collection of calls."""
    return way[0] if way[1] == "calls" else f"{way[0]}&push=calls"


def plain(url: str) -> str:
    """The URL for pymongo itself."""
    return url.replace("&push=calls", "")


@pytest.fixture
def database(url: str) -> Iterator[Any]:
    with pymongo.MongoClient[Any](plain(url)) as client:
        yield client.get_default_database()


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters rarely check by themselves: a waiter that is served before half of that time was called, also when the
    machine is busy. It is shorter than a place in the queue lasts."""
    monkeypatch.setattr(timing, "FALLBACK", 14.0)


SELDOM = pytest.mark.usefixtures("seldom")


def told(caplog: pytest.LogCaptureFixture, event: str) -> int:
    return sum(record.__dict__.get("lease_event") == event for record in caplog.records)


async def until(true: Callable[[], Any], within: float = 60.0) -> None:
    await asyncio.to_thread(eventually, true, within)


# A call.


def test_what_a_call_says() -> None:
    assert [*callees("1700000000123 sab/att1/17 cd/att2/")] == [
        ("sab", "att1", Grant(17, at=1700000000123000)),
        ("cd", "att2", Busy(None, 0, FIRST_TERM, now=1700000000123000)),  # who is next
    ]
    assert [*callees("1700000000123 cd/att2/")] == [("cd", "att2", None)]  # nobody was granted it: it has to ask


@pytest.mark.parametrize(
    "call", ["", "x", "1", "1 x", "1 a/b", "1 a/b/c", "x a/b/1", "1 a/b/1/2", None, 7, {"$set": 1}, ["1 a/b/1"]]
)
def test_text_that_is_no_call_calls_nobody(call: Any) -> None:
    assert [*callees(call)] == []


@pytest.mark.parametrize(
    ("push", "sharded", "expected"),
    [
        ("auto", False, ["stream", "calls"]),
        ("auto", True, ["calls", "stream"]),  # a cluster's stream waits for its idle shards
        ("calls", False, ["calls"]),
        ("none", False, []),
    ],
)
def test_which_way_comes_first(push: str, sharded: bool, expected: list[str]) -> None:
    access: Any = SimpleNamespace(target=SimpleNamespace(push=push), sharded=sharded)
    assert list(ways(access)) == expected


def test_unknown_way_is_refused() -> None:
    with pytest.raises(ValueError, match="push must be one of auto, stream, calls, none, not 'pull'"):
        leasehold.connect("mongodb://localhost/db?push=pull")


# It reaches the waiter.


@SELDOM
def test_release_reaches_a_waiter_by_push(way: tuple[str, str], database: Any) -> None:
    url, expected = way
    with leasehold.connect(url) as ours, leasehold.connect(url) as theirs:
        for _ in range(4):
            lease = ours.lock("x").acquire()
            waiter = Waiter(theirs, database)
            assert waiter.listener.way == expected
            assert waiter.served_after(lease) < timing.FALLBACK / 2  # the benchmark measures the rest


@SELDOM
def test_sessions_of_different_ways_reach_each_other(mongodb_replica_set: Any) -> None:
    urls = [mongodb_replica_set.url, f"{mongodb_replica_set.url}&push=calls"]
    with pymongo.MongoClient[Any](mongodb_replica_set.url) as client:
        database = client.get_default_database()
        for first, second in [urls, urls[::-1]]:
            with leasehold.connect(first) as ours, leasehold.connect(second) as theirs:
                times = [hand_off(ours, theirs, database, "both") for _ in range(3)]
                assert max(times) < timing.FALLBACK / 2


@SELDOM
def test_document_of_another_program_does_not_end_the_push(by_calls: str, database: Any) -> None:
    with leasehold.connect(by_calls) as ours, leasehold.connect(by_calls) as theirs:
        lease = ours.lock("x").acquire()
        waiter = Waiter(theirs, database)
        mine = waiter.listener.session
        for odd in ({}, {"call": None}, {"call": "1 a"}, {"call": f"1 {mine}/x/y"}, {"call": [1]}):
            database["leasehold.calls"].insert_one({"to": [mine], **odd})
        assert hearing(database) == waiter.listener
        assert waiter.served_after(lease) < timing.FALLBACK / 2


def test_call_brings_the_lease_itself(url: str, database: Any) -> None:
    """The waiter need not ask: it sends no acquire between the release and its own use of the lease."""
    sent = Sent()
    with pymongo.MongoClient[Any](plain(url), event_listeners=[sent]) as client:
        unasked = 0
        with leasehold.connect(url) as ours, leasehold.connect(client) as theirs:
            for _ in range(10):
                lease = ours.lock("x").acquire()
                held: list[leasehold.Lease] = []
                done = threading.Event()

                def wait(held: Any = held, done: Any = done) -> None:
                    with contextlib.suppress(leasehold.LeaseLost), theirs.lock("x", ttl=60).acquire() as mine:
                        held.append(mine)
                        done.wait()

                thread = threading.Thread(target=wait)
                thread.start()
                eventually(lambda: queue(database))
                hearing(database)
                sent.commands.clear()
                lease.release()
                [mine] = eventually(lambda held=held: held)
                asked = sent.acquires()
                # The keeper extends the first term, if that is not over: of a machine that stood still.
                eventually(lambda mine=mine: mine.remaining > FIRST_TERM or not mine.valid)
                unasked += not asked and mine.valid
                done.set()
                thread.join()
                if unasked == 3:
                    break
    assert unasked == 3  # on a busy machine a call may come so late that the waiter looks first


def test_waiter_that_asked_before_the_cursor_was_opened_asks_again(url: str, database: Any) -> None:
    """It does not hear what happened in between: a release may have granted it the name."""
    ask = Ask("x", "a", "me", "lock", None, 30 * SECOND, queue=True)
    with leasehold.connect(url) as ours, ours.lock("x", ttl=60), opened(url) as (store, driver):
        busy = driver.run(store.acquire(ask), 20.0)
        assert isinstance(busy, Busy)
        assert not driver.listen(ask.attempt, busy)  # it opens the cursor
        eventually(lambda: len(listening(database)) == 2)
        time.sleep(0.1)
        assert not driver.listen(ask.attempt, busy)
        assert driver.listen("", None)  # the keeper's
        busy = driver.run(store.acquire(ask), 20.0)
        assert driver.listen(ask.attempt, busy)
        driver.run(store.abandon("x", ask.attempt), 20.0)


# Waiters that have nothing to do send next to nothing.


def check_idle(sent: list[str], lasted: float) -> None:
    """A check every so often, a refresh of the places with every second one, and a request for calls when the one
    before is over: 0.33 commands a second, and at most one of each sort more in so short a time."""
    requests = sent.count("getMore")
    assert len(sent) - requests <= lasted / timing.FALLBACK * 1.5 + 2, sent
    assert requests <= lasted / mongo_calls.AWAIT + 1, sent


def test_idle_waiters_send_next_to_nothing(url: str, database: Any) -> None:
    sent = Sent()
    with pymongo.MongoClient[Any](plain(url), event_listeners=[sent]) as client:
        with leasehold.connect(url) as ours, leasehold.connect(client) as theirs:
            lease = ours.lock("x", ttl=60).acquire()
            waiter = Waiter(theirs, database)
            seen = -1
            while seen != len(sent.names):  # until it has settled down
                seen = len(sent.names)
                time.sleep(1)
            began = time.monotonic()
            sent.names.clear()
            time.sleep(10.5)
            counted, lasted = list(sent.names), time.monotonic() - began
            waiter.served_after(lease)
    check_idle(counted, lasted)


async def test_idle_tasks_send_next_to_nothing(url: str, database: Any) -> None:
    sent = Sent()
    async with pymongo.AsyncMongoClient[Any](plain(url), event_listeners=[sent]) as client:
        async with aio.connect(url) as ours, aio.connect(client) as theirs:
            lease = await ours.lock("x", ttl=60).acquire()
            task = asyncio.create_task(theirs.lock("x").acquire())
            await asyncio.to_thread(hearing, database)
            seen = -1
            while seen != len(sent.names):  # until it has settled down
                seen = len(sent.names)
                await asyncio.sleep(1)
            began = time.monotonic()
            sent.names.clear()
            await asyncio.sleep(10.5)
            counted, lasted = list(sent.names), time.monotonic() - began
            await lease.release()
            await (await task).release()
    check_idle(counted, lasted)


# Without push.


@SELDOM
@pytest.mark.parametrize("without", ["a spare connection", "leave"])
def test_without_push_waiters_poll(
    way: tuple[str, str], database: Any, without: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "leasehold")
    url, _ = way
    target: Any = plain(url)
    if without == "leave":
        target += ("&" if "?" in target else "?") + "push=none"
    else:
        target = pymongo.MongoClient[Any](target, maxPoolSize=1)
    with leasehold.connect(url) as ours, leasehold.connect(target) as theirs:
        assert hand_off(ours, theirs, database, push=False) < timing.FALLBACK / 2
        assert told(caplog, "no_push") == 1
    if without != "leave":
        target.close()


@SELDOM
def test_stream_alone_on_a_standalone_server_means_polling(
    mongodb_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "leasehold")
    url = f"{mongodb_server.url}?push=stream"
    with pymongo.MongoClient[Any](mongodb_server.url) as client:
        with leasehold.connect(url) as ours, leasehold.connect(url) as theirs:
            database = client.get_default_database()
            assert hand_off(ours, theirs, database, "alone", push=False) < timing.FALLBACK / 2
            assert told(caplog, "no_push") == 2


@SELDOM
def test_collection_of_another_program_is_left_alone(
    by_calls: str, database: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Capping it would throw documents away. Waiters poll instead, and ``init`` says what is in the way."""
    caplog.set_level(logging.INFO, "leasehold")
    database["leasehold.calls"].insert_many([{"from": "me", "to": "you", "text": "x" * 2000} for _ in range(1000)])
    with leasehold.connect(by_calls) as ours, leasehold.connect(by_calls) as theirs:
        assert hand_off(ours, theirs, database, push=False) < timing.FALLBACK / 2
        eventually(lambda: told(caplog, "no_push") == 2)
    assert [finding.level for finding in admin.init(by_calls)] == ["error"]
    assert not database["leasehold.calls"].options().get("capped")
    assert database["leasehold.calls"].count_documents({"from": "me"}) == 1000


@SELDOM
def test_locks_that_share_a_small_pool_do_not_starve(url: str, database: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Two connections, two Locks: one listens, the other polls, and there is a connection for what they ask."""
    caplog.set_level(logging.INFO, "leasehold")
    small = pymongo.MongoClient[Any](plain(url), maxPoolSize=2)
    with leasehold.connect(url) as other, leasehold.connect(small) as one, leasehold.connect(small) as two:
        one.lock("warm").acquire().release()
        eventually(lambda: len(listening(database)) == 1)
        two.lock("warm").acquire().release()
        eventually(lambda: told(caplog, "no_push") == 1)
        for locks in (one, two, one, two):
            assert hand_off(other, locks, database, push=locks is one) < timing.FALLBACK / 2
    small.close()


def test_connection_that_a_listener_had_is_free_again(url: str, database: Any) -> None:
    small = pymongo.MongoClient[Any](plain(url), maxPoolSize=2)
    for _ in range(3):
        before = threads()
        with leasehold.connect(small) as locks, locks.lock("x"):
            eventually(lambda: listening(database))
            [listener] = [each for each in threads() if each not in before]
        listener.join(60)  # close() does not wait for long
        assert not listener.is_alive()
    small.close()


async def test_tasks_that_share_a_small_pool_do_not_starve(
    url: str, database: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "leasehold")
    async with pymongo.AsyncMongoClient[Any](plain(url), maxPoolSize=2) as small:
        for rounds in (1, 2):
            before = asyncio.all_tasks()
            async with aio.connect(small) as one, aio.connect(small) as two:
                await (await one.lock("warm").acquire()).release()
                await until(lambda: len(listening(database)) == 1)
                await (await two.lock("warm").acquire()).release()
                await until(lambda rounds=rounds: told(caplog, "no_push") == rounds)
                for locks in (one, two):
                    await (await locks.lock("x").acquire(timeout=60)).release()
            await until(lambda before=before: not listening(database))  # close() does not wait for long
            ends = time.monotonic() + 60
            while any(task.get_name() == "leasehold-mongodb" for task in asyncio.all_tasks() - before):
                assert time.monotonic() < ends
                await asyncio.sleep(0.01)


# The collection of calls.


@SELDOM
def test_calls_that_are_not_capped_are_capped(by_calls: str, database: Any) -> None:
    database["leasehold.calls"].insert_one({"to": []})  # somebody dropped it, and an insert made it
    with leasehold.connect(by_calls) as ours, leasehold.connect(by_calls) as theirs:
        ours.lock("x").acquire().release()
        eventually(lambda: listening(database))  # it has capped them
        assert hand_off(ours, theirs, database) < timing.FALLBACK / 2
    assert database["leasehold.calls"].options()["capped"]


async def test_calls_that_are_not_capped_are_capped_by_tasks(by_calls: str, database: Any) -> None:
    database["leasehold.calls"].insert_one({"to": []})  # somebody dropped it, and an insert made it
    async with aio.connect(by_calls) as locks, locks.lock("x"):
        await until(lambda: listening(database))
    assert database["leasehold.calls"].options()["capped"]


def test_no_cursor_is_opened_before_there_is_a_call(
    by_calls: str, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cursor that is opened while another process inserts the first document there finds none, and is kept by the
    server because there is one by then: it heard nothing any more, in one of a hundred starts of two processes."""
    found: list[Any] = []
    open_cursor = mongo_listening.open_cursor

    def noted(access: Any, way: str, session: str) -> Any:
        if way == "calls":
            found.append(database["leasehold.calls"].find_one())
        return open_cursor(access, way, session)

    monkeypatch.setattr(mongo_listening, "open_cursor", noted)
    with leasehold.connect(by_calls) as locks, locks.lock("x"):
        eventually(lambda: listening(database))
    assert found
    assert None not in found


def test_calls_are_capped_by_one_process_alone(by_calls: str, database: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Capping makes the collection anew. A process that has found that it is not capped, and caps it when others listen
    to it already, would leave them deaf: servers notify them only when their requests are over."""
    database["leasehold.calls"].insert_one({"to": []})
    found, go_on = threading.Event(), threading.Event()
    cap_calls = mongo_listening.cap_calls

    def slowly(anyway: bool) -> Any:
        monkeypatch.setattr(mongo_listening, "cap_calls", cap_calls)
        steps = cap_calls(anyway)
        answer = yield next(steps)
        found.set()  # it has seen that no document is in the way
        go_on.wait(60)
        request = steps.send(answer)
        try:
            while True:
                try:
                    answer = yield request
                except pymongo.errors.PyMongoError as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(answer)
        except StopIteration as done:
            return done.value

    monkeypatch.setattr(mongo_listening, "cap_calls", slowly)
    with leasehold.connect(by_calls) as early, leasehold.connect(by_calls) as late:
        with late.lock("late"):
            assert found.wait(60)
            with early.lock("early"):
                [first] = eventually(lambda: listening(database))
                made = uuid_of(database)
                go_on.set()
                eventually(lambda: len({*listening(database)} - {first}) == 1)
                assert uuid_of(database) == made


def test_calls_are_capped_also_when_the_process_to_do_it_has_died(by_calls: str, database: Any) -> None:
    database["leasehold.calls"].insert_one({"_id": mongo_calls.CAPPED_BY, "to": []})
    with leasehold.connect(by_calls) as locks, locks.lock("x"):
        eventually(lambda: listening(database))
    assert database["leasehold.calls"].options()["capped"]


def uuid_of(database: Any) -> Any:
    [found] = database.list_collections(filter={"name": "leasehold.calls"})
    return found["info"]["uuid"]
