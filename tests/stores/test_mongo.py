"""What is peculiar to the MongoDB store: its clients, its push, its index, its errors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pymongo
import pytest
from mongo_databases import own_url
from mongo_listeners import hearing, opened
from mongo_sent import Sent
from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure, WriteConcernError

import leasehold
from leasehold import aio
from leasehold.core import keeper, timing
from leasehold.core.protocol import GONE, RENEWED, SECOND, Ask, Grant, Renewal
from leasehold.stores.mongodb import index as mongo_index
from leasehold.stores.mongodb import requests as mongo_requests
from leasehold.stores.mongodb.access import Access
from leasehold.stores.mongodb.errors import is_race, translate
from leasehold.stores.mongodb.index import INDEX
from leasehold.stores.mongodb.url import target_from_client
from servers.mongodb import MongoDB
from servers.proxy import Proxy

pytestmark = pytest.mark.server

SETS = ["mongodb_server", "mongodb_replica_set"]


@pytest.fixture(params=SETS)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database of its own on a standalone server and on a replica set."""
    yield from own_url(request.getfixturevalue(request.param))


@pytest.fixture
def client(url: str) -> Iterator[pymongo.MongoClient[Any]]:
    with pymongo.MongoClient[Any](url) as client:
        yield client


def eventually(true: Callable[[], Any], within: float = 60.0) -> Any:
    ends = time.monotonic() + within
    while not (found := true()):
        assert time.monotonic() < ends, "not so in time"
        time.sleep(0.01)
    return found


async def eventually_in_loop(true: Callable[[], Any], within: float = 60.0) -> None:
    ends = time.monotonic() + within
    while not true():
        assert time.monotonic() < ends, "not so in time"
        await asyncio.sleep(0.01)


# What connect() takes.


def test_it_takes_url_client_database_and_collection(url: str, client: pymongo.MongoClient[Any]) -> None:
    """E4: the collection's default name, and one of your own."""
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
    with pytest.raises(ValueError, match=r"MongoDB URL|percent-encode") as caught:
        leasehold.connect(bad)
    assert "s3" not in str(caught.value)
    assert "cret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_defaults_of_the_client_do_not_matter(url: str) -> None:
    """Majority, primary, plain documents: whatever the client says."""
    sent = Sent()
    seen = sent.commands
    with (
        pymongo.MongoClient[Any](
            url, w=1, readPreference="secondaryPreferred", tz_aware=True, event_listeners=[sent]
        ) as client,
        leasehold.connect(client, ttl=120) as locks,  # so long: no renewal but the one below
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
    """A2: one document per name, whoever races for it; the database sees to that."""
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
    """A4: what counts is the attempt in the answer. The first command fails because another upsert was faster."""
    from leasehold.core.protocol import run_steps
    from leasehold.stores.mongodb import store as mongo

    changes = 0

    def handle(request: Any) -> Any:
        nonlocal changes
        match request:
            case mongo_requests.Urgency():
                return None
            case mongo.Sender():
                return "s", 1
            case mongo.Find():
                return []
            case mongo.Change():
                changes += 1
                if changes == 1:
                    raise DuplicateKeyError("", 11000, {"keyPattern": {"_id": 1}})
                now = datetime(2026, 11, 18)
                return {
                    "now": now, "shape": "lock", "limit": 1, "waiters": 0, "place": -1,
                    "holders": [{"attempt": "a", "owner": "o", "kind": "lock", "weight": 1, "ttl": 1000,
                                 "state": "held", "token": 7, "acquired": now, "expires": now}],
                }  # fmt: skip
        raise TypeError(request)

    assert run_steps(mongo.MongoStore().acquire(Ask("n", "a", "o", "lock", None, SECOND)), handle) == Grant(7)
    assert changes == 2
    assert is_race(DuplicateKeyError("", 11000, {"keyPattern": {"_id": 1}}))
    assert not is_race(DuplicateKeyError("", 11000, {"keyPattern": {"lockName": 1}}))


def test_an_acquire_is_one_command_that_changes_what_is_free_and_nothing_else(url: str) -> None:
    """E5: one findAndModify with a pipeline, which leaves alone what another holds; tokens rise."""
    sent = Sent()
    with pymongo.MongoClient[Any](url, event_listeners=[sent]) as mine:
        leases = mine.get_default_database()["leasehold"]
        with leasehold.connect(mine, ttl=60) as locks:
            locks.lock("first").acquire().release()  # the index, and whatever else is seen to once
            sent.commands.clear()
            lease = locks.lock("x").acquire()
            (command,) = [
                each for each in sent.commands if "leasehold" in (each.get("findAndModify"), each.get("find"))
            ]
            assert isinstance(command["update"], list)
            before = leases.find_one({"_id.name": "x"})
            assert locks.lock("x").try_acquire() is None
            assert leases.find_one({"_id.name": "x"}) == before
            assert lease.release()
            assert locks.lock("x").acquire().token > lease.token


def test_the_lease_is_had_only_if_the_answer_says_so() -> None:
    """A4, E5: what the record says after the change decides, and by the private id, not by the owner's name."""
    from leasehold.core.protocol import Busy, run_steps
    from leasehold.stores.mongodb import store as mongo

    now = datetime(2026, 1, 1)  # naive, as the driver gives them here
    who = {"owner": "o", "kind": "lock", "data": None, "state": "held", "token": 7, "acquired": now, "expires": now}
    other = {"attempt": "another's", "session": "s", "weight": 1, "ttl": 1000, "rest": 0, **who}
    document = {"now": now, "shape": "lock", "limit": 1, "waiters": 0, "place": -1, "holders": [other]}

    def handle(request: Any) -> Any:
        match request:
            case mongo_requests.Urgency():
                return None
            case mongo.Sender():
                return "s", 1
            case mongo.Change():
                return document
        raise TypeError(request)

    answer = run_steps(mongo.MongoStore().acquire(Ask("n", "mine", "o", "lock", None, SECOND)), handle)
    assert isinstance(answer, Busy)
    assert answer.holder is not None
    assert answer.holder.token == 7


# Logs (A6).


class Told:
    """The log records of these leases, each asked for once. Not those of others, which tests before may have left."""

    OWNERS = ("first", "second", "third")

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.caplog = caplog
        caplog.set_level(logging.INFO, "leasehold")

    def so_far(self) -> set[str]:
        return {record.lease_event for record in self._records()}

    def _records(self) -> list[Any]:
        return [record for record in self.caplog.records if getattr(record, "lease_owner", None) in self.OWNERS]

    def __call__(self) -> dict[str, Any]:
        found = self._records()
        self.caplog.clear()
        events = {record.lease_event: record for record in found}
        assert len(events) == len(found), "told twice"
        return events


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    return Told(caplog)


def check_refused(record: Any, holder: Any) -> None:
    assert "held by first" in record.getMessage()
    assert (record.lease_holder, record.lease_holder_token) == ("first", holder.token)
    assert 0 < (record.lease_until - datetime.now(UTC)).total_seconds() <= 20.1
    assert (record.lease_name, record.lease_owner) == ("x", "second")


def check_taken_over(events: dict[str, Any], taken: Any, waited: float) -> None:
    """It was waited for since before the holder's last term, of 2 s, began."""
    assert set(events) == {"waiting", "lost", "taken_over"}
    record = events["taken_over"]
    assert "from first, whose lease expired" in record.getMessage()
    assert record.lease_taken_from == "first"
    assert 0 <= record.lease_expired_for < waited - 2 + 0.1
    assert record.lease_token == taken.token
    assert events["lost"].lease_reason


def test_logs_tell_new_from_taken_over_refused_skipped_and_lost(url: str, told: Told) -> None:
    with leasehold.connect(url, owner="first") as first, leasehold.connect(url, owner="second") as second:
        lease = first.lock("x", ttl=20, renew=False).acquire()
        assert set(told()) == {"acquired"}
        assert second.lock("x").try_acquire() is None
        events = told()
        assert set(events) == {"refused"}
        check_refused(events["refused"], lease)
        began = time.monotonic()
        with contextlib.suppress(leasehold.LeaseLost):  # it may be over before the answer is there
            lease.renew(2)
        taken = second.lock("x").acquire(timeout=60)  # waits, and says nothing while it does
        waited = time.monotonic() - began
        assert lease.lost.wait(60)
        eventually(lambda: "lost" in told.so_far())  # by a thread of its own
        check_taken_over(told(), taken, waited)
        taken.release()
        assert set(told()) == {"released"}
    with leasehold.connect("mongodb://127.0.0.1:9/db", owner="third") as away:
        assert away.lock("x", ttl=1, on_unavailable="skip").try_acquire() is None
    events = told()
    assert set(events) == {"unavailable", "skipped"}
    assert "the store is unavailable" in events["skipped"].getMessage()


async def test_tasks_log_the_same(url: str, told: Told) -> None:
    async with aio.connect(url, owner="first") as first, aio.connect(url, owner="second") as second:
        lease = await first.lock("x", ttl=20, renew=False).acquire()
        assert set(told()) == {"acquired"}
        assert await second.lock("x").try_acquire() is None
        events = told()
        assert set(events) == {"refused"}
        check_refused(events["refused"], lease)
        began = time.monotonic()
        with contextlib.suppress(leasehold.LeaseLost):
            await lease.renew(2)
        taken = await second.lock("x").acquire(timeout=60)
        waited = time.monotonic() - began
        await asyncio.wait_for(lease.lost.wait(), 60)
        await eventually_in_loop(lambda: "lost" in told.so_far())
        check_taken_over(told(), taken, waited)
        await taken.release()
        assert set(told()) == {"released"}
    async with aio.connect("mongodb://127.0.0.1:9/db", owner="third") as away:
        assert await away.lock("x", ttl=1, on_unavailable="skip").try_acquire() is None
    assert set(told()) == {"unavailable", "skipped"}


# The index (E8).


def test_the_ttl_index_is_made_once_and_its_failure_is_a_warning(
    url: str, client: pymongo.MongoClient[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module, limit in ((mongo_index, "INDEX_LIMIT"), (keeper, "TIDY_LIMIT"), (timing, "CALL_LIMIT")):
        monkeypatch.setattr(module, limit, 60.0)  # it would be tried again an hour later
    leases = client.get_default_database()["leasehold"]
    with leasehold.connect(url, ttl=300) as locks, locks.lock("x"):
        eventually(lambda: INDEX in leases.index_information())
    assert leases.index_information()[INDEX]["expireAfterSeconds"] == 0

    other = client.get_default_database()["other"]
    other.create_index("purge", name="in_the_way")  # the same key with other options: MongoDB refuses ours
    for _ in range(2):
        with leasehold.connect(other, ttl=300) as locks, locks.lock("x") as lease:
            assert lease.valid
            eventually(lambda: any(r.__dict__.get("lease_event") == "no_index" for r in caplog.records))
    assert sum(r.__dict__.get("lease_event") == "no_index" for r in caplog.records) == 1


# Errors.


def test_no_server_is_unavailable_and_bounded() -> None:
    with leasehold.connect("mongodb://127.0.0.1:9/db") as locks:
        started = time.monotonic()
        with pytest.raises(leasehold.StoreUnavailable, match="no answer"):
            locks.lock("x", ttl=1).try_acquire()
        assert time.monotonic() - started < 10  # pymongo itself would look for its server for 30 s
        assert locks.lock("x", ttl=1, on_unavailable="skip").try_acquire() is None


def test_a_unique_index_of_others_is_named(url: str, client: pymongo.MongoClient[Any]) -> None:
    locks_a = client.get_default_database()["system_locks"]
    locks_a.create_index("lockName", unique=True)
    with leasehold.connect(locks_a) as locks, locks.lock("one"):
        with pytest.raises(leasehold.StoreNotReady, match=r"unique index on lockName.*drop it"):
            locks.lock("two").try_acquire()


def test_a_collation_is_named(url: str, client: pymongo.MongoClient[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "CALL_LIMIT", 25.0)  # it takes a hundred commands to find out
    folding = client.get_default_database().create_collection("folding", collation={"locale": "en", "strength": 1})
    with leasehold.connect(folding) as locks, locks.lock("Job"):
        with pytest.raises(leasehold.StoreNotReady, match="collation"):
            locks.lock("job").try_acquire()


@pytest.mark.parametrize("bad", ["a collection that is too long", "a database of another case"])
def test_a_name_that_the_server_does_not_take_is_told_at_once(url: str, client: Any, bad: str) -> None:
    database = client.get_default_database()
    database["x"].insert_one({})
    target = database["x" * 300] if "long" in bad else client[database.name.upper()]
    with leasehold.connect(target) as locks, pytest.raises(leasehold.StoreNotReady, match="choose another"):
        locks.lock("x").acquire(timeout=30)


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
                with locks.lock("y", timeout=20) as mine:
                    good = good and mine.valid
                os._exit(0 if good else 1)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        lease.renew()


def test_a_fork_in_the_middle_of_taking_a_connection_shuts_nobody_out(client: pymongo.MongoClient[Any]) -> None:
    """Another thread of the parent may have the mutex just then, and does not exist in the child."""
    access = Access(target_from_client(client, ""), client)
    done = threading.Event()

    def take() -> None:
        while not done.is_set():
            if access.take_connection():
                access.give_connection_back()

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            pid = os.fork()
            if not pid:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(10)
                access.take_connection()
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        done.set()
        for thread in threads:
            thread.join()


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
        ends = time.monotonic() + 20  # before it would expire
        while (lease := await locks.lock("x").try_acquire()) is None:  # what is given back goes to who is next at first
            assert time.monotonic() < ends, "it was left behind"
            await asyncio.sleep(0.01)
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
        lease = eventually(lambda: theirs.lock("x").try_acquire())
        lease.release()
        with pymongo.MongoClient[Any](server.url) as client:  # what was given up is abandoned: now it takes nothing
            leases = client.get_default_database()["leasehold"]
            eventually(lambda: (found := leases.find_one({"_id.name": "x"})) and found["abandoned"])
        time.sleep(1)
        assert theirs.inspect("x") is None


@pytest.mark.parametrize("push", ["stream", "calls"])
def test_a_command_that_pymongo_retries_is_understood(
    mongodb_replica_set: Any, push: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first answer was lost; the second comes from the server's log, without the time of the server."""
    monkeypatch.setattr(timing, "CALL_LIMIT", 30.0)  # pymongo has to find its server again before that
    port = mongodb_replica_set.members[0].port
    name = f"retried-{push}"
    with Proxy(port) as proxy:

        def lose_the_answer(done: Callable[[], Any]) -> None:
            """Of the command that is sent now."""
            eventually(done)
            proxy.reset()
            proxy.all_well()

        through = f"mongodb://127.0.0.1:{proxy.port}/leasehold?directConnection=true&push={push}"
        with leasehold.connect(mongodb_replica_set.url) as ours, leasehold.connect(through) as theirs:
            assert theirs.inspect(name) is None  # connected
            lease = ours.lock(name, ttl=60).acquire()
            got: list[Any] = []
            thread = threading.Thread(target=lambda: got.append(theirs.lock(name, ttl=60).acquire(timeout=60)))
            proxy.only("to_server")
            thread.start()
            lose_the_answer(lambda: (info := ours.inspect(name)) and info.waiters == 1)
            with pymongo.MongoClient[Any](mongodb_replica_set.url) as client:
                hearing(client.get_default_database(), name)
            lease.release()
            thread.join(60)
            assert got[0].token > lease.token
            got[0].release()  # its first term is short
            # The same with a release: it is one that succeeded, and whoever waits is called.
            mine = theirs.lock(name, ttl=60).acquire(timeout=60)
            second: list[Any] = []
            waiter = threading.Thread(target=lambda: second.append(ours.lock(name).acquire(timeout=60)))
            waiter.start()
            eventually(lambda: (info := ours.inspect(name)) and info.waiters == 1)
            proxy.delay(0.1)  # so that these calls are under way at the same time, each on a connection of its own
            with ThreadPoolExecutor(5) as threads:
                list(threads.map(theirs.inspect, [name] * 5))
            proxy.all_well()
            released: list[bool] = []
            proxy.only("to_server")
            releasing = threading.Thread(target=lambda: released.append(mine.release()))
            releasing.start()
            lose_the_answer(lambda: second or ((info := ours.inspect(name)) and not info.waiters))
            releasing.join(60)
            waiter.join(60)
            assert released == [True]
            assert second[0].token > mine.token
            second[0].release()


@pytest.mark.parametrize("fault", ["pause", "kill"])
@pytest.mark.parametrize("side", ["threads", "asyncio"])
def test_close_does_not_wait_for_a_server_that_is_away(start_server: Any, side: str, fault: str) -> None:
    server = start_server(MongoDB)
    began = 0.0

    def fail() -> None:
        nonlocal began
        getattr(server, fault)()
        began = time.monotonic()

    async def in_loop() -> None:
        locks = aio.connect(server.url)
        await (await locks.lock("x").acquire()).release()
        fail()
        await locks.close()

    if side == "asyncio":
        asyncio.run(in_loop())
    else:
        locks = leasehold.connect(server.url)
        locks.lock("x").acquire().release()
        fail()
        locks.close()
    assert time.monotonic() - began < 25  # pymongo itself would look for its server for 30 s


def test_a_record_of_a_newer_leasehold_does_not_take_the_others_along(url: str, client: Any) -> None:
    """A rolling upgrade: one name has been written anew by a newer process, and the rest is renewed as before."""
    with opened(url) as (store, driver):  # no keeper: it would renew them too
        batch = []
        for name in ("old", "new"):
            ask = Ask(name, name * 10, "owner", "lock", None, 30 * SECOND)
            grant = driver.run(store.acquire(ask), 20.0)
            assert isinstance(grant, Grant)
            batch.append(Renewal(name, name * 10, grant.token, 30 * SECOND))
        client.get_default_database()["leasehold"].update_one(
            {"_id.name": "new"}, {"$set": {"format": 99, "holders": "in another way"}}
        )
        assert driver.run(store.renew(batch), 20.0) == [RENEWED, GONE]


@pytest.mark.parametrize(
    "operation", ["acquire", "inherit", "release", "abandon", "interrupt", "evict", "note", "read"]
)
def test_no_operation_takes_a_record_of_a_newer_leasehold_for_none(url: str, client: Any, operation: str) -> None:
    """It is held by somebody, so "nobody holds it" and "it was another's already" would be untrue."""
    leases = client.get_default_database()["leasehold"]
    ask = Ask("x", "a" * 16, "me", "lock", None, 30 * SECOND)
    with opened(url) as (store, driver):
        grant = driver.run(store.acquire(ask), 20.0)
        assert isinstance(grant, Grant)
        leases.update_one({"_id.name": "x"}, {"$set": {"format": 99, "holders": "in another way"}})
        other = ask._replace(attempt="0" * 16)
        steps: dict[str, Callable[[], Any]] = {
            "acquire": lambda: store.acquire(other),
            "inherit": lambda: store.acquire(other._replace(heir=(ask.attempt, grant.token))),
            "release": lambda: store.release("x", ask.attempt, grant.token, None),
            "abandon": lambda: store.abandon("x", ask.attempt),
            "interrupt": lambda: store.interrupt("x", False),
            "evict": lambda: store.interrupt("x", True),
            "note": lambda: store.write_note("x", ask.attempt, grant.token, "text"),
            "read": lambda: store.read_note("x"),
        }
        with pytest.raises(leasehold.StoreNotReady, match=r"format 99.*upgrade"):
            driver.run(steps[operation](), 20.0)
        found = leases.find_one({"_id.name": "x"})
        assert (found["format"], found["holders"]) == (99, "in another way")


# What the driver's errors mean.


def bulk_error(**details: Any) -> BulkWriteError:
    return BulkWriteError({"writeErrors": [], "writeConcernErrors": [], **details})


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (WriteConcernError("x", 100, {"code": 100}), leasehold.StoreNotReady, "write concern majority"),
        (WriteConcernError("x", 64, {"code": 64}), leasehold.StoreUnavailable, "in time"),
        (bulk_error(writeConcernErrors=[{"code": 64}]), leasehold.StoreUnavailable, "in time"),
        (bulk_error(writeConcernErrors=[{"code": 79}]), leasehold.StoreNotReady, "write concern majority"),
        (bulk_error(writeErrors=[{"code": 121}]), leasehold.StoreNotReady, "validator"),
        (bulk_error(writeErrors=[{"code": 13}]), leasehold.StoreNotReady, "grant find, insert"),
        (bulk_error(), leasehold.StoreUnavailable, "in time"),
        (OperationFailure("x", 13), leasehold.StoreNotReady, "grant find, insert"),
        (OperationFailure("x", 91), leasehold.StoreUnavailable, "x"),
    ],
)
def test_errors_of_the_driver_in_our_terms(error: Any, kind: Any, says: str) -> None:
    found = translate(error, "here")
    assert type(found) is kind
    assert says in str(found)


def test_a_note_is_read_as_no_election_can_undo_it(url: str) -> None:
    sent = Sent()
    ask = Ask("x", "a" * 16, "me", "lock", None, 30 * SECOND)
    with pymongo.MongoClient[Any](url, event_listeners=[sent]) as client, opened(client) as (store, driver):
        grant = driver.run(store.acquire(ask), 20.0)
        assert isinstance(grant, Grant)
        assert driver.run(store.write_note("x", ask.attempt, grant.token, "text"), 20.0)
        sent.commands.clear()
        assert driver.run(store.read_note("x"), 20.0) == "text"
        reads = [command for command in sent.commands if command.get("find") == "leasehold"]
        assert [command["readConcern"]["level"] for command in reads] == ["majority"]


def test_an_index_that_takes_too_long_is_told_and_tried_again(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "leasehold")
    monkeypatch.setattr(mongo_index, "INDEX_LIMIT", 0.0001)
    with opened(url) as (store, driver):
        for _ in range(2):
            caplog.clear()
            driver.run(store.tidy(), 20.0)
            found = [record for record in caplog.records if record.__dict__.get("lease_event") == "no_index"]
            assert [record.levelno for record in found] == [logging.INFO]
        monkeypatch.setattr(mongo_index, "INDEX_LIMIT", 20.0)
        driver.run(store.tidy(), 20.0)
    with pymongo.MongoClient[Any](url) as client:
        assert INDEX in client.get_default_database()["leasehold"].index_information()
