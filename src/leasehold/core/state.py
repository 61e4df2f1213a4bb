"""The state of one lease in this process: until when it can be trusted, when its renewal is due, how it ended.

Pure: no I/O, no threads, and time is an argument. The registry, the keeper and the timer work on it. What a user holds
is a ``Lease``, a handle on it: see :mod:`leasehold.core.lease`.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from ..errors import LeaseLost
from .claim import EXPIRED, OFFERED, OVERHELD, RELEASED, SILENT, Claim
from .options import Spec

NEVER = float("inf")
DONE = "done"
"""``LeaseState.released_by`` when nobody has anything left to do."""


class Handle:
    """What the user holds. Nothing in the core keeps a handle alive: one that is collected releases its lease."""

    __slots__ = ("__weakref__",)

    def _wake(self) -> None:
        """Wake the waiters on ``lost``."""
        raise NotImplementedError

    def _announce(self) -> None:
        """Wake the waiters on ``lost`` and call the callbacks. Called once, from any thread."""
        raise NotImplementedError


class BaseState:
    """What a handle reads. A lease that stands on several others computes it from theirs."""

    __slots__ = ("__weakref__", "_handle", "generation", "owner", "spec")

    def __init__(self, generation: int, owner: str, spec: Spec) -> None:
        self.generation = generation
        """The generation of the registry, which a fork increments: the child owns nothing of its parent's."""
        self.owner = owner
        self.spec = spec
        self._handle: weakref.ref[Handle] | None = None

    @property
    def claim(self) -> Claim:
        raise NotImplementedError

    @property
    def ttl(self) -> float:
        raise NotImplementedError

    @property
    def deadline(self) -> float:
        """Until when the lease can be trusted, unless it ends before."""
        raise NotImplementedError

    @property
    def end(self) -> str | None:
        """How the lease ended: RELEASED, or the reason of its loss. None: it has not."""
        raise NotImplementedError

    @property
    def offered(self) -> bool:
        """Whether ``transfer`` has offered the lease to another process."""
        raise NotImplementedError

    @property
    def released_by(self) -> object | None:
        """Who releases it at the store: None (nobody yet), the call that is doing so, or DONE.

        A call that is interrupted knows by this whether the release was its own to finish."""
        raise NotImplementedError

    @property
    def parts(self) -> Sequence[LeaseState]:
        """The states of the leases that it stands on: of a plain lease, this one."""
        raise NotImplementedError

    def beat(self, now: float) -> None:
        """Note that the body makes progress."""
        raise NotImplementedError

    def why_expired(self, now: float) -> str:
        """The reason of the loss of a lease whose deadline has passed."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def token(self) -> int:
        return self.claim.token

    def trusted_until(self) -> float:
        """When trust ends; minus infinity once the lease has ended or was offered: another process may hold it then."""
        return self.deadline if self.end is None and not self.offered else float("-inf")

    def remaining(self, now: float) -> float:
        """Seconds for which the lease can still be trusted; 0.0 if it cannot."""
        return max(0.0, self.trusted_until() - now)

    def lost_reason(self, now: float) -> str | None:
        """Why the lease was lost; None while it is held and after a clean release."""
        if self.end is None:
            if now >= self.deadline:
                return self.why_expired(now)
            return OFFERED if self.offered else None
        return None if self.end == RELEASED else self.end

    def check(self, now: float) -> None:
        """Raise LeaseLost unless the lease can be trusted."""
        if now >= self.trusted_until():
            raise LeaseLost(self.name, self.lost_reason(now) or "it was released")

    # The handle, as long as there is one.

    def bind(self, handle: Handle) -> None:
        self._handle = weakref.ref(handle)

    @property
    def handle(self) -> Handle | None:
        return None if self._handle is None else self._handle()

    def wake(self) -> None:
        """Wake the waiters on the handle's ``lost``."""
        if (handle := self.handle) is not None:
            handle._wake()

    def announce(self) -> None:
        """Notify the handle of the loss."""
        if (handle := self.handle) is not None:
            handle._announce()


class LeaseState(BaseState):
    """The state of one lease. All times are seconds of the local clock."""

    __slots__ = (
        "acquired",
        "acquirer",
        "claim",
        "cycle_ends",
        "deadline",
        "due",
        "end",
        "failures",
        "first_term",
        "last_beat",
        "offered",
        "released_by",
        "sent",
        "ttl",
    )
    claim: Claim
    ttl: float
    deadline: float
    end: str | None
    offered: bool
    released_by: object | None

    acquired: float
    """When the acquire that was granted was sent."""
    acquirer: object | None
    """Which thread or task acquired it, or entered its block last: what ``Registry.me`` returned there."""
    sent: float
    """When the last request that the store confirmed was sent: the acquire, or a renewal."""
    due: float
    """When the keeper renews it; NEVER if it does not."""
    cycle_ends: float
    """A failed renewal after this is another failed cycle."""
    failures: int
    """Failed cycles in a row."""
    first_term: bool
    """Whether it is in the short first term of a hand-over, which the keeper extends at once."""
    last_beat: float

    def __init__(
        self, generation: int, owner: str, spec: Spec, claim: Claim, sent: float, trusted: float | None = None
    ) -> None:
        """``trusted``: for how long after ``sent``, if that is a first term, which the keeper soon extends."""
        BaseState.__init__(self, generation, owner, spec)
        timing = spec.timing
        self.claim = claim
        self.ttl = timing.ttl
        self.acquired = self.last_beat = self.sent = sent
        self.acquirer = None
        if trusted is None:
            self.deadline = sent + timing.ttl - timing.margin
            self.due = self.cycle_ends = sent + timing.renew_every if timing.renew else NEVER
        else:
            self.deadline = sent + trusted
            self.due = self.cycle_ends = sent + trusted / 5
        self.failures = 0
        self.first_term = trusted is not None
        self.offered = False
        self.end = None
        self.released_by = None

    @property
    def parts(self) -> Sequence[LeaseState]:
        return (self,)

    def beat(self, now: float) -> None:
        self.last_beat = now

    def may_renew(self, now: float) -> bool:
        """Whether the keeper may renew: not if the body was silent for too long, or has held for too long."""
        timing = self.spec.timing
        if not timing.renew:
            return False
        if timing.max_hold is not None and now - self.acquired >= timing.max_hold:
            return False
        return timing.beat_every is None or now - self.last_beat < timing.beat_every

    def extend(self, sent: float, ttl: float, chosen: bool, now: float) -> bool:
        """Note a term that the store has confirmed, requested at ``sent``. Never revives a lease. False: it changes
        nothing.

        ``chosen``: the holder asked for this ttl. A renewal of the keeper for the old one, under way meanwhile, does
        not undo that. Called under the registry's mutex: what is compared is written with no call in between."""
        timing = self.spec.timing
        deadline = sent + ttl - timing.margin_of(ttl)
        due = sent + timing.renew_every * ttl / timing.ttl
        claim = self.claim._replace(until=max(self.claim.until, sent + ttl))  # the store never shortens a term
        if self.end is not None or now >= self.deadline:
            return False
        if not chosen and (sent < self.sent or ttl != self.ttl):
            return False
        if sent > self.sent:
            self.sent = sent
        self.ttl = ttl
        self.deadline = deadline
        self.claim = claim
        self.failures = 0
        self.first_term = False
        if self.due != NEVER:
            self.due = self.cycle_ends = due
        return True

    def why_expired(self, now: float) -> str:
        timing = self.spec.timing
        if timing.max_hold is not None and now - self.acquired >= timing.max_hold:
            return OVERHELD
        if timing.beat_every is not None and now - self.last_beat >= timing.beat_every:
            return SILENT
        return EXPIRED
