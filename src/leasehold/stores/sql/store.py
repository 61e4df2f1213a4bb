"""The store logic for SQL servers: one statement where a name is free, compare-and-swap on its row where it is not.

A row has the facts of one holder as columns (:mod:`.rows`). Without contention, an acquire is one conditional
upsert and a release one conditional update. Another upsert also puts a waiter at the end of a lock's queue. When
these say no, the row is read, :mod:`leasehold.core.entry` decides, and the row is swapped if its version is still the
one read: no row lock is ever held while Python runs. Several names are read, decided and swapped in the same way, all
of their rows in one statement.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

from ...core import clock
from ...core.entry import HELD, Entry
from ...core.protocol import (
    GONE,
    RENEWED,
    SECOND,
    Ask,
    Busy,
    Grant,
    Mismatch,
    Refusal,
    Renewal,
    Reply,
    Steps,
    T,
    Together,
)
from ...core.timing import WAITER_TTL
from ...errors import StoreError, StoreNotReady, StoreUnavailable
from ..common.entries import EntryStore, Row
from .requests import GIVE, Pause, Unsent
from .session import Locked, Session
from .table import Table
from .waiting import Waiter

TIDY_BATCHES = 10
"""Of 1,000 dead rows each, at most, in one call."""
LOCKED_TRIES, MOMENT = 3, 0.02
"""How often ``try_acquire`` checks a locked row, and how long it pauses before each check: most are locked for the
length of a statement."""
RECHECK_LOCKED = 0.1
"""How soon to ask again for a name whose row is locked: nothing notifies a waiter when the row is unlocked."""
KEPT = int(WAITER_TTL / 3 * SECOND)
"""How much of a place has to be left if an acquire does not refresh it: more than one period of the keeper's checks."""
CONTENDED = 1000
"""How many names are remembered as contended, at most."""
CHECK_LOCKS_FOR = 60.0
"""For how long, after a renewal without an answer, the next ones first ask which rows are locked."""


class SqlStore(EntryStore):
    """See :class:`leasehold.core.protocol.Store`, which says what each operation means."""

    keeps_places = True

    def __init__(self, session: Session) -> None:
        super().__init__(session.dialect.scheme)
        self.session = session
        self.table = Table(session)
        self.waiters = session.waiters
        self._contended: dict[str, None] = {}
        """Names that others held when they were last asked for: a waiter for one joins its queue in one statement,
        which costs more than one that takes free names alone."""
        self._check_locks_until = 0.0
        """Until when renewals first ask which rows are locked."""

    def read_clock(self, name: str) -> Steps[int | None]:
        return (yield from self.table.read(name)).now

    def acquire(self, ask: Ask) -> Steps[Reply]:
        known = self.waiters.get(ask.attempt)
        waiter = known or Waiter()
        if ask.queue:
            self.waiters[ask.attempt] = waiter  # before the first call: a wake-up may precede the answer
        try:
            if waiter.called and waiter.place == 0:  # the next waiter is notified when it is granted the name
                waiter.called = False
                token, crowded = yield from self.table.accept(ask.name, ask.attempt, ask.ttl)
                if token:
                    self.waiters.forget(ask.attempt)
                    return Grant(token, crowded)
                waiter.called = True
            return (yield from self._ask(ask, waiter))
        except Locked:
            self._unanswered(ask, known)
            return (yield from self._locked(ask))
        except BaseException:
            self._unanswered(ask, known)
            raise

    def _unanswered(self, ask: Ask, waiter: Waiter | None) -> None:
        if waiter is None:
            self.waiters.forget(ask.attempt)  # it may never ask again
        else:
            waiter.called = True

    def _locked(self, ask: Ask) -> Steps[Reply]:
        """The row is locked: by a transaction that holds the name, by one that checks a lease (`in_transaction`), or by
        another. In each case the name is busy. The row may show who holds it."""
        for tries in count(1):
            row = yield from self.table.read(ask.name)
            entry = self._entry(row)
            reply = entry.acquire(ask, row.session, row.now, row.wall)  # decided on a copy, which is not stored
            if isinstance(reply, Busy):
                return reply._replace(place=None, look=RECHECK_LOCKED)
            if not isinstance(reply, Grant):
                return reply
            if ask.queue or tries > LOCKED_TRIES:
                break
            yield Pause(MOMENT)
            locked = yield from self.session.is_locked([ask.name])
            if locked is None:
                # A transaction can hold no more than a lock. Where a permit is free, others who ask for one are in the
                # way, each for the length of a commit.
                locked = (ask.shape, ask.limit, ask.weight) == ("lock", 1, 1)
            if not locked:
                # Not any more, or what was in the way is a statement about other rows, which ends by itself.
                try:
                    return (yield from self._ask(ask, Waiter(), True))
                except Locked:
                    break
        return Busy(None, None, None, look=RECHECK_LOCKED)

    def _ask(self, ask: Ask, waiter: Waiter, waits: bool = False) -> Steps[Reply]:
        """Take the name or join its queue, where a statement can. Else read the row, and do what it allows.

        A waiter that loses a swap sends that statement again, unless it has a place already: others, who acquire and
        release the name in one statement each, could defeat its swaps for ever."""
        plain = (ask.shape, ask.limit, ask.weight, ask.rest) == ("lock", 1, 1, 0)
        placed = waiter.place >= 0
        for tries in count():
            notified, waiter.called = waiter.called, False
            taken: int | Row = 0
            if plain and not ask.heir and not placed:
                taken = yield from self._take(ask, waits or ask.queue)
            if taken and not isinstance(taken, Row):
                self.waiters.forget(ask.attempt)
                return Grant(taken)
            row = taken if isinstance(taken, Row) else (yield from self.table.read(ask.name))
            entry = self._entry(row)
            placed = any(permit.attempt == ask.attempt for permit in (*entry.holders, *entry.queue))
            if not (notified or waiter.called) and waiter.missed_its_grant(ask.attempt, entry, row.now):
                self.waiters.distrust_push()
            mine = next((waiting for waiting in entry.queue if waiting.attempt == ask.attempt), None)
            expires = 0 if mine is None else mine.expires
            reply: Reply = entry.acquire(ask, row.session, row.now, row.wall)
            if mine is not None and expires - row.now > KEPT:
                mine.expires = expires  # the keeper refreshes it in time: that alone is not worth a write
            if not (yield from self._swap(row, entry, waits or ask.queue)):
                waiter.called |= notified
                yield from self._conflict(tries)
                continue
            if isinstance(reply, Busy) and reply.place is not None:
                waiter.answered(reply)
                return reply
            self.waiters.forget(ask.attempt)
            return reply._replace(hint=bool(entry.queue) or not plain) if isinstance(reply, Grant) else reply
        raise AssertionError

    def _take(self, ask: Ask, waits: bool) -> Steps[int | Row]:
        """Take the name, or join its queue. Returns what ``Table.take_or_join`` does."""
        contended = self._contended
        if not ask.queue or ask.name not in contended:
            token = yield from self.table.take(ask, waits)
            if token or not ask.queue:
                return token
            if len(contended) >= CONTENDED:
                contended.clear()
            contended[ask.name] = None
        taken = yield from self.table.take_or_join(ask, waits)
        if taken and not isinstance(taken, Row):
            contended.pop(ask.name, None)
        return taken

    def keep_waiting(self, batch: Sequence[Ask]) -> Steps[Sequence[Busy | None]]:
        attempts: dict[str, list[str]] = {}
        for ask in batch:
            attempts.setdefault(ask.name, []).append(ask.attempt)
        answers: dict[str, Busy | None] = {}
        rows = yield from self.table.read_all(list(attempts), GIVE)
        for row in rows:
            waiting = attempts[row.name]
            with suppress(StoreNotReady):  # one bad record does not fail the batch: its waiter gets the error itself
                gone: list[Busy | None] = [None] * len(waiting)
                found = yield from self._change(row.name, partial(_keep_waiting, waiting), gone, row)
                answers.update(zip(waiting, found, strict=True))
        for attempt, busy in answers.items():
            if busy is not None and (waiter := self.waiters.get(attempt)) is not None:
                waiter.answered(busy)
        return [answers.get(ask.attempt) for ask in batch]

    def acquire_all(self, asks: Sequence[Ask]) -> Steps[Together]:
        refused = 0
        for tries in count():
            rows = yield from self.table.read_all([ask.name for ask in asks])
            changes, grants = [], []
            for place, (ask, row) in enumerate(zip(asks, rows, strict=True)):
                entry = self._entry(row)
                reply = entry.acquire(ask, row.session, row.now, row.wall)
                if isinstance(reply, (Busy, Mismatch)):
                    return Refusal(place, reply)
                if entry.rings:
                    return None  # a queue has to move up first
                assert isinstance(reply, Grant)
                changes.append((row, entry))
                grants.append(reply)
            try:
                if (yield from self.table.swap_all(changes)):
                    return grants
            except Locked:
                refused += 1
                if refused > LOCKED_TRIES:
                    return None  # each for itself finds out which
                yield Pause(MOMENT)
            yield from self._conflict(tries)
        raise AssertionError

    def renew(self, batch: Sequence[Renewal]) -> Steps[Sequence[str | StoreError]]:
        if clock.now() < self._check_locks_until:
            return (yield from self._renew_unlocked(batch))
        try:
            done, at = yield from self.table.extend(batch)
        except Unsent:
            raise
        except BaseException:  # also when it is not waited for any more: it may have been one row that was locked
            self._check_locks_until = clock.now() + CHECK_LOCKS_FOR
            raise
        return (yield from self._renewed(batch, done, at))

    def _renewed(self, batch: Sequence[Renewal], done: Collection[Any], at: int) -> Steps[Sequence[str | StoreError]]:
        """The outcome of each. One read of all that are not known to be renewed: most of them are, and need no more."""
        names = list(dict.fromkeys(each.name for each in batch if each[:3] not in done))
        if not names:
            return [RENEWED] * len(batch)
        rows = yield from self.table.read_all(names)
        seen = dict(zip(names, rows, strict=True))
        outcomes: list[str | StoreError] = []
        for each in batch:
            try:
                if each[:3] in done or (at and self._stands(each, seen[each.name], at)):
                    outcomes.append(RENEWED)
                else:
                    outcomes.append((yield from self._change(each.name, partial(_renew, each), GONE, seen[each.name])))
            except StoreNotReady as error:  # one bad record does not fail the batch
                outcomes.append(error)
        return outcomes

    def _stands(self, renewal: Renewal, row: Row, at: int) -> bool:
        """Whether a row that was read after the renewals of time ``at`` has what one of these would have left there."""
        return any(
            (holder.attempt, holder.token, holder.state) == (renewal.attempt, renewal.token, HELD)
            and holder.expires >= at + renewal.ttl
            and holder.expires > row.now
            for holder in self._entry(row).holders
        )

    def _renew_unlocked(self, batch: Sequence[Renewal]) -> Steps[Sequence[str | StoreError]]:
        """Renew without waiting for locked rows: one locked row must not cost all the others their leases."""
        outcomes: dict[Renewal, str | StoreError] = {}
        left = list(batch)
        for tries in range(3):
            if tries:
                yield Pause(0.02)  # most are locked for the length of a statement
            names = yield from self.table.unlocked([each.name for each in left])
            now = [each for each in left if each.name in names]
            if now:
                done, at = yield from self.table.extend(now)
                outcomes.update(zip(now, (yield from self._renewed(now, done, at)), strict=True))
                left = [each for each in left if each.name not in names]
            if not left:
                break
        for each in left:
            try:
                row = yield from self.table.read(each.name)
                outcome = _renew(each, self._entry(row), row)
            except StoreNotReady as error:
                outcomes[each] = error
                continue
            locked = StoreUnavailable(f"the row of {each.name!r} is locked by another transaction")
            outcomes[each] = locked if outcome == RENEWED else outcome
            self._check_locks_until = clock.now() + CHECK_LOCKS_FOR
        return [outcomes[each] for each in batch]

    def release(self, name: str, attempt: str, token: int, hint: Any) -> Steps[bool]:
        crowded = hint  # when it was granted: as a rule it still is
        if not crowded and (yield from self.table.free(name, attempt, token)):
            return True
        return (yield from super().release(name, attempt, token, None))

    def abandon(self, name: str, attempt: str) -> Steps[bool]:
        try:
            return (yield from super().abandon(name, attempt))
        finally:
            self.waiters.forget(attempt)  # only now: what it has asked before may have ended just before this

    def tidy(self) -> Steps[None]:
        for _ in range(TIDY_BATCHES):
            if (yield from self.table.purge()) < 1000:
                break
        for name in (yield from self.table.leftovers()):
            with suppress(StoreNotReady):  # one bad record does not keep the others
                yield from self._change(name, lambda entry, row: entry._expire(row.now, row.wall), None)

    def interrupt(self, name: str, force: bool) -> Steps[bool]:
        try:
            return (yield from super().interrupt(name, force))
        except StoreNotReady:
            if not force or not (yield from self.table.mend(name)):
                raise
            return True

    def _change(self, name: str, change: Callable[[Entry, Row], T], absent: T, seen: Row | None = None) -> Steps[T]:
        """``seen``: the row, if it was read just now."""
        while True:
            row = seen or (yield from self.table.read(name, GIVE))
            seen = None
            entry = self._entry(row)
            if not row.state:
                return absent
            result = change(entry, row)
            if (yield from self._swap(row, entry)):
                return result

    def _swap(self, row: Row, entry: Entry, waits: bool | None = None) -> Steps[bool]:
        """Swap if anything has changed. False: another was faster."""
        if entry.state() == row.state and entry.token == row.token:
            return True
        return (yield from self.table.swap(row, entry, waits))

    # What EntryStore asks for.

    def _read(self, name: str) -> Steps[Row]:
        return self.table.read(name)

    def _page(self, prefix: str, after: str, most: int) -> Steps[Sequence[Row]]:
        return self.table.page(prefix, after, most)

    def _write_note(self, row: Row, text: str | None) -> Steps[bool]:
        return self.table.write_note(row, text)

    def read_note(self, name: str) -> Steps[str | None]:
        return self.table.read_note(name)

    def _conflict(self, tries: int) -> Steps[None]:
        """Another process was faster. One of them always succeeds; many succeed sooner when they spread out."""
        if tries >= 2:
            yield Pause(random.random() * min(0.05, 0.001 * 2**tries))


def _renew(renewal: Renewal, entry: Entry, row: Row) -> str:
    return entry.renew(renewal.attempt, renewal.token, renewal.ttl, row.now)


def _keep_waiting(attempts: Sequence[str], entry: Entry, row: Row) -> list[Busy | None]:
    return entry.keep_waiting(attempts, row.now)
