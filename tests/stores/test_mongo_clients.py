"""Whatever a user's own client is like: its options are about the user's documents, not about leases."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, timedelta
from typing import Any

import pymongo
import pytest
from bson import SON, DatetimeMS, Decimal128
from bson.codec_options import CodecOptions, TypeDecoder, TypeRegistry
from bson.raw_bson import RawBSONDocument
from mongo_databases import own_url
from mongo_listeners import hearing, listening
from mongo_sent import Sent
from pymongo.server_api import ServerApi

import leasehold
from leasehold import aio
from leasehold.core import timing
from leasehold.stores.mongodb import open_client
from leasehold.stores.mongodb.admin import doctor, init
from leasehold.stores.mongodb.requests import beyond
from leasehold.stores.mongodb.tasks import MongoTasks
from servers.proxy import Proxy

pytestmark = pytest.mark.server


@pytest.fixture(params=["mongodb_server", "mongodb_replica_set"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    yield from own_url(request.getfixturevalue(request.param))


def eventually(true: Callable[[], Any], within: float = 60.0) -> Any:
    ends = time.monotonic() + within
    while not (found := true()):
        assert time.monotonic() < ends, "not so in time"
        time.sleep(0.01)
    return found


class Numbers(TypeDecoder):
    """Refuses what it does not know, as a decoder of a user's own may."""

    bson_type = Decimal128

    def transform_bson(self, value: Any) -> Any:
        raise ValueError(value)


OPTIONS: dict[str, dict[str, Any]] = {
    "aware times": {"tz_aware": True, "document_class": SON},
    "raw documents": {"document_class": RawBSONDocument},
    "times as numbers": {"datetime_conversion": "DATETIME_MS", "uuidRepresentation": "standard"},
    "a decoder of its own": {"type_registry": TypeRegistry([Numbers()])},
    "no retries": {"retryWrites": False, "retryReads": False},
    "no acknowledgement": {"w": 0},
    "secondaries": {"readPreference": "secondary", "readConcernLevel": "majority"},
    "short timeouts": {"socketTimeoutMS": 400, "waitQueueTimeoutMS": 50, "timeoutMS": 400},
    "the stable API alone": {"server_api": ServerApi("1", strict=True, deprecation_errors=True)},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_leases_are_the_same_whatever_the_options_of_the_client(url: str, options: dict[str, Any]) -> None:
    with (
        pymongo.MongoClient[Any](url) as plain,
        pymongo.MongoClient[Any](url, **options) as client,
        leasehold.connect(client, ttl=20, owner="first") as ours,
        leasehold.connect(client.get_default_database(), ttl=20, owner="second") as theirs,
    ):
        lease = ours.lock("x", data={"a": 1}).acquire(20)
        lease.renew()
        info = theirs.inspect("x")
        assert info is not None
        assert (info.owner, info.data, info.token) == ("first", {"a": 1}, lease.token)
        assert info.expires.tzinfo is UTC
        assert timedelta() < info.expires - info.acquired < timedelta(seconds=60)
        assert [each.name for each in theirs.leases("x")] == ["x"]
        assert theirs.lock("x").try_acquire() is None
        got: list[Any] = []
        thread = threading.Thread(target=lambda: got.append(theirs.lock("x").acquire(90)))
        thread.start()
        eventually(lambda: (seen := ours.inspect("x")) and seen.waiters == 1)
        database = plain.get_default_database()
        if (
            "server_api" not in options or "replicaSet" in url
        ):  # the stable API has change streams, no capped collection
            heard = hearing(database)
            time.sleep(1)  # longer than any of the timeouts
            assert heard in listening(database)
        assert lease.release()
        thread.join(90)
        assert got[0].token > lease.token
        got[0].release()  # its first term is short
        held = theirs.lock("x").acquire(30)
        assert ours.break_lease("x")
        assert held.lost.wait(20)
        held.release()


LAX = {name: options for name, options in OPTIONS.items() if "server_api" not in options}


@pytest.mark.parametrize("options", LAX.values(), ids=LAX)
def test_operators_see_the_same_whatever_the_options_of_the_client(url: str, options: dict[str, Any]) -> None:
    with pymongo.MongoClient[Any](url) as plain, pymongo.MongoClient[Any](url, **options) as client:
        database, mine = plain.get_default_database(), client.get_default_database()
        old = {"lockName": "x", "instanceId": "host_1"}
        database["system_locks"].insert_one({**old, "expiresAt": DatetimeMS(8 * 10**15)})  # the year 255 000
        held = [f for f in init(mine, from_legacy=True) if f.level == "error"]
        assert ["'x' is held by host_1 until 9999-12-31" in f.message for f in held] == [True]
        assert any("do not exclude" in f.message for f in doctor(mine))
        database["system_locks"].update_one(old, {"$set": {"expiresAt": DatetimeMS(0)}})
        done = init(mine, from_legacy=True)
        assert "system_locks: 1 expired records removed" in [f.message for f in done]
        assert database["system_locks"].count_documents({}) == 0
        assert done[-1].level == "ok"
        assert [f for f in doctor(mine) if f.level == "error"] == []


def test_a_client_that_keeps_to_the_stable_api_is_not_enough_for_operators(url: str) -> None:
    """It knows neither capped collections nor who may do what."""
    with pymongo.MongoClient[Any](url, server_api=ServerApi("1", strict=True)) as client:
        for run in (init, doctor):
            with pytest.raises(leasehold.StoreNotReady, match="stable API"):
                run(client)  # type: ignore[operator]


def test_a_collection_of_another_database_stays_where_it_is(url: str) -> None:
    """Not in the default database of its client; and options of the collection itself do not matter either."""
    with pymongo.MongoClient[Any](url) as client:
        name = f"{client.get_default_database().name}b"
        codec = CodecOptions[Any](document_class=RawBSONDocument, tz_aware=True)
        leases = client[name].get_collection("my.leases", codec_options=codec, write_concern=pymongo.WriteConcern(0))
        try:
            with leasehold.connect(leases) as locks, locks.lock("x") as lease:
                info = locks.inspect("x")
                assert info is not None
                assert info.token == lease.token
            assert client[name]["my.leases"].count_documents({}) == 1
            assert client.get_default_database().list_collection_names() == []
        finally:
            client.drop_database(name)


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("", []),
        ("b", "c"),
        ("a:", "a;"),
        ("\ud7ff", "\ue000"),
        ("x\U0010ffff", "y"),
        ("\U0010ffff\U0010ffff", []),
    ],
)
def test_what_sorts_behind_a_prefix(prefix: str, expected: Any) -> None:
    assert beyond(prefix) == expected


def test_names_with_a_prefix_are_read_by_the_key_alone(url: str) -> None:
    """However many others there are: the server looks at no more records than it tells."""
    names = ["b", "b\U0010ffff", "b\U0010ffff" + "x" * 510, "b.$x", "ba", "b" * 512]
    others = ["B", "a\U0010ffff", "a" * 512, "c", "é", "\U0010ffff"]
    sent = Sent()
    with pymongo.MongoClient[Any](url, event_listeners=[sent]) as client, leasehold.connect(client, ttl=60) as locks:
        held = [locks.lock(name).acquire(20) for name in (*names, *others)]
        assert [each.name for each in locks.leases("b")] == sorted(names)
        assert sorted(each.name for each in locks.leases()) == sorted((*names, *others))
        assert [each.name for each in locks.leases("b\U0010ffff")] == sorted(names)[-2:]
        asked = next(one for one in sent.commands if one.get("find") == "leasehold" and "$gte" in one["filter"]["_id"])
        with pymongo.MongoClient[Any](url) as plain:
            command = {key: asked[key] for key in ("find", "filter", "sort", "limit", "projection", "collation")}
            plan = plain.get_default_database().command("explain", command, verbosity="executionStats")
        assert plan["executionStats"]["totalDocsExamined"] == len(names), plan["queryPlanner"]
        assert plan["executionStats"]["totalKeysExamined"] <= len(names) + 1
        for lease in held:
            lease.release()


def test_a_new_loop_closes_the_connections_of_the_last(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """As with one ``asyncio.run`` after another, or a loop per test."""
    locks = aio.connect(url)

    async def use() -> None:
        async with locks.lock("name"):
            assert await locks.lock("name").try_acquire() is None

    files = []
    for _ in range(6):
        asyncio.run(use())
        gc.collect()  # what is wrong with the last client shows here
        files.append(len(os.listdir("/proc/self/fd")))
    assert min(files[3:]) <= files[0] + 1  # what others of this process open for a moment is not there each time
    asyncio.run(locks.close())
    assert [each for each in caplog.records if each.name == "asyncio" and each.levelname != "DEBUG"] == []


def test_client_that_is_made_while_its_loop_ends_is_closed_too(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A task that is cancelled at the end of its loop releases its lease, after the client of the loop was closed."""
    locks = aio.connect(url)

    async def hold(name: str) -> None:
        async with locks.lock(name):
            try:
                await asyncio.sleep(600)
            finally:
                await asyncio.sleep(0.03)

    async def use() -> None:
        names = ("a", "b", "c")
        holders = [asyncio.create_task(hold(name)) for name in names]
        for name in names:
            while await locks.inspect(name) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert len(holders) == 3

    files = []
    for _ in range(4):
        asyncio.run(use())
        gc.collect()  # what is wrong with the last client shows here
        files.append(len(os.listdir("/proc/self/fd")))

    async def free() -> None:
        for name in ("a", "b", "c"):
            async with locks.lock(name, timeout=20):
                pass

    asyncio.run(free())
    asyncio.run(locks.close())
    assert min(files[2:]) <= files[0] + 1
    assert [each for each in caplog.records if each.name == "asyncio" and each.levelname != "DEBUG"] == []


@pytest.mark.parametrize("by", ["its user", "leasehold"])
def test_an_async_client_of_another_loop(url: str, by: str, caplog: pytest.LogCaptureFixture) -> None:
    """pymongo itself has a bare RuntimeError for it."""
    client = pymongo.AsyncMongoClient[Any](url, connect=False)
    locks = aio.connect(client)

    async def first() -> None:
        if by == "leasehold":
            async with locks.lock("name"):
                pass
        else:
            await client.admin.command("ping")
        await client.close()  # in the one loop that can

    async def second() -> None:
        with pytest.raises(leasehold.StoreNotReady, match="create a client and a Locks in this loop"):
            await locks.lock("name").acquire()
        await locks.close()

    async def listen() -> None:
        driver = open_client(client, "").tasks()
        ends = time.monotonic() + 5
        while not any("no push" in record.getMessage() for record in caplog.records):
            assert not await driver.listen("attempt", None)
            assert time.monotonic() < ends
            await asyncio.sleep(0.01)
        await driver.close()

    caplog.set_level(logging.INFO, "leasehold")
    asyncio.run(first())
    asyncio.run(second())
    asyncio.run(listen())


def test_a_loop_ends_though_pymongo_swallows_that_the_listener_was_cancelled(url: str) -> None:
    """It does so while it sends. In a process of its own, which can be ended if it hangs."""
    code = """
import asyncio, sys
from leasehold import aio
from leasehold.core import timing as policy

locks = aio.connect(sys.argv[1])

async def use():
    async with locks.lock("name"):
        await locks.lock("name").try_acquire()

for _ in range(25):
    asyncio.run(use())
asyncio.run(locks.close())
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code, url], check=True, timeout=100)


@pytest.fixture
def alone(mongodb_server: Any) -> Iterator[str]:
    yield from own_url(mongodb_server)


@pytest.mark.parametrize("cancelled", [True, False], ids=["after all tasks were cancelled", "as ever"])
async def test_a_server_that_was_away_is_found_again(
    mongodb_server: Any, alone: str, monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    """pymongo does not start again what somebody has cancelled, and so would never look for it."""
    monkeypatch.setattr(timing, "CALL_LIMIT", 1.0)
    made: list[Any] = []

    def make(*arguments: Any, **options: Any) -> Any:
        made.append(pymongo.AsyncMongoClient[Any](*arguments, **options))
        return made[-1]

    monkeypatch.setattr(MongoTasks, "client", staticmethod(make))
    with Proxy(mongodb_server.port) as proxy:
        through = alone.replace(f":{mongodb_server.port}/", f":{proxy.port}/")
        async with aio.connect(through, ttl=120) as locks:
            lease = await locks.lock("held").acquire()
            if cancelled:
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()
                await asyncio.sleep(0)
            proxy.reset()
            with pytest.raises(leasehold.StoreUnavailable):
                await locks.lock("x").acquire(timeout=1.5)
            proxy.all_well()
            async with locks.lock("x").acquire(timeout=60):
                pass
            monkeypatch.undo()  # what follows has all the time that it usually has
            assert await lease.release()
        assert len(made) == (2 if cancelled else 1)
