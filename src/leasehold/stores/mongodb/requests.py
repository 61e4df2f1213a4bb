"""What the MongoDB store asks of its drivers: see :mod:`leasehold.core.protocol`.

An operation first yields its ``Urgency``, and then requests. A request that can be called is a command: the driver
calls it with its :class:`Access`, and waits for what that returns if its client is one for asyncio.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from pymongo import ReturnDocument, UpdateOne
from pymongo.read_concern import ReadConcern

from .access import Access

Document = Mapping[str, Any]
NOTHING: Document = {}
AS_IT_IS = {"locale": "simple"}
"""How to compare text, whatever the collection's default is."""
AFTER: Document = {
    "now": "$$NOW",
    **dict.fromkeys(("format", "token", "shape", "limit", "holders", "lapsed", "abandoned", "call", "note"), 1),
}
"""The document without its queue, which may be long, and the server's time."""
LOOK: Mapping[str, Any] = {
    "projection": {**AFTER, "queue.attempt": 1, "queue.expires": 1},
    "collation": AS_IT_IS,
}


class Urgency(Enum):
    """The first thing that an operation yields: it decides what the operation waits for in its own process."""

    RENEW = "renew"
    """Waits for nothing: leases depend on it."""
    SETTLE = "settle"
    """Releases, claims, and all else. Never behind acquires."""
    ACQUIRE = "acquire"


class Sender(NamedTuple):
    """Answered with the session to be called, and a number that rises with every command of this process."""


class Change(NamedTuple):
    """Apply a pipeline to the document of a name, if ``where`` is true of it too.

    Answered with the document after that, without its queue; in it the server's time as ``now``, and, if asked for one
    ``waiter``, how many ``waiters`` there are and its ``place``. The answer to a command that pymongo has retried is
    the document as it is. None: there is no such document.
    """

    name: str
    stages: Sequence[Document]
    upsert: bool = False
    where: Document = NOTHING
    waiter: str | None = None

    def __call__(self, access: Access) -> Any:
        return access.leases.find_one_and_update(
            access.filter(self.name, self.where),
            self.stages,
            projection=AFTER if self.waiter is None else with_place(self.waiter),
            upsert=self.upsert,
            return_document=ReturnDocument.AFTER,
            collation=AS_IT_IS,
        )


class ChangeMany(NamedTuple):
    """Apply a pipeline to a document each, in one command. Answered with pymongo's result."""

    changes: Sequence[Change]

    def __call__(self, access: Access) -> Any:
        updates = [
            UpdateOne(access.filter(each.name, each.where), each.stages, collation=AS_IT_IS) for each in self.changes
        ]
        return access.leases.bulk_write(updates, ordered=False)


class Find(NamedTuple):
    """Answered with the documents of these names, with ``now``. ``settled``: as no election can undo them."""

    names: Sequence[str]
    settled: bool = False

    def __call__(self, access: Access) -> Any:
        leases = access.leases.with_options(read_concern=ReadConcern("majority")) if self.settled else access.leases
        return leases.find({"_id": {"$in": [access.id(name) for name in self.names]}}, **LOOK).to_list()


class Hello(NamedTuple):
    """Answered with what the primary says of itself; in it its clock, as ``localTime``."""

    def __call__(self, access: Access) -> Any:
        return access.database.command("hello")


class FindPage(NamedTuple):
    """Answered with ``most`` documents that have holders, in order, of names with this prefix that come ``after``."""

    prefix: str
    after: str
    most: int

    def __call__(self, access: Access) -> Any:
        first = {"$gt": access.id(self.after)} if self.after >= self.prefix else {"$gte": access.id(self.prefix)}
        names = {
            "_id": {**first, "$lt": {**access.id(self.prefix), "name": beyond(self.prefix)}},
            "_id.name": {"$type": "string"},
            "$expr": {"$eq": ["$_id", {"ns": "$_id.ns", "name": "$_id.name"}]},  # ours have no more in it
            "holders.0": {"$exists": True},
        }
        return access.leases.find(names, sort={"_id": 1}, limit=self.most, **LOOK).to_list()


class PassOn(NamedTuple):
    """Pass on the call that a change has left in its document. Never fails: a call is a hint."""

    call: str


class Sleep(NamedTuple):
    """Wait so many seconds, or until the driver is closed."""

    seconds: float


def with_place(attempt: str) -> Document:
    """And how many wait, and the place of this one among them; -1 if it has none."""
    place = {"$indexOfArray": ["$queue.attempt", {"$literal": attempt}]}
    return {**AFTER, "waiters": {"$size": "$queue"}, "place": place}


def beyond(prefix: str) -> str | list[Any]:
    """What sorts right behind every name that starts with it."""
    while prefix:
        prefix, last = prefix[:-1], ord(prefix[-1])
        if last < 0x10FFFF:
            return prefix + chr(0xE000 if last == 0xD7FF else last + 1)  # surrogates are no text
    return []  # arrays sort after all text
