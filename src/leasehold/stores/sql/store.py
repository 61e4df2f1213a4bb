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
from typing import Any, NamedTuple

from ...core import clock
from ...core.entry import HELD, Entry
from ...core.protocol import GONE, RENEWED, Ask, Busy, Grant, Mismatch, Refusal, Renewal, Reply, Steps, T, Together
from ...core.timing import FALLBACK
from ...errors import StoreError, StoreNotReady, StoreUnavailable
from ..common.entries import EntryStore, Read, Row
from ..common.waiting import UNDER_WAY, Wake
from .waiting import EARLY, Snapshot, Waiter, Waiters

TIDY_BATCHES = 10
"""Of 1,000 dead rows each, at most, in one call."""
LOCKED_TRIES, MOMENT = 3, 0.02
"""How often ``try_acquire`` checks a locked row, and how long it pauses before each check: most are locked for the
length of a statement."""
RECHECK_LOCKED = 0.1
"""How soon to ask again for a name whose row is locked: nothing notifies a waiter when the row is unlocked."""
CONTENDED = 1000
"""How many names are remembered as contended, at most."""
CHECK_LOCKS_FOR = 60.0
"""For how long, after a renewal without an answer, the next ones first ask which rows are locked."""


# Requests beside those of ``entries`` that a SQL driver answers.


class Take(NamedTuple):
    """Take a free lock without waiters. Answered with the token, or 0.

    ``waits``, here and below: whether for a row that is locked, for a while, rather than hardly. Raises Locked."""

    name: str
    ask: Ask
    waits: bool = True


class TakeOrJoin(NamedTuple):
    """The same; or join the queue, behind the holder and the other waiters. Answered with the token; with the Row if
    it has joined, where the server returns it; else with 0."""

    name: str
    ask: Ask
    waits: bool = True


class Accept(NamedTuple):
    """Take what a release has granted to the attempt meanwhile. Answered with Accepted."""

    name: str
    attempt: str
    ttl: int
    waits: bool = True


class Accepted(NamedTuple):
    """``token`` is 0 where nothing was granted. ``crowded``: others wait too, so Free would not apply."""

    token: int
    crowded: bool


class ReadOurs(Read):
    """As Read, of a row in which an attempt of ours holds or waits. It is served before calls that ask for a lease."""

    __slots__ = ()


class Free(NamedTuple):
    """Release a name without waiters. Answered with whether it was released."""

    name: str
    attempt: str
    token: int


class Extend(NamedTuple):
    """Renew a batch of plain leases. Answered with Extended."""

    batch: Sequence[Renewal]


class Extended(NamedTuple):
    """What is known to be renewed, as (name, attempt, token), and when that was by the server's clock.

    Where the server returns only how many it renewed, ``done`` is all or none. ``at`` is 0 where it is not known."""

    done: Collection[Any]
    at: int


class Unlocked(NamedTuple):
    """Answered with those of these names whose rows are not locked, at once."""

    names: Sequence[str]


class IsLocked(NamedTuple):
    """Answered with whether the row itself is locked, and not just the space beside it; None where the server cannot
    tell the two apart."""

    name: str


class Exchange(NamedTuple):
    """Store token and state if the version is unchanged, and send the wake-ups. Answered with the new version, or 0.

    ``waits`` is None where it is not for an acquire: then it waits as long as there is time."""

    name: str
    version: int
    token: int
    state: Sequence[Any]
    rings: Sequence[tuple[str, str]]
    waits: bool | None = None


class ReadAll(NamedTuple):
    """Answered with the Row of each of these names."""

    names: Sequence[str]


class ExchangeAll(NamedTuple):
    """All of these exchanges, which wake nobody, or none of them. Answered with whether they were done."""

    exchanges: Sequence[Exchange]
    waits: bool = True


class CanHold(NamedTuple):
    """Answered with whether the name is free for a transaction to hold. Locks nothing."""

    name: str


class Purge(NamedTuple):
    """Delete some rows that have been dead for a day. Answered with how many."""


class Leftovers(NamedTuple):
    """Answered with some names whose rows have expired but still have waiters or further holders."""


class Mend(NamedTuple):
    """Make a damaged record a free one. Answered with whether: not one of a newer format."""

    name: str


class Pause(NamedTuple):
    """Wait a moment."""

    seconds: float


class Unsent(Exception):
    """Thrown into an operation whose first request got no connection: nothing was sent."""


class Locked(StoreUnavailable):
    """Somebody's transaction has locked a row that an acquire wants, and its statement has done nothing."""


class SqlStore(EntryStore):
    """See :class:`leasehold.core.protocol.Store`, which says what each operation means."""

    def __init__(self, scheme: str) -> None:
        super().__init__(scheme)
        self.waiters = Waiters()
        self._contended: dict[str, None] = {}
        """Names that others held when they were last asked for: a waiter for one joins its queue in one statement,
        which costs more than one that takes free names alone."""
        self._check_locks_until = 0.0
        """Until when renewals first ask which rows are locked."""

    def read_clock(self, name: str) -> Steps[int | None]:
        row: Row = yield Read(name)
        return row.now

    def acquire(self, ask: Ask) -> Steps[Reply]:
        waiter = self.waiters.get(ask.attempt)
        try:
            if waiter is not None and waiter.granted():
                waiter.rung = False
                sent = clock.now()
                accepted: Accepted = yield Accept(ask.name, ask.attempt, ask.ttl)
                if accepted.token:
                    waiter.peers.accepted(ask.attempt, ask.ttl, sent)
                    self.waiters.forget(ask.attempt)
                    return Grant(accepted.token, accepted.crowded)
            elif waiter is not None and not waiter.rung:
                return waiter.answer() or (yield from self._check(ask, waiter))
            return (yield from self._ask(ask, waiter))
        except Locked:
            self._unanswered(ask, waiter)
            return (yield from self._locked(ask))
        except BaseException:
            self._unanswered(ask, waiter)
            raise

    def _unanswered(self, ask: Ask, waiter: Waiter | None) -> None:
        if waiter is None:
            self.waiters.forget(ask.attempt)  # it may never ask again, and then nothing may keep its place
        else:
            # It relies on nothing that is known here until the server has answered it.
            waiter.rung = waiter.excused = True

    def _locked(self, ask: Ask) -> Steps[Reply]:
        """The row is locked: by a transaction that holds the name, by one that checks a lease (`in_transaction`), or by
        another. In each case the name is busy. The row may show who holds it."""
        for tries in count(1):
            row: Row = yield Read(ask.name)
            entry = self._entry(row)
            reply = entry.acquire(ask, row.session, row.now, row.wall)  # decided on a copy, which is not stored
            if isinstance(reply, Busy):
                return reply._replace(place=None, look=RECHECK_LOCKED)
            if not isinstance(reply, Grant):
                return reply
            if ask.queue or tries > LOCKED_TRIES:
                break
            yield Pause(MOMENT)
            locked = yield IsLocked(ask.name)
            if locked is None:
                # A transaction can hold no more than a lock. Where a permit is free, others who ask for one are in the
                # way, each for the length of a commit.
                locked = (ask.shape, ask.limit, ask.weight) == ("lock", 1, 1)
            if not locked:
                # Not any more, or what was in the way is a statement about other rows, which ends by itself.
                try:
                    return (yield from self._ask(ask, None, True))
                except Locked:
                    break
        return Busy(None, None, None, look=RECHECK_LOCKED)

    def _check(self, ask: Ask, waiter: Waiter) -> Steps[Reply]:
        """Check the name for a waiter whose check is due, and for all of its process that wait for the same name."""
        peers = waiter.peers
        look = peers.begin_look()
        if look is None:
            known = waiter.answer(UNDER_WAY) if peers.look_is_under_way() else None
            return known or (yield from self._ask(ask, waiter))
        try:
            if (yield from self._keep_places(waiter)) and (known := waiter.answer()):
                return known
            reply = yield from self._ask(ask, waiter)
            for each in peers.overlooked(waiter):
                yield Wake(each.attempt)
        finally:
            look.release()
        if isinstance(reply, Busy) and len(peers) > 1:
            return reply._replace(look=FALLBACK - EARLY)
        return reply

    def _keep_places(self, waiter: Waiter) -> Steps[bool]:
        """Refresh our places in a queue without reading first. False: no need yet, or the row has changed meanwhile."""
        peers = waiter.peers
        seen = peers.seen
        if seen is None or seen.sent <= peers.missed or seen.place(waiter.attempt) is None or seen.left() <= 0:
            return False
        sent = clock.now()
        row = seen.row._replace(now=seen.now())
        entry = Entry.load(row.name, seen.entry.token, seen.entry.state())  # what was seen stays what it was
        if not peers.refresh(entry, row.now):
            return False
        version = yield Exchange(row.name, row.version, entry.token, entry.state(), (), True)
        if version:
            peers.saw(Snapshot(row._replace(version=version), entry, sent))
        return bool(version)

    def _ask(self, ask: Ask, waiter: Waiter | None, waits: bool = False) -> Steps[Reply]:
        """Take the name or join its queue, where a statement can. Else read the row, and do what it allows.

        A waiter that loses a swap sends that statement again, unless it has a place already: others, who acquire and
        release the name in one statement each, could defeat its swaps for ever."""
        plain = (ask.shape, ask.limit, ask.weight, ask.rest) == ("lock", 1, 1, 0)
        placed = waiter is not None
        for tries in count():
            sent = clock.now()
            if waiter is not None:
                waiter.rung = False
            taken: int | Row = 0
            if plain and not ask.heir and not placed:
                taken = yield from self._take(ask, waits or ask.queue)
            if taken and not isinstance(taken, Row):
                self.waiters.forget(ask.attempt)
                return Grant(taken)
            if isinstance(taken, Row):
                row = taken
            else:
                sent = clock.now()
                row = yield Read(ask.name)
            entry = self._entry(row)
            placed = any(permit.attempt == ask.attempt for permit in (*entry.holders, *entry.queue))
            if waiter is not None and ask.attempt in self.waiters and waiter.missed_its_grant(entry, row.now):
                self.waiters.distrust_push()
            mine = next((waiting for waiting in entry.queue if waiting.attempt == ask.attempt), None)
            expires = mine.expires if mine is not None else 0
            reply: Reply = entry.acquire(ask, row.session, row.now, row.wall)
            queued = isinstance(reply, Busy) and reply.place is not None
            if queued:
                if waiter is None or ask.attempt in self.waiters:  # else it has left meanwhile
                    waiter = self.waiters.join(ask.name, ask.attempt)
                if mine is not None:
                    mine.expires = expires  # that alone is not worth a write
            version = yield from self._store(row, entry, waits or ask.queue)
            if not version:
                yield from self._conflict(tries)
                continue
            seen = Snapshot(row._replace(version=version), entry, sent)
            self.waiters.saw(seen)
            if not queued or waiter is None or not isinstance(reply, Busy):
                self.waiters.forget(ask.attempt)
                return reply._replace(hint=bool(entry.queue) or not plain) if isinstance(reply, Grant) else reply
            return waiter.answered(seen, reply)
        raise AssertionError

    def _take(self, ask: Ask, waits: bool) -> Steps[int | Row]:
        """Take the name, or join its queue. Answered as TakeOrJoin is."""
        contended = self._contended
        if not ask.queue or ask.name not in contended:
            token: int = yield Take(ask.name, ask, waits)
            if token or not ask.queue:
                return token
            if len(contended) >= CONTENDED:
                contended.clear()
            contended[ask.name] = None
        self.waiters.expect(ask.attempt)  # it may be called before the answer is there
        taken: int | Row = yield TakeOrJoin(ask.name, ask, waits)
        if taken and not isinstance(taken, Row):
            contended.pop(ask.name, None)
        return taken

    def acquire_all(self, asks: Sequence[Ask]) -> Steps[Together]:
        refused = 0
        for tries in count():
            rows: Sequence[Row] = yield ReadAll([ask.name for ask in asks])
            exchanges, grants = [], []
            for place, (ask, row) in enumerate(zip(asks, rows, strict=True)):
                entry = self._entry(row)
                reply = entry.acquire(ask, row.session, row.now, row.wall)
                if isinstance(reply, (Busy, Mismatch)):
                    return Refusal(place, reply)
                if entry.rings:
                    return None  # a queue has to move up first
                assert isinstance(reply, Grant)
                exchanges.append(Exchange(ask.name, row.version, entry.token, entry.state(), ()))
                grants.append(reply)
            try:
                if (yield ExchangeAll(sorted(exchanges), False)):  # by name: all processes lock rows in one order
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
            extended: Extended = yield Extend(batch)
        except Unsent:
            raise
        except BaseException:  # also when it is not waited for any more: it may have been one row that was locked
            self._check_locks_until = clock.now() + CHECK_LOCKS_FOR
            raise
        return (yield from self._renewed(batch, extended))

    def _renewed(self, batch: Sequence[Renewal], extended: Extended) -> Steps[Sequence[str | StoreError]]:
        """The outcome of each. One read of all that are not known to be renewed: most of them are, and need no more."""
        names = list(dict.fromkeys(each.name for each in batch if each[:3] not in extended.done))
        if not names:
            return [RENEWED] * len(batch)
        sent = clock.now()
        rows: Sequence[Row] = yield ReadAll(names)
        seen = dict(zip(names, rows, strict=True))
        outcomes: list[str | StoreError] = []
        for each in batch:
            try:
                if each[:3] in extended.done or (extended.at and self._stands(each, seen[each.name], extended.at)):
                    outcomes.append(RENEWED)
                else:
                    look = seen[each.name], sent
                    outcomes.append((yield from self._change(each.name, partial(_renew, each), GONE, look)))
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
            names = yield Unlocked([each.name for each in left])
            now = [each for each in left if each.name in names]
            if now:
                outcomes.update(zip(now, (yield from self._renewed(now, (yield Extend(now)))), strict=True))
                left = [each for each in left if each.name not in names]
            if not left:
                break
        for each in left:
            try:
                row: Row = yield Read(each.name)
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
        if not crowded and (yield Free(name, attempt, token)):
            return True
        return (yield from super().release(name, attempt, token, None))

    def abandon(self, name: str, attempt: str) -> Steps[bool]:
        try:
            return (yield from super().abandon(name, attempt))
        finally:
            self.waiters.forget(attempt)  # only now: what it has asked before may have ended just before this

    def tidy(self) -> Steps[None]:
        for _ in range(TIDY_BATCHES):
            if (yield Purge()) < 1000:
                break
        for name in (yield Leftovers()):
            with suppress(StoreNotReady):  # one bad record does not keep the others
                yield from self._change(name, lambda entry, row: entry._expire(row.now, row.wall), None)

    def interrupt(self, name: str, force: bool) -> Steps[bool]:
        try:
            return (yield from super().interrupt(name, force))
        except StoreNotReady:
            if not force or not (yield Mend(name)):
                raise
            return True

    def _change(
        self, name: str, change: Callable[[Entry, Row], T], absent: T, look: tuple[Row, float] | None = None
    ) -> Steps[T]:
        """``look``: the row, if it was read just now, and when that was sent."""
        while True:
            if look is None:
                sent = clock.now()
                row: Row = yield ReadOurs(name)
            else:
                (row, sent), look = look, None
            entry = self._entry(row)
            if not row.state:
                return absent
            result = change(entry, row)
            version = yield from self._store(row, entry)
            if version:
                self.waiters.saw(Snapshot(row._replace(version=version), entry, sent))
                return result

    def _store(self, row: Row, entry: Entry, waits: bool | None = None) -> Steps[int]:
        """Swap if anything has changed. A swap counts as a check, so it refreshes the places of all
        waiters of this process."""
        peers = self.waiters.by_name.get(row.name)
        if peers is not None:
            peers.refresh(entry, row.now)
        state = entry.state()
        if state == row.state and entry.token == row.token:
            return row.version or 1
        version: int = yield Exchange(row.name, row.version, entry.token, state, tuple(entry.rings), waits)
        return version

    def _conflict(self, tries: int) -> Steps[None]:
        """Another process was faster. One of them always succeeds; many succeed sooner when they spread out."""
        if tries >= 2:
            yield Pause(random.random() * min(0.05, 0.001 * 2**tries))


def _renew(renewal: Renewal, entry: Entry, row: Row) -> str:
    return entry.renew(renewal.attempt, renewal.token, renewal.ttl, row.now)
