"""The store logic for SQL servers: one statement where a name is free, compare-and-swap on its row where it is not.

A row has the facts of one holder as columns (:mod:`.sql_rows`). While nobody contends, an acquire is one conditional
upsert and a release one conditional update. When that says no, the row is read, :mod:`leasehold.entry` decides, and
the row is swapped if its version is still the one read: no row lock is ever held while Python runs.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple

from .. import clock
from ..entry import Entry
from ..policy import FALLBACK, WAITER_TTL
from ..protocol import GONE, RENEWED, SECOND, Ask, Busy, Grant, Renewal, Reply, Steps
from .entries import EntryStore, Read, Row

_WAITER_TTL = int(WAITER_TTL * SECOND)
TIDY_BATCHES = 10
"""Of 1,000 dead rows each, at most, in one call."""


# Requests beside those of ``entries`` that a SQL driver answers.


class Take(NamedTuple):
    """Take a free name that nobody waits for. Answered with the token, or 0."""

    name: str
    ask: Ask


class Accept(NamedTuple):
    """Take what a release has granted to the attempt meanwhile. Answered with the token, or 0."""

    name: str
    attempt: str
    ttl: int


class Free(NamedTuple):
    """Give back a name that nobody waits for. Answered with whether that was done."""

    name: str
    attempt: str
    token: int


class Extend(NamedTuple):
    """Renew what is held without further ado. Answered with (name, attempt, token) of those for which that was done."""

    batch: Sequence[Renewal]


class Exchange(NamedTuple):
    """Store token and state if the version is still this one, and ring. Answered with the new version, or 0."""

    name: str
    version: int
    token: int
    state: str
    rings: Sequence[tuple[str, str]]


class Purge(NamedTuple):
    """Delete some rows that have been dead for a day. Answered with how many."""


class Leftovers(NamedTuple):
    """Answered with some names whose rows look dead but still have waiters or further holders."""


class Pause(NamedTuple):
    """Wait a moment."""

    seconds: float


class Standing(NamedTuple):
    """What is known of the queue in which an attempt stands, since local time ``at``."""

    row: Row
    entry: Entry
    reply: Busy
    at: float
    refreshed: float


class SqlStore(EntryStore):
    """See :class:`leasehold.protocol.Store`, which says what each operation means."""

    def __init__(self, scheme: str) -> None:
        super().__init__(scheme)
        self._standing: dict[str, Standing] = {}

    def acquire(self, ask: Ask) -> Steps[Reply]:
        standing = self._standing.get(ask.attempt)
        if standing is None:
            plain = (ask.shape, ask.limit, ask.weight, ask.rest) == ("lock", 1, 1, 0)
            if plain and (token := (yield Take(ask.name, ask))):
                return Grant(token)
        elif standing.reply.place == 0 and clock.now() - standing.at < FALLBACK * 0.9:
            # So soon it must have been rung, and the one who is next is rung when it has been granted the name.
            if token := (yield Accept(ask.name, ask.attempt, ask.ttl)):
                del self._standing[ask.attempt]
                return Grant(token)
        elif clock.now() - standing.refreshed > WAITER_TTL / 2:
            kept = yield from self._keep_place(ask, standing)
            if kept is not None:
                return kept
        for tries in count():
            row: Row = yield Read(ask.name)
            entry = Entry.load(ask.name, row.token, row.state)
            mine = next((waiter for waiter in entry.queue if waiter.attempt == ask.attempt), None)
            expires = mine.expires if mine is not None else 0
            reply: Reply = entry.acquire(ask, row.session, row.now, row.wall)
            if mine in entry.queue and mine is not None and expires - row.now > _WAITER_TTL / 2:
                mine.expires = expires  # still fresh: that alone is not worth a write
            version = yield from self._store(row, entry)
            if not version:
                yield from self._conflict(tries)
                continue
            if isinstance(reply, Busy) and reply.place is not None:
                now = clock.now()
                fresh = (
                    standing.refreshed if standing is not None and mine is not None and mine.expires == expires else now
                )
                self._standing[ask.attempt] = Standing(row._replace(version=version), entry, reply, now, fresh)
            else:
                self._standing.pop(ask.attempt, None)
            return reply
        raise AssertionError

    def _keep_place(self, ask: Ask, standing: Standing) -> Steps[Busy | None]:
        """Refresh a place in the queue without reading first; None when the row has changed meanwhile."""
        row, entry, reply, at, _ = standing
        now = clock.now()
        passed = int((now - at) * SECOND)
        if row.now + passed >= min((holder.expires for holder in entry.holders), default=0):
            return None
        for waiter in entry.queue:
            if waiter.attempt == ask.attempt:
                waiter.expires = row.now + passed + _WAITER_TTL
        entry.rings.clear()
        version = yield Exchange(row.name, row.version, entry.token, entry.dump(), ())
        if not version:
            return None
        left = None if reply.expires_in is None else reply.expires_in - (now - at)
        reply = reply._replace(expires_in=left)
        row = row._replace(version=version, now=row.now + passed)
        self._standing[ask.attempt] = Standing(row, entry, reply, now, now)
        return reply

    def renew(self, batch: Sequence[Renewal]) -> Steps[Sequence[str]]:
        done = yield Extend(batch)
        outcomes = []
        for each in batch:
            if each[:3] in done:
                outcomes.append(RENEWED)
                continue

            def change(entry: Entry, row: Row, each: Renewal = each) -> str:
                return entry.renew(each.attempt, each.token, each.ttl, row.now)

            outcomes.append((yield from self._change(each.name, change, GONE)))
        return outcomes

    def release(self, name: str, attempt: str, token: int, hint: Any) -> Steps[bool]:
        if (yield Free(name, attempt, token)):
            return True
        return (yield from super().release(name, attempt, token, None))

    def abandon(self, name: str, attempt: str) -> Steps[bool]:
        self._standing.pop(attempt, None)
        return (yield from super().abandon(name, attempt))

    def tidy(self) -> Steps[None]:
        for _ in range(TIDY_BATCHES):
            if (yield Purge()) < 1000:
                break
        for name in (yield Leftovers()):
            yield from self._change(name, lambda entry, row: entry._expire(row.now, row.wall), None)

    def _store(self, row: Row, entry: Entry) -> Steps[int]:
        state = entry.dump()
        if state == row.state and entry.token == row.token:
            return row.version or 1
        version: int = yield Exchange(row.name, row.version, entry.token, state, tuple(entry.rings))
        return version

    def _conflict(self, tries: int) -> Steps[None]:
        """Another was faster. Somebody always gets on; many at once do so sooner when they spread out."""
        if tries >= 2:
            yield Pause(random.random() * min(0.05, 0.001 * 2**tries))
