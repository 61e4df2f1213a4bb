"""What breaks the push through MongoDB, how it comes back, and how it ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pymongo
import pytest
from mongo_listeners import Waiter, eventually, hearing, listening, opened, threads
from pymongo.errors import AutoReconnect
from test_mongo_push import SELDOM, by_calls, database, plain, seldom, until, url, way

import leasehold
from leasehold import aio
from leasehold.core import clock, timing
from leasehold.core.protocol import Busy, Grant
from leasehold.stores import mongodb
from leasehold.stores.mongodb import calls as mongo_calls
from leasehold.stores.mongodb import listening as mongo_listening
from leasehold.stores.mongodb import threads as mongo_threads
from leasehold.stores.mongodb.listening import CallListener
from leasehold.stores.mongodb.requests import Sleep
from leasehold.stores.mongodb.url import target_from_url
from servers.mongodb import MongoReplicaSet
from servers.proxy import Proxy

pytestmark = pytest.mark.server
__all__ = ["by_calls", "database", "seldom", "url", "way"]  # the fixtures


# What breaks it.


@pytest.mark.parametrize("own", [True, False], ids=["own client", "user's client"])
def test_connection_that_is_silently_dead_is_noticed(
    mongodb_server: Any, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """Whatever the options of the client are: pymongo has no limit of its own for a request that waits."""
    monkeypatch.setattr(mongo_calls, "AWAIT", 0.5)
    monkeypatch.setattr(mongo_calls, "SILENCE", 0.5)
    with Proxy(mongodb_server.port) as proxy, pymongo.MongoClient[Any](mongodb_server.url) as watching:
        database = watching.get_default_database()
        through = f"mongodb://127.0.0.1:{proxy.port}/leasehold"
        client = pymongo.MongoClient[Any](through)
        with leasehold.connect(mongodb_server.url) as ours:
            with leasehold.connect(through if own else client) as theirs:
                lease = ours.lock("dead", ttl=60).acquire()
                waiter = Waiter(theirs, database, "dead")
                proxy.only("to_server")  # its answers get lost
                time.sleep(2)
                proxy.reset()
                proxy.all_well()
                hearing(database, "dead", other_than=waiter.listener.cursor)
                waiter.served_after(lease)
        client.close()


@SELDOM
def test_cursor_is_opened_again_when_it_breaks(url: str, database: Any) -> None:
    with leasehold.connect(url) as ours, leasehold.connect(url) as theirs:
        lease = ours.lock("x").acquire()
        waiter = Waiter(theirs, database)
        broken = waiter.listener
        name = "leasehold" if broken.way == "stream" else "leasehold.calls"
        database.command("killCursors", name, cursors=[broken.cursor])
        database["leasehold.calls"].insert_one({"to": []})  # only when something is written the server sees it
        hearing(database, other_than=broken.cursor)
        assert waiter.served_after(lease) < timing.FALLBACK / 2


@SELDOM
def test_calls_are_heard_again_after_their_collection_was_dropped(
    by_calls: str, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mongo_calls, "AWAIT", 0.5)  # only then the server says that the collection is gone
    with leasehold.connect(by_calls) as ours, leasehold.connect(by_calls) as theirs:
        lease = ours.lock("x").acquire()
        waiter = Waiter(theirs, database)
        database["leasehold.calls"].drop()
        hearing(database, other_than=waiter.listener.cursor)
        assert waiter.served_after(lease) < timing.FALLBACK / 2


def listener_by_stream(ring: Callable[[str, Grant | Busy | None], None]) -> tuple[CallListener, Any]:
    """A listener, and its steps up to the opening of its cursor."""
    listener = CallListener("cafe", "here", ring)
    hear = listener.hear()
    next(hear)
    target = SimpleNamespace(push="stream")
    hear.send(SimpleNamespace(target=target, take_connection=lambda: True, give_connection_back=lambda: None))
    return listener, hear


@pytest.mark.parametrize(("up", "pauses"), [(60.0, [0.1, 0.1, 0.1]), (1.0, [0.1, 0.2, 0.4])])
def test_cursor_is_opened_again_soon_however_often_it_has_broken(
    monkeypatch: pytest.MonkeyPatch, up: float, pauses: list[float]
) -> None:
    """An election now and then must not make the next pause longer; a cursor that breaks at once must."""
    now = 1000.0
    monkeypatch.setattr(clock, "now", lambda: now)
    listener, hear = listener_by_stream(lambda attempt, news: None)
    for expected in pauses:
        hear.send(SimpleNamespace(alive=True))  # the cursor
        assert listener.up
        now += up
        assert hear.throw(AutoReconnect("not primary any more")) == Sleep(expected)
        now += expected
        next(hear)
    hear.close()


def test_session_says_that_it_listens_to_the_stream_before_it_is_up() -> None:
    """Other threads look at it meanwhile."""
    listener, hear = listener_by_stream(lambda attempt, news: seen.append((listener.session, listener.up)))
    seen: list[Any] = []
    assert listener.session == "cafe"
    hear.send(SimpleNamespace(alive=True))
    assert seen == [("scafe", True)]
    hear.close()


@SELDOM
@pytest.mark.parametrize("push", ["stream", "calls"])
def test_failover_does_not_end_the_push(start_server: Any, push: str) -> None:
    """A waiter and its holder live through an election; the release after it reaches the waiter by push."""
    replica_set: MongoReplicaSet = start_server(MongoReplicaSet, members=3)
    url = f"{replica_set.url}&push={push}"
    with (
        pymongo.MongoClient[Any](replica_set.url) as client,
        leasehold.connect(url, ttl=60) as ours,
        leasehold.connect(url, ttl=60) as theirs,
    ):
        database = client.get_default_database()
        lease = ours.lock("x").acquire(timeout=20)
        waiter = Waiter(theirs, database)
        primary = replica_set.leader()
        primary.kill()
        replica_set.leader(other_than=primary)
        assert hearing(database, other_than=waiter.listener.cursor).way == push
        eventually(lambda: is_renewed(lease))  # so its holder has found the new primary too
        assert waiter.served_after(lease) < timing.FALLBACK / 2


def is_renewed(lease: leasehold.Lease) -> bool:
    try:
        lease.renew()
    except leasehold.StoreUnavailable:
        return False
    return True


def test_break_is_noticed_though_it_came_before_the_cursor_was_opened(
    url: str, connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change stream begins when it is opened. A lease that was broken before is lost then, and not only when it is
    renewed."""
    open_cursor = mongo_listening.open_cursor
    operator = leasehold.connect(url)
    broken: list[bool] = []

    def late(access: Any, way: str, session: str) -> Any:
        if not broken:
            with ThreadPoolExecutor(1) as elsewhere:  # as another process would
                broken.append(elsewhere.submit(operator.break_lease, "x").result(60))
        return open_cursor(access, way, session)

    with operator:
        operator.inspect("x")
        monkeypatch.setattr(mongo_listening, "open_cursor", late)
        lease = connect(url).lock("x", ttl=600, renew_every=300).acquire()
        assert lease.wait_lost(60)
        assert broken == [True]
        assert not lease.release()


# Tasks that are cancelled.


@SELDOM
async def test_next_waiter_has_a_listener_though_every_task_was_cancelled(url: str, database: Any) -> None:
    async with aio.connect(url) as ours, aio.connect(url) as theirs:
        lease = await ours.lock("x").acquire()

        async def take() -> None:
            await (await theirs.lock("x").acquire()).release()

        cursor = 0
        for _ in range(2):
            waiting = asyncio.create_task(take())
            cursor = (await asyncio.to_thread(hearing, database, "x", cursor)).cursor
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.wait({waiting})
            assert waiting.cancelled()
            await until(lambda cursor=cursor: not mine(database, cursor))
        waiting = asyncio.create_task(take())
        await asyncio.to_thread(hearing, database, "x", cursor)
        began = time.monotonic()
        await lease.release()
        await waiting
        assert time.monotonic() - began < timing.FALLBACK / 2


def mine(database: Any, cursor: int) -> bool:
    return any(each.cursor == cursor for each in listening(database))


async def test_waiter_has_a_new_listener_when_the_last_was_cancelled(url: str, database: Any) -> None:
    async with aio.connect(url) as ours:
        async with ours.lock("x"):
            await until(lambda: listening(database))
            before = asyncio.all_tasks()
            async with aio.connect(url) as theirs:
                waiting = asyncio.create_task(theirs.lock("x").acquire())
                first = await asyncio.to_thread(hearing, database)
                [listener] = [one for one in asyncio.all_tasks() - before if one.get_name() == "leasehold-mongodb"]
                listener.cancel()
                await asyncio.to_thread(hearing, database, "x", first.cursor)
                waiting.cancel()
                await asyncio.wait({waiting})


# The beginning.


class Threads(SimpleNamespace):
    """The module ``threading``, with other threads."""

    def __init__(self, thread: type[threading.Thread]) -> None:
        super().__init__(**{**vars(threading), "Thread": thread})


def test_close_ends_a_listener_that_is_just_being_started(
    url: str, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, known = threading.Event(), []

    class Slow(threading.Thread):
        def start(self) -> None:
            super().start()
            known.append(self)
            eventually(lambda: listening(database))
            began.set()
            time.sleep(0.2)

    with opened(url) as (store, driver):
        driver.run(store.inspect("x"), 20.0)  # connected
        monkeypatch.setattr(mongo_threads, "threading", Threads(Slow))
        driver.listen("", None)
        assert began.wait(60)
        driver.close()
        eventually(lambda: not known[0].is_alive(), mongo_calls.AWAIT / 2)


def test_listener_that_cannot_be_started_is_started_later(
    url: str, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = threading.Event()

    class Refused(threading.Thread):
        def start(self) -> None:
            tried.set()
            raise RuntimeError("can't start new thread")

    with opened(url) as (_, driver):
        with monkeypatch.context() as patch:
            patch.setattr(mongo_threads, "threading", Threads(Refused))
            assert not driver.listen("", None)
            assert tried.wait(30)
        eventually(lambda: driver.listen("", None))
        eventually(lambda: listening(database))  # not in between two requests for more


def test_listener_that_begins_after_the_end_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = threading.Event()
    late: list[threading.Thread] = []
    clients: list[Any] = []

    class Late(threading.Thread):
        def run(self) -> None:
            late.append(self)
            closed.wait()
            super().run()

    class Counted(mongo_threads.MongoThreads):
        client: Any = staticmethod(lambda *a, **k: clients.append(pymongo.MongoClient[Any](*a, **k)) or clients[-1])

    driver = Counted(target_from_url("mongodb://127.0.0.1:9/db", ""))
    monkeypatch.setattr(mongo_threads, "threading", Threads(Late))
    driver.listen("", None)
    eventually(lambda: late)
    driver.close()
    closed.set()
    late[0].join()
    assert clients == []


# The end.


async def test_nothing_is_opened_after_the_end(url: str) -> None:
    for target in ("mongodb://127.0.0.1:9/db", url):
        found = mongodb.open_url(target, "")
        tasks, driver = found.tasks(), found.threads()
        if target == url:
            await tasks.run(found.store.inspect("x"), 20.0)
            driver.run(found.store.inspect("x"), 20.0)
        await tasks.close()
        driver.close()
        with pytest.raises(leasehold.StoreUnavailable, match="close"):
            await tasks.run(found.store.inspect("x"), 1.0)
        with pytest.raises(leasehold.StoreUnavailable, match="close"):
            driver.run(found.store.inspect("x"), 1.0)


@pytest.mark.parametrize("own", [True, False], ids=["own client", "user's client"])
def test_close_ends_the_listener_at_once(url: str, database: Any, own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    before = threads()
    client = None if own else pymongo.MongoClient[Any](plain(url))
    locks = leasehold.connect(url if client is None else client)
    lease = locks.lock("x").acquire()
    [found] = eventually(lambda: listening(database))
    [listener] = [each for each in threads() if each not in before]
    if found.way == "stream":
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
    monkeypatch.setattr(mongo_calls, "AWAIT", 10.0)
    before = threads()
    locks = leasehold.connect(by_calls)
    locks.lock("x").acquire().release()
    eventually(lambda: listening(database))
    [listener] = [each for each in threads() if each not in before]
    database["leasehold.calls"].drop()
    began = time.monotonic()
    locks.close()
    assert time.monotonic() - began < 8
    listener.join(30)
    assert not listener.is_alive()
    assert "leasehold.calls" not in database.list_collection_names()  # nor was it made anew by that


async def test_close_ends_the_listening_task(url: str, database: Any) -> None:
    before = asyncio.all_tasks()
    locks = aio.connect(url)
    lease = await locks.lock("x").acquire()
    await until(lambda: listening(database))
    database["leasehold.calls"].drop()
    await lease.release()
    began = time.monotonic()
    await locks.close()
    # A loop that stands still may take longer over it than close() waits, but not until the request is over.
    while asyncio.all_tasks() != before:
        assert time.monotonic() - began < mongo_calls.AWAIT / 2
        await asyncio.sleep(0.01)
