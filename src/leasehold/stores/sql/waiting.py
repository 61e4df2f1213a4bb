"""What this process knows of the queues that its attempts wait in, so that one check serves all waiters of a name.

See :mod:`leasehold.stores.common.waiting`. Here a check reads the row of one name, so the waiters of that name share
it. What any operation of this process has read or stored of the row is known to all of them: after a local release, the
next local waiter needs no query.
"""

from __future__ import annotations

import threading
from copy import copy

from ...core import clock
from ...core.entry import GRANTED, Entry, Permit
from ...core.log import DEBUG, log
from ...core.protocol import ALL, SECOND, Busy
from ...core.timing import FALLBACK, FIRST_TERM, STAGGER, WAITER_TTL
from ..common import waiting
from ..common.entries import Row

EARLY = 0.25
"""A waiter that has checked for others checks again so much earlier than they would, and so for them too."""
DISTRUST_FOR = 60.0
"""For how long push is not relied upon after a grant has lapsed without a wake-up."""
_WAITER_TTL = int(WAITER_TTL * SECOND)


class Snapshot:
    """A row as read by a statement sent at local time ``sent``, or as stored after it. Covers all earlier wake-ups."""

    __slots__ = ("_places", "entry", "row", "sent")

    def __init__(self, row: Row, entry: Entry, sent: float) -> None:
        self.row = row
        self.entry = entry
        self.sent = sent
        self._places: dict[str, int] | None = None

    def now(self, at: float | None = None) -> int:
        """What the server's clock says (or said) at most: however long its answer took, it was read after ``sent``."""
        return self.row.now + int(((clock.now() if at is None else at) - self.sent) * SECOND)

    def place(self, attempt: str) -> int | None:
        if self._places is None:
            self._places = {waiter.attempt: place for place, waiter in enumerate(self.entry.queue)}
        return self._places.get(attempt)

    def holder(self, attempt: str) -> Permit | None:
        return next((holder for holder in self.entry.holders if holder.attempt == attempt), None)

    def left(self) -> float:
        """Seconds until the first holder expires."""
        return (min((holder.expires for holder in self.entry.holders), default=0) - self.now()) / SECOND


class Waiter:
    """One attempt in the queue of its name."""

    __slots__ = ("attempt", "peers", "due", "excused", "place", "rung", "answered_from")

    def __init__(self, attempt: str, peers: NameWaiters) -> None:
        self.attempt = attempt
        self.peers = peers
        self.rung = False
        self.excused = False
        """Whether it was notified since its last answer, or got none: then a missed grant means no lost wake-up."""
        self.answered_from: Snapshot | None = None
        """What it was last answered from."""
        self.place = -1
        self.due = 0.0
        """When it asks again unless it is notified."""

    def answered(self, seen: Snapshot, reply: Busy) -> Busy:
        """Note what the waiter is answered, and from which snapshot."""
        wait = min(FALLBACK, reply.look or FALLBACK, (reply.expires_in or 0.0) + STAGGER * (reply.place or 0))
        self.answered_from, self.place, self.due = seen, reply.place or 0, clock.now() + wait
        self.excused = self.rung  # notified while it asked: what it missed was not a wake-up
        return reply

    def missed_its_grant(self, entry: Entry, now: int) -> bool:
        """Whether it was granted the name, and the grant has lapsed, without a wake-up: it is neither in the queue any
        more nor a holder. Not if wake-ups may have been missed for a known reason, or if it comes late itself."""
        last = self.answered_from
        if last is None or self.excused or self.peers.missed >= last.sent or clock.now() > self.due + FIRST_TERM:
            return False
        waits = any(waiting.attempt == self.attempt for waiting in entry.queue)
        return not waits and not any(each.attempt == self.attempt and each.expires > now for each in entry.holders)

    def granted(self) -> bool:
        """Whether it has probably been granted the name, and has only to accept."""
        if self.rung:
            return self.place == 0  # the next waiter is notified when it is granted the name
        seen = self.peers.seen
        holder = None if seen is None or seen is self.answered_from else seen.holder(self.attempt)
        return holder is not None and holder.state == GRANTED

    def answer(self, wait: float | None = None) -> Busy | None:
        """What has become known since its last answer. With ``wait``: what is known, for so long; another checks now.

        None when it has to ask: its place is gone, or a holder may have expired."""
        seen = self.peers.seen
        if seen is None:
            return None
        if wait is None:
            if seen is self.answered_from or seen.sent <= self.peers.missed:
                return None
            wait = FALLBACK - (clock.now() - seen.sent)
        place = seen.place(self.attempt)
        if place is None or wait <= 0 or seen.left() + STAGGER * place <= 0:
            return None
        return self.answered(seen, seen.entry._busy(place, seen.now())._replace(look=wait))


class NameWaiters(waiting.Waiters[Waiter]):
    """The waiters of this process for one name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.seen: Snapshot | None = None
        self.missed = 0.0
        """When wake-ups may have been missed, so that snapshots from before do not count."""

    def look_is_under_way(self) -> bool:
        began = self.look_began()
        return began is not None and began > self.missed and clock.now() - began < waiting.UNDER_WAY

    def saw(self, seen: Snapshot) -> None:
        """Answers may come in another order than that in which the row was read."""
        if self.seen is None or seen.row.version >= self.seen.row.version:
            self.seen = seen

    def accepted(self, attempt: str, ttl: int, sent: float) -> None:
        """A waiter of this process holds the name for a whole term since ``sent``: so no check
        is due at the end of its first term.

        Of the row's present version that is not known, so that nothing of this can be stored."""
        seen = self.seen
        granted = None if seen is None else seen.holder(attempt)
        if seen is None or granted is None or granted.state != GRANTED:
            return
        held, entry = copy(granted), copy(seen.entry)
        held.hold(ttl, seen.now(sent))
        entry.holders = [held if holder is granted else holder for holder in entry.holders]
        self.saw(Snapshot(seen.row, entry, seen.sent))

    def refresh(self, entry: Entry, now: int) -> bool:
        """Refresh all our places in the queue if one of them is half used up. Returns whether it was."""
        ours = [waiter for waiter in entry.queue if waiter.attempt in self]
        if all(waiter.expires - now > _WAITER_TTL / 2 for waiter in ours):
            return False
        for waiter in ours:
            waiter.expires = now + _WAITER_TTL
        return True

    def overlooked(self, looker: Waiter) -> list[Waiter]:
        """The waiters to wake after a check: the place is gone, or the waiter is next and has to
        check earlier than planned."""
        seen, found = self.seen, []
        if seen is None:
            return []
        expires = clock.now() + seen.left()
        for waiter in list(self.values()):
            if waiter is looker or waiter.answered_from is None or waiter.rung:
                continue
            place = seen.place(waiter.attempt)
            if place is None or (place == 0 and expires < waiter.due):
                found.append(waiter)
        return found


class Waiters(dict[str, Waiter]):
    """The waiters of this process, by attempt."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all waiters, as a forked child must."""
        self.clear()
        self.distrusted_until = 0.0
        """Until when wake-ups are not relied upon."""
        self.by_name: dict[str, NameWaiters] = {}
        self._early: dict[str, bool] = {}
        """Attempts that may be joining a queue now, and whether they have been notified already."""
        self._mutex = threading.RLock()
        """A destructor, which may run in the middle of anything, forgets too."""

    def expect(self, attempt: str) -> None:
        """It may have joined a queue before its answer arrives: a wake-up that comes earlier is kept for it."""
        with self._mutex:
            self._early[attempt] = False

    def join(self, name: str, attempt: str) -> Waiter:
        with self._mutex:
            while (waiter := self.get(attempt)) is None or waiter.peers is not self.by_name.get(name):
                peers = self.by_name.setdefault(name, NameWaiters(name))
                peers[attempt] = self[attempt] = Waiter(attempt, peers)
            waiter.rung |= self._early.pop(attempt, False)
            return waiter

    def forget(self, attempt: str) -> None:
        with self._mutex:
            self._early.pop(attempt, None)
            waiter = self.pop(attempt, None)
            if waiter is None:
                return
            peers = waiter.peers
            peers.pop(attempt, None)
            if not peers and self.by_name.get(peers.name) is peers:
                del self.by_name[peers.name]

    def saw(self, seen: Snapshot) -> None:
        peers = self.by_name.get(seen.row.name)
        if peers is not None:
            peers.saw(seen)

    def ring(self, attempt: str) -> None:
        """The server notified an attempt, which will ask for itself; or ALL: then the first waiter checks for
        the others."""
        if attempt == ALL:
            with self._mutex:
                self._early = dict.fromkeys(self._early, True)
                for peers in self.by_name.values():
                    peers.missed = clock.now()
        elif (waiter := self._called(attempt)) is not None:
            waiter.rung = waiter.excused = True

    def call(self, attempt: str) -> None:
        """An operation of this process notified an attempt, and what it stored is known here."""
        if (waiter := self._called(attempt)) is not None:
            waiter.excused = True

    def _called(self, attempt: str) -> Waiter | None:
        with self._mutex:
            if attempt in self._early:
                self._early[attempt] = True
            return self.get(attempt)

    def distrust_push(self, why: str = "a granted waiter got no wake-up in time") -> None:
        """A wake-up did not arrive: something in between may let none through, or the sender may not be allowed to send
        it. For some time, waiters poll as often as without push."""
        log(DEBUG, "%s: waiters poll for %g s", why, DISTRUST_FOR)
        self.distrusted_until = clock.now() + DISTRUST_FOR
