"""``init``, ``doctor``, and what a user with few rights can do."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pymongo
import pytest
from mongo_databases import own_database
from mongo_listeners import listening, opened, queue
from mongo_sent import Sent

import leasehold
from leasehold.core import timing as policy
from leasehold.core.protocol import Renewal
from leasehold.stores.mongodb import admin as mongo_admin
from leasehold.stores.mongodb import index as mongo_index
from leasehold.stores.mongodb import store as mongo
from leasehold.stores.mongodb.admin import doctor, init
from leasehold.stores.mongodb.index import INDEX
from leasehold.stores.mongodb.requests import Urgency
from leasehold.testing.handles import eventually
from servers.clock import FakeClock
from servers.mongodb import REPLICA_SET, MongoDB, MongoReplicaSet, ask

pytestmark = pytest.mark.server


@pytest.fixture
def database(mongodb_server: Any) -> Iterator[Any]:
    yield from own_database(mongodb_server)


def levels(findings: Any) -> list[str]:
    return [finding.level for finding in findings]


# init.


def test_init_makes_everything_and_twice_is_once(database: Any) -> None:
    assert levels(init(database, dry_run=True)) == ["to do", "to do", "to do", "ok"]
    assert database.list_collection_names() == []
    assert levels(init(database)) == ["done", "done", "done", "ok"]
    assert sorted(database.list_collection_names()) == ["leasehold", "leasehold.calls"]
    assert INDEX in database["leasehold"].index_information()
    assert database["leasehold.calls"].options()["capped"]
    assert levels(init(database)) == ["ok"]


def test_init_on_several_machines_at_once(database: Any) -> None:
    database["system_locks"].insert_many([legacy_a("old", -60) for _ in range(50)])
    found: list[Any] = []
    barrier = threading.Barrier(4)

    def run() -> None:
        barrier.wait()
        found.append(init(database, from_legacy=True))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(findings[-1].level == "ok" for findings in found)
    assert database["system_locks"].count_documents({}) == 0


def test_init_refuses_what_leases_cannot_live_with(database: Any) -> None:
    database["leasehold"].create_index("lockName", unique=True)
    (finding,) = init(database)
    assert finding.level == "error"
    assert "lockName" in finding.message
    assert database.list_collection_names() == ["leasehold"]


# Locks of old (A8).


def legacy_a(name: str, left: float, instance: str = "host_1") -> dict[str, Any]:
    """As document A's code stores it."""
    now = datetime.now(UTC)
    return {
        "lockName": name,
        "instanceId": instance,
        "acquiredAt": now,
        "expiresAt": now + timedelta(seconds=left),
        "status": "locked",
    }


def legacy_e(name: str, left: float) -> dict[str, Any]:
    """As document E's code stores it."""
    now = datetime.now(UTC)
    expires = now + timedelta(seconds=left)
    return {"_id": name, "lockId": uuid.uuid4().hex, "acquiredAt": now, "expiresAt": expires, "fencingToken": 3}


def test_expired_locks_of_old_are_removed_after_a_dry_run(database: Any) -> None:
    database["system_locks"].insert_many([legacy_a("x", -60), legacy_a("x", -50, "host_2"), legacy_a("y", -1)])
    database["distributed.locks"].insert_one(legacy_e("z", -60))
    database["system_locks"].insert_one({"unrelated": True})
    dry = init(database, from_legacy=True, dry_run=True)
    assert [f.message for f in dry if f.level == "warning"] == [
        "system_locks: 2 records of 'x' (host_1, host_2): several may have held it at once"
    ]
    assert [f.message for f in dry if "expired" in f.message] == [
        "system_locks: 3 expired records removed",
        "distributed.locks: 1 expired records removed",
    ]
    assert database["system_locks"].count_documents({}) == 4
    done = init(database, from_legacy=True)
    assert [f.level for f in done if "expired" in f.message] == ["done", "done"]
    assert database["system_locks"].find_one({}, {"_id": 0}) == {"unrelated": True}
    assert database["distributed.locks"].count_documents({}) == 0
    assert levels(init(database, from_legacy=True)) == ["ok"]


def test_a_held_lock_of_old_is_in_the_way(database: Any) -> None:
    database["system_locks"].insert_many([legacy_a("x", 60, "host_9"), legacy_a("y", -60)])
    database["distributed.locks"].insert_one({**legacy_e("z", 60), "expiresAt": "never"})
    found = init(database, from_legacy=True)
    errors = [f for f in found if f.level == "error"]
    assert len(errors) == 2
    assert "'x' is held by host_9 until 20" in errors[0].message
    assert "stop all instances of the old code" in errors[0].advice
    assert "'z'" in errors[1].message
    assert "leasehold" not in database.list_collection_names()  # nothing is made
    assert database["system_locks"].count_documents({}) == 2  # nor removed, also what has expired
    assert any("do not exclude" in f.message for f in doctor(database))


def contents(database: Any) -> dict[str, list[Any]]:
    return {name: list(database[name].find({}).sort("_id")) for name in sorted(database.list_collection_names())}


@pytest.mark.parametrize("obstacle", ["held in the last collection", "a unique index", "calls of others"])
def test_whoever_refuses_has_changed_nothing(database: Any, obstacle: str) -> None:
    """All is looked at first, then changed: also when the obstacle is the last thing that is looked at."""
    database["system_locks"].insert_many([legacy_a("x", -60), legacy_a("x", -50, "host_2")])
    if obstacle == "a unique index":
        database["leasehold"].create_index("lockName", unique=True)
    elif obstacle == "calls of others":
        database["leasehold.calls"].insert_one({"from": "me"})
    else:
        database["distributed.locks"].insert_one(legacy_e("z", 60))
    before = contents(database)
    found = init(database, from_legacy=True)
    assert "error" in levels(found)
    assert contents(database) == before
    assert [f.level for f in init(database, from_legacy=True, dry_run=True)] == levels(found)


def test_a_collection_of_old_with_another_name(database: Any) -> None:
    database["app.mutex"].insert_many([legacy_a("x", -60), legacy_a("y", 60, "host_9")])
    assert levels(init(database, from_legacy=True, dry_run=True))[-1] == "ok"  # nobody has told
    found = init(database, from_legacy=True, legacy=["app.mutex", "mistyped"])
    assert [f.message for f in found if f.level == "warning"] == ["there is no collection mistyped"]
    assert ["app.mutex: 'y' is held by host_9" in f.message for f in found if f.level == "error"] == [True]
    assert database["app.mutex"].count_documents({}) == 2
    database["app.mutex"].delete_one({"lockName": "y"})
    found = init(database, from_legacy=True, legacy=["app.mutex"])
    assert "app.mutex: 1 expired records removed" in [f.message for f in found]
    assert database["app.mutex"].count_documents({}) == 0
    (finding,) = init(database["app.mutex"], from_legacy=True, legacy=["app.mutex"])
    assert "collection of its own" in finding.advice


def test_what_old_code_takes_meanwhile_is_neither_removed_nor_overlooked(database: Any, mongodb_server: Any) -> None:
    """An instance that nobody has stopped takes its lock between the look and the removal, as does an init beside."""
    locks = database["system_locks"]
    locks.insert_many([legacy_a("x", -60), legacy_a("y", -60)])

    class Meanwhile(Sent):
        """Before the server is asked for its time, with which the removal begins."""

        def started(self, event: Any) -> None:
            super().started(event)
            if event.command_name == "hello":
                locks.delete_one({"lockName": "y"})  # another machine has begun to remove them
                later = datetime.now(UTC) + timedelta(seconds=60)
                locks.update_one({"lockName": "x"}, {"$set": {"expiresAt": later}})

    with pymongo.MongoClient[Any](mongodb_server.url, event_listeners=[Meanwhile()]) as client:
        found = init(client[database.name], from_legacy=True)
    assert ["'x' is held by host_1" in f.message for f in found if f.level == "error"] == [True]
    assert locks.count_documents({"lockName": "x"}) == 1
    assert database.list_collection_names() == ["system_locks"]


def test_init_caps_the_calls_on_two_machines_at_once(database: Any) -> None:
    for _ in range(5):
        database["leasehold.calls"].drop()
        database["leasehold.calls"].insert_one({"to": []})
        barrier = threading.Barrier(3)
        found: list[Any] = []

        def run(barrier: Any = barrier, found: Any = found) -> None:
            barrier.wait()
            found.append(init(database))

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [findings[-1].level for findings in found] == ["ok", "ok", "ok"]
        assert database["leasehold.calls"].options()["capped"]


def test_the_collection_of_old_is_not_taken(database: Any) -> None:
    (finding,) = init(database["system_locks"], from_legacy=True)
    assert finding.level == "error"
    assert "collection of its own" in finding.advice


# doctor.


def test_doctor_on_a_standalone_server(database: Any) -> None:
    before = doctor(database)
    assert any("waiters poll" in f.message for f in before if f.level == "warning")
    with leasehold.connect(database) as locks, locks.lock("x"):
        pass
    database["leasehold"].drop_indexes()
    assert any("TTL index" in f.message and f.advice == "run `leasehold init`" for f in doctor(database))
    init(database)
    after = doctor(database)
    assert [f.level for f in after if "standalone" not in f.message] == ["ok", "ok"], after
    database["leasehold"].delete_many({})
    database["leasehold"].insert_one({"_id": {"ns": "", "name": "x2"}, "format": 99})
    database["leasehold"].create_index("owner", unique=True)
    wrong = [f for f in doctor(database) if f.level == "error"]
    assert len(wrong) == 2
    assert all(f.advice for f in wrong)


def test_doctor_on_a_replica_set(mongodb_replica_set: Any) -> None:
    init(mongodb_replica_set.url)
    found = doctor(mongodb_replica_set.url)
    assert {f.level for f in found} == {"ok"}, found


@pytest.mark.parametrize(
    ("seconds", "level"), [(0.0, "ok"), (0.05, "ok"), (0.06, "warning"), (0.073, "warning"), (300.0, "warning")]
)
def test_how_far_apart_the_clocks_may_be(seconds: float, level: str) -> None:
    """As far as the margin of a lease goes: beyond it a new primary may find expired what its holder trusts. The least
    margin is that of one that came by push, for a first term."""
    finding = mongo_admin.apart(seconds)
    assert finding.level == level
    timing = policy.make_timing(ttl=policy.DEFAULT_TTL)
    assert (seconds <= policy.FIRST_TERM - timing.first_term) == (level == "ok")
    if level == "warning":
        drift = float(finding.advice.split("`drift` of ")[1].split()[0])
        assert policy.safety_margin(policy.DEFAULT_TTL, drift) >= seconds
        assert ("30 s" in finding.message) == (seconds > timing.margin)


@pytest.mark.slow
def test_doctor_sees_members_whose_clocks_differ(start_server: Any) -> None:
    ahead = FakeClock()

    class Uneven(MongoReplicaSet):
        def __init__(self) -> None:
            self.members = [MongoDB(replica_set=REPLICA_SET, env=env) for env in (None, ahead.env, None)]

    replica_set = start_server(Uneven)
    (even,) = [f for f in doctor(replica_set.url) if f.subject == "clock"]
    assert even.level == "ok", even
    ahead.step(5)
    ends = time.monotonic() + 20
    while (found := [f for f in doctor(replica_set.url) if f.subject == "clock"])[0].level == "ok":
        assert time.monotonic() < ends
    assert "5." in found[0].message or "4.9" in found[0].message, found


# Rights.


class Secured(MongoDB):
    def command(self) -> list[str]:
        if not self.replica_set:
            return [*super().command(), "--auth"]
        key = self.folder / "key"  # what members know each other by
        key.write_text("s3cret" * 10)
        key.chmod(0o600)
        return [*super().command(), "--auth", "--keyFile", str(key)]


class SecuredSet(MongoReplicaSet):
    def __init__(self) -> None:
        self.members = [Secured(replica_set=REPLICA_SET)]


class Secure(NamedTuple):
    admin: pymongo.MongoClient[Any]
    url: Callable[[str], str]
    replicated: bool


@pytest.fixture(scope="module", params=[Secured, SecuredSet], ids=["standalone", "replica_set"])
def secure(request: pytest.FixtureRequest) -> Iterator[Secure]:
    """A server with authentication on, and users of several rights; each one's password is ``s3cret-NAME``."""
    with request.param() as server:
        with pymongo.MongoClient[Any](server.url) as first:
            first.admin.command("createUser", "root", pwd="s3cret-root", roles=["root"])
        with pymongo.MongoClient[Any](server.url, username="root", password="s3cret-root", authSource="admin") as admin:
            leases = {"db": "leasehold", "collection": "leasehold"}
            calls = {"db": "leasehold", "collection": "leasehold.calls"}
            least = [{"resource": leases, "actions": ["find", "insert", "update", "remove"]}]
            called = [*least, {"resource": calls, "actions": ["find", "insert"]}]
            streamed = [*least, {"resource": leases, "actions": ["changeStream"]}]
            hearing = [*least, {"resource": calls, "actions": ["find"]}]
            database = admin["leasehold"]
            users = {"least": least, "called": called, "streamed": streamed, "hearing": hearing}
            for name, privileges in users.items():
                database.command("createRole", name, privileges=privileges, roles=[])
                database.command("createUser", name, pwd=f"s3cret-{name}", roles=[name])
            database.command("createUser", "reader", pwd="s3cret-reader", roles=["read"])
            database.command("createUser", "writer", pwd="s3cret-writer", roles=["readWrite"])
            replicated = request.param is SecuredSet
            yield Secure(admin, lambda name: server.url.replace("://", f"://{name}:s3cret-{name}@"), replicated)


@pytest.mark.parametrize(
    ("user", "alone", "replicated"),
    [("least", None, None), ("called", "calls", "calls"), ("streamed", None, "stream"), ("writer", "calls", "stream")],
)
def test_few_rights_are_enough_after_init(
    secure: Secure, user: str, alone: str | None, replicated: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "leasehold")
    way, database = replicated if secure.replicated else alone, secure.admin["leasehold"]
    init(secure.admin["leasehold"])
    url = secure.url(user)
    timing = {"ttl": 20, "renew_every": 0.3}
    with leasehold.connect(url, **timing) as ours, leasehold.connect(url, **timing) as theirs:
        lease = ours.lock("x", data={"a": 1}).acquire()
        got: list[Any] = []
        thread = threading.Thread(target=lambda: got.append(theirs.lock("x").acquire(timeout=60)))
        thread.start()
        eventually(lambda: (info := ours.inspect("x")) and info.waiters == 1)
        eventually(lambda: ours.metrics().renewals >= 3, what="it is renewed")
        assert lease.valid
        session = queue(database)[0]["session"].removeprefix("s")
        if way is None:
            eventually(lambda: sum("no push" in r.getMessage() for r in caplog.records) == 2)
        else:
            eventually(lambda: session in [each.session for each in listening(database)])
        assert {each.way for each in listening(database)} == ({way} if way else set())
        lease.release()
        thread.join(60)
        assert got[0].token > lease.token
        got[0].release()  # its first term is short
        held = theirs.lock("x").acquire(timeout=60)
        assert [each.name for each in ours.leases()] == ["x"]
        assert ours.break_lease("x")
        assert held.lost.wait(15)  # before it would expire
        held.release()
    found = doctor(url)
    assert not [f for f in found if f.level == "error"]
    assert [f.level for f in found if f.subject == "push"] == ["ok" if way else "warning"]
    assert secure.admin["leasehold"]["leasehold.calls"].options()["capped"]


def test_who_hears_calls_and_may_not_make_them_is_told(secure: Secure) -> None:
    init(secure.admin["leasehold"])
    (finding,) = [f for f in doctor(secure.url("hearing")) if f.subject == "push"]
    assert finding.level == "warning"
    assert "may not insert into leasehold.calls" in finding.message
    assert finding.advice == "grant insert on leasehold.calls"


def test_who_may_not_see_to_the_index_is_told_no_more_than_that(
    secure: Secure, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After init it is there, whoever may look: no reason to warn, and nobody wants to read the command."""
    caplog.set_level(logging.INFO, "leasehold")
    monkeypatch.setattr(mongo_index, "INDEX_LIMIT", 20.0)
    monkeypatch.setattr(mongo_index, "indexed", set())
    init(secure.admin["leasehold"])
    with opened(secure.url("called")) as (store, driver):
        driver.run(store.inspect("x"), 20.0)  # connected: which servers they are is known
        for _ in range(2):
            driver.run(store.tidy(), 20.0)
    (record,) = [r for r in caplog.records if "index" in r.getMessage()]
    assert record.levelno == logging.INFO
    assert record.getMessage().endswith(
        "this user may not check the TTL index on `purge`; no need if `leasehold init` was run"
    )
    assert record.__dict__["lease_event"] == "index_unchecked"


def test_few_rights_and_no_init(secure: Secure) -> None:
    """Leases work; the index is not made, and waiters poll."""
    secure.admin["leasehold"]["leasehold"].drop()
    secure.admin["leasehold"]["leasehold.calls"].drop()
    with leasehold.connect(secure.url("least")) as locks, locks.lock("x") as lease:
        assert lease.valid
        time.sleep(0.3)
    assert secure.admin["leasehold"].list_collection_names() == ["leasehold"]


def test_who_may_not_call_finds_that_out_once(secure: Secure, caplog: pytest.LogCaptureFixture) -> None:
    """A release is one command, also where those who wait hear by calls and whoever releases may not put them."""
    caplog.set_level(logging.INFO, "leasehold")
    init(secure.admin["leasehold"])
    sent = Sent()

    def release() -> Any:
        yield Urgency.SETTLE
        yield mongo.PassOn("1 cafe/attempt/")

    with pymongo.MongoClient[Any](secure.url("least"), event_listeners=[sent]) as client:
        with opened(client) as (_, driver):
            driver.run(release(), 20.0)
            assert len(sent.names) > 0
            sent.names.clear()
            driver.run(release(), 20.0)
            assert sent.names == []
    assert [r.__dict__["lease_event"] for r in caplog.records if "do not wake" in r.getMessage()] == ["mute"]
    with pymongo.MongoClient[Any](secure.url("called"), event_listeners=[sent]) as client:
        with opened(client) as (_, driver):
            for _ in range(2):
                driver.run(release(), 20.0)
            assert sent.names.count("insert") == 2


def test_wrong_credentials_and_missing_rights_say_how_to_mend_it(
    secure: Secure, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = secure.url("least").replace("s3cret-least", "s3cret-wrong")
    reader = secure.url("reader")
    for url, told in [(wrong, "authentication failed"), (reader, "grant find, insert, update and remove")]:
        with leasehold.connect(url) as locks:
            started = time.monotonic()
            with pytest.raises(leasehold.StoreNotReady, match=told) as caught:
                locks.lock("x").acquire(timeout=40)  # at once, not after the timeout
            assert time.monotonic() - started < 20
            assert "s3cret" not in f"{caught.value!r} {locks!r} {caplog.text}"
    (finding,) = [f for f in doctor(secure.url("reader")) if f.level == "error"]
    assert "may not insert, update, remove" in finding.message
    with pytest.raises(leasehold.StoreNotReady, match="authentication failed"):
        doctor(wrong)


def test_a_refusal_is_understood_whatever_the_name_is(secure: Secure) -> None:
    """The server tells the command that it refuses, and cuts it in the middle of a letter."""
    with leasehold.connect(secure.url("reader")) as locks:
        for ascii_first in range(4):
            name = "x" * ascii_first + "\U0001f512" * 500
            with pytest.raises(leasehold.StoreNotReady, match="grant find, insert, update and remove"):
                locks.lock(name).try_acquire()
            lease = Renewal(name, "0" * 16, 1, 1_000_000)
            with opened(secure.url("reader")) as (store, driver):
                with pytest.raises(leasehold.StoreNotReady, match="grant find"):
                    driver.run(store.renew([lease, lease]), 20.0)


def test_no_primary_is_unavailable(start_server: Any) -> None:
    replica_set: MongoReplicaSet = start_server(MongoReplicaSet, members=3)
    with leasehold.connect(replica_set.url, ttl=3) as locks:
        with locks.lock("x"):
            pass
        primary = replica_set.leader()
        for member in replica_set.members:
            if member is not primary:
                member.kill()

        def has_stepped_down() -> bool:
            try:
                return b"\x08isWritablePrimary\0\0" in ask(primary.port, {"hello": 1, "$db": "admin"}, 20)
            except (OSError, EOFError):  # it is at it
                return False

        eventually(has_stepped_down, 60)  # for want of a majority

        def says_so() -> bool:
            started = time.monotonic()
            with pytest.raises(leasehold.StoreUnavailable) as refused:
                locks.lock("x").try_acquire()
            assert time.monotonic() - started < 25  # pymongo itself would look for one for 30 s
            return "no primary" in str(refused.value) or "majority" in str(refused.value)

        eventually(says_so, 60)  # one that it interrupts as it steps down has no answer
