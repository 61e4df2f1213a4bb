"""What an operator runs on a MongoDB store: ``init`` makes everything there is to make, ``doctor`` looks at it.

Neither is needed: a user with the rights to do so makes the same at first use. After ``init`` the rights to find,
insert, update and remove are enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pymongo
from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from ..model import Finding
from . import mongo_link
from .mongo_link import CALLS_SIZE, INDEX, Access, link_from_client, link_from_url, translate
from .mongo_pipelines import FORMAT

LEGACY = ("system_locks", "distributed.locks")
"""Where documents A and E keep their locks by default."""
LIMIT = 30.0
OLDEST = (4, 4)
SKEW = 1.0
"""Seconds by which the clocks of a replica set's members may differ before it is worth a word."""
NEEDED = ("find", "insert", "update", "remove")

_LEGACY = {
    "$or": [
        {"lockName": {"$type": "string"}, "instanceId": {"$exists": True}},  # A
        {"lockId": {"$exists": True}, "expiresAt": {"$exists": True}},  # E
    ]
}
_EXPIRED = {"$and": [_LEGACY, {"expiresAt": {"$type": "date"}}, {"$expr": {"$lte": ["$expiresAt", "$$NOW"]}}]}


def init(
    target: object, *, from_legacy: bool = False, dry_run: bool = False, legacy: Sequence[str] = LEGACY
) -> list[Finding]:
    """Make the collections and the index; with ``from_legacy`` first see off the records of the locks of old.

    Refuses (a finding of level ``error``, and nothing is made) while a lock of old is held: old and new code do not
    exclude each other. Running it again, or on two machines at once, does no harm. ``dry_run`` changes nothing.
    """
    with _open(target) as access:
        found = list(_from_legacy(access, legacy, dry_run)) if from_legacy else []
        if any(each.level == "error" for each in found):
            return found
        return [*found, *_make(access, dry_run)]


def doctor(target: object, *, legacy: Sequence[str] = LEGACY) -> list[Finding]:
    """Look at the store as it is for this user. Changes nothing."""
    with _open(target) as access:
        hello = access.client.admin.command("hello")
        return [
            _version(access),
            *_topology(access, hello),
            *_rights(access),
            *_indexes(access),
            _calls(access),
            *_records(access),
            *_still_old(access, legacy),
        ]


@contextmanager
def _open(target: object) -> Iterator[Access]:
    link = (link_from_url(target, "") if isinstance(target, str) else link_from_client(target, "")).for_threads()
    client: Any = link.client or MongoClient(link.url, appname="leasehold")
    try:
        with pymongo.timeout(LIMIT):
            yield Access(link, client)
    except PyMongoError as error:
        raise translate(error, link.where) from error
    finally:
        if link.client is None:
            client.close()


# init.


def _make(access: Access, dry_run: bool) -> Iterator[Finding]:
    level = "to do" if dry_run else "done"
    names = access.database.list_collection_names()
    where = access.link.where
    clashing = [
        finding for finding in (_indexes(access) if access.leases.name in names else ()) if finding.level == "error"
    ]
    if clashing:
        yield from clashing
        return
    if access.leases.name not in names:
        if not dry_run:
            _unless_exists(lambda: access.database.create_collection(access.leases.name, check_exists=False))
        yield Finding(level, f"{where} made")
    if access.leases.name not in names or INDEX not in access.leases.index_information():
        if not dry_run:
            access.leases.create_index("purge", name=INDEX, expireAfterSeconds=0)
        yield Finding(level, f"TTL index {INDEX} on `purge` made")
    if access.calls.name not in names:
        if not dry_run:
            _unless_exists(
                lambda: access.database.create_collection(
                    access.calls.name, capped=True, size=CALLS_SIZE, check_exists=False
                )
            )
        yield Finding(level, f"capped collection {access.calls.name} made")
    elif not access.calls.options().get("capped"):
        if not dry_run:
            access.database.command("convertToCapped", access.calls.name, size=CALLS_SIZE)
        yield Finding(level, f"collection {access.calls.name} capped")
    if not dry_run and access.calls.find_one({}) is None:
        access.calls.insert_one({"to": ""})  # without a document no cursor can wait at the end
    yield Finding("ok", f"{where} is ready" if not dry_run else f"{where} would be ready")


def _unless_exists(make: Any) -> None:
    try:
        make()
    except OperationFailure as error:
        if error.code != 48:  # another machine was faster
            raise


def _from_legacy(access: Access, legacy: Sequence[str], dry_run: bool) -> Iterator[Finding]:
    names = set(access.database.list_collection_names())
    if access.leases.name in legacy:
        yield Finding(
            "error",
            f"{access.link.where} is where the locks of old are",
            "let leasehold have a collection of its own: leave ?collection= out",
        )
        return
    for name in legacy:
        if name in names:
            yield from _see_off(access.database[name], dry_run)


def _see_off(collection: Any, dry_run: bool) -> Iterator[Finding]:
    """Report duplicates, refuse for what is held, remove what has expired."""
    shown = {"now": "$$NOW", **dict.fromkeys(("lockName", "instanceId", "lockId", "expiresAt"), 1)}
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for record in collection.find(_LEGACY, shown).sort("_id"):
        by_name.setdefault(str(record.get("lockName", record["_id"])), []).append(record)
    expired = 0
    for name, records in by_name.items():
        if len(records) > 1:
            holders = ", ".join(_holder(record) for record in records)
            yield Finding(
                "warning",
                f"{collection.name}: {len(records)} records of {name!r} ({holders}): more than one may have held it",
            )
        for record in records:
            if _is_live(record):
                yield Finding(
                    "error",
                    f"{collection.name}: {name!r} is held by {_holder(record)} until {_until(record)}",
                    "stop all instances of the old code, let them release it or wait until then, and run this again",
                )
            else:
                expired += 1
    if expired and not dry_run:
        expired = collection.delete_many(_EXPIRED).deleted_count
    if expired:
        yield Finding("to do" if dry_run else "done", f"{collection.name}: {expired} expired records removed")


def _is_live(record: Mapping[str, Any]) -> bool:
    """What has no date of expiry is held until somebody says otherwise."""
    expires = record.get("expiresAt")
    return not isinstance(expires, type(record["now"])) or expires > record["now"]


def _holder(record: Mapping[str, Any]) -> str:
    return str(record.get("instanceId", record.get("lockId")))


def _until(record: Mapping[str, Any]) -> str:
    expires = record.get("expiresAt")
    return f"{expires.isoformat()}Z" if isinstance(expires, type(record["now"])) else "somebody removes it"


# doctor.


def _version(access: Access) -> Finding:
    version = access.client.server_info()["version"]
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        return Finding("error", f"MongoDB {version} is too old", "use MongoDB 4.4 or newer")
    return Finding("ok", f"MongoDB {version}")


def _topology(access: Access, hello: Mapping[str, Any]) -> Iterator[Finding]:
    if hello.get("msg") == "isdbgrid":
        yield Finding("ok", "sharded cluster: time is the routers' (mongos), so keep their clocks in step")
    elif "setName" not in hello:
        yield Finding(
            "warning",
            "standalone server: leases are as durable as its disk, and nobody takes over when it is gone",
            "a replica set of three members",
        )
    else:
        yield Finding("ok", f"replica set {hello['setName']} of {len(hello.get('hosts', []))} members")
        if hello.get("arbiters"):
            yield Finding(
                "warning",
                "the replica set has an arbiter: with one member away no majority may be left to acknowledge a lease",
                "replace the arbiter by a member that bears data",
            )
        yield from _clocks(hello)


def _clocks(hello: Mapping[str, Any]) -> Iterator[Finding]:
    """A lease that outlives an election is judged by another member's clock."""
    offsets = []
    for host in hello.get("hosts", []):
        try:
            with MongoClient[Any](f"mongodb://{host}", directConnection=True, serverSelectionTimeoutMS=2000) as client:
                client.admin.command("ping")
                before = _now()
                told = client.admin.command("hello")["localTime"].timestamp()
                offsets.append(told - (before + _now()) / 2)
        except PyMongoError:
            yield Finding("warning", f"the clock of member {host} cannot be read without credentials or TLS options")
    if offsets and max(offsets) - min(offsets) > SKEW:
        yield Finding(
            "warning",
            f"the members' clocks are {max(offsets) - min(offsets):.1f} s apart",
            "run NTP on them, or give locks a `drift` of that many seconds",
        )
    elif len(offsets) > 1:
        yield Finding("ok", f"the members' clocks are within {max(offsets) - min(offsets):.3f} s of each other")


def _now() -> float:
    from datetime import UTC, datetime

    return datetime.now(UTC).replace(tzinfo=None).timestamp()  # as the driver tells dates


def _rights(access: Access) -> Iterator[Finding]:
    told = access.client.admin.command("connectionStatus", showPrivileges=True)["authInfo"]
    if not told["authenticatedUsers"]:
        return
    allowed: set[str] = set()
    for privilege in told["authenticatedUserPrivileges"]:
        resource = privilege["resource"]
        if resource.get("anyResource") or (
            resource.get("db") in ("", access.database.name) and resource.get("collection") in ("", access.leases.name)
        ):
            allowed.update(privilege["actions"])
    missing = [action for action in NEEDED if action not in allowed]
    if missing:
        yield Finding(
            "error",
            f"this user may not {', '.join(missing)} on {access.link.where}",
            "grant find, insert, update and remove on it",
        )
    else:
        yield Finding("ok", "this user has the rights that leases need")


def _indexes(access: Access) -> Iterator[Finding]:
    try:
        indexes = access.leases.index_information()
    except OperationFailure as error:
        if error.code != 13:
            raise
        yield Finding("warning", "this user may not see the indexes", "run doctor as another, or grant listIndexes")
        return
    for name, index in indexes.items():
        if index.get("unique"):
            fields = ", ".join(field for field, _ in index["key"])
            yield Finding("error", f"unique index {name} on {fields} refuses leasehold's records", "drop it")
        if name == "_id_" and index.get("collation"):
            yield Finding(
                "error",
                "the collection has a collation, by which different names are the same",
                "let leasehold have a collection without one",
            )
    if indexes and INDEX not in indexes:
        yield Finding(
            "warning", f"there is no TTL index {INDEX}: records of names no longer used stay", "leasehold init"
        )


def _calls(access: Access) -> Finding:
    mend = "leasehold init, and the rights to find and insert on it"
    try:
        if access.calls.find_one({}, {"_id": 1}) is None:
            return Finding("warning", f"there is no {access.calls.name}: waiters poll until somebody makes it", mend)
        with access.calls.find({}, cursor_type=pymongo.CursorType.TAILABLE) as cursor:
            next(cursor, None)
    except OperationFailure as error:
        if error.code == mongo_link.NOT_CAPPED:
            return Finding("warning", f"{access.calls.name} is not capped: waiters poll", "leasehold init")
        if error.code != 13:
            raise
        return Finding("warning", f"this user may not read {access.calls.name}: waiters poll", mend)
    return Finding("ok", "waiters are called: no polling")


def _records(access: Access) -> Iterator[Finding]:
    if access.leases.find_one({"format": {"$gt": FORMAT}}, {"_id": 1}) is not None:
        yield Finding(
            "error",
            f"there are records of a newer format than this leasehold knows ({FORMAT})",
            "upgrade this leasehold",
        )


def _still_old(access: Access, legacy: Sequence[str]) -> Iterator[Finding]:
    for name in legacy:
        try:
            live = [
                record
                for record in access.database[name].find(_LEGACY, {"now": "$$NOW", "expiresAt": 1})
                if _is_live(record)
            ]
        except OperationFailure:
            continue  # not ours to see
        if live:
            yield Finding(
                "warning",
                f"{name}: {len(live)} locks of old code are held, which do not exclude leasehold's",
                "stop the old code, then leasehold init --from-legacy",
            )
