"""How a release reaches a waiter: change stream, tailable cursor, or neither; what breaks it, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pymongo
import pytest
from mongo_sent import Sent
from pymongo.errors import AutoReconnect

import leasehold
from leasehold import admin, aio
from leasehold.core import clock, timing
from leasehold.core.protocol import HELD, SECOND, Ask, Busy, Grant
from leasehold.core.timing import FIRST_TERM
from leasehold.stores.mongodb import calls as mongo_calls
from leasehold.stores.mongodb import link as mongo_link
from leasehold.stores.mongodb import store as mongo
from leasehold.stores.mongodb import tasks as mongo_tasks
from leasehold.stores.mongodb import threads as mongo_threads
from leasehold.stores.mongodb import waiting as mongo_waiting
from leasehold.stores.mongodb.calls import MAKE_WAY, STREAM, Listener, MakeWay, Pause, callees, ways
from leasehold.stores.mongodb.store import MongoStore
from servers.mongodb import MongoReplicaSet
from servers.proxy import Proxy

pytestmark = pytest.mark.server

WAYS = [
    ("mongodb_server", "", "calls"),
    ("mongodb_replica_set", "", "stream"),
    ("mongodb_replica_set", "push=calls", "calls"),
]


@pytest.fixture(params=WAYS, ids=["standalone", "replica_set", "replica_set-calls"])
def way(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A database of its own, and how waiters hear of calls there."""
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
def database(url: str) -> Iterator[Any]:
    with pymongo.MongoClient[Any](url.replace("&push=calls", "")) as client:
        yield client.get_default_database()


def eventually(true: Callable[[], Any], within: float = 60.0) -> Any:
    ends = time.monotonic() + within
    while not (found := true()):
        assert time.monotonic() < ends, "not so in time"
        time.sleep(0.01)
    return found


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters hardly look by themselves: whoever is served before half of that time was called, also when the machine
    is busy. It is shorter than a place in the queue lasts."""
    for module in (timing, mongo, mongo_waiting):
        monkeypatch.setattr(module, "FALLBACK", 14.0)


SELDOM = pytest.mark.usefixtures("seldom")


def driver_of(locks: Any) -> Any:
    return locks._core.driver


def hears(locks: Any) -> bool:
    """Whether all is heard that concerns those who wait there: each has asked since the cursor was opened."""
    driver = driver_of(locks)
    waiting = list(driver._waiters)
    return driver._up and bool(waiting) and all(driver._hears(attempt) for attempt in waiting)


async def until(true: Callable[[], Any], within: float = 60.0) -> None:
    ends = time.monotonic() + within
    while not true():
        assert time.monotonic() < ends, "not so in time"
        await asyncio.sleep(0.01)


class Waiter(threading.Thread):
    """Waits for a name, gives it back at once, and notes when it had it."""

    def __init__(self, locks: leasehold.Locks, name: str = "x") -> None:
        super().__init__(daemon=True)
        self.locks = locks
        self.lock = locks.lock(name)
        self.had: float | None = None
        self.token = 0
        self.start()
        # Until it is in the queue and listens, or has learned that it cannot.
        eventually(lambda: (info := locks.inspect(name)) and info.waiters)
        eventually(lambda: driver_of(locks)._refused or hears(locks))

    def run(self) -> None:
        with self.lock.acquire(timeout=110) as lease:
            self.had = time.monotonic()
            self.token = lease.token

    def served_after(self, lease: leasehold.Lease) -> float:
        """Seconds from the release to the waiter's return from acquire."""
        began = time.monotonic()
        lease.release()
        self.join(60)
        assert self.had is not None
        assert self.token > lease.token
        return self.had - began


def hand_off(ours: leasehold.Locks, theirs: leasehold.Locks, name: str = "x") -> float:
    lease = ours.lock(name).acquire()
    return Waiter(theirs, name).served_after(lease)


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
def test_what_is_no_call_calls_nobody(call: Any) -> None:
    assert [*callees(call)] == []


@SELDOM
def test_a_document_of_somebody_else_does_not_end_the_push(by_calls: str, database: Any) -> None:
    with leasehold.connect(by_calls) as ours, leasehold.connect(by_calls) as theirs:
        lease = ours.lock("x").acquire()
        waiter = Waiter(theirs)
        driver = driver_of(theirs)
        cursor = driver._cursor
        mine = [driver.session]
        for odd in ({}, {"call": None}, {"call": "1 a"}, {"call": f"1 {driver.session}/x/y"}, {"call": [1]}):
            database["leasehold.calls"].insert_one({"to": mine, **odd})
        assert waiter.served_after(lease) < timing.FALLBACK / 2
        assert driver._cursor is cursor


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
    access: Any = SimpleNamespace(link=SimpleNamespace(push=push), sharded=sharded)
    assert list(ways(access)) == expected


@SELDOM
def test_a_release_reaches_a_waiter_by_push(way: tuple[str, str]) -> None:
    url, expected = way
    with leasehold.connect(url) as ours, leasehold.connect(url) as theirs:
        times = [hand_off(ours, theirs) for _ in range(5)]
        assert driver_of(theirs)._way == expected
    assert max(times) < timing.FALLBACK / 2  # the benchmark tells the rest


def test_the_call_brings_the_lease_itself(url: str) -> None:
    """The waiter need not ask: it sends no command between the release and its own use of the lease."""
    sent = Sent()
    with pymongo.MongoClient[Any](url.replace("&push=calls", ""), event_listeners=[sent]) as client:
        unasked = 0
        with leasehold.connect(url) as ours, leasehold.connect(client) as theirs:
            for _ in range(10):
                lease = ours.lock("x").acquire()
                held: list[leasehold.Lease] = []
                done = threading.Event()

                def wait(held: Any = held, done: Any = done) -> None:
                    with theirs.lock("x", ttl=60).acquire() as mine:
                        held.append(mine)
                        done.wait()
                        assert mine.valid or clock.now() >= mine._deadline  # a machine that stood still

                thread = threading.Thread(target=wait)
                thread.start()
                eventually(lambda: (info := ours.inspect("x")) and info.waiters)
                eventually(lambda: hears(theirs))
                sent.names.clear()
                lease.release()
                [mine] = eventually(lambda held=held: held)
                unasked += "findAndModify" not in sent.names
                # The keeper extends the first term, if it is not over: of a machine that stood still.
                eventually(lambda mine=mine: {"update", "findAndModify"} & set(sent.names) or not mine.valid)
                done.set()
                thread.join()
                if unasked == 3:
                    break
    assert unasked == 3  # on a busy machine a call may come so late that the waiter looks first


# Nobody waits for nothing.


def check_idle(sent: list[str], lasted: float) -> None:
    """A look every so often, and a request for calls when the one before is over: 0.23 commands a second, and at most
    one of each sort more in so short a time."""
    requests = sent.count("getMore")
    assert len(sent) - requests <= lasted / timing.FALLBACK + 1, sent
    assert requests <= lasted / mongo_link.AWAIT + 1, sent


def test_idle_waiters_send_next_to_nothing(url: str) -> None:
    sent = Sent()
    with pymongo.MongoClient[Any](url.replace("&push=calls", ""), event_listeners=[sent]) as client:
        with leasehold.connect(url) as ours, leasehold.connect(client) as theirs:
            lease = ours.lock("x", ttl=60).acquire()
            waiter = Waiter(theirs)
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


async def test_idle_tasks_send_next_to_nothing(url: str) -> None:
    sent = Sent()
    async with pymongo.AsyncMongoClient[Any](url.replace("&push=calls", ""), event_listeners=[sent]) as client:
        async with aio.connect(url) as ours, aio.connect(client) as theirs:
            lease = await ours.lock("x", ttl=60).acquire()
            task = asyncio.create_task(theirs.lock("x").acquire())
            await until(lambda: hears(theirs))
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


# What can be missing.


@SELDOM
@pytest.mark.parametrize("without", ["a spare connection", "leave"])
def test_without_push_waiters_poll(way: tuple[str, str], without: str) -> None:
    url, _ = way
    target: Any = url.replace("&push=calls", "")
    if without == "leave":
        target += ("&" if "?" in target else "?") + "push=none"
    else:
        target = pymongo.MongoClient[Any](target, maxPoolSize=1)
    with leasehold.connect(url) as ours, leasehold.connect(target) as theirs:
        assert hand_off(ours, theirs) < timing.FALLBACK / 2
        assert driver_of(theirs)._refused
        assert driver_of(theirs)._way is None
    if without != "leave":
        target.close()


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(ValueError, match="push must be one of auto, stream, calls, none, not 'pull'"):
        leasehold.connect("mongodb://localhost/db?push=pull")


@SELDOM
def test_the_stream_alone_on_a_standalone_server_means_polling(mongodb_server: Any) -> None:
    url = f"{mongodb_server.url}?push=stream"
    with leasehold.connect(url) as ours, leasehold.connect(url) as theirs:
        assert hand_off(ours, theirs, "alone") < timing.FALLBACK / 2
        assert driver_of(theirs)._refused


@SELDOM
def test_those_who_hear_by_stream_and_those_who_hear_by_calls_reach_each_other(mongodb_replica_set: Any) -> None:
    urls = [mongodb_replica_set.url, f"{mongodb_replica_set.url}&push=calls"]
    for first, second in [urls, urls[::-1]]:
        with leasehold.connect(first) as ours, leasehold.connect(second) as theirs:
            times = [hand_off(ours, theirs, "both") for _ in range(3)]
            assert max(times) < timing.FALLBACK / 2


@pytest.fixture
def by_calls(way: tuple[str, str]) -> str:
    """A URL whose waiters hear by the collection of calls."""
    return way[0] if way[1] == "calls" else f"{way[0]}&push=calls"


@SELDOM
def test_calls_that_are_not_capped_are_made_so(by_calls: str, database: Any) -> None:
    database["leasehold.calls"].insert_one({"to": []})  # somebody dropped it, and an insert made it
    with leasehold.connect(by_calls) as ours, leasehold.connect(by_calls) as theirs:
        ours.lock("x").acquire().release()
        eventually(lambda: driver_of(ours)._up)  # it has capped them: were it held up, theirs would, and one be deaf
        assert hand_off(ours, theirs) < timing.FALLBACK / 2
    assert database["leasehold.calls"].options()["capped"]


def test_no_cursor_is_opened_before_there_is_a_call(
    by_calls: str, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is opened while another puts the first document there finds none, and is kept by the server because
    there is one by then: it heard nothing any more, in one of a hundred starts of two processes at once."""
    found: list[Any] = []
    opened = mongo_calls.open_cursor

    def noted(access: Any, way: str, session: str) -> Any:
        if way == mongo_calls.CALLS:
            found.append(database["leasehold.calls"].find_one())
        return opened(access, way, session)

    monkeypatch.setattr(mongo_calls, "open_cursor", noted)
    with leasehold.connect(by_calls) as locks, locks.lock("x"):
        eventually(lambda: driver_of(locks)._up)
    assert found
    assert None not in found


def test_a_break_is_noticed_though_it_came_before_one_listens(
    url: str, connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change stream begins when it is opened. Whoever was granted its lease before that learns of a break then, and
    not only when it renews."""
    opened = mongo_calls.open_cursor
    operator = leasehold.connect(url)
    broken: list[bool] = []

    def late(access: Any, way: str, session: str) -> Any:
        if not broken:
            with ThreadPoolExecutor(1) as elsewhere:  # as another process would
                broken.append(elsewhere.submit(operator.break_lease, "x").result(60))
        return opened(access, way, session)

    with operator:
        operator.inspect("x")
        monkeypatch.setattr(mongo_calls, "open_cursor", late)
        lease = connect(url).lock("x", ttl=600, renew_every=300).acquire()
        assert lease.wait_lost(60)
        assert broken == [True]
        assert not lease.release()


def test_calls_are_capped_by_one_alone(by_calls: str, database: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Capping makes the collection anew. Whoever has found that it is not capped, and does it when others listen to it
    already, would leave them deaf: servers tell them only when their requests are over."""
    database["leasehold.calls"].insert_one({"to": []})
    with leasehold.connect(by_calls) as early, leasehold.connect(by_calls) as late:
        early.inspect("x")
        late.inspect("x")
        found, go_on = threading.Event(), threading.Event()
        look = mongo_calls._of_others

        def slow_look(access: Any) -> Any:
            seen = look(access)
            if access is driver_of(late)._access:
                found.set()
                go_on.wait(60)
            return seen

        monkeypatch.setattr(mongo_calls, "_of_others", slow_look)
        driver_of(late).listen("", None)
        assert found.wait(60)
        driver_of(early).listen("", None)
        eventually(lambda: driver_of(early)._up)
        made = uuid_of(database)
        go_on.set()
        eventually(lambda: driver_of(late)._up)
        assert uuid_of(database) == made


def test_calls_are_capped_also_when_the_one_to_do_it_has_died(by_calls: str, database: Any) -> None:
    database["leasehold.calls"].insert_one({"_id": mongo_calls.CAPPED_BY, "to": []})
    with leasehold.connect(by_calls) as locks, locks.lock("x"):
        eventually(lambda: driver_of(locks)._up)
    assert database["leasehold.calls"].options()["capped"]


def uuid_of(database: Any) -> Any:
    [found] = database.list_collections(filter={"name": "leasehold.calls"})
    return found["info"]["uuid"]


def test_who_asked_before_the_cursor_was_opened_asks_again() -> None:
    """It is not heard what happened in between: a release may have granted it the name."""
    driver = mongo_threads.MongoThreads(mongo_link.link_from_url("mongodb://127.0.0.1:9/db", ""))
    driver._listener, driver._up = threading.current_thread(), True
    ask = Ask("x", "a", "me", "lock", None, SECOND, queue=True)
    driver._waiters["a"] = mongo_waiting.Waiter(ask, Busy(None, 0, 10.0), 1000.0)
    driver._since = 1000.1
    assert not driver.listen("a", None)
    driver._since = 999.9
    assert driver.listen("a", None)
    assert driver.listen("", None)  # the keeper's


async def test_calls_that_are_not_capped_are_made_so_by_tasks(by_calls: str, database: Any) -> None:
    database["leasehold.calls"].insert_one({"to": []})  # somebody dropped it, and an insert made it
    async with aio.connect(by_calls) as locks, locks.lock("x"):
        await until(lambda: driver_of(locks)._up)
    assert database["leasehold.calls"].options()["capped"]


@SELDOM
def test_a_collection_of_somebody_else_is_left_alone(by_calls: str, database: Any) -> None:
    """Capping it would throw documents away. Waiters poll instead, and ``init`` says what is in the way."""
    database["leasehold.calls"].insert_many([{"from": "me", "to": "you", "text": "x" * 2000} for _ in range(1000)])
    with leasehold.connect(by_calls) as ours, leasehold.connect(by_calls) as theirs:
        assert hand_off(ours, theirs) < timing.FALLBACK / 2
        eventually(lambda: driver_of(theirs)._refused)
    assert [finding.level for finding in admin.init(by_calls)] == ["error"]
    assert not database["leasehold.calls"].options().get("capped")
    assert database["leasehold.calls"].count_documents({"from": "me"}) == 1000


@SELDOM
def test_locks_that_share_a_small_pool_do_not_starve(url: str) -> None:
    """Two connections, two Locks: one listens, the other polls, and there is a connection for what they ask."""
    small = pymongo.MongoClient[Any](url.replace("&push=calls", ""), maxPoolSize=2)
    with leasehold.connect(url) as other, leasehold.connect(small) as one, leasehold.connect(small) as two:
        for locks in (one, two):
            locks.lock("warm").acquire().release()
            eventually(lambda locks=locks: driver_of(locks)._up or driver_of(locks)._refused)
        assert [driver_of(locks)._refused for locks in (one, two)] == [False, True]
        for locks in (one, two, one, two):
            assert hand_off(other, locks) < timing.FALLBACK / 2
    small.close()


def test_a_connection_that_a_listener_had_can_be_had_again(url: str) -> None:
    small = pymongo.MongoClient[Any](url.replace("&push=calls", ""), maxPoolSize=2)
    for _ in range(3):
        with leasehold.connect(small) as locks, locks.lock("x"):
            eventually(lambda locks=locks: driver_of(locks)._up)
            listener = driver_of(locks)._listener
        listener.join(60)  # close() does not wait for long
        assert not listener.is_alive()
    small.close()


async def test_tasks_that_share_a_small_pool_do_not_starve(url: str) -> None:
    async with pymongo.AsyncMongoClient[Any](url.replace("&push=calls", ""), maxPoolSize=2) as small:
        for _ in range(2):
            async with aio.connect(small) as one, aio.connect(small) as two:
                for locks in (one, two):
                    await (await locks.lock("warm").acquire()).release()
                    await until(lambda locks=locks: driver_of(locks)._up or driver_of(locks)._refused)
                assert [driver_of(locks)._refused for locks in (one, two)] == [False, True]
                for locks in (one, two):
                    await (await locks.lock("x").acquire(timeout=60)).release()
                listener = driver_of(one)._listener
            await asyncio.wait_for(asyncio.wait({listener}), 60)  # close() does not wait for long


# What breaks it.


@pytest.mark.parametrize("own", [True, False], ids=["own client", "user's client"])
def test_a_connection_that_is_silently_dead_is_noticed(
    mongodb_server: Any, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """Whatever the options of the client are: pymongo has no limit of its own for a request that waits."""
    monkeypatch.setattr(mongo_link, "AWAIT", 0.5)
    monkeypatch.setattr(mongo_link, "SILENCE", 0.5)
    with Proxy(mongodb_server.port) as proxy:
        through = f"mongodb://127.0.0.1:{proxy.port}/leasehold"
        client = pymongo.MongoClient[Any](through)
        with leasehold.connect(mongodb_server.url) as ours:
            with leasehold.connect(through if own else client) as theirs:
                lease = ours.lock("dead", ttl=60).acquire()
                waiter = Waiter(theirs, "dead")
                driver = driver_of(theirs)
                broken = driver._cursor
                proxy.blackhole()
                eventually(lambda: not driver._up)
                proxy.all_well()
                eventually(lambda: driver._up and driver._cursor not in (broken, None))
                waiter.served_after(lease)
        client.close()


@SELDOM
def test_the_cursor_is_opened_again_when_it_breaks(url: str, database: Any) -> None:
    with leasehold.connect(url) as ours, leasehold.connect(url) as theirs:
        lease = ours.lock("x").acquire()
        waiter = Waiter(theirs)
        driver = driver_of(theirs)
        broken = driver._cursor
        name = "leasehold" if driver._way == "stream" else "leasehold.calls"
        database.command("killCursors", name, cursors=[broken.cursor_id])
        database["leasehold.calls"].insert_one({"to": []})  # only when something is written the server sees it
        eventually(lambda: driver._cursor not in (broken, None) and hears(theirs))
        assert waiter.served_after(lease) < timing.FALLBACK / 2


@SELDOM
def test_calls_are_heard_again_after_their_collection_was_dropped(
    by_calls: str, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mongo_link, "AWAIT", 0.5)  # only then the server says that the collection is gone
    with leasehold.connect(by_calls) as ours, leasehold.connect(by_calls) as theirs:
        lease = ours.lock("x").acquire()
        waiter = Waiter(theirs)
        driver = driver_of(theirs)
        broken = driver._cursor
        database["leasehold.calls"].drop()
        eventually(lambda: driver._cursor not in (broken, None) and hears(theirs))
        assert waiter.served_after(lease) < timing.FALLBACK / 2


@pytest.mark.parametrize(("up", "pauses"), [(60.0, [0.1, 0.1, 0.1]), (1.0, [0.1, 0.2, 0.4])])
def test_a_cursor_is_opened_again_soon_however_often_it_has_broken(
    monkeypatch: pytest.MonkeyPatch, up: float, pauses: list[float]
) -> None:
    """An election now and then must not make the next pause longer; a cursor that breaks at once must."""
    now = 1000.0
    monkeypatch.setattr(clock, "now", lambda: now)
    link = SimpleNamespace(where="here")
    listener: Any = Listener(link)  # type: ignore[arg-type]
    hear = listener._hear_by("stream", SimpleNamespace(link=link))
    for expected in pauses:
        next(hear)  # open a cursor
        hear.send(SimpleNamespace(alive=True))
        assert listener._up
        now += up
        assert hear.throw(AutoReconnect("not primary any more")) == Pause(expected)
        now += expected
    hear.close()


def test_by_which_way_it_hears_is_known_when_it_is_up() -> None:
    """Others look at it meanwhile."""
    seen = []

    class Watched(Listener):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "_up" and value:
                seen.append((self._way, self.session))
            super().__setattr__(name, value)

    link: Any = SimpleNamespace(where="here")
    listener = Watched(link)
    hear = listener._hear_by("stream", SimpleNamespace(link=link))  # type: ignore[arg-type]
    next(hear)
    hear.send(SimpleNamespace(alive=True))
    assert seen == [("stream", mongo_calls.MARK + listener._id)]
    hear.close()


@SELDOM
@pytest.mark.parametrize("push", ["stream", "calls"])
def test_a_failover_does_not_end_the_push(start_server: Any, push: str) -> None:
    """A waiter and its holder live through an election; the release after it reaches the waiter by push."""
    replica_set: MongoReplicaSet = start_server(MongoReplicaSet, members=3)
    url = f"{replica_set.url}&push={push}"
    with leasehold.connect(url, ttl=60) as ours, leasehold.connect(url, ttl=60) as theirs:
        lease = ours.lock("x").acquire(timeout=20)
        waiter = Waiter(theirs)
        driver = driver_of(theirs)
        broken = driver._cursor
        primary = replica_set.leader()
        primary.kill()
        replica_set.leader(other_than=primary)
        eventually(lambda: driver._cursor not in (broken, None) and hears(theirs))
        eventually(lambda: is_renewed(lease))  # so whoever gives it back has found the new primary too
        assert waiter.served_after(lease) < timing.FALLBACK / 2
        assert driver._way == push


def is_renewed(lease: leasehold.Lease) -> bool:
    try:
        lease.renew()
    except leasehold.StoreUnavailable:
        return False
    return True


# The beginning.


class Threads(SimpleNamespace):
    """The module ``threading``, with other threads."""

    def __init__(self, thread: type[threading.Thread]) -> None:
        super().__init__(**{**vars(threading), "Thread": thread})


def test_the_listener_is_known_when_it_is_up(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sees that it is up may end it, also while the call that has started it is not over."""
    known: list[Any] = []

    class Slow(threading.Thread):
        def start(self) -> None:
            super().start()
            eventually(lambda: driver._up)
            known.append(driver._listener)

    with leasehold.connect(url) as locks:
        locks.inspect("x")  # connected
        driver = driver_of(locks)
        monkeypatch.setattr(mongo_threads, "threading", Threads(Slow))
        driver.listen("", None)
        eventually(lambda: known)
        assert known == [driver._listener]
        assert isinstance(known[0], Slow)


def test_a_listener_that_cannot_be_started_is_started_later(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = threading.Event()

    class Refused(threading.Thread):
        def start(self) -> None:
            tried.set()
            raise RuntimeError("can't start new thread")

    with leasehold.connect(url) as locks:
        driver = driver_of(locks)
        with monkeypatch.context() as patch:
            patch.setattr(mongo_threads, "threading", Threads(Refused))
            assert not driver.listen("", None)
            assert tried.wait(30)
        eventually(lambda: driver._listener is None)
        driver.listen("", None)
        eventually(lambda: driver._up)


def test_a_listener_that_begins_after_the_end_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = threading.Event()

    class Late(threading.Thread):
        def run(self) -> None:
            closed.wait()
            super().run()

    driver = mongo_threads.MongoThreads(mongo_link.link_from_url("mongodb://127.0.0.1:9/db", ""))
    monkeypatch.setattr(mongo_threads, "threading", Threads(Late))
    driver.listen("", None)
    eventually(lambda: driver._listener is not None)
    listener = driver._listener
    assert listener is not None
    driver.close()
    closed.set()
    listener.join()
    assert driver._access is None


async def test_nothing_is_opened_after_the_end() -> None:
    link = mongo_link.link_from_url("mongodb://127.0.0.1:9/db", "")
    tasks, threads = mongo_tasks.MongoTasks(link), mongo_threads.MongoThreads(link)
    await tasks.close()
    threads.close()
    with pytest.raises(leasehold.StoreUnavailable, match="closed"):
        await tasks.run(MongoStore().inspect("x"), 1.0)
    with pytest.raises(leasehold.StoreUnavailable, match="closed"):
        threads.run(MongoStore().inspect("x"), 1.0)


async def test_a_client_that_was_closed_is_not_opened_again(url: str) -> None:
    async with aio.connect(url) as locks:
        await locks.inspect("x")
    with pytest.raises(leasehold.StoreUnavailable, match="close"):
        await driver_of(locks).run(MongoStore().inspect("x"), 1.0)


# The end.


@pytest.mark.parametrize("own", [True, False], ids=["own client", "user's client"])
def test_close_ends_the_listener_at_once(url: str, database: Any, own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    client = None if own else pymongo.MongoClient[Any](url.replace("&push=calls", ""))
    locks = leasehold.connect(url if client is None else client)
    lease = locks.lock("x").acquire()
    driver = driver_of(locks)
    eventually(lambda: driver._up)
    listener = driver._listener
    time.sleep(0.2)  # its request waits on the server
    if driver._way == "stream":
        database["leasehold.calls"].drop()  # it has no part in this
    lease.release()
    time.sleep(0.2)
    # All that it would wait for the listener is longer now, so that it can be told from a busy machine.
    join = listener.join
    monkeypatch.setattr(listener, "join", lambda timeout: join(20 * timeout))
    monkeypatch.setattr(
        mongo_threads, "pymongo", SimpleNamespace(timeout=lambda seconds: pymongo.timeout(20 * seconds))
    )
    began = time.monotonic()
    locks.close()
    assert time.monotonic() - began < 15  # it has not waited for the listener in vain
    assert not listener.is_alive()
    if client is not None:
        client.close()


def test_close_does_not_wait_for_long_when_the_calls_were_dropped(
    by_calls: str, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server leaves the request on a dropped collection until its time is up: the listener ends then."""
    monkeypatch.setattr(mongo_link, "AWAIT", 10.0)
    locks = leasehold.connect(by_calls)
    locks.lock("x").acquire().release()
    driver = driver_of(locks)
    eventually(lambda: driver._up)
    listener = driver._listener
    eventually(lambda: is_awaited(database, "leasehold.calls"))
    database["leasehold.calls"].drop()
    began = time.monotonic()
    locks.close()
    assert time.monotonic() - began < 8
    listener.join(30)
    assert not listener.is_alive()
    assert "leasehold.calls" not in database.list_collection_names()  # nor was it made anew by that


def is_awaited(database: Any, collection: str) -> bool:
    """Whether a request for what is to come waits on the server."""
    mine = {"ns": f"{database.name}.{collection}", "command.getMore": {"$exists": True}, "active": True}
    return bool(database.client.admin.aggregate([{"$currentOp": {}}, {"$match": mine}]).to_list())


async def test_close_ends_the_listening_task(url: str, database: Any) -> None:
    before = asyncio.all_tasks()
    locks = aio.connect(url)
    lease = await locks.lock("x").acquire()
    driver = driver_of(locks)
    await until(lambda: driver._up)
    await asyncio.sleep(0.2)
    database["leasehold.calls"].drop()
    await lease.release()
    began = time.monotonic()
    await locks.close()
    # A loop that stands still may take longer over it than close() waits, but not until the request is over.
    await until(lambda: asyncio.all_tasks() == before, mongo_link.AWAIT / 2)
    assert time.monotonic() - began < mongo_link.AWAIT / 2


@SELDOM
async def test_the_next_who_waits_has_a_listener_though_every_task_was_cancelled(url: str) -> None:
    async with aio.connect(url) as ours, aio.connect(url) as theirs:
        lease = await ours.lock("x").acquire()

        async def take() -> None:
            await (await theirs.lock("x").acquire()).release()

        for _ in range(2):
            waiting = asyncio.create_task(take())
            await until(lambda: hears(theirs))
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.wait({waiting})
            assert waiting.cancelled()
            await until(lambda: not driver_of(theirs)._up)
        waiting = asyncio.create_task(take())
        await until(lambda: hears(theirs))
        began = time.monotonic()
        await lease.release()
        await waiting
        assert time.monotonic() - began < timing.FALLBACK / 2


async def test_who_still_waits_has_a_new_listener_when_the_last_was_cancelled(url: str) -> None:
    async with aio.connect(url) as ours, aio.connect(url) as theirs:
        async with ours.lock("x"):
            waiting = asyncio.create_task(theirs.lock("x").acquire())
            await until(lambda: hears(theirs))
            listener = driver_of(theirs)._listener
            listener.cancel()
            await until(lambda: driver_of(theirs)._listener is not listener and hears(theirs))
        await (await waiting).release()


def test_a_listener_makes_way_for_whom_it_has_called_but_not_between_calls_of_one_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or a crowd that is called at once would hear of it one after the other, and too late."""
    now = 1000.0
    monkeypatch.setattr(clock, "now", lambda: now)
    listener: Any = Listener(SimpleNamespace(push="auto"))  # type: ignore[arg-type]
    rung: list[str] = []
    listener.on_ring = lambda attempt, news=None: rung.append(attempt)
    with contextlib.closing(listener._follow(STREAM)) as steps:  # or its time limit would be for all that follows
        next(steps)  # opens the cursor
        steps.send(SimpleNamespace(alive=True))
        now += 2 * MAKE_WAY
        assert isinstance(steps.send({"call": f"1 s{listener._id}/one/7"}), MakeWay)
        steps.send(None)
        for name in ("two", "three"):
            assert not isinstance(steps.send({"call": f"1 s{listener._id}/{name}/7"}), MakeWay)
        assert rung == [HELD, "one", "two", "three"]
