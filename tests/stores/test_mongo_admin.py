"""``init``, ``doctor``, and what a user with few rights can do."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pymongo
import pytest

import leasehold
from leasehold.stores.mongo_admin import doctor, init
from leasehold.stores.mongo_link import INDEX
from servers.mongodb import MongoDB, MongoReplicaSet

pytestmark = pytest.mark.server


@pytest.fixture
def database(mongodb_server: Any) -> Iterator[Any]:
    with pymongo.MongoClient[Any](mongodb_server.url) as client:
        database = client[f"t{uuid.uuid4().hex[:12]}"]
        yield database
        client.drop_database(database.name)


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
    assert "lockName" in finding.what
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
    assert [f.what for f in dry if f.level == "warning"] == [
        "system_locks: 2 records of 'x' (host_1, host_2): more than one may have held it"
    ]
    assert [f.what for f in dry if "expired" in f.what] == [
        "system_locks: 3 expired records removed",
        "distributed.locks: 1 expired records removed",
    ]
    assert database["system_locks"].count_documents({}) == 4
    done = init(database, from_legacy=True)
    assert [f.level for f in done if "expired" in f.what] == ["done", "done"]
    assert database["system_locks"].find_one({}, {"_id": 0}) == {"unrelated": True}
    assert database["distributed.locks"].count_documents({}) == 0
    assert levels(init(database, from_legacy=True)) == ["ok"]


def test_a_held_lock_of_old_is_in_the_way(database: Any) -> None:
    database["system_locks"].insert_many([legacy_a("x", 60, "host_9"), legacy_a("y", -60)])
    database["distributed.locks"].insert_one({**legacy_e("z", 60), "expiresAt": "never"})
    found = init(database, from_legacy=True)
    errors = [f for f in found if f.level == "error"]
    assert len(errors) == 2
    assert "'x' is held by host_9 until 20" in errors[0].what
    assert "stop all instances of the old code" in errors[0].mend
    assert "'z'" in errors[1].what
    assert "leasehold" not in database.list_collection_names()  # nothing is made
    assert database["system_locks"].count_documents({"lockName": "x"}) == 1
    assert any("do not exclude" in f.what for f in doctor(database))


def test_the_collection_of_old_is_not_taken(database: Any) -> None:
    (finding,) = init(database["system_locks"], from_legacy=True)
    assert finding.level == "error"
    assert "collection of its own" in finding.mend


# doctor.


def test_doctor_on_a_standalone_server(database: Any) -> None:
    before = doctor(database)
    assert any("waiters poll" in f.what for f in before if f.level == "warning")
    with leasehold.connect(database) as locks, locks.lock("x"):
        pass
    database["leasehold"].drop_indexes()
    assert any("TTL index" in f.what and f.mend == "leasehold init" for f in doctor(database))
    init(database)
    after = doctor(database)
    assert [f.level for f in after if "standalone" not in f.what] == ["ok", "ok"], after
    database["leasehold"].delete_many({})
    database["leasehold"].insert_one({"_id": {"ns": "", "name": "x2"}, "format": 99})
    database["leasehold"].create_index("owner", unique=True)
    wrong = [f for f in doctor(database) if f.level == "error"]
    assert len(wrong) == 2
    assert all(f.mend for f in wrong)


def test_doctor_on_a_replica_set(mongodb_replica_set: Any) -> None:
    init(mongodb_replica_set.url)
    found = doctor(mongodb_replica_set.url)
    assert {f.level for f in found} == {"ok"}, found


# Rights.


class Secured(MongoDB):
    def command(self) -> list[str]:
        return [*super().command(), "--auth"]


class Secure(NamedTuple):
    admin: pymongo.MongoClient[Any]
    url: Callable[[str], str]


@pytest.fixture(scope="module")
def secure() -> Iterator[Secure]:
    """A server with authentication on, and users of several rights; each one's password is ``s3cret-NAME``."""
    with Secured() as server:
        with pymongo.MongoClient[Any](server.url) as first:
            first.admin.command("createUser", "root", pwd="s3cret-root", roles=["root"])
        with pymongo.MongoClient[Any](server.url, username="root", password="s3cret-root", authSource="admin") as admin:
            leases = {"db": "leasehold", "collection": "leasehold"}
            calls = {"db": "leasehold", "collection": "leasehold.calls"}
            least = [{"resource": leases, "actions": ["find", "insert", "update", "remove"]}]
            pushed = [*least, {"resource": calls, "actions": ["find", "insert"]}]
            database = admin["leasehold"]
            for name, privileges in {"least": least, "pushed": pushed}.items():
                database.command("createRole", name, privileges=privileges, roles=[])
                database.command("createUser", name, pwd=f"s3cret-{name}", roles=[name])
            database.command("createUser", "reader", pwd="s3cret-reader", roles=["read"])
            database.command("createUser", "writer", pwd="s3cret-writer", roles=["readWrite"])
            yield Secure(admin, lambda name: f"mongodb://{name}:s3cret-{name}@{server.address}/leasehold")


@pytest.mark.parametrize(("user", "push"), [("least", False), ("pushed", True), ("writer", True)])
def test_few_rights_are_enough_after_init(secure: Secure, user: str, push: bool) -> None:
    init(secure.admin["leasehold"])
    url = secure.url(user)
    with leasehold.connect(url, ttl=1) as ours, leasehold.connect(url, ttl=1) as theirs:
        lease = ours.lock("x", data={"a": 1}).acquire()
        got: list[Any] = []
        thread = threading.Thread(target=lambda: got.append(theirs.lock("x").acquire(timeout=20)))
        thread.start()
        time.sleep(1.5)  # renewed meanwhile
        assert lease.valid
        assert theirs._core.driver._up is push  # type: ignore[attr-defined]
        lease.release()
        thread.join(5)
        assert got[0].token > lease.token
        assert [each.name for each in ours.leases()] == ["x"]
        assert ours.break_lease("x")
        assert got[0].lost.wait(5)
        got[0].release()
    assert not [f for f in doctor(url) if f.level == "error"]
    assert secure.admin["leasehold"]["leasehold.calls"].options()["capped"]


def test_few_rights_and_no_init(secure: Secure) -> None:
    """Leases work; the index is a warning, and waiters poll."""
    secure.admin["leasehold"]["leasehold"].drop()
    secure.admin["leasehold"]["leasehold.calls"].drop()
    with leasehold.connect(secure.url("least")) as locks, locks.lock("x") as lease:
        assert lease.valid
        time.sleep(0.3)
    assert secure.admin["leasehold"].list_collection_names() == ["leasehold"]


def test_wrong_credentials_and_missing_rights_say_how_to_mend_it(
    secure: Secure, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = secure.url("least").replace("s3cret-least", "s3cret-wrong")
    for url, told in [(wrong, "credentials"), (secure.url("reader"), "grant find, insert, update and remove")]:
        with leasehold.connect(url) as locks:
            started = time.monotonic()
            with pytest.raises(leasehold.StoreNotReady, match=told) as caught:
                locks.lock("x").acquire(timeout=20)  # at once, not after the timeout
            assert time.monotonic() - started < 5
            assert "s3cret" not in f"{caught.value!r} {locks!r} {caplog.text}"
    (finding,) = [f for f in doctor(secure.url("reader")) if f.level == "error"]
    assert "may not insert, update, remove" in finding.what
    with pytest.raises(leasehold.StoreNotReady, match="credentials"):
        doctor(wrong)


def test_no_primary_is_unavailable(start_server: Any) -> None:
    replica_set: MongoReplicaSet = start_server(MongoReplicaSet, members=3)
    with leasehold.connect(replica_set.url, ttl=3) as locks:
        with locks.lock("x"):
            pass
        primary = replica_set.leader()
        for member in replica_set.members:
            if member is not primary:
                member.kill()
        time.sleep(3)  # it steps down for want of a majority
        started = time.monotonic()
        with pytest.raises(leasehold.StoreUnavailable, match=r"no primary|majority"):
            locks.lock("x").try_acquire()
        assert time.monotonic() - started < 6
