"""The store logic of MongoDB: what is asked for each operation, and how the answer is read.

The package's own text says what is stored; :mod:`.pipelines` has the rules.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure

from ...core import clock
from ...core.protocol import (
    RENEWED,
    Ask,
    Busy,
    Grant,
    Holding,
    Mismatch,
    Missing,
    Renewal,
    Reply,
    Steps,
    Store,
)
from ...errors import StoreNotReady, StoreUnavailable
from . import pipelines, records
from .errors import ACCESS_REFUSED, changed_of_some, failed_of_some, is_race
from .index import see_to_index
from .pipelines import INTERRUPTED, RESTING, with_ask
from .requests import Change, ChangeMany, Document, Find, FindPage, Hello, PassOn, Sender, Urgency
from .waiters import WaitingAttempt, WaitingAttempts

RACES = 50
"""How often an upsert may lose against another of the same name, which can happen once or twice, until it is odd."""


class MongoStore(Store):
    """See :class:`leasehold.core.protocol.Store`, which says what each operation means."""

    scheme = "mongodb"
    fair = True
    lacks: Mapping[str, str] = {}
    keeps_places = True

    def __init__(self) -> None:
        self.waiters: WaitingAttempts = {}
        self._unanswered: set[str] = set()  # attempts of which a command may yet arrive, until they end

    def acquire(self, ask: Ask) -> Steps[Reply]:
        waiter = self.waiters.get(ask.attempt)
        # An attempt that was called may have been granted the lease, for a short first term.
        yield Urgency.SETTLE if waiter is not None and waiter.called else Urgency.ACQUIRE
        if ask.heir is not None:
            return (yield from self._until_answered(ask.attempt, self._inherit(ask, ask.heir)))
        sent = clock.now()
        reply = yield from self._until_answered(ask.attempt, self._ask(ask))
        if isinstance(reply, Busy) and reply.place is not None:
            self.waiters[ask.attempt] = WaitingAttempt(alone=ask.limit == 1, asked=sent)
        else:
            self.waiters.pop(ask.attempt, None)
        return reply

    def _until_answered(self, attempt: str, steps: Steps[Reply]) -> Steps[Reply]:
        # That a later command was answered says nothing of an earlier one, which may be stuck on another connection.
        stuck = attempt in self._unanswered
        self._unanswered.add(attempt)
        try:
            reply = yield from steps
        except (OperationFailure, StoreNotReady):  # an answer too
            if not stuck:
                self._unanswered.discard(attempt)
            raise
        if not stuck:
            self._unanswered.discard(attempt)
        return reply

    def _ask(self, ask: Ask) -> Steps[Reply]:
        session, sent = yield Sender()
        stages = with_ask(arguments(ask, session, sent), pipelines.ACQUIRE)
        document = yield from _upsert(ask.name, stages, waiter=ask.attempt)
        gone = records.taken_from(document, ask.attempt, sent)
        yield from _call(document)
        for holder in document["holders"]:
            if holder["attempt"] == ask.attempt and holder["state"] != INTERRUPTED:
                taken_from = None if gone is None else records.holding(ask.name, gone, document)
                return Grant(int(holder["token"]), None, taken_from)
        if (document["shape"], document["limit"]) != (ask.shape, ask.limit):
            return Mismatch(document["shape"], document["limit"])
        return records.busy(ask.name, document)

    def keep_waiting(self, batch: Sequence[Ask]) -> Steps[Sequence[Busy | None]]:
        yield Urgency.SETTLE
        sent = clock.now()
        attempts: dict[str, list[str]] = {}
        for ask in batch:
            attempts.setdefault(ask.name, []).append(ask.attempt)
        documents = dict(records.checked((yield Find(sorted(attempts)))))
        # One change per name: each writes the whole queue.
        stale = [
            _keep_places(name, attempts[name]) for name, document in documents.items() if records.is_stale(document)
        ]
        if stale:
            try:
                yield ChangeMany(stale)
            except BulkWriteError as error:
                for number in failed_of_some(error, len(stale)):
                    del documents[stale[number].name]  # its waiters have to acquire: their places were not refreshed
        answers: dict[tuple[str, str], Busy | None] = {}
        for name, waiting in attempts.items():
            for attempt, busy in records.standings(name, waiting, documents.get(name)):
                answers[name, attempt] = busy
                if busy is not None and (waiter := self.waiters.get(attempt)) is not None:
                    waiter.asked = sent
        return [answers[ask.name, ask.attempt] for ask in batch]

    def _inherit(self, ask: Ask, heir: tuple[str, int]) -> Steps[Reply]:
        session, sent = yield Sender()
        inherited = {**arguments(ask, session, sent), "heir": {"attempt": heir[0], "token": heir[1]}}
        document = yield from _change(Change(ask.name, with_ask(inherited, pipelines.INHERIT)))
        if document is None:
            return Missing()
        yield from _call(document)
        mine = next((one for one in document["holders"] if one["attempt"] == ask.attempt), None)
        return Missing() if mine is None or mine["state"] == INTERRUPTED else Grant(int(mine["token"]))

    def renew(self, batch: Sequence[Renewal]) -> Steps[Sequence[str | StoreUnavailable]]:
        yield Urgency.RENEW
        mark = os.urandom(8).hex()
        changes = []
        for each in batch:
            ask = {"attempt": each.attempt, "token": each.token, "ttl": _term(each.ttl), "mark": mark}
            holder = {"attempt": each.attempt, "token": each.token}
            changes.append(Change(each.name, with_ask(ask, pipelines.RENEW), where=held_by(holder)))
        if (yield from _change_many(changes)) == len(batch):
            return [RENEWED] * len(batch)
        documents: Sequence[Document] = yield Find(sorted({each.name for each in batch}))
        held: dict[tuple[str, str, int], tuple[Document, Any]] = {}
        unread: dict[str, StoreUnavailable] = {}
        for document in documents:
            name = document["_id"]["name"]
            try:
                holders = records.check(name, document)["holders"]
            except StoreNotReady as error:
                if records.is_newer(document):
                    continue  # a newer leasehold has it: ours no longer, the others are
                unread[name] = StoreUnavailable(str(error))
            else:
                held.update({(name, one["attempt"], one["token"]): (one, document["now"]) for one in holders})
        return [
            unread.get(each.name) or records.outcome(each.name, held.get((each.name, each.attempt, each.token)), mark)
            for each in batch
        ]

    def release(self, name: str, attempt: str, token: int, hint: Any) -> Steps[bool]:
        yield Urgency.SETTLE
        ask = {"attempt": attempt, "token": token}
        stages = with_ask(ask, pipelines.RELEASE)
        stuck = attempt in self._unanswered
        if stuck:
            _, sent = yield Sender()
            stages = with_ask({**ask, **_note(sent)}, pipelines.RELEASE_AND_NOTE)
        document = yield from _change(Change(name, stages, where=held_by(ask)))
        if document is None:
            if stuck:  # it is another's or nobody's, until what is stuck takes it
                yield from self._abandon(name, attempt)
            return False
        self._unanswered.discard(attempt)
        yield from _call(document)
        return not records.has_lapsed(document, attempt, token)

    def abandon(self, name: str, attempt: str) -> Steps[bool]:
        yield Urgency.SETTLE
        return (yield from self._abandon(name, attempt))

    def _abandon(self, name: str, attempt: str) -> Steps[bool]:
        self.waiters.pop(attempt, None)
        stuck = attempt in self._unanswered
        _, sent = yield Sender()
        document = yield from _upsert(name, with_ask({"attempt": attempt, **_note(sent, stuck)}, pipelines.ABANDON))
        self._unanswered.discard(attempt)
        yield from _call(document)
        return bool(document["abandoned"][-1]["found"])

    def interrupt(self, name: str, force: bool) -> Steps[bool]:
        yield Urgency.SETTLE
        document = yield from _change(Change(name, with_ask({}, pipelines.INTERRUPT)))
        if document is None:
            return False
        yield from _call(document)
        held = [one for one in document["holders"] if one["state"] != RESTING or force]
        if force and held:
            evicted = yield from _change(Change(name, with_ask({}, pipelines.EVICT)))
            if evicted is not None:
                yield from _call(evicted)
        return bool(held)

    def scan(self, prefix: str, after: str, count: int) -> Steps[tuple[Sequence[Holding], str | None]]:
        yield Urgency.SETTLE
        documents: Sequence[Document] = yield FindPage(prefix, after, count)
        found = [held for name, document in records.checked(documents) for held in records.holdings(name, document)]
        return found, documents[-1]["_id"]["name"] if len(documents) == count else None

    def inspect(self, name: str) -> Steps[Sequence[Holding]]:
        yield Urgency.SETTLE
        documents: Sequence[Document] = yield Find([name])
        found = [records.check(name, document) for document in documents]
        return [held for document in found for held in records.holdings(name, document) if held.expires_in > 0]

    def read_note(self, name: str) -> Steps[str | None]:
        yield Urgency.SETTLE
        for document in (yield Find([name], settled=True)):
            text: str | None = records.check(name, document).get("note")
            return text
        return None

    def write_note(self, name: str, attempt: str, token: int, text: str | None) -> Steps[bool]:
        yield Urgency.SETTLE
        holder = {"attempt": attempt, "token": token}
        stages = with_ask({**holder, "text": text}, pipelines.WRITE_NOTE)
        document = yield from _change(Change(name, stages, where=held_by(holder)))
        if document is None:
            return False
        mine = next(one for one in document["holders"] if (one["attempt"], one["token"]) == (attempt, token))
        return bool(mine["expires"] > document["now"] and mine["state"] != INTERRUPTED)

    def read_clock(self, name: str) -> Steps[int | None]:
        yield Urgency.SETTLE
        moment: datetime = (yield Hello())["localTime"]
        return int(moment.replace(tzinfo=UTC).timestamp() * 1000) * 1000

    def tidy(self) -> Steps[None]:
        yield Urgency.SETTLE
        yield from see_to_index()


def _change(change: Change) -> Steps[Document | None]:
    """The document after a change. None: there is none that it is for.

    When the answer got lost and pymongo has retried the command, the server answers from its log: with the document
    as the change left it, but without what is to be computed. Of ``now`` a later time does as well."""
    try:
        document: Document | None = yield change
    except OperationFailure as error:
        if error.code in ACCESS_REFUSED:
            raise
        if not (isinstance(error, DuplicateKeyError) and is_race(error)):
            # What is in the record may be why.
            for found in (yield Find([change.name])):
                records.check(change.name, found)
            raise
        document = None
    if document is not None and "now" in document:
        return records.check(change.name, document)
    for found in (yield Find([change.name])):
        if document is not None:
            document = records.check(change.name, document)
            return {**records.placed(document, change.waiter), "now": found["now"], "retried": True}
        records.check(change.name, found)
    return None


def _change_many(changes: Sequence[Change]) -> Steps[int]:
    """How many documents have changed."""
    try:
        changed: int = (yield ChangeMany(changes)).modified_count
    except BulkWriteError as error:
        changed = changed_of_some(error, len(changes))
    return changed


def _upsert(name: str, stages: Sequence[Document], waiter: str | None = None) -> Steps[Document]:
    """Change the document of a name, which is made if need be. Of several that make it at once, one does."""
    for _ in range(RACES):
        document = yield from _change(Change(name, stages, upsert=True, waiter=waiter))
        if document is not None:
            return document
    raise StoreNotReady(
        f"the record of {name!r} can be neither updated nor created: the collection treats different names as equal, "
        "for example by a collation; give leasehold a collection of its own"
    )


def held_by(holder: Document) -> Document:
    return {"holders": {"$elemMatch": holder}}


def _keep_places(name: str, attempts: Sequence[str]) -> Change:
    stages = with_ask({"attempts": attempts}, pipelines.KEEP_PLACES)
    return Change(name, stages, where={"queue.0": {"$exists": True}})


def arguments(ask: Ask, session: str, sent: int) -> dict[str, Any]:
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


def _note(sent: int, stuck: bool = True) -> dict[str, Any]:
    """For how long it is remembered that the attempt has ended: a command of it that was sent before takes nothing."""
    return {"sent": sent, "keep": pipelines.ABANDONED_MS if stuck else 1}


def _term(microseconds: int) -> int:
    """A term in ms: rounded up, and one more, because the server's time is cut to the ms and so up to one behind."""
    return -(-microseconds // 1000) + 1


def _call(document: Document) -> Steps[None]:
    """Call whom this change has called (or another one in the same millisecond: that does no harm)."""
    call = document.get("call")
    if call is not None and ("retried" in document or call.startswith(f"{records.ms(document['now'])} ")):
        yield PassOn(call)
