"""What pymongo's errors mean for leases: unavailable (outcome unknown, worth another try), or not ready."""

from __future__ import annotations

from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    DuplicateKeyError,
    InvalidURI,
    OperationFailure,
    PyMongoError,
    WriteConcernError,
)

from ...errors import StoreError, StoreNotReady, StoreUnavailable
from ..common.causes import cut_chain

FORBIDDEN, EXISTS, NOT_CAPPED = 13, 48, 2
"""Codes of the server: not allowed; the collection exists; a tailable cursor on a collection that is not capped."""
ACCESS_REFUSED = (13, 18)
"""Not allowed, wrong credentials: says nothing about a record."""
PUSH_REFUSED = {13, 18, 59, 72, 115, 166, 303, 323, 8000, 40324, 40573}
"""Not allowed, or unknown to this server: another try is of no use."""
SHARD_BY_ID = 'give leasehold a collection of its own, sharded by {_id: "hashed"} or not sharded'
_CREDENTIALS = "authentication failed ({}): check user, password and authSource"
_RIGHTS = (
    "this user lacks a privilege ({}): grant find, insert, update and remove on the collection, or the role readWrite "
    "on the database"
)
_CONCERN = "the server cannot satisfy write concern majority ({})"
_NAME = "the server rejects this name ({}): choose another"
_STABLE_API = (
    "this client is strict about the stable API, which lacks a command ({}): run `init` and `doctor` with a client "
    "that is not strict"
)
_TOO_OLD = "the server lacks a feature that leasehold needs ({}): use MongoDB 4.4 or newer"
_NOT_READY = {
    **dict.fromkeys((18, 8000), _CREDENTIALS),
    **dict.fromkeys((FORBIDDEN, 33), _RIGHTS),
    **dict.fromkeys((79, 100), _CONCERN),
    **dict.fromkeys((73, 13297), _NAME),
    **dict.fromkeys((9, 59, 72, 168, 16436, 40323, 40324, 40352), _TOO_OLD),
    61: f"the collection is not sharded by `_id`: {SHARD_BY_ID}",
    121: "a validator refuses leasehold's records: give leasehold a collection of its own",
    166: "this is a view: name a collection (?collection=…)",
    323: _STABLE_API,
}
"""What to do about a code of the server. Every other code is unavailable."""


def translate(error: Exception, where: str) -> StoreError:
    """The driver's error in our terms."""
    gist = _gist(error)
    cut_chain(error)
    match error:
        case DuplicateKeyError():
            fields = ", ".join((error.details or {}).get("keyPattern") or {}) or "other fields"
            return StoreNotReady(
                f"{where}: a unique index on {fields} refuses leasehold's records: drop it, or give leasehold a "
                "collection of its own (?collection=…)"
            )
        case ConnectionFailure():
            hint = "no primary can be reached" if "rimary" in str(error) else "no answer"
            return StoreUnavailable(f"{where}: {hint} ({gist})")
        case OperationFailure():
            meaning = _NOT_READY.get(_code(error) or 0)
            if meaning is not None:
                return StoreNotReady(f"{where}: " + meaning.replace("{}", gist))
            if isinstance(error, (BulkWriteError, WriteConcernError)):
                return StoreUnavailable(f"{where}: not acknowledged by a majority in time ({gist})")
        case ConfigurationError() | InvalidURI():
            return StoreNotReady(f"{where}: the driver rejects this URL or client ({type(error).__name__})")
        case RuntimeError():  # pymongo and asyncio say it so
            return StoreNotReady(
                f"{where}: this AsyncMongoClient belongs to another event loop: create a client and a Locks in this "
                "loop"
            )
    return StoreUnavailable(f"{where}: {gist}")


def is_race(error: DuplicateKeyError) -> bool:
    """Whether another upsert of the same name was faster: the duplicate is in ``_id``, not in another unique index."""
    pattern = (error.details or {}).get("keyPattern")
    return pattern is None or list(pattern) == ["_id"]


def refuses_push(error: PyMongoError) -> bool:
    return isinstance(error, OperationFailure) and not error.timeout and error.code in PUSH_REFUSED


def changed_of_some(error: BulkWriteError, sent: int) -> int:
    """How many documents have changed though others could not: one bad record does not fail the batch.

    Raises the error if it may be about all of them."""
    failed_of_some(error, sent)
    return int((error.details or {}).get("nModified", 0))


def failed_of_some(error: BulkWriteError, sent: int) -> list[int]:
    """Which of the changes failed, by number. Raises the error if it may be about all of them."""
    details = error.details or {}
    failed = details.get("writeErrors", ())
    if details.get("writeConcernErrors") or len(failed) >= sent:
        raise error
    return [each["index"] for each in failed]


def _code(error: OperationFailure) -> int | None:
    """Of several commands that were sent together, the code of the first that was refused."""
    details = error.details or {}
    for each in (*details.get("writeErrors", ()), *details.get("writeConcernErrors", ())):
        code: int | None = each.get("code")
        return code
    return error.code


def _gist(error: Exception) -> str:
    """The driver's message without the dump of the topology, and of what was sent."""
    text = str(error).partition(", full error:")[0].partition(", Timeout:")[0].partition(" (configured timeouts")[0]
    return text if len(text) <= 300 else text[:300] + "…"
