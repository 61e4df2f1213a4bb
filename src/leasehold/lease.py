"""The state of one holding, and how it ends. No I/O, no threads: everything is computed from the clock when asked."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from .errors import LeaseLost
from .spec import Spec
from .typed import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from .core import Core

RELEASED = "released"
"""How a lease ends well. Any other end is a reason of loss."""
EXPIRED = "its deadline has passed without a successful renewal"
TAKEN = "the store says that it is no longer ours"
INTERRUPTED = "it was broken by an operator"
CLOSED = "its Locks was closed"
FORKED = "it belongs to the parent process"
OVERHELD = "max_hold is over, so it was not renewed"
SILENT = "its body has stopped beating, so it was not renewed"


K = TypeVar("K")
L = TypeVar("L", bound="BaseLease")


class Claim(NamedTuple):
    """The frozen record of one grant."""

    name: str
    attempt: str
    token: int
    hint: Any
    until: float
    """When the store forgets it by itself, on the local clock, if it is not renewed."""

    def owed(self) -> Unsettled:
        return Unsettled(self.name, self.attempt, self.until, self.token)


class Unsettled(NamedTuple):
    """What is to be given back in the background; after ``until`` the store has forgotten it by itself."""

    name: str
    attempt: str
    until: float
    token: int | None = None
    """Known when it was held: then it is released, with ``min_hold``; else the attempt is abandoned."""


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
        "_sent",
        "_spec",
        "_ttl",
    )

    def __init__(self, core: Core, spec: Spec, claim: Claim, sent: float, trusted: float | None = None) -> None:
        timing = spec.timing
        self._core = core
        self._spec = spec
        self._claim = claim
        self._owner = core.owner
        self._born = core.generation
        self._ttl = timing.ttl
        self._acquired = self._beat = self._sent = sent
        self._deadline = sent + timing.ttl - timing.margin
        self._due = sent + timing.renew_every if timing.renew else float("inf")
        if trusted is not None:  # a first term, that another's release has granted: to be extended soon
            self._deadline = sent + trusted
            self._due = sent + trusted / 5
        self._cycle = self._due
        self._failures = 0
        self._given = False
        self._end: str | None = None
        self._callbacks: list[Callable[..., object]] = []
        self._lost: Callable[[], Any] | None = None
        if callable(spec.on_lost):
            self._callbacks.append(spec.on_lost)

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
    def remaining(self) -> float:
        """Seconds for which this lease can still be trusted; 0.0 when it cannot."""
        return max(0.0, self._deadline - self._core.now()) if self._end is None else 0.0

    @property
    def valid(self) -> bool:
        return self._end is None and self._core.now() < self._deadline

    @property
    def lost_reason(self) -> str | None:
        """Why the lease was lost; None while it is held and after a clean release."""
        if self._end is None:
            now = self._core.now()
            return self._why_expired(now) if now >= self._deadline else None
        return None if self._end == RELEASED else self._end

    def check(self) -> None:
        """Raise LeaseLost unless the lease can be trusted at this moment."""
        if self._end is not None or self._core.now() >= self._deadline:
            raise LeaseLost(self.name, self.lost_reason or "it has been released")

    def beat(self) -> None:
        """Say that the work makes progress. Needed with ``beat_every``: without beats renewal stops."""
        self._beat = self._core.now()

    def on_lost(self, callback: Callable[..., object]) -> None:
        """Have ``callback(lease)`` called when the lease is lost; at once if it already is."""
        if not callable(callback):
            raise TypeError("on_lost takes a callable")
        with self._core.mutex:
            if self._end is None:
                self._callbacks.append(callback)
                return
        if self._end != RELEASED:
            self._call([callback])

    def __repr__(self) -> str:
        state = "held" if self.valid else (self.lost_reason or RELEASED)
        return f"<Lease {self.name!r} token={self.token} {state}>"

    def __del__(self) -> None:
        # A handle that nobody has any more cannot be released by anybody: give the lease back.
        if not getattr(self, "_given", True) and self._is_ours():
            self._end = self._end or RELEASED
            self._given = True
            self._core.settle(self._claim.owed())

    # For the keeper and the engine.

    def _may_renew(self, now: float) -> bool:
        """Whether the body still deserves renewal."""
        timing = self._spec.timing
        if timing.max_hold is not None and now - self._acquired >= timing.max_hold:
            return False
        return timing.beat_every is None or now - self._beat < timing.beat_every

    def _renewed(self, sent: float, ttl: float) -> None:
        """The store has confirmed a term that was asked for at ``sent``. Never revives."""
        with self._core.mutex:
            if self._end is not None or self._core.now() >= self._deadline or sent < self._sent:
                return
            self._sent = sent
            self._ttl = ttl
            self._deadline = sent + ttl - self._spec.timing.margin_of(ttl)
            self._claim = self._claim._replace(until=max(self._claim.until, sent + ttl))  # the store never shortens
            self._failures = 0
            if self._due != float("inf"):
                self._due = self._cycle = sent + self._spec.timing.renew_every * ttl / self._spec.timing.ttl
        self._core.reckon(self)

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

    def _finish(self) -> bool | None:
        """End the lease because it is released: True when it was trusted until now, False when it was lost before,
        None when there is nothing (more) to give back."""
        reason = self.lost_reason
        held = reason is None and self._core.end(self, RELEASED)
        if reason is not None:
            self._core.lose(self, reason)
        with self._core.mutex:
            if self._given or not self._is_ours():
                return None
            self._given = True
        return held

    def _announce(self) -> None:
        """Wake those who wait on ``lost`` and call the callbacks. Comes from any thread, once."""
        raise NotImplementedError

    def _call(self, callbacks: list[Callable[..., object]]) -> None:
        raise NotImplementedError


_open: ContextVar[tuple[BaseLease, ...]] = ContextVar("leasehold_open", default=())


def enter(lease: BaseLease) -> None:
    """The lease's block begins, in this thread or task."""
    _open.set((*_open.get(), lease))


def leave(lease: BaseLease) -> None:
    _open.set(tuple(each for each in _open.get() if each is not lease))


def current() -> BaseLease:
    """The innermost lease whose block this thread or task is in."""
    stack = _open.get()
    if not stack:
        raise LookupError("no lease is held here: leasehold.current() is for the body of a lease")
    return stack[-1]


def pop_block(blocks: dict[K, list[L]], me: K, name: str) -> L:
    """The lease whose ``with lock:`` block ends here. ``blocks`` has the open ones by thread or task."""
    mine = blocks.get(me)
    if not mine:  # entered in one thread or task, left in another, as some frameworks do
        others = [(key, stack) for key, stack in list(blocks.items()) if stack]
        if len(others) != 1 or len(others[0][1]) != 1:
            raise RuntimeError(
                f"which block of lock {name!r} ends here is unclear: it was entered elsewhere; "
                "use `with lock.acquire() as lease:`"
            )
        me, mine = others[0]
    lease = mine.pop()
    if not mine:
        del blocks[me]
    return lease
