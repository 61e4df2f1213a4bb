"""The store logic for anything that can read a record and compare-and-swap it: memory, SQLite and the SQL stores.

An operation reads the row of a name, runs :mod:`leasehold.core.entry` on it, and swaps the row if its version has not
changed; otherwise it starts over. A swap fails only because another one succeeded, so some caller always advances.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ...core.checks import MAX_NAME
from ...core.entry import Entry
from ...core.log import WARNING, log
from ...core.protocol import (
    GONE,
    SECOND,
    Ask,
    Busy,
    Grant,
    Holding,
    Mismatch,
    Refusal,
    Renewal,
    Reply,
    Steps,
    Store,
    T,
    Together,
)
from ...core.timing import WAITER_TTL
from ...errors import StoreError, StoreNotReady
from . import forms

TIDY_BATCHES = 20
MOST_WARNINGS = 100


class Row(NamedTuple):
    """A record, and the store's clock when it was read. ``version`` is 0 when there is no record."""

    name: str
    version: int
    token: int
    state: Any
    """As :meth:`leasehold.core.entry.Entry.load` takes it."""
    now: int
    wall: int
    session: str
    """The session of the reader: the address for its wake-ups."""
    foreign: bool = False
    """Whether it was written under another boot id: in an earlier boot, or in a container with its own boot id."""
    fault: StoreNotReady | None = None
    """Why the record cannot be read. Only set in answers with several rows; a single one is raised."""


# Requests that an entries driver answers.


class Read(NamedTuple):
    """Answered with a Row."""

    name: str


class Swap(NamedTuple):
    """Store token and state if the row's version is still ``version``. Answered with the new version, or 0."""

    name: str
    version: int
    token: int
    state: str


class SwapAll(NamedTuple):
    """Apply all of these swaps or none, in one step. Answered with the new versions; empty if none was applied."""

    swaps: Sequence[Swap]


class Ring(NamedTuple):
    """Wake an attempt of a session. Answered with False only if the session is known to be dead."""

    session: str
    attempt: str


class Alive(NamedTuple):
    """Whether a session is alive. Answered with False only if it is known to be dead."""

    session: str


class Page(NamedTuple):
    """Answered with up to ``most`` rows, in order of name: names after ``after`` that start with ``prefix``."""

    prefix: str
    after: str
    most: int


class ReadNote(NamedTuple):
    """Answered with the note of the name, or None."""

    name: str


class WriteNote(NamedTuple):
    """Write the note of the name and raise the row's version, if that is still ``version``. Answered with whether."""

    name: str
    version: int
    text: str | None


class Tidy(NamedTuple):
    """Purge some records of names that have long been free. Answered with whether there are more."""


class EntryStore(Store):
    """A store over rows with compare-and-swap. :class:`leasehold.core.protocol.Store` defines each operation."""

    fair = True
    lacks: Mapping[str, str] = {}

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme
        self._warned: set[str] = set()

    def acquire(self, ask: Ask) -> Steps[Reply]:
        while True:
            row, entry, reply = yield from self._asked(ask)
            version = yield from self._store(row, entry)
            if version:
                return _with_hint(reply, entry, version) if isinstance(reply, Grant) else reply

    def _asked(self, ask: Ask) -> Steps[tuple[Row, Entry, Reply]]:
        """The reply to ``ask`` and the changed entry. Nothing is stored yet."""
        dead: set[str] = set()
        while True:
            row: Row = yield Read(ask.name)
            entry = self._entry(row)
            buried = entry.bury(dead, row.now, row.wall) if dead else None
            reply = entry.acquire(ask, row.session, row.now, row.wall)
            if isinstance(reply, Busy):
                newly = yield from self._dead(reply.watch)
                if newly - dead:
                    dead |= newly
                    continue
            if isinstance(reply, Grant) and buried:
                reply = reply._replace(taken_from=buried.seen(ask.name, row.now, 0))
            return row, entry, reply

    def keep_waiting(self, batch: Sequence[Ask]) -> Steps[Sequence[Busy | None]]:
        by_name: dict[str, list[str]] = {}
        for ask in batch:
            by_name.setdefault(ask.name, []).append(ask.attempt)
        answers: dict[tuple[str, str], Busy | None] = {}
        for name, attempts in by_name.items():

            def change(entry: Entry, row: Row, attempts: list[str] = attempts) -> list[Busy | None]:
                return entry.keep_waiting(attempts, row.now)

            gone: list[Busy | None] = [None] * len(attempts)
            try:
                found = yield from self._change(name, change, gone)
            except StoreError:  # one bad record does not fail the batch: its waiter gets the error by ``acquire``
                found = gone
            answers.update(zip(((name, attempt) for attempt in attempts), found, strict=True))
        return [answers[ask.name, ask.attempt] for ask in batch]

    def renew(self, batch: Sequence[Renewal]) -> Steps[Sequence[str | StoreError]]:
        outcomes: list[str | StoreError] = []
        for each in batch:

            def change(entry: Entry, row: Row, each: Renewal = each) -> str:
                return entry.renew(each.attempt, each.token, each.ttl, row.now)

            try:
                outcomes.append((yield from self._change(each.name, change, GONE)))
            except StoreError as error:  # one bad record does not fail the batch
                outcomes.append(error)
        return outcomes

    def release(self, name: str, attempt: str, token: int, hint: Any) -> Steps[bool]:
        if hint and (yield Swap(name, hint, token, "")):
            return True  # the row has not changed since the acquire, so there is no waiter

        def change(entry: Entry, row: Row) -> bool:
            return entry.release(attempt, token, row.now, row.wall)

        return (yield from self._change(name, change, False))

    def abandon(self, name: str, attempt: str) -> Steps[bool]:
        def change(entry: Entry, row: Row) -> bool:
            return entry.abandon(attempt, row.now, row.wall)

        return (yield from self._change(name, change, False))

    def interrupt(self, name: str, force: bool) -> Steps[bool]:
        def change(entry: Entry, row: Row) -> bool:
            return entry.interrupt(force, row.now, row.wall)

        return (yield from self._change(name, change, False))

    def scan(self, prefix: str, after: str, count: int) -> Steps[tuple[Sequence[Holding], str | None]]:
        rows = yield from self._page(prefix, after, count)
        found: list[Holding] = []
        for row in rows:
            try:
                found += yield from self._seen(row)
            except StoreNotReady as error:  # one bad record does not fail the listing
                self._warn(row.name, error)
        return found, rows[-1].name if len(rows) == count else None

    def inspect(self, name: str) -> Steps[Sequence[Holding]]:
        row = yield from self._read(name)
        seen = yield from self._seen(row)
        return [holding for holding in seen if holding.expires_in > 0]

    def _seen(self, row: Row) -> Steps[Sequence[Holding]]:
        """The holders of a row. In a row of another boot dead holders are left out: perhaps no acquire removes them."""
        entry = self._entry(row)
        if row.foreign and entry.holders:
            dead = yield from self._dead([holder.session for holder in entry.holders])
            entry.holders = [holder for holder in entry.holders if holder.session not in dead]
        return entry.seen(row.now)

    def _warn(self, name: str, error: StoreNotReady) -> None:
        if name not in self._warned and len(self._warned) < MOST_WARNINGS:
            self._warned.add(name)
            log(WARNING, "%r is left out of the listing: %s", name, error, event="bad_record", name=name)

    def _entry(self, row: Row) -> Entry:
        """The entry of a row, checked. Raises StoreNotReady."""
        if row.fault is not None:
            raise row.fault
        try:
            forms.text(row.name, "name", MAX_NAME)
            entry = forms.load(row.name, row.token, row.state)
        except forms.Damaged as error:
            raise forms.damaged(row.name, error, f"the {self.scheme} store") from None
        if row.foreign:
            outlive_boot(entry, row.now)
        return entry

    def read_note(self, name: str) -> Steps[str | None]:
        text: str | None = yield ReadNote(name)
        return text

    def write_note(self, name: str, attempt: str, token: int, text: str | None) -> Steps[bool]:
        while True:
            row = yield from self._read(name)
            if not self._entry(row).holds(attempt, token, row.now):
                return False
            if (yield from self._write_note(row, text)):
                return True

    def tidy(self) -> Steps[None]:
        for _ in range(TIDY_BATCHES):
            if not (yield Tidy()):
                return

    def _read(self, name: str) -> Steps[Row]:
        row: Row = yield Read(name)
        return row

    def _page(self, prefix: str, after: str, most: int) -> Steps[Sequence[Row]]:
        rows: Sequence[Row] = yield Page(prefix, after, most)
        return rows

    def _write_note(self, row: Row, text: str | None) -> Steps[bool]:
        done: bool = yield WriteNote(row.name, row.version, text)
        return done

    def _change(self, name: str, change: Callable[[Entry, Row], T], absent: T) -> Steps[T]:
        """Apply ``change`` to the entry of a name and return its result; ``absent`` if the name has no entry."""
        while True:
            row: Row = yield Read(name)
            if not row.state:
                return absent
            entry = self._entry(row)
            result = change(entry, row)
            if (yield from self._store(row, entry)):
                return result

    def _store(self, row: Row, entry: Entry) -> Steps[int]:
        """Swap if anything has changed, and wake the waiters concerned. 0: the row was changed meanwhile."""
        version = yield from self._swap(row, entry)
        if version:
            yield from self._ring(entry)
        return version

    def _swap(self, row: Row, entry: Entry) -> Steps[int]:
        state = entry.dump()
        if state == row.state and entry.token == row.token:
            return row.version or 1
        version: int = yield Swap(row.name, row.version, entry.token, state)
        return version

    def _ring(self, entry: Entry) -> Steps[None]:
        """Wake the waiters that a change concerns. A grant to a dead waiter is passed on until a live one has it."""
        dead: set[str] = set()
        while True:
            known = len(dead)
            for session, attempt in entry.rings:
                if session not in dead and not (yield Ring(session, attempt)):
                    dead.add(session)
            if len(dead) == known:
                return
            while True:
                row: Row = yield Read(entry.name)
                if not row.state:
                    return
                entry = self._entry(row)
                for waiter in entry.queue:  # one swap removes all dead waiters at the head of the queue
                    if waiter.session not in dead and (yield Alive(waiter.session)):
                        break
                    dead.add(waiter.session)
                entry.bury(dead, row.now, row.wall)
                if (yield from self._swap(row, entry)):
                    break

    def _dead(self, sessions: Sequence[str]) -> Steps[set[str]]:
        dead = set()
        for session in sessions:
            if not (yield Alive(session)):
                dead.add(session)
        return dead


class JointEntryStore(EntryStore):
    """An :class:`EntryStore` whose driver can swap several rows in one step."""

    def acquire_all(self, asks: Sequence[Ask]) -> Steps[Together]:
        while True:
            swaps, entries, grants = [], [], []
            for place, ask in enumerate(asks):
                row, entry, reply = yield from self._asked(ask)
                if isinstance(reply, (Busy, Mismatch)):
                    return Refusal(place, reply)
                assert isinstance(reply, Grant)
                swaps.append(Swap(ask.name, row.version, entry.token, entry.dump()))
                entries.append(entry)
                grants.append(reply)
            versions: Sequence[int] = yield SwapAll(swaps)
            if versions:
                for entry in entries:
                    yield from self._ring(entry)
                return [_with_hint(*each) for each in zip(grants, entries, versions, strict=True)]


def _with_hint(grant: Grant, entry: Entry, version: int) -> Grant:
    """The grant with the row's version as hint, if a release can use it: one holder, no waiters, no min_hold."""
    alone = len(entry.holders) == 1 and not entry.queue and grant.token == entry.token and not entry.holders[0].rest
    return grant._replace(hint=version if alone else None)


def outlive_boot(entry: Entry, now: int) -> None:
    """Limit the times of an entry that was written under another boot id.

    If that boot is over, its times mean nothing, and no holder can have more than its whole ttl left. If the entry was
    written in another container of this machine, its times are valid and within these limits already."""
    for holder in entry.holders:
        holder.expires = min(holder.expires, now + max(holder.ttl, holder.rest))
        holder.acquired = min(holder.acquired, now)
    for waiter in entry.queue:
        waiter.expires = min(waiter.expires, now + int(WAITER_TTL * SECOND))
