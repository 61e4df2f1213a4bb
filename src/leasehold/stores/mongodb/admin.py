"""``leasehold init`` and ``leasehold doctor`` for MongoDB.

``init`` is optional: a user with enough rights creates the same on first use. After ``init`` the rights to find,
insert, update and remove are enough.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pymongo
from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from ...core.timing import DEFAULT_TTL, FALLBACK, FIRST_TERM, safety_margin
from ..common.findings import DONE, ERROR, OK, TO_DO, WARNING, Finding
from . import calls as mongo_calls
from .access import Access
from .calls import CALLS_SIZE, NO_CALL
from .errors import EXISTS, FORBIDDEN, NOT_CAPPED, PUSH_REFUSED, SHARD_BY_ID, translate
from .index import INDEX
from .pipelines import FORMAT
from .url import CALLS, target_from_client, target_from_url

LEGACY = ("system_locks", "distributed.locks")
"""Default collections of the lock code that leasehold replaces (documents A and E)."""
OLD = "legacy locks"
LIMIT = 30.0
OLDEST = (4, 4)
SKEW, USUAL_SKEW = safety_margin(FIRST_TERM, None), safety_margin(DEFAULT_TTL, None)
"""Seconds by which the clocks of a replica set's members may differ: the margin of a lease that was granted by push,
until its first renewal, and the margin of other leases with the default ttl."""
SAMPLES = 5
NEEDED = ("find", "insert", "update", "remove")

_LEGACY = {
    "$or": [
        {"lockName": {"$type": "string"}, "instanceId": {"$exists": True}},  # A
        {"lockId": {"$exists": True}, "expiresAt": {"$exists": True}},  # E
    ]
}
_SHOWN = {"now": "$$NOW", **dict.fromkeys(("lockName", "instanceId", "lockId", "expiresAt"), 1)}


def init(
    target: object, *, from_legacy: bool = False, dry_run: bool = False, legacy: Sequence[str] = ()
) -> list[Finding]:
    """Create the collections and the index.

    ``from_legacy``: first remove the expired records of legacy locks, in the collections ``LEGACY`` and ``legacy``.
    ``dry_run``: change nothing; findings have the level TO_DO.
    While a legacy lock is held, or if something else is in the way, nothing is changed and a finding has level ERROR:
    old and new code do not exclude each other. Running init again, or on two machines at once, does no harm.
    Raises StoreNotReady, StoreUnavailable.
    """
    with _open(target) as access:
        names = set(access.database.list_collection_names())
        old = list(dict.fromkeys((*LEGACY, *legacy))) if from_legacy else []
        found = [*_missing(legacy, names), *_old_locks(access, old, names), *_clashing(access, names)]
        if not _refused(found):
            found += _see_off(access, [name for name in old if name in names], dry_run)
        return found if _refused(found) else [*found, *_make(access, names, dry_run)]


def doctor(target: object) -> list[Finding]:
    """Check server, clocks, this user's rights, indexes, push and records. Changes nothing.

    Raises StoreNotReady, StoreUnavailable if the checks cannot be made."""
    with _open(target) as access:
        hello = access.client.admin.command("hello")
        return [
            _version(access),
            *topology(access, hello),
            *_rights(access),
            *_indexes(access),
            _push(access),
            *_records(access),
            *_still_old(access),
        ]


def _refused(findings: Sequence[Finding]) -> bool:
    return any(finding.level == ERROR for finding in findings)


@contextmanager
def _open(target: object) -> Iterator[Access]:
    found = (target_from_url(target, "") if isinstance(target, str) else target_from_client(target, "")).for_threads()
    client: Any = found.client or MongoClient(found.url, appname="leasehold")
    try:
        with pymongo.timeout(LIMIT):
            yield Access(found, client)
    except PyMongoError as error:
        raise translate(error, found.where) from error
    finally:
        if found.client is None:
            client.close()


# init.


def _clashing(access: Access, names: Collection[str]) -> Iterator[Finding]:
    """What makes the collections unfit for leases."""
    if access.leases.name in names:
        found = [*_indexes(access), *(_shard_key(access) if access.sharded else ())]
        yield from (finding for finding in found if finding.level == ERROR)
    foreign = access.calls.name in names and not access.calls.options().get("capped")
    if foreign and access.calls.find_one(NO_CALL, {"_id": 1}) is not None:
        message = f"{access.calls.name} has documents of another program, so leasehold cannot cap it"
        yield Finding(ERROR, "collections", message, "choose another collection with ?collection=")


def _make(access: Access, names: Collection[str], dry_run: bool) -> Iterator[Finding]:
    level = TO_DO if dry_run else DONE
    where = access.target.where
    if access.leases.name not in names:
        if not dry_run:
            _unless_exists(lambda: access.database.create_collection(access.leases.name, check_exists=False))
        yield Finding(level, "collections", f"{where} created")
    if access.leases.name not in names or INDEX not in access.leases.index_information():
        if not dry_run:
            access.leases.create_index("purge", name=INDEX, expireAfterSeconds=0)
        yield Finding(level, "collections", f"TTL index {INDEX} on `purge` created")
    if access.calls.name not in names:
        if not dry_run:
            _unless_exists(
                lambda: access.database.create_collection(
                    access.calls.name, capped=True, size=CALLS_SIZE, check_exists=False
                )
            )
        yield Finding(level, "collections", f"capped collection {access.calls.name} created")
    elif not access.calls.options().get("capped"):
        if not dry_run:
            access.database.command("convertToCapped", access.calls.name, size=CALLS_SIZE)
        yield Finding(level, "collections", f"collection {access.calls.name} capped")
    if not dry_run and access.calls.find_one({}) is None:
        access.calls.insert_one({"to": []})  # a cursor cannot wait at the end of an empty collection
    yield Finding(OK, "collections", f"{where} is ready" if not dry_run else f"{where} would be ready")


def _unless_exists(make: Any) -> None:
    try:
        make()
    except OperationFailure as error:
        if error.code != EXISTS:  # another machine was faster
            raise


def _missing(legacy: Sequence[str], names: Collection[str]) -> Iterator[Finding]:
    for name in legacy:
        if name not in names:
            yield Finding(WARNING, OLD, f"there is no collection {name}")


def _old_locks(access: Access, old: Sequence[str], names: Collection[str]) -> Iterator[Finding]:
    """Names with several records, and locks that are held."""
    if access.leases.name in old:
        message = f"{access.target.where} holds the legacy locks"
        yield Finding(ERROR, OLD, message, "give leasehold a collection of its own: remove ?collection= from the URL")
    for collection in old:
        by_name: dict[str, list[Mapping[str, Any]]] = {}
        if collection in names:
            for record in access.database[collection].find(_LEGACY, _SHOWN).sort("_id"):
                by_name.setdefault(str(record.get("lockName", record["_id"])), []).append(record)
        for name, records in by_name.items():
            if len(records) > 1:
                holders = ", ".join(_holder(record) for record in records)
                message = (
                    f"{collection}: {len(records)} records of {name!r} ({holders}): several may have held it at once"
                )
                yield Finding(WARNING, OLD, message)
            yield from (_held(collection, name, record) for record in records if _is_live(record))


def _held(collection: str, name: str, record: Mapping[str, Any]) -> Finding:
    return Finding(
        ERROR,
        OLD,
        f"{collection}: {name!r} is held by {_holder(record)} until {_until(record)}",
        "stop all instances of the old code, wait until the lock is released or expires, then run init again",
    )


def _see_off(access: Access, old: Sequence[str], dry_run: bool) -> Iterator[Finding]:
    """Remove expired records. A lock that old code acquires meanwhile is kept, and reported as an error."""
    now = access.client.admin.command("hello")["localTime"]  # MongoDB 4.4 has no $$NOW in deletes
    gone = {"$and": [_LEGACY, {"expiresAt": {"$type": "date", "$lte": now}}]}
    for name in old:
        collection = access.database[name]
        expired = collection.count_documents(gone) if dry_run else collection.delete_many(gone).deleted_count
        if expired:
            yield Finding(TO_DO if dry_run else DONE, OLD, f"{name}: {expired} expired records removed")
        for record in collection.find(_LEGACY, _SHOWN):
            if _is_live(record):
                yield _held(name, str(record.get("lockName", record["_id"])), record)


def _is_live(record: Mapping[str, Any]) -> bool:
    """Whether the lock is held. Without a date of expiry it is, until its record is removed."""
    expires = record.get("expiresAt")
    return not isinstance(expires, type(record["now"])) or expires > record["now"]


def _holder(record: Mapping[str, Any]) -> str:
    return str(record.get("instanceId", record.get("lockId")))


def _until(record: Mapping[str, Any]) -> str:
    expires = record.get("expiresAt")
    return f"{expires.isoformat()}Z" if isinstance(expires, type(record["now"])) else "its record is removed"


# doctor.


def _version(access: Access) -> Finding:
    version = access.client.server_info()["version"]
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        return Finding(ERROR, "version", f"MongoDB {version} is too old", "use MongoDB 4.4 or newer")
    return Finding(OK, "version", f"MongoDB {version}")


def topology(access: Access, hello: Mapping[str, Any]) -> Iterator[Finding]:
    if hello.get("msg") == "isdbgrid":
        yield Finding(
            OK, "deployment", "sharded cluster: leases use the clocks of the mongos routers, so synchronise them"
        )
        yield from _shard_key(access)
    elif "setName" not in hello:
        yield Finding(
            WARNING,
            "deployment",
            "standalone server: leases are as durable as its disk, and there is no failover",
            "use a replica set of three members",
        )
    else:
        yield Finding(OK, "deployment", f"replica set {hello['setName']} of {len(hello.get('hosts', []))} members")
        if hello.get("arbiters"):
            yield Finding(
                WARNING,
                "deployment",
                "the replica set has an arbiter: with one member down, no majority may be left to acknowledge a lease",
                "replace the arbiter with a data-bearing member",
            )
        yield from _clocks(hello)


def _shard_key(access: Access) -> Iterator[Finding]:
    """Check that `_id` is the shard key. With another key, two shards could each have a lease of one name."""
    this = {"_id": access.leases.full_name, "dropped": {"$ne": True}}
    try:
        found = access.client["config"]["collections"].find_one(this, {"key": 1})
    except OperationFailure as error:
        if error.code != FORBIDDEN:
            raise
        message = "this user may not read the shard key of the leases"
        yield Finding(WARNING, "deployment", message, "run doctor as an administrator, or check that the key is `_id`")
        return
    if found is not None and list(found["key"]) != ["_id"]:
        key = ", ".join(found["key"])
        yield Finding(ERROR, "deployment", f"{access.target.where} is sharded by {key}, not by `_id`", SHARD_BY_ID)


def _clocks(hello: Mapping[str, Any]) -> Iterator[Finding]:
    """Compare the members' clocks: after an election, another member's clock decides about the same lease."""
    offsets = []
    for host in hello.get("hosts", []):
        try:
            with MongoClient[Any](f"mongodb://{host}", directConnection=True, serverSelectionTimeoutMS=2000) as client:
                client.admin.command("ping")
                offsets.append(min(_offset(client) for _ in range(SAMPLES))[1])
        except PyMongoError:
            yield Finding(
                WARNING, "clock", f"the clock of member {host} cannot be read without credentials or TLS options"
            )
    if len(offsets) > 1:
        yield apart(max(offsets) - min(offsets))


def apart(seconds: float) -> Finding:
    """The finding for members whose clocks are this far apart."""
    if seconds <= SKEW:
        return Finding(OK, "clock", f"the members' clocks are within {seconds:.3f} s of each other")
    which = f"lease that was granted by push ({SKEW:g} s)"
    if seconds > USUAL_SKEW:
        which += f", and of any lease with a ttl of {DEFAULT_TTL:g} s ({USUAL_SKEW:g} s)"
    return Finding(
        WARNING,
        "clock",
        f"the members' clocks are {seconds:.2f} s apart: more than the margin of a {which}. After an election two "
        "holders may have the lease for an instant",
        f"synchronise the clocks (NTP), or give locks a `drift` of {math.ceil(seconds * 50) / 100:.2f} or more",
    )


def _offset(client: Any) -> tuple[float, float]:
    """The duration of a request for a member's time, and the difference between its clock and this machine's."""
    before = _now()
    told = client.admin.command("hello")["localTime"].timestamp()
    after = _now()
    return after - before, told - (before + after) / 2


def _now() -> float:
    from datetime import UTC, datetime

    return datetime.now(UTC).replace(tzinfo=None).timestamp()  # the driver returns dates without a time zone


def _rights(access: Access) -> Iterator[Finding]:
    missing = _missing_rights(access, access.leases.name, NEEDED)
    if missing is None:
        return
    if missing:
        yield Finding(
            ERROR,
            "privileges",
            f"this user may not {', '.join(missing)} on {access.target.where}",
            "grant find, insert, update and remove on it",
        )
    else:
        yield Finding(OK, "privileges", "this user has the rights that leases need")


def _missing_rights(access: Access, collection: str, needed: Sequence[str]) -> list[str] | None:
    """The rights on a collection that this user lacks. None: no user has logged in, so every client has all rights."""
    told = access.client.admin.command("connectionStatus", showPrivileges=True)["authInfo"]
    if not told["authenticatedUsers"]:
        return None
    allowed: set[str] = set()
    for privilege in told["authenticatedUserPrivileges"]:
        resource = privilege["resource"]
        if resource.get("anyResource") or (
            resource.get("db") in ("", access.database.name) and resource.get("collection") in ("", collection)
        ):
            allowed.update(privilege["actions"])
    return [action for action in needed if action not in allowed]


def _indexes(access: Access) -> Iterator[Finding]:
    try:
        indexes = access.leases.index_information()
    except OperationFailure as error:
        if error.code != FORBIDDEN:
            raise
        message = "this user may not see the indexes"
        yield Finding(WARNING, "indexes", message, "run doctor as an administrator, or grant listIndexes")
        return
    for name, index in indexes.items():
        if index.get("unique"):
            fields = ", ".join(field for field, _ in index["key"])
            yield Finding(
                ERROR, "indexes", f"unique index {name} on {fields} refuses leasehold's records", "drop the index"
            )
        if name == "_id_" and index.get("collation"):
            yield Finding(
                ERROR,
                "indexes",
                "the collection has a collation, which makes different names equal",
                "give leasehold a collection without a collation",
            )
    if indexes and INDEX not in indexes:
        message = f"there is no TTL index {INDEX}: records of unused names are never removed"
        yield Finding(WARNING, "indexes", message, "run `leasehold init`")


def _push(access: Access) -> Finding:
    advice = f"run `leasehold init` and grant find and insert on {access.calls.name}; or, on a replica set, grant "
    advice += "changeStream on the leases"
    why = []
    for way in mongo_calls.ways(access):
        try:
            with mongo_calls.open_cursor(access, way, "doctor") as cursor:
                if cursor.alive and way == CALLS and _missing_rights(access, access.calls.name, ["insert"]):
                    message = f"this user receives wake-ups, but may not insert into {access.calls.name}: after its "
                    message += f"releases waiters notice up to {FALLBACK:g} s later"
                    return Finding(WARNING, "push", message, f"grant insert on {access.calls.name}")
                if cursor.alive:
                    return Finding(OK, "push", f"a release wakes its waiter by push ({way})")
            why.append(f"{access.calls.name} does not exist, or is empty")
        except OperationFailure as error:
            if error.code == NOT_CAPPED:
                why.append(f"{access.calls.name} is not capped")
            elif error.code == FORBIDDEN:
                why.append(f"this user may not listen by {way}")
            elif error.code not in PUSH_REFUSED:
                raise
    return Finding(WARNING, "push", f"waiters poll: {', '.join(why) or 'push=none'}", advice)


def _records(access: Access) -> Iterator[Finding]:
    if access.leases.find_one({"format": {"$gt": FORMAT}}, {"_id": 1}) is not None:
        yield Finding(
            ERROR,
            "records",
            f"some records were written by a newer leasehold (this version knows format {FORMAT})",
            "upgrade leasehold",
        )


def _still_old(access: Access) -> Iterator[Finding]:
    for name in LEGACY:
        try:
            live = [
                record
                for record in access.database[name].find(_LEGACY, {"now": "$$NOW", "expiresAt": 1})
                if _is_live(record)
            ]
        except OperationFailure:
            continue  # this user may not read it
        if live:
            yield Finding(
                WARNING,
                OLD,
                f"{name}: old code holds {len(live)} locks, which do not exclude leasehold's",
                "stop the old code, then run `leasehold init --from-legacy`",
            )
