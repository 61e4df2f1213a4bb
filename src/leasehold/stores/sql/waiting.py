"""What this process knows of its waiters between two of their calls: which were notified, and which push has failed.

The keeper refreshes their places in the queues (``core/places.py``), so a waiter itself asks only after a wake-up, when
a holder may have expired, or as a safety net.
"""

from __future__ import annotations

from ...core import clock
from ...core.entry import Entry
from ...core.log import DEBUG, log
from ...core.protocol import ALL, Busy
from ...core.timing import FALLBACK, FIRST_TERM, STAGGER

DISTRUST_FOR = 60.0
"""For how long push is not relied upon after a grant has lapsed without a wake-up."""


class Waiter:
    """One attempt that may be in a queue. Made before its first call: a wake-up may precede the answer."""

    __slots__ = ("called", "due", "place")

    def __init__(self) -> None:
        self.called = False
        """Whether it was notified since it last asked, or got no answer: then it may have been granted the name."""
        self.place = -1
        self.due = 0.0
        """When it asks again, or the keeper for it, unless it is notified."""

    def answered(self, busy: Busy) -> None:
        self.place = -1 if busy.place is None else busy.place
        wait = min(FALLBACK, busy.look or FALLBACK, (busy.expires_in or 0.0) + STAGGER * max(0, self.place))
        self.due = clock.now() + wait

    def missed_its_grant(self, attempt: str, entry: Entry, now: int) -> bool:
        """Whether it was granted the name, and the grant has lapsed: it is neither in the queue any more nor a holder.
        Not if it comes late itself. The caller knows that it was not notified."""
        if self.place < 0 or clock.now() > self.due + FIRST_TERM:
            return False
        waits = any(waiting.attempt == attempt for waiting in entry.queue)
        return not waits and not any(each.attempt == attempt and each.expires > now for each in entry.holders)


class Waiters(dict[str, Waiter]):
    """The waiters of this process, by attempt."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all waiters, as a forked child must."""
        self.clear()
        self.distrusted_until = 0.0
        """Until when wake-ups are not relied upon."""

    def ring(self, attempt: str) -> None:
        """An attempt was notified; or ALL, if wake-ups may have been missed."""
        for waiter in list(self.values()) if attempt == ALL else [self.get(attempt)]:
            if waiter is not None:
                waiter.called = True

    def forget(self, attempt: str) -> None:
        self.pop(attempt, None)

    def distrust_push(self, why: str = "a granted waiter got no wake-up in time") -> None:
        """A wake-up did not arrive: something in between may let none through, or the sender may not be allowed to send
        it. For some time, waiters poll as often as without push."""
        log(DEBUG, "%s: waiters poll for %g s", why, DISTRUST_FOR)
        self.distrusted_until = clock.now() + DISTRUST_FOR
