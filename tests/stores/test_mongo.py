"""What is peculiar to the MongoDB store: its clients, its push, its index, its errors."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pymongo
import pytest
from pymongo import monitoring
from pymongo.errors import DuplicateKeyError

import leasehold
from leasehold import aio
from leasehold.stores import mongo_link
from leasehold.stores.mongo_tasks import MongoTasks
from servers.mongodb import MongoDB

pytestmark = pytest.mark.server

SETS = ["mongodb_server", "mongodb_replica_set"]


@pytest.fixture(params=SETS)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database of its own on a standalone server and on a replica set."""
    server = request.getfixturevalue(request.param)
    name = f"t{uuid.uuid4().hex[:12]}"
    yield str(server.url).replace("/leasehold", f"/{name}")
    with pymongo.MongoClient[Any](server.url) as client:
        client.drop_database(name)


@pytest.fixture
def client(url: str) -> Iterator[pymongo.MongoClient[Any]]:
    with pymongo.MongoClient[Any](url) as client:
        yield client


def eventually(true: Callable[[], Any], within: float = 10.0) -> Any:
    ends = time.monotonic() + within
    while not (found := true()):
        assert time.monotonic() < ends, "not so in time"
        time.sleep(0.01)
    return found


# What connect() takes.


def test_it_takes_url_client_database_and_collection(url: str, client: pymongo.MongoClient[Any]) -> None:
    database = client.get_default_database()
    for target, collection in [
        (url, "leasehold"),
        (url + ("&" if "?" in url else "?") + "collection=other", "other"),
        (client, "leasehold"),
        (database, "leasehold"),
        (database["mine"], "mine"),
    ]:
        with leasehold.connect(target, namespace="ns") as locks, locks.lock("x") as lease:
            found = database[collection].find_one({"_id": {"ns": "ns", "name": "x"}})
            assert found is not None
            assert found["holders"][0]["token"] == lease.token
    assert client.admin.command("ping")["ok"] == 1  # theirs is never closed


async def test_it_takes_async_client_database_and_collection(url: str) -> None:
    async with pymongo.AsyncMongoClient[Any](url) as client:
        database = client.get_default_database()
        for target in (client, database, database["mine"]):
            async with aio.connect(target) as locks, locks.lock("x") as lease:
                assert lease.valid
        assert (await client.admin.command("ping"))["ok"] == 1


async def test_a_client_of_the_other_side_is_refused(url: str) -> None:
    with pymongo.MongoClient[Any](url) as client, pytest.raises(TypeError, match=r"leasehold\.connect"):
        aio.connect(client)
    async with pymongo.AsyncMongoClient[Any](url) as client2:
        with pytest.raises(TypeError, match=r"leasehold\.aio\.connect"):
            leasehold.connect(client2)
    with pytest.raises(TypeError, match="not UpdateOne"):
        leasehold.connect(pymongo.UpdateOne({}, {}))


def test_a_subclass_of_a_client_is_known(url: str) -> None:
    class Mine(pymongo.MongoClient[Any]):
        pass

    with Mine(url) as client, leasehold.connect(client) as locks, locks.lock("x") as lease:
        assert lease.valid


@pytest.mark.parametrize(
    "bad",
    [
        "mongodb://",
        "mongodb://user:s3cret@host:notaport/db",
        "mongodb://user:s3/cret@host/db",
        "mongodb://host/db?nosuchoption=1",
        "mongodb://user:s3cret@host/db?nosuchoption=1",
        "mongodb://host/db?collection=",
        "mongodb://host/db?collection=a$b",
        "mongodb://host/db?collection=system.locks",
        "mongodb://host/d b?w=majority",
    ],
)
def test_a_bad_url_is_a_value_error_without_secrets(bad: str) -> None:
    with pytest.raises(ValueError, match="MongoDB URL") as caught:
        leasehold.connect(bad)
    assert "s3" not in str(caught.value)
    assert "cret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_defaults_of_the_client_do_not_matter(url: str) -> None:
    """Majority, primary, plain documents: whatever the client says."""
    seen: list[Any] = []

    class Listener(monitoring.CommandListener):
        def started(self, event: Any) -> None:
            seen.append(event.command)

        def succeeded(self, event: Any) -> None:
            pass

        def failed(self, event: Any) -> None:
            pass

    with (
        pymongo.MongoClient[Any](
            url, w=1, readPreference="secondaryPreferred", tz_aware=True, event_listeners=[Listener()]
        ) as client,
        leasehold.connect(client, ttl=3) as locks,
        locks.lock("x") as lease,
    ):
        lease.renew()
        assert locks.inspect("x") is not None
    writes = [command for command in seen if next(iter(command)) in ("findAndModify", "update")]
    assert len(writes) == 3
    assert all(command["writeConcern"]["w"] == "majority" for command in writes)
    assert all(command["maxTimeMS"] <= 5000 for command in writes)
    reads = [command for command in seen if next(iter(command)) == "find" and command["find"] == "leasehold"]
    assert reads
    assert all(command.get("$readPreference", {"mode": "primary"})["mode"] == "primary" for command in reads)


# Text is text.

ODD = [
    "$owner",
    "$$NOW",
    "$$ROOT",
    "a.b",
    ".",
    "é",
    "e\u0301",
    "Job",
    "job",
    "job ",
    '{"$set": 1}',
    "\U0001f512" * 512,
    "x" * 512,
]


def test_names_owners_and_data_are_stored_and_compared_as_they_are(url: str, client: pymongo.MongoClient[Any]) -> None:
    with leasehold.connect(url, ttl=20) as outer:
        leases = []
        for name in ODD:
            owner = name[:256]
            with leasehold.connect(client, namespace=name[:64], owner=owner, ttl=20) as locks:
                lease = locks.lock(name, kind=name[:64], data={name[:100]: [name[:100], {"$literal": None}]}).acquire()
                info = locks.inspect(name)
                assert info is not None
                assert (info.name, info.owner, info.kind) == (name, owner, name[:64])
                assert info.data == {name[:100]: [name[:100], {"$literal": None}]}
                assert [each.name for each in locks.leases(name[:3])] == [name]
                assert locks.lock(name).try_acquire() is None
                lease.renew()
                assert lease.release()
            leases.append(outer.lock(name).try_acquire())
        assert None not in leases  # no two of them are the same name
        assert sorted(each.name for each in outer.leases()) == sorted(ODD)


# Contention.


def test_racing_on_a_new_name_is_no_error_and_makes_no_noise(
    url: str, client: pymongo.MongoClient[Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "leasehold")
    with leasehold.connect(client) as locks:
        for round_ in range(20):
            barrier = threading.Barrier(6)
            found: list[Any] = []

            def race(name: str = f"n{round_}", barrier: Any = barrier, found: Any = found) -> None:
                barrier.wait()
                found.append(locks.lock(name).try_acquire())

            threads = [threading.Thread(target=race) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(found) == 6
            assert sum(lease is not None for lease in found) == 1
    assert [
        record for record in caplog.records if record.levelno >= logging.WARNING and "closed" not in record.getMessage()
    ] == []
    assert client.get_default_database()["leasehold"].count_documents({}) == 20


def test_a_lost_upsert_race_is_retried() -> None:
    """The same without luck: the first command fails as MongoDB does when another upsert was faster."""
    from leasehold.protocol import SECOND, Ask, Grant, run_steps
    from leasehold.stores import mongo

    changes = 0

    def handle(request: Any) -> Any:
        nonlocal changes
        match request:
            case mongo.Sender():
                return "s", 1
            case mongo.Find():
                return []
            case mongo.Change():
                changes += 1
                if changes == 1:
                    return None
                return {
                    "now": 5, "shape": "lock", "limit": 1, "queue": [],
                    "holders": [{"attempt": "a", "state": "held", "token": 7, "acquired": 5}],
                }  # fmt: skip
        raise TypeError(request)

    assert run_steps(mongo.MongoStore().acquire(Ask("n", "a", "o", "lock", None, SECOND)), handle) == Grant(7)
    assert changes == 2
    assert mongo_link.is_race(DuplicateKeyError("", 11000, {"keyPattern": {"_id": 1}}))
    assert not mongo_link.is_race(DuplicateKeyError("", 11000, {"keyPattern": {"lockName": 1}}))


# Logs (A6).


def test_logs_tell_new_from_taken_over_refused_and_lost(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "leasehold")

    def told() -> list[tuple[str, str]]:
        found = [(r.lease_event, r.getMessage()) for r in caplog.records if hasattr(r, "lease_event")]  # type: ignore[attr-defined]
        caplog.clear()
        return [each for each in found if each[0] != "no_push"]

    with leasehold.connect(url, owner="first") as first, leasehold.connect(url, owner="second") as second:
        lease = first.lock("x", ttl=2, renew=False).acquire()
        ((event, _),) = told()
        assert event == "acquired"
        assert second.lock("x").try_acquire() is None
        ((event, message),) = told()
        assert event == "busy"
        assert "held by first" in message
        assert "until" in message
        taken = second.lock("x").acquire(timeout=10)  # waits, and says nothing while it does
        events = dict(told())
        assert set(events) == {"lost", "taken_over"}
        assert "from first, expired for" in events["taken_over"]
        assert lease.lost.is_set()
        taken.release()
        assert [event for event, _ in told()] == ["released"]


# Push.


def hand_offs(url: str, target: Callable[[], Any], rounds: int) -> list[float]:
    """How long after a release the next one has it, in another Locks."""
    times = []
    with leasehold.connect(url) as ours, leasehold.connect(target()) as theirs:
        for _ in range(rounds):
            lease = ours.lock("x").acquire()
            got: list[float] = []

            def wait(got: list[float] = got) -> None:
                with theirs.lock("x") as mine:
                    got.append(time.perf_counter())
                    assert mine.valid

            thread = threading.Thread(target=wait)
            thread.start()
            eventually(lambda: (info := ours.inspect("x")) and info.waiters == 1)
            eventually(lambda: theirs._core.driver._up or theirs._core.driver._refused)
            time.sleep(0.05)
            released = time.perf_counter()
            lease.release()
            thread.join()
            times.append(got[0] - released)
    return times


def test_a_release_reaches_a_waiter_by_push(url: str) -> None:
    assert sorted(hand_offs(url, lambda: url, 9))[4] < 1  # far below the fallback; the benchmark tells the rest


def test_an_idle_waiter_sends_next_to_nothing(url: str) -> None:
    sent: list[str] = []

    class Listener(monitoring.CommandListener):
        def started(self, event: Any) -> None:
            sent.append(event.command_name)

        def succeeded(self, event: Any) -> None:
            pass

        def failed(self, event: Any) -> None:
            pass

    with pymongo.MongoClient[Any](url, event_listeners=[Listener()]) as client, leasehold.connect(url) as ours:
        with ours.lock("x", ttl=60), leasehold.connect(client) as theirs:
            cancel = threading.Event()

            def wait() -> None:
                with pytest.raises(leasehold.AcquireCancelled):
                    theirs.lock("x").acquire(cancel=cancel)

            thread = threading.Thread(target=wait)
            thread.start()
            eventually(lambda: theirs._core.driver._up)  # type: ignore[attr-defined]
            time.sleep(1)
            sent.clear()
            time.sleep(10.5)
            counted = list(sent)
            cancel.set()
            thread.join()
    assert len(counted) <= 3, counted  # 0.3 a second


def test_without_a_spare_connection_waiters_poll(url: str) -> None:
    with pymongo.MongoClient[Any](url, maxPoolSize=1) as client:
        assert max(hand_offs(url, lambda: client, 1)) < 2


def test_calls_that_are_not_capped_are_made_so(url: str, client: pymongo.MongoClient[Any]) -> None:
    calls = client.get_default_database()["leasehold.calls"]
    calls.insert_one({"somebody": "dropped it, and an insert made it"})
    assert sorted(hand_offs(url, lambda: url, 5))[2] < 1
    assert calls.options()["capped"]


async def test_calls_that_are_not_capped_are_made_so_by_tasks(url: str, client: pymongo.MongoClient[Any]) -> None:
    calls = client.get_default_database()["leasehold.calls"]
    calls.insert_one({"somebody": "dropped it, and an insert made it"})
    async with aio.connect(url) as locks, locks.lock("x"):
        ends = time.monotonic() + 5
        while not locks._core.driver._up:  # type: ignore[attr-defined]
            assert time.monotonic() < ends
            await asyncio.sleep(0.01)
    assert calls.options()["capped"]


def test_the_cursor_is_opened_again_when_it_breaks(
    url: str, client: pymongo.MongoClient[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mongo_link, "AWAIT", 0.5)  # only then the server says that the collection is gone
    with leasehold.connect(url) as ours, leasehold.connect(url) as theirs:
        lease = ours.lock("x").acquire()
        thread = threading.Thread(target=lambda: theirs.lock("x").acquire().release())
        thread.start()
        driver: Any = theirs._core.driver
        eventually(lambda: driver._up)
        client.get_default_database()["leasehold.calls"].drop()
        eventually(lambda: not driver._up)
        eventually(lambda: driver._up)
        lease.release()
        thread.join(2)
        assert not thread.is_alive()


# The index (E8).


def test_the_ttl_index_is_made_once_and_its_failure_is_a_warning(
    url: str, client: pymongo.MongoClient[Any], caplog: pytest.LogCaptureFixture
) -> None:
    leases = client.get_default_database()["leasehold"]
    with leasehold.connect(url) as locks, locks.lock("x"):
        eventually(lambda: mongo_link.INDEX in leases.index_information())
    assert leases.index_information()[mongo_link.INDEX]["expireAfterSeconds"] == 0

    other = client.get_default_database()["other"]
    other.create_index("purge", name="in_the_way")  # the same key with other options: MongoDB refuses ours
    for _ in range(2):
        with leasehold.connect(other) as locks, locks.lock("x") as lease:
            assert lease.valid
            eventually(lambda: any(r.__dict__.get("lease_event") == "no_index" for r in caplog.records))
    assert sum(r.__dict__.get("lease_event") == "no_index" for r in caplog.records) == 1


# Errors.


def test_no_server_is_unavailable_and_bounded() -> None:
    with leasehold.connect("mongodb://127.0.0.1:9/db") as locks:
        started = time.monotonic()
        with pytest.raises(leasehold.StoreUnavailable, match="no answer"):
            locks.lock("x", ttl=1).try_acquire()
        assert time.monotonic() - started < 3
        assert locks.lock("x", ttl=1, on_unavailable="skip").try_acquire() is None


def test_a_unique_index_of_others_is_named(url: str, client: pymongo.MongoClient[Any]) -> None:
    locks_a = client.get_default_database()["system_locks"]
    locks_a.create_index("lockName", unique=True)
    with leasehold.connect(locks_a) as locks, locks.lock("one"):
        with pytest.raises(leasehold.StoreNotReady, match=r"unique index on lockName.*drop it"):
            locks.lock("two").try_acquire()


def test_a_collation_is_named(url: str, client: pymongo.MongoClient[Any]) -> None:
    folding = client.get_default_database().create_collection("folding", collation={"locale": "en", "strength": 1})
    with leasehold.connect(folding) as locks, locks.lock("Job"):
        with pytest.raises(leasehold.StoreNotReady, match="collation"):
            locks.lock("job").try_acquire()


def test_a_newer_format_is_refused(url: str, client: pymongo.MongoClient[Any]) -> None:
    leases = client.get_default_database()["leasehold"]
    leases.insert_one({"_id": {"ns": "", "name": "new"}, "format": 2, "holders": "in another way"})
    with leasehold.connect(url) as locks:
        with pytest.raises(leasehold.StoreNotReady, match=r"format 2.*upgrade"):
            locks.lock("new").try_acquire()
        with pytest.raises(leasehold.StoreNotReady, match="upgrade"):
            locks.inspect("new")
    assert leases.find_one({"_id.name": "new"})["holders"] == "in another way"  # type: ignore[index]


def test_a_timeout_of_the_users_own_is_not_about_us(url: str) -> None:
    with leasehold.connect(url) as locks, pymongo.timeout(0.000001):
        time.sleep(0.01)
        with locks.lock("x") as lease:
            assert lease.valid


# Threads, tasks, processes.


def test_a_forked_child_has_connections_of_its_own(url: str) -> None:
    with leasehold.connect(url) as locks, locks.lock("x") as lease:
        pid = os.fork()
        if not pid:
            try:
                good = not lease.valid and locks.lock("x").try_acquire() is None
                with locks.lock("y", timeout=5) as mine:
                    good = good and mine.valid
                os._exit(0 if good else 1)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        lease.renew()


async def test_what_was_cancelled_happens_before_what_is_asked_for_later() -> None:
    driver = MongoTasks(mongo_link.link_from_url("mongodb://localhost", ""))
    told: list[str] = []

    def steps(name: str) -> Any:
        told.append(f"{name} begins")
        yield name
        told.append(f"{name} ends")

    async def slowly(request: str) -> None:
        await asyncio.sleep(0.1)

    driver._handle = slowly  # type: ignore[method-assign]
    acquire = asyncio.ensure_future(driver.run(steps("acquire"), 5))
    await asyncio.sleep(0.02)
    acquire.cancel()
    with pytest.raises(asyncio.CancelledError):
        await acquire
    await driver.run(steps("abandon"), 5)
    assert told == ["acquire begins", "acquire ends", "abandon begins", "abandon ends"]
    await driver.close()


async def test_a_cancelled_acquire_leaves_nothing(url: str) -> None:
    async with aio.connect(url) as locks:
        await locks.inspect("x")
        for step in range(1, 40):
            task = asyncio.ensure_future(locks.lock("x").acquire())
            for _ in range(step):
                await asyncio.sleep(0)
            task.cancel()
            try:
                lease = await task
                await lease.release()
            except asyncio.CancelledError:
                pass
        await asyncio.sleep(0.2)
        assert await locks.inspect("x") is None
        lease = await locks.lock("x").try_acquire()
        assert lease is not None
        await lease.release()


# A server that answers late.


@pytest.mark.parametrize("queued", [False, True])
def test_an_acquire_that_a_paused_server_carries_out_late_leaves_nothing(start_server: Any, queued: bool) -> None:
    """The command waits in the server's socket while its caller gives up: S4, promise 4."""
    server = start_server(MongoDB)
    with leasehold.connect(server.url, ttl=30) as ours, leasehold.connect(server.url, ttl=30) as theirs:
        assert theirs.inspect("x") is None  # connected
        with ours.lock("y"):
            pass
        server.pause()
        try:
            with pytest.raises(leasehold.StoreUnavailable):
                ours.lock("x", ttl=1.5).acquire(timeout=1 if queued else 0)
        finally:
            server.resume()
        end = time.monotonic() + 3
        while time.monotonic() < end:
            lease = theirs.lock("x").try_acquire()
            if lease is not None:
                break
            time.sleep(0.02)
        assert lease is not None
        lease.release()
        time.sleep(1)
        assert theirs.inspect("x") is None
