"""``mongodb://…/database?collection=…``: a standalone server, a replica set, or a cluster sharded by ``_id``.

Stored shape, one document per name (``mongo_pipelines`` has the rules)::

    {_id: {ns, name}, format, token, shape, limit,
     holders: [{attempt, owner, kind, data, session, weight, ttl, rest, token, acquired, expires, state}],
     queue:   [{attempt, owner, kind, data, session, weight, ttl, rest, expires, state}],
     lapsed: {found_by, holders: who let it expire last}, abandoned: [{attempt, sent, …}], purge}

Durations are milliseconds, times are dates of the server's clock. ``<collection>.calls`` is a small capped collection
of ``{to: session, attempt}``: that is how a waiter learns that it was granted the lease.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from ..errors import StoreNotReady
from ..protocol import (
    BROKEN,
    GONE,
    RENEWED,
    Ask,
    Busy,
    Grant,
    Holding,
    Mismatch,
    Opened,
    Renewal,
    Reply,
    Steps,
    TaskDriver,
    ThreadDriver,
)
from . import mongo_pipelines as pipelines
from .mongo_link import Link, link_from_client, link_from_url
from .mongo_pipelines import FORMAT, INTERRUPTED, RESTING, granted, with_ask

Document = Mapping[str, Any]
Call = tuple[str, str]


RACES = 50
"""How often an upsert may lose against another of the same name, which can happen once or twice, until it is odd."""


# Requests that a MongoDB driver answers.


class Sender(NamedTuple):
    """Answered with the address of whoever asks, where to call it, and a number that rises with every command of it."""


class Change(NamedTuple):
    """Apply a pipeline to the document of a name, which may have to have a certain holder.

    Answered with the document after that, and the server's time as ``now`` in it. None: there is no
    such document, or, with ``upsert``, another command made it at the same time.
    """

    name: str
    stages: Sequence[Document]
    upsert: bool = False
    holder: Mapping[str, Any] | None = None


class ChangeMany(NamedTuple):
    """Apply a pipeline to a document each; answered with the number of documents that have changed."""

    changes: Sequence[Change]


class Find(NamedTuple):
    """Answered with the documents of these names, with ``now``."""

    names: Sequence[str]


class FindPage(NamedTuple):
    """Answered with documents of names that start with ``prefix``, after ``after``, in order, ``most`` of them."""

    prefix: str
    after: str
    most: int


class Ring(NamedTuple):
    """Call attempts of sessions. Never fails: a call is a hint."""

    calls: Sequence[Call]


class Tidy(NamedTuple):
    """See that the TTL index is there. Never fails: a warning at most."""


def open_url(url: str, namespace: str) -> Opened:
    return _open(link_from_url(url, namespace))


def open_client(client: object, namespace: str) -> Opened:
    """The user's own MongoClient, AsyncMongoClient, Database or Collection of either."""
    return _open(link_from_client(client, namespace))


def _open(link: Link) -> Opened:
    def threads() -> ThreadDriver:
        from .mongo_threads import MongoThreads

        return MongoThreads(link.for_threads())

    def tasks() -> TaskDriver:
        from .mongo_tasks import MongoTasks

        return MongoTasks(link.for_tasks())

    return Opened(MongoStore(), threads, tasks)


class MongoStore:
    """See :class:`leasehold.protocol.Store`, which says what each operation means."""

    scheme = "mongodb"
    fair = True

    def acquire(self, ask: Ask) -> Steps[Reply]:
        session, sent = yield Sender()
        document = yield from _upsert(ask.name, with_ask(_ask(ask, session, sent), pipelines.ACQUIRE))
        lapsed = _lapsed(document, ask.attempt)
        calls = [call for call in _calls(document, head=bool(lapsed)) if call[1] != ask.attempt]
        if calls:
            yield Ring(calls)
        for holder in document["holders"]:
            if holder["attempt"] == ask.attempt and holder["state"] != INTERRUPTED:
                taken_from = _holding(ask.name, lapsed[-1], document["now"], len(document["queue"])) if lapsed else None
                return Grant(int(holder["token"]), None, taken_from)
        if (document["shape"], document["limit"]) != (ask.shape, ask.limit):
            return Mismatch(document["shape"], document["limit"])
        return _busy(ask, document)

    def renew(self, batch: Sequence[Renewal]) -> Steps[Sequence[str]]:
        mark = os.urandom(8).hex()
        changes = []
        for each in batch:
            ask = {"attempt": each.attempt, "token": each.token, "ttl": _term(each.ttl), "mark": mark}
            holder = {"attempt": each.attempt, "token": each.token}
            changes.append(Change(each.name, with_ask(ask, pipelines.RENEW), holder=holder))
        if (yield ChangeMany(changes)) == len(batch):
            return [RENEWED] * len(batch)
        documents: Sequence[Document] = yield Find(sorted({each.name for each in batch}))
        held = {
            (document["_id"]["name"], holder["attempt"], holder["token"]): (holder, document["now"])
            for document in documents
            for holder in document["holders"]
        }
        return [_outcome(held.get((each.name, each.attempt, each.token)), mark) for each in batch]

    def release(self, name: str, attempt: str, token: int, hint: Any) -> Steps[bool]:
        ask = {"attempt": attempt, "token": token}
        document = yield Change(name, with_ask(ask, pipelines.RELEASE), holder=ask)
        if document is None:
            return False
        rested = any(holder["state"] == RESTING and holder["token"] == token for holder in document["holders"])
        calls = _calls(document, head=rested)  # the head has to learn the new expiry
        if calls:
            yield Ring(calls)
        return all((one["attempt"], one["token"]) != (attempt, token) for one in _lapsed(document, attempt))

    def abandon(self, name: str, attempt: str) -> Steps[bool]:
        _, sent = yield Sender()
        document = yield from _upsert(name, with_ask({"attempt": attempt, "sent": sent}, pipelines.ABANDON))
        found = bool(document["abandoned"][-1]["found"])
        calls = _calls(document, head=found)
        if calls:
            yield Ring(calls)
        return found

    def interrupt(self, name: str, force: bool) -> Steps[bool]:
        document = yield Change(name, with_ask({}, pipelines.INTERRUPT))
        if document is None:
            return False
        held = [one for one in document["holders"] if one["state"] != RESTING or force]
        calls = [(one["session"], one["attempt"]) for one in held if one["session"]]
        if force and held:
            document = (yield Change(name, with_ask({}, pipelines.EVICT))) or document
        calls += _calls(document, head=True)
        if calls:
            yield Ring(calls)
        return bool(held)

    def scan(self, prefix: str, after: str, count: int) -> Steps[tuple[Sequence[Holding], str | None]]:
        documents: Sequence[Document] = yield FindPage(prefix, after, count)
        found = [holding for document in documents for holding in _holdings(document)]
        return found, documents[-1]["_id"]["name"] if len(documents) == count else None

    def inspect(self, name: str) -> Steps[Sequence[Holding]]:
        documents: Sequence[Document] = yield Find([name])
        return [holding for document in documents for holding in _holdings(document) if holding.expires_in > 0]

    def tidy(self) -> Steps[None]:
        yield Tidy()


def _upsert(name: str, stages: Sequence[Document]) -> Steps[Document]:
    """Change the document of a name, which is made if need be. Of several that make it at once, one does."""
    for _ in range(RACES):
        document: Document | None = yield Change(name, stages, upsert=True)
        if document is not None:
            return document
        for found in (yield Find([name])):
            check_format(found)
    raise StoreNotReady(
        f"the record of {name!r} can be neither changed nor made: the collection has another idea of which names are "
        "the same, such as a collation; let leasehold have a collection of its own"
    )


def _ask(ask: Ask, session: str, sent: int) -> dict[str, Any]:
    permit = {
        "attempt": ask.attempt,
        "owner": ask.owner,
        "kind": ask.kind,
        "data": ask.data,
        "session": session,
        "weight": ask.weight,
        "ttl": _term(ask.ttl),
        "rest": -(-ask.rest // 1000),
    }
    return {
        "attempt": ask.attempt,
        "sent": sent,
        "ttl": permit["ttl"],
        "shape": ask.shape,
        "limit": ask.limit,
        "fair": ask.fair,
        "queue": ask.queue,
        "permit": permit,
    }


def _term(microseconds: int) -> int:
    """A term in ms: rounded up, and one more, because the server's time is cut to the ms and so up to one behind."""
    return -(-microseconds // 1000) + 1


def _calls(document: Document, head: bool = False) -> list[Call]:
    """Whom to wake after a change: who was granted, and then whoever is at the head of the queue."""
    awake = list(granted(document))
    if awake or head:
        awake += document["queue"][:1]
    return [(one["session"], one["attempt"]) for one in awake if one["session"]]


def _lapsed(document: Document, attempt: str) -> Sequence[Document]:
    """The holders that had let it expire when this attempt asked."""
    lapsed = document.get("lapsed")
    return lapsed["holders"] if lapsed is not None and lapsed.get("found_by") == attempt else ()


def _outcome(found: tuple[Document, datetime] | None, mark: str) -> str:
    if found is None or found[0]["expires"] <= found[1]:
        return GONE
    holder = found[0]
    if holder["state"] == INTERRUPTED:
        return BROKEN
    return RENEWED if holder.get("mark") == mark else GONE


def _busy(ask: Ask, document: Document) -> Busy:
    now = document["now"]
    first = min(document["holders"], key=lambda holder: holder["expires"], default=None)
    holder = None if first is None else _holding(ask.name, first, now, len(document["queue"]))
    place = next((at for at, waiter in enumerate(document["queue"]) if waiter["attempt"] == ask.attempt), None)
    return Busy(holder, place, None if holder is None else holder.expires_in)


def _holdings(document: Document) -> Iterator[Holding]:
    check_format(document)
    for holder in document["holders"]:
        yield _holding(document["_id"]["name"], holder, document["now"], len(document["queue"]))


def _holding(name: str, one: Document, now: datetime, waiters: int) -> Holding:
    age, left = (now - one["acquired"]).total_seconds(), (one["expires"] - now).total_seconds()
    return Holding(name, one["attempt"], one["owner"], one["kind"], one["data"], int(one["token"]), age, left, waiters)


def check_format(document: Document) -> None:
    if document.get("format", FORMAT) > FORMAT:
        raise StoreNotReady(
            f"the record of {document['_id']['name']!r} has format {document['format']}, and this leasehold knows "
            f"{FORMAT}: it was written by a newer one; upgrade this one"
        )
