"""The state of one holding, and how it ends. No I/O, no threads: everything is computed from the clock when asked."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

from ..errors import LeaseLost
from . import checks
from .claim import EXPIRED, OFFERED, OVERHELD, RELEASED, SILENT, Claim
from .options import Spec
from .registry import Registry

NEVER = float("inf")
K = TypeVar("K")
L = TypeVar("L", bound="BaseLease")


class BaseLease:
    """The state of one holding. Everything here is computed from the clock and needs neither I/O nor threads."""

    __slots__ = (
        "__weakref__",
        "_acquired",
        "_beat",
        "_born",
        "_callbacks",
        "_claim",
        "_core",
        "_cycle",
        "_deadline",
        "_due",
        "_end",
        "_failures",
        "_given",
        "_lost",
        "_owner",
        "_promised",
        "_sent",
        "_spec",
        "_ttl",
    )

    def __init__(self, core: Registry, spec: Spec, claim: Claim, sent: float, trusted: float | None = None) -> None:
        timing = spec.timing
        self._core = core
        self._spec = spec
        self._claim = claim
        self._owner = core.owner
        self._born = core.generation
        self._ttl = timing.ttl
        self._acquired = self._beat = self._sent = sent
        if trusted is None:
            self._deadline = sent + timing.ttl - timing.margin
            self._due = self._cycle = sent + timing.renew_every if timing.renew else NEVER
        else:  # a first term, that another's release has granted: to be extended soon
            self._deadline = sent + trusted
            self._due = self._cycle = sent + trusted / 5
        self._failures = 0
        self._promised = False
        self._end: str | None = None
        self._lost: Callable[[], Any] | None = None
        self._callbacks: list[Callable[..., object]] = [spec.on_lost] if callable(spec.on_lost) else []
        # False; then who is giving it back, so that one that is interrupted knows whether that was its own task; then
        # True. Last: what was not finished here is given back by whoever asked for it.
        self._given: object = False

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def token(self) -> int:
        """The fencing token: greater than every earlier one of this name."""
        return self._claim.token

    @property
    def owner(self) -> str:
        return self._owner

    @property
    def kind(self) -> str:
        return self._spec.kind

    @property
    def data(self) -> Any:
        return self._spec.data

    @property
    def ttl(self) -> float:
        return self._ttl

    @property
    def exclusive(self) -> bool:
        """Whether nobody else can hold the name meanwhile: not so for a semaphore's permit and for a reader."""
        return self._spec.weight == self._spec.limit

    @property
    def remaining(self) -> float:
        """Seconds for which this lease can still be trusted; 0.0 when it cannot."""
        return max(0.0, self._trusted_until() - self._core.now())

    @property
    def valid(self) -> bool:
        return self._core.now() < self._trusted_until()

    @property
    def lost_reason(self) -> str | None:
        """Why the lease was lost; None while it is held and after a clean release."""
        if self._end is None:
            now = self._core.now()
            if now >= self._deadline:
                return self._why_expired(now)
            return OFFERED if self._promised else None
        return None if self._end == RELEASED else self._end

    def check(self) -> None:
        """Raise LeaseLost unless the lease can be trusted at this moment."""
        if self._core.now() >= self._trusted_until():
            raise LeaseLost(self.name, self.lost_reason or "it was released")

    def beat(self) -> None:
        """Say that the work makes progress. Needed with ``beat_every``: without beats renewal stops."""
        self._beat = self._core.now()

    def on_lost(self, callback: Callable[..., object]) -> None:
        """Have ``callback(lease)`` called when the lease is lost; at once if it already is."""
        checks.callback(callback, "on_lost", tasks=self._core.cancel_on_loss)
        with self._core.mutex:
            if self._end is None:
                self._callbacks += [callback]  # no call, in which a signal handler could come and wait
                return
        if self._end != RELEASED:
            self._call([callback])

    def __repr__(self) -> str:
        state = "held" if self.valid else (self.lost_reason or RELEASED)
        return f"<Lease {self.name!r} token={self.token} {state}>"

    def __del__(self) -> None:
        # A handle that nobody has any more cannot be released by anybody: give the lease back.
        if getattr(self, "_given", True) is not True:
            if self._given:  # whoever had begun to did not get to the end
                self._given = False
                self._core.giving.discard(self._claim.attempt)
            self._drop()

    def _drop(self) -> None:
        """Have the keeper give it back, unless somebody does."""
        if not self._given and self._is_ours():
            self._end = self._end or RELEASED
            self._core.leases.pop(self._claim.attempt, None)
            if not self._promised:
                self._core.settle(self._claim.owed())
            self._given = True

    # For the keeper and the rest of the core.

    def _may_renew(self, now: float) -> bool:
        """Whether the body still deserves renewal."""
        timing = self._spec.timing
        if not timing.renew:
            return False
        if timing.max_hold is not None and now - self._acquired >= timing.max_hold:
            return False
        return timing.beat_every is None or now - self._beat < timing.beat_every

    def _renewed(self, sent: float, ttl: float, chosen: bool) -> None:
        """The store has confirmed a term that was asked for at ``sent``. Never revives.

        A term that the user has ``chosen`` stands, though the keeper may have renewed for the old one meanwhile."""
        timing, now = self._spec.timing, self._core.now()
        deadline = sent + ttl - timing.margin_of(ttl)
        due = sent + timing.renew_every * ttl / timing.ttl
        claim = self._claim._replace(until=max(self._claim.until, sent + ttl))  # the store never shortens
        with self._core.mutex:
            if self._end is not None or now >= self._deadline:
                return
            if not chosen and (sent < self._sent or ttl != self._ttl):
                return
            if sent > self._sent:
                self._sent = sent
            self._ttl = ttl
            self._deadline = deadline
            self._claim = claim
            self._failures = 0
            if self._due != NEVER:
                self._due = self._cycle = due
        self._core.reckon(self)

    def _trusted_until(self) -> float:
        """When trust ends, or has ended. What was offered to another may be that one's at any moment, so not before it
        is taken but from the offer on it is ours no longer."""
        return self._deadline if self._end is None and not self._promised else float("-inf")

    def _is_ours(self) -> bool:
        """Whether this process has anything to tell the store of it: not in a forked child, not after ``close``."""
        return self._born == self._core.generation and self._core.closed is None

    def _why_expired(self, now: float) -> str:
        timing = self._spec.timing
        if timing.max_hold is not None and now - self._acquired >= timing.max_hold:
            return OVERHELD
        if timing.beat_every is not None and now - self._beat >= timing.beat_every:
            return SILENT
        return EXPIRED

    def _finish(self, giver: object) -> bool | None:
        """End the lease because it is released: True when it was trusted until now, False when it was lost before,
        None when there is nothing (more) to give back. Otherwise that is up to ``giver``."""
        core = self._core
        if core.now() >= self._deadline:
            self._end_well()  # as lost
        ours, held = self._is_ours(), None
        with core.mutex:
            if self._end is None:
                self._end = RELEASED
            if not self._given and ours:
                self._given = giver
                held = self._end == RELEASED  # also when another thread ended it and comes later than this one
        core.leases.pop(self._claim.attempt, None)
        return held

    def _leave_to_heir(self) -> None:
        """The block ends after ``transfer``: what is held stays for whoever takes it over, or runs out."""
        self._end_well()
        self._given = True

    def _end_well(self) -> None:
        """End the lease because its holder is through with it, or as lost if it was lost before."""
        if self._core.now() < self._deadline:
            self._core.end(self, RELEASED)  # unless it has ended before
        elif (reason := self.lost_reason) is not None:
            self._core.lose(self, reason)

    def _offer(self) -> None:
        """From now on another may take it: it can be trusted no longer, though it is renewed for that one's sake."""
        self._promised = True
        self._wake()

    def _wake(self) -> None:
        """Wake those who wait on ``lost``."""
        raise NotImplementedError

    def _announce(self) -> None:
        """Wake those who wait on ``lost`` and call the callbacks. Comes from any thread, once."""
        raise NotImplementedError

    def _call(self, callbacks: list[Callable[..., object]]) -> None:
        raise NotImplementedError


_open: ContextVar[tuple[tuple[weakref.ref[BaseLease], str], ...]] = ContextVar("leasehold_open", default=())
"""Leases, weakly, and their names. A block keeps its lease: if it ends without ``leave``, because it was interrupted
before that, nobody else must."""


def enter(lease: BaseLease) -> None:
    """The lease's block begins, in this thread or task."""
    _open.set((*_open.get(), (weakref.ref(lease), lease.name)))


def leave(lease: BaseLease) -> None:
    """Its block ends, and so have those of leases that are no more."""
    _open.set(tuple([each for each in _open.get() if each[0]() is not lease and each[0]() is not None]))


def current() -> BaseLease:
    """The innermost lease whose block this thread or task is in."""
    stack = _open.get()
    if not stack:
        raise LookupError("no lease is held here: call leasehold.current() inside the block of a lease")
    found, name = stack[-1]
    lease = found()
    if lease is None:  # of a task, say, that was started in the block and outlives it
        raise LeaseLost(name, "its block has ended")
    return lease


def pop_block(blocks: dict[K, list[L]], me: K, name: str) -> L:
    """The lease whose ``with lock:`` block ends here. ``blocks`` has the open ones by thread or task."""
    mine = blocks.get(me)
    if not mine:  # entered in one thread or task, left in another, as some frameworks do
        others = [(key, stack) for key, stack in list(blocks.items()) if stack]
        if len(others) != 1 or len(others[0][1]) != 1:
            raise RuntimeError(
                f"cannot tell which block of lock {name!r} ends here: it was entered in another thread or task; "
                "use `with lock.acquire() as lease:`"
            )
        me, mine = others[0]
    lease = mine.pop()
    if not mine:
        del blocks[me]
    return lease
