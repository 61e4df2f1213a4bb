"""What is known of the queues in which attempts of this process stand, so that one look is enough for all in a queue.

See :mod:`.waiting`. Here a look is at the row of one name, so that those who wait for it are a crowd of their own. What
any operation of this process has read or stored of the row is known to all of them: who is next after a release of our
own, say, need not ask when it is called.
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
"""Whoever has looked for others comes again so much sooner than these, and so looks for them the next time too."""
DOUBT = 60.0
"""For how long push is not relied upon after a grant of ours has lapsed without a ring."""
_WAITER_TTL = int(WAITER_TTL * SECOND)


class Seen:
    """A row as read by what went out at local time ``sent``, or stored after. Nothing that rang before is new to it."""

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

    __slots__ = ("attempt", "crowd", "due", "excused", "place", "rung", "told")

    def __init__(self, attempt: str, crowd: Crowd) -> None:
        self.attempt = attempt
        self.crowd = crowd
        self.rung = False
        self.excused = False
        """Whether it was called since its last answer, or got none: a grant that it misses is no lost ring then."""
        self.told: Seen | None = None
        """What it was last answered from."""
        self.place = -1
        self.due = 0.0
        """When it asks again unless it is called."""

    def tell(self, seen: Seen, reply: Busy) -> Busy:
        """Its answer, and what that is from."""
        wait = min(FALLBACK, reply.look or FALLBACK, (reply.expires_in or 0.0) + STAGGER * (reply.place or 0))
        self.told, self.place, self.due = seen, reply.place or 0, clock.now() + wait
        self.excused = self.rung  # while it asked: whatever it has missed, it was not the ring
        return reply

    def missed_its_grant(self, entry: Entry, now: int) -> bool:
        """Whether it was granted the name, and that has lapsed, without a ring: it is neither in the queue any more
        nor a holder. Not if rings may have been missed for a reason that is known, or if it comes late itself."""
        told = self.told
        if told is None or self.excused or self.crowd.missed >= told.sent or clock.now() > self.due + FIRST_TERM:
            return False
        waits = any(waiting.attempt == self.attempt for waiting in entry.queue)
        return not waits and not any(each.attempt == self.attempt and each.expires > now for each in entry.holders)

    def granted(self) -> bool:
        """Whether there is reason to think that it has only to accept what it was granted."""
        if self.rung:
            return self.place == 0  # who is next is called when it is granted the name
        seen = self.crowd.seen
        holder = None if seen is None or seen is self.told else seen.holder(self.attempt)
        return holder is not None and holder.state == GRANTED

    def answer(self, wait: float | None = None) -> Busy | None:
        """What has become known since its last answer. With ``wait``: what is known, for so long; another looks now.

        None when it has to ask: its place is gone, or a holder may have expired."""
        seen = self.crowd.seen
        if seen is None:
            return None
        if wait is None:
            if seen is self.told or seen.sent <= self.crowd.missed:
                return None
            wait = FALLBACK - (clock.now() - seen.sent)
        place = seen.place(self.attempt)
        if place is None or wait <= 0 or seen.left() + STAGGER * place <= 0:
            return None
        return self.tell(seen, seen.entry._busy(place, seen.now())._replace(look=wait))


class Crowd(waiting.Waiters[Waiter]):
    """All of this process that wait for one name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.seen: Seen | None = None
        self.missed = 0.0
        """When rings may have been missed, so that what was seen before will not do."""

    def look_is_under_way(self) -> bool:
        began = self.look_began()
        return began is not None and began > self.missed and clock.now() - began < waiting.UNDER_WAY

    def saw(self, seen: Seen) -> None:
        """Answers may come in another order than that in which the row was read."""
        if self.seen is None or seen.row.version >= self.seen.row.version:
            self.seen = seen

    def accepted(self, attempt: str, ttl: int, sent: float) -> None:
        """One of us holds the name for a whole term since ``sent``: nobody need look at the end of its first one.

        Of the row's present version that is not known, so that nothing of this can be stored."""
        seen = self.seen
        granted = None if seen is None else seen.holder(attempt)
        if seen is None or granted is None or granted.state != GRANTED:
            return
        held, entry = copy(granted), copy(seen.entry)
        held.hold(ttl, seen.now(sent))
        entry.holders = [held if holder is granted else holder for holder in entry.holders]
        self.saw(Seen(seen.row, entry, seen.sent))

    def refresh(self, entry: Entry, now: int) -> bool:
        """Keep all our places in the queue, if one of them is getting stale. Whether it is."""
        ours = [waiter for waiter in entry.queue if waiter.attempt in self]
        if all(waiter.expires - now > _WAITER_TTL / 2 for waiter in ours):
            return False
        for waiter in ours:
            waiter.expires = now + _WAITER_TTL
        return True

    def overlooked(self, looker: Waiter) -> list[Waiter]:
        """Who has to be woken after a look: its place is gone, or it is next and is to look sooner than it thinks."""
        seen, found = self.seen, []
        if seen is None:
            return []
        expires = clock.now() + seen.left()
        for waiter in list(self.values()):
            if waiter is looker or waiter.told is None or waiter.rung:
                continue
            place = seen.place(waiter.attempt)
            if place is None or (place == 0 and expires < waiter.due):
                found.append(waiter)
        return found


class Waiters(dict[str, Waiter]):
    """All of this process that wait, by attempt."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """In a forked child nobody waits."""
        self.clear()
        self.doubted = 0.0
        """Until when rings are not relied upon."""
        self.crowds: dict[str, Crowd] = {}
        self._early: dict[str, bool] = {}
        """Attempts that may be joining a queue just now, and whether they have been called already."""
        self._mutex = threading.RLock()
        """A destructor, which may run in the middle of anything, forgets too."""

    def expect(self, attempt: str) -> None:
        """It may have joined a queue by the time we know: a call that comes before that is kept for it."""
        with self._mutex:
            self._early[attempt] = False

    def join(self, name: str, attempt: str) -> Waiter:
        with self._mutex:
            while (waiter := self.get(attempt)) is None or waiter.crowd is not self.crowds.get(name):
                crowd = self.crowds.setdefault(name, Crowd(name))
                crowd[attempt] = self[attempt] = Waiter(attempt, crowd)
            waiter.rung |= self._early.pop(attempt, False)
            return waiter

    def forget(self, attempt: str) -> None:
        with self._mutex:
            self._early.pop(attempt, None)
            waiter = self.pop(attempt, None)
            if waiter is None:
                return
            crowd = waiter.crowd
            crowd.pop(attempt, None)
            if not crowd and self.crowds.get(crowd.name) is crowd:
                del self.crowds[crowd.name]

    def saw(self, seen: Seen) -> None:
        crowd = self.crowds.get(seen.row.name)
        if crowd is not None:
            crowd.saw(seen)

    def ring(self, attempt: str) -> None:
        """The server calls an attempt, which will ask for itself; or all, of whom the first looks for the others."""
        if attempt == ALL:
            with self._mutex:
                self._early = dict.fromkeys(self._early, True)
                for crowd in self.crowds.values():
                    crowd.missed = clock.now()
        elif (waiter := self._called(attempt)) is not None:
            waiter.rung = waiter.excused = True

    def call(self, attempt: str) -> None:
        """One of us calls an attempt, and what that is about is known here."""
        if (waiter := self._called(attempt)) is not None:
            waiter.excused = True

    def _called(self, attempt: str) -> Waiter | None:
        with self._mutex:
            if attempt in self._early:
                self._early[attempt] = True
            return self.get(attempt)

    def doubt(self, why: str = "a granted waiter got no wake-up in time") -> None:
        """A ring of the server's did not arrive: there may be something between that lets none through, or whoever
        should ring us may not. Until that is over, who waits looks by itself, as often as without push."""
        log(DEBUG, "%s: waiters poll for %g s", why, DOUBT)
        self.doubted = clock.now() + DOUBT
