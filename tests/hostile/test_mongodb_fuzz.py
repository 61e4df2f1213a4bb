"""Records that anybody could write into MongoDB: a StoreError about that name alone, and the rest goes on."""

from __future__ import annotations

import datetime
import secrets
import uuid
from collections.abc import Iterator
from typing import Any

import bson
import pymongo
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import leasehold

pytestmark = [pytest.mark.server, pytest.mark.timeout(240)]

NOW = datetime.datetime.now(datetime.UTC)
ODD: list[Any] = [
    *(None, True, "", "x", "2", -1, 0, 1, 2, 2**31, 2**53, 2**63 - 1, -(2**63), 0.5, 1.0, 1e300),
    *(float("nan"), float("inf"), b"\xff\xfe", [], [[]], [None], [1], {}, {"a": 1}, {"0": {}}),
    *(NOW, datetime.datetime(9999, 12, 31), datetime.datetime(1, 1, 1), bson.DatetimeMS(2**60)),
    *(bson.ObjectId(), bson.MinKey(), bson.MaxKey(), bson.Timestamp(2**31, 1), bson.Regex("("), bson.Code("x", {})),
    *(bson.Decimal128("NaN"), bson.Decimal128("9e99"), bson.Binary(uuid.uuid4().bytes, 4), bson.DBRef("x", 1)),
]
odd = st.sampled_from(ODD)
soon = NOW + datetime.timedelta(hours=1)
PERMIT: dict[str, Any] = {
    **{"attempt": "a" * 32, "owner": "other", "kind": "lock", "data": None, "session": "f" * 16, "weight": 1},
    **{"ttl": 3_600_000, "rest": 0, "token": 7, "acquired": NOW, "expires": soon, "state": "held"},
}
RECORD: dict[str, Any] = {
    **{
        "format": 1,
        "token": 7,
        "shape": "lock",
        "limit": 1,
        "holders": [PERMIT],
        "queue": [{**PERMIT, "state": "waiting"}],
    },
    **{
        "lapsed": {"found_by": 1, "holders": [PERMIT]},
        "abandoned": [{"attempt": "b", "sent": 1, "found": True, "expires": soon}],
    },
    **{"note": "text", "purge": soon, "call": f"1 {'f' * 16}/{'a' * 32}/7"},
}
MISSING = object()
GONE = st.just(MISSING)


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    """A record of ours in which some fields are missing or of another type, at the top or in a permit."""
    record = {**RECORD, **draw(st.dictionaries(st.sampled_from(sorted(RECORD)), odd | GONE, max_size=3))}
    for field in ("holders", "queue"):
        if draw(st.booleans()):
            permit = {**PERMIT, **draw(st.dictionaries(st.sampled_from(sorted(PERMIT)), odd | GONE, max_size=2))}
            record[field] = [_there(permit)]
    return _there(record)


def _there(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not MISSING}


class Scene:
    def __init__(self, url: str) -> None:
        self.space = secrets.token_hex(6)
        self.client: Any = pymongo.MongoClient(url, datetime_conversion="DATETIME_AUTO")
        self.leases = self.client.get_default_database()["leasehold"]
        self.locks = leasehold.connect(url, namespace=self.space, ttl=30)
        self.good = self.locks.lock("good").acquire(timeout=30)

    def write(self, name: object, record: dict[str, Any]) -> None:
        key = {"ns": self.space, "name": name} if isinstance(name, str) else name
        self.leases.replace_one({"_id": key}, record, upsert=True)

    def close(self) -> None:
        self.good.release()
        self.leases.delete_many({"_id.ns": self.space})  # else closing retries what the bad ones refuse
        self.locks.close()
        self.client.close()


@pytest.fixture(scope="module")
def scene(mongodb_server: Any) -> Iterator[Scene]:
    scene = Scene(mongodb_server.url)
    yield scene
    scene.close()


def tried(*operations: Any) -> None:
    """Each works, or raises a StoreError. A ValueError: the name is in use in another way. LeaseLost of the
    damaged lease: its keeper has found out first."""
    for operation in operations:
        try:
            operation()
        except (leasehold.StoreError, leasehold.AcquireTimeout):
            pass
        except leasehold.LeaseLost as error:
            if error.name != "ours":
                raise
        except ValueError as error:
            if "is in use as" not in str(error):
                raise


@settings(max_examples=150, deadline=None)
@given(record=records())
def test_any_record_makes_nothing_but_a_store_error_about_its_name(scene: Scene, record: dict[str, Any]) -> None:
    locks = scene.locks
    lock = locks.lock("bad")
    before = record.get("token")

    def take() -> None:
        lease = lock.try_acquire()
        if lease is not None:
            rose = not isinstance(before, int) or isinstance(before, bool) or lease.token > before
            assert rose, f"SAFETY: token {lease.token} after {before}"
            lease.release()

    for operation in (take, lambda: locks.inspect("bad"), lambda: locks.break_lease("bad", force=True)):
        scene.write("bad", record)
        tried(operation)
    scene.write("bad", record)
    tried(lambda: locks.waiters("bad") if hasattr(locks, "waiters") else None)
    assert "good" in [info.name for info in locks.leases()]
    scene.good.renew()


@settings(max_examples=60, deadline=None)
@given(record=records())
def test_a_record_that_is_damaged_while_held_costs_no_other_lease(scene: Scene, record: dict[str, Any]) -> None:
    """Both are renewed in one batch."""
    scene.leases.delete_one({"_id": {"ns": scene.space, "name": "ours"}})
    lease = scene.locks.lock("ours").acquire(timeout=30)
    good = scene.locks.lock("good too", renew=False).acquire(timeout=30)
    found = scene.leases.find_one({"_id": {"ns": scene.space, "name": "ours"}})
    scene.write("ours", {**found, **{key: record[key] for key in record if key not in ("holders", "token")}})
    tried(lease.renew, lease.release)
    good.renew()
    assert good.release()
    assert scene.good.valid


@settings(max_examples=40, deadline=None)
@given(
    name=odd | st.builds(lambda more: {"name": "good", "x": more}, odd),
    record=records(),
)
def test_ids_of_another_form_do_not_end_a_listing(scene: Scene, name: Any, record: dict[str, Any]) -> None:
    key = {"ns": scene.space, **(name if isinstance(name, dict) and "x" in name else {"name": name})}
    scene.write(key, record) if not isinstance(name, str) else None
    try:
        names = [info.name for info in scene.locks.leases()]
        assert names.count("good") == 1
    finally:
        scene.leases.delete_many({"_id": key})


@pytest.mark.parametrize("form", [2, 99, 2.0, 2**40])
def test_a_newer_format_is_refused_for_its_name_alone(scene: Scene, form: Any) -> None:
    scene.write("newer", {**RECORD, "format": form})
    with pytest.raises(leasehold.StoreNotReady, match=r"'newer'.*upgrade"):
        scene.locks.lock("newer").try_acquire()
    assert "good" in [info.name for info in scene.locks.leases()]


@pytest.mark.parametrize(
    "call", ["9" * 5000 + " {}", "1 {}/" + "9" * 5000, "1 //", " ", "²", "1 {}/x/1 {}/y/", 5, None]
)
def test_a_forged_call_ends_no_listener(mongodb_server: Any, call: Any) -> None:
    """A waiter is notified by push afterwards: without it, the waiter would poll every few seconds."""
    space = secrets.token_hex(6)
    with leasehold.connect(mongodb_server.url, namespace=space, ttl=30) as locks:
        held = locks.lock("x").acquire(timeout=30)
        with pytest.raises(leasehold.AcquireTimeout):
            locks.lock("x").acquire(timeout=0.3)  # the listener is there
        client: Any = pymongo.MongoClient(mongodb_server.url)
        with client:
            calls = client.get_default_database()["leasehold.calls"]
            told = {to for one in calls.find({"to": {"$exists": True}}) for to in one["to"] if isinstance(to, str)}
            calls.insert_many([{"to": [to], "call": call} for to in told] or [{"to": [""], "call": call}])
        held.release()
        assert locks.lock("x").acquire(timeout=30).release()
