"""What is known of one who waits, and for how long that will do. See :mod:`leasehold.stores.common.waiting`."""

from __future__ import annotations

from ...core import clock
from ...core.protocol import SECOND, Ask, Busy
from ...core.timing import FALLBACK, STAGGER
from ..common import waiting

RELIED = 0.1
"""How long to rely on a look that another has begun, when the holder may have expired: whoever is next has 250 ms."""
SLOWLY = 0.05
"""An answer may take so long; what it tells of a slower one is reckoned from then. Too early a look does no harm."""


class Waiter:
    """One attempt in the queue of its name. Times are local ones."""

    __slots__ = ("_known", "ask", "due", "leads", "rung", "slot")

    def __init__(self, ask: Ask, slot: int, reply: Busy, sent: float) -> None:
        self.ask = ask
        self.slot = slot
        self.rung = False
        self.leads = False
        """Whether it was told that nobody who may be before it was heard."""
        self.tell(reply, sent)
        self.due = self.until()
        """When it asks again unless it is called."""

    def tell(self, reply: Busy, sent: float) -> None:
        """How the name stands, as the server has just answered what was sent then."""
        self._known = reply, sent, min(clock.now(), sent + SLOWLY)  # at once: another thread may be about to answer

    def until(self) -> float:
        """Until when that will do, as the core would have it."""
        return min(self._looks(), self._expires() + STAGGER * (self._known[0].place or 0))

    def answer(self) -> Busy | None:
        """What is known, with the time that has passed since; None when it is too old, or must be asked for."""
        now = clock.now()
        if self.rung or self.until() <= now:
            return None
        self.due = self.until()
        return self._stands(now)._replace(expires_in=self._expires() - now, look=self._looks() - now)

    def rely(self, began: float) -> Busy | None:
        """The same until the look that began then is over; None when that has taken too long already. And to one that
        has just come: it was not told who holds the name, and may be the next without knowing it."""
        if self._known[0].look is not None:
            return None
        now = clock.now()
        wait = began + min(waiting.UNDER_WAY, max(RELIED, self._expires() - began)) - now
        if wait <= 0:
            return None
        self.due = now + wait
        return self._stands(now)._replace(expires_in=None, look=wait)

    def _looks(self) -> float:
        reply, _, heard = self._known
        return heard + (FALLBACK if reply.look is None else reply.look)

    def _expires(self) -> float:
        reply, _, heard = self._known
        return heard + (FALLBACK if reply.expires_in is None else reply.expires_in)

    def _stands(self, now: float) -> Busy:
        reply, sent, heard = self._known
        holder, at = reply.holder, reply.now
        if holder is not None:
            passed = now - heard
            holder = holder._replace(age=holder.age + passed, expires_in=holder.expires_in - passed)
        # A grant that is pushed later is measured against this, and must not be taken for younger than it is.
        return reply._replace(holder=holder, now=None if at is None else at + int((now - sent) * SECOND) + 1)


Waiters = waiting.Waiters[Waiter]


def call_waiter(waiters: Waiters, attempt: str, leads: bool) -> None:
    """It was called by a push, and will ask for itself."""
    waiter = waiters.get(attempt)
    if waiter is not None:
        waiter.leads = leads
    waiters.ring(attempt)
