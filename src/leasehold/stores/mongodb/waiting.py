"""What is known of an attempt that waits, and for how long that will do: see :mod:`leasehold.stores.common.waiting`."""

from __future__ import annotations

from ...core import clock
from ...core.protocol import SECOND, Ask, Busy
from ...core.timing import FALLBACK
from ..common import waiting

HORIZON = FALLBACK + 1.0
"""A place is kept without a further look when no holder expires within this time."""
SHARE = 0.65
"""Or within this part of what its holder had left when it was last seen: one that renews always has more. And the look
after that, a ``grace`` later, comes just after its second renewal from now."""
KEPT = FALLBACK - 1.0
"""How old a place may be, when a look of another sort is enough; it lasts two further looks."""
GRACE = 0.2
"""How much longer than its term a holder that renews is waited for, at most: see ``grace``. Who has died is to be
replaced within 250 ms of that."""
CLOCK_AGE = 60.0
"""How long the time of the server is reckoned from one answer: in a minute, clocks drift apart by a few ms."""


def grace(ttl: float) -> float:
    """How much later than its expiry to look at a holder that renews. Every third of its ttl it does: a look at the
    very end of a term would find the renewal before, and one a moment later finds that of just now. Of a longer ttl
    only who has died gets to the end of a term."""
    return min(GRACE, ttl / 6) if ttl * 2 / 3 < FALLBACK else 0.0


class QueuedAttempt:
    """One attempt in the queue of its name. Times are local ones."""

    __slots__ = ("ask", "due", "expires", "grace", "horizon", "kept", "reply", "rung", "seen", "told")

    def __init__(self, ask: Ask, reply: Busy, sent: float) -> None:
        self.ask = ask
        self.kept = sent
        """When its place in the queue was last refreshed."""
        self.rung = False
        self.tell(reply, sent)
        self.due = clock.now() + min(FALLBACK, reply.expires_in or 0.0)
        """When it asks again unless it is called."""

    def tell(self, reply: Busy, sent: float) -> None:
        """How the name stands, as the server has answered what was sent then."""
        self.reply = reply
        self.told = self.seen = sent
        self.expires = sent + (reply.expires_in or 0.0)
        """Before that the first holder need not be looked at."""
        left = 0.0 if reply.holder is None else reply.holder.expires_in
        self.grace = (reply.expires_in or 0.0) - left
        self.horizon = max(0.0, min(HORIZON, SHARE * left))

    def keep(self, sent: float) -> None:
        """What was sent then has found it in its place, and no holder that expires before its horizon."""
        self.kept = self.seen = sent
        self.expires = max(self.expires, sent + self.horizon + self.grace)

    def give_time(self, news: Busy) -> Busy | None:
        """Another was granted it, for a term that counts from ``news.now`` on the server's clock: until that is over,
        or who else holds it may have expired, there is no need to ask. None: there is. Where one at a time holds it,
        whoever was known to is gone, and nobody else does.

        The server read ``reply.now`` after ``told``, so that this is too early by what the answer took, never late."""
        if news.now is None or news.expires_in is None or self.reply.now is None:
            return None
        now = clock.now()
        ends = self.told + (news.now - self.reply.now) / SECOND + news.expires_in
        left = (ends if self.ask.limit == 1 else min(ends, self.expires)) - now
        # If the server's clock was set forth meanwhile: no longer than from now on.
        return news._replace(expires_in=min(left, news.expires_in)) if left > 0 else None

    def answer(self, wait: float | None = None) -> Busy | None:
        """What is known, with the time that has passed since; None when it is too old. With ``wait``: until then."""
        now = clock.now()
        if wait is None:
            wait = min(self.seen + FALLBACK, self.expires) - now
            if self.rung or wait <= 0:
                return None
        self.due = now + wait
        passed = now - self.told
        holder, at = self.reply.holder, self.reply.now
        if holder is not None:
            left = max(holder.expires_in - passed, self.expires - self.grace - now)
            holder = holder._replace(age=holder.age + passed, expires_in=left)
        at = None if at is None else at + int(passed * SECOND) + 1
        return self.reply._replace(holder=holder, expires_in=wait, now=at)


QueuedAttempts = waiting.Waiters[QueuedAttempt]
