"""Calls: how whoever changes a document notifies the waiters that the change concerns.

The change leaves in the document whom it calls (``call``: see :func:`.pipelines.finish`). A waiter can receive it in
two ways, and each serves users that the other cannot:

* a **change stream** of the leases: the change itself is the notification, once a majority has it. Needs a replica set.
  It is the only way for a client that is strict about the stable API, and for a user who may not create or write the
  collection of calls.
* a **tailable cursor** on the small capped collection ``<collection>.calls``, into which whoever made the change
  inserts the call once the change was acknowledged. It is the only way on a standalone server, and the better one on a
  sharded cluster, where a change stream waits for the clocks of all shards, which idle ones tell every ten seconds.

A session that listens to the stream says so by its first letter, so that nobody inserts calls for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pymongo
from pymongo.errors import DuplicateKeyError, OperationFailure

from ...core.protocol import Busy, Grant, Steps
from ...core.timing import FIRST_TERM
from .access import Access
from .errors import EXISTS, FORBIDDEN
from .url import AUTO, CALLS, NONE, STREAM

MARK = "s"
"""Before the session of whoever listens to the stream; the rest is hexadecimal."""
CALLS_SIZE = 1 << 20
AWAIT = 30.0
"""How long one request for calls waits on the server: as long as a dropped collection of calls goes unnoticed. With a
check for all waiters every 5 s this makes 0.23 commands a second."""
SILENCE = 5.0
"""How much longer than that an answer may take before the connection counts as dead."""
NO_CALL = {"to": {"$not": {"$type": "array"}}}
"""Documents in a collection of calls that leasehold has not put there."""
CAPPED_BY = "capped by"
"""The ``_id`` of the document of the process that caps the collection. It is copied into the capped one."""
_AT = re.compile("[0-9]{1,15}")
_CALLED = re.compile("([^/]*)/([^/]*)/([0-9]{0,19})")


def callees(call: object) -> Iterator[tuple[str, str, Grant | Busy | None]]:
    """Session and attempt of each waiter that a call names, and its lease if it was granted one.

    A waiter that is next after a granted one learns that the granted one has a first term. Text that is no call names
    nobody."""
    at, *each = call.split(" ") if isinstance(call, str) else [""]
    called = [found.groups() for one in each if (found := _CALLED.fullmatch(one))] if _AT.fullmatch(at) else []
    granted = any(token for _, _, token in called)
    for session, attempt, token in called:
        now = int(at) * 1000
        if token:
            yield session, attempt, Grant(int(token), at=now)
        else:
            yield session, attempt, Busy(None, 0, FIRST_TERM, now=now) if granted else None


def ways(access: Access) -> Sequence[str]:
    """Ways to receive calls, best first."""
    match access.target.push:
        case str(push) if push == AUTO:
            return (CALLS, STREAM) if access.sharded else (STREAM, CALLS)
        case str(push) if push == NONE:
            return ()
        case chosen:
            return (chosen,)


def open_cursor(access: Access, way: str, session: str) -> Any:
    if way == CALLS:
        command = {"find": access.calls.name, "filter": {"to": session}, "tailable": True, "awaitData": True}
    else:
        # A document that has changed much is replaced in the log. The call in it may be an old one: no harm.
        changed, replaced = "updateDescription.updatedFields.call", "fullDocument.call"
        mine = {"$or": [{changed: {"$regex": session}}, {replaced: {"$regex": session}}]}
        call = {"call": {"$ifNull": [f"${changed}", f"${replaced}"]}}
        pipeline = [{"$changeStream": {}}, {"$match": mine}, {"$project": call}]
        command = {"aggregate": access.leases.name, "pipeline": pipeline, "cursor": {}}
    return access.database.cursor_command(command, max_await_time_ms=int(AWAIT * 1000))


# The collection of calls. What these generators yield is called with an ``Access``.


def any_call(access: Access) -> Any:
    return access.calls.find_one({}, {"_id": 1})


def make_calls() -> Steps[bool]:
    """Make the capped collection if it is not there. False: this user may not.

    It must have a document before a cursor is opened. A cursor that is opened while the first document is inserted can
    find none and yet be kept by the server; it would never hear a call."""
    with pymongo.timeout(SILENCE):
        if (yield any_call) is not None:
            return True
        try:
            yield lambda access: access.database.create_collection(
                access.calls.name, capped=True, size=CALLS_SIZE, check_exists=False
            )
        except OperationFailure as error:
            if error.code == FORBIDDEN:
                return (yield any_call) is not None  # an insert would make it, uncapped
            if error.code != EXISTS:
                raise
        yield lambda access: access.calls.insert_one({"to": []})
        return True


def cap_calls(anyway: bool) -> Steps[bool]:
    """Cap the collection, which an insert has made anew after somebody had dropped it. False: it is another program's.

    One process does it, unless ``anyway`` because that one may have died: each that did would make the collection anew,
    and a server does not notify those that listen to the previous one before their requests are over."""
    with pymongo.timeout(SILENCE):
        if (yield lambda access: access.calls.find_one(NO_CALL, {"_id": 1})) is not None:
            return False
        try:
            yield lambda access: access.calls.insert_one({"_id": CAPPED_BY, "to": []})
        except DuplicateKeyError:
            if not anyway:
                return True
        yield lambda access: access.database.command("convertToCapped", access.calls.name, size=CALLS_SIZE)
        return True
