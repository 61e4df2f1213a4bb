"""What threads and tasks share: the options of a lock, the state of a lease, and the books of a ``Locks``."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from threading import Lock as Mutex
from typing import Any, NamedTuple

from . import checks, clock, policy
from .errors import LeaseLost, ShuttingDown
from .log import INFO, WARNING, log
from .model import Event
from .protocol import SECOND, Ask, Bell, Busy, Driver, Grant, Store

RELEASED = "released"
"""How a lease ends well. Any other end is a reason of loss."""
EXPIRED = "its deadline has passed without a successful renewal"
TAKEN = "the store says that it is no longer ours"
INTERRUPTED = "it was broken by an operator"
CLOSED = "its Locks was closed"
FORKED = "it belongs to the parent process"
OVERHELD = "max_hold is over, so it was not renewed"
SILENT = "its body has stopped beating, so it was not renewed"


_DEFAULTS: Mapping[str, Any] = {
    "ttl": policy.DEFAULT_TTL,
    "timeout": None,
    "poll": (0.01, 0.8),
    "backoff": "adaptive",
}


class Spec(NamedTuple):
    """The checked options of a lock."""

    name: str
    kind: str
    data: Any
    data_text: str | None
    timing: policy.Timing
    timeout: float | None
    on_lost: Any
    skip_unavailable: bool
    fair: bool
    poll: tuple[float, float]
    backoff: str
    shape: str = "lock"
    limit: int = 1
    weight: int = 1

    def ask(self, owner: str, queue: bool) -> Ask:
        return Ask(
            self.name,
            os.urandom(16).hex(),
            owner,
            self.kind,
            self.data_text,
            int(self.timing.ttl * SECOND),
            int(self.timing.min_hold * SECOND),
            self.shape,
            self.limit,
            self.weight,
            self.fair,
            queue,
        )


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


class Core:
    """The books of one ``Locks``: what it holds, what it owes the store, whom it tells.

    ``mutex`` guards the end of each lease, so that it ends once; it is held for a few instructions and never over I/O.
    """

    def __init__(
        self,
        store: Store,
        driver: Driver,
        *,
        namespace: str,
        owner: str | None,
        kinds: Mapping[str, object] | None,
        defaults: Mapping[str, Any],
        cancel_on_loss: bool,
        now: Callable[[], float] = clock.now,
    ) -> None:
        self.store = store
        self.namespace = namespace
        self.owner_given = owner is not None
        self.owner = checks.text(owner, "owner", checks.MAX_OWNER) if owner is not None else checks.make_owner()
        self.kinds = dict(policy.PRESETS)
        for kind, value in (kinds or {}).items():
            self.kinds[checks.text(kind, "a kind", checks.MAX_LABEL)] = policy.preset(kind, value)
        self.defaults = defaults
        self.cancel_on_loss = cancel_on_loss
        self.now = now
        self.listeners: list[Callable[[Event], object]] = []
        self.renewals = self.renewal_failures = 0
        self.closed: str | None = None
        self.dropped = False
        self.driver = driver
        driver.on_ring = self.rung
        self.spec("defaults")  # wrong ones are refused here, not at the first lock
        self.reset()
        _cores.add(self)

    def reset(self) -> None:
        """Start with empty books, in a new process or in a forked one."""
        self.mutex = Mutex()
        self.leases: weakref.WeakValueDictionary[str, BaseLease] = weakref.WeakValueDictionary()
        self.asking: dict[str, Bell] = {}
        self.unsettled: deque[Unsettled] = deque()
        self.urgent: set[str] = set()
        self.next_look = self.next_deadline = float("inf")
        self.cadence = float("inf")
        self.busy = False
        self.keeping = False

    def after_fork(self) -> None:
        """In the child: own nothing, share nothing with the parent."""
        for lease in list(self.leases.values()):
            lease._end = lease._end or FORKED
        if not self.owner_given:
            self.owner = checks.make_owner()
        self.driver.after_fork()
        self.reset()

    # Options.

    def spec(
        self,
        name: str,
        *,
        kind: str = "lock",
        data: Any = None,
        on_lost: Any = None,
        on_unavailable: str = "raise",
        fair: bool | None = None,
        **options: Any,
    ) -> Spec:
        """Check the options of a lock. One that is None comes from its kind, else ``connect``, else the default."""
        name = checks.name(name)
        kind = checks.text(kind, "kind", checks.MAX_LABEL)
        if on_lost == "cancel" and not self.cancel_on_loss:
            raise ValueError('on_lost="cancel" needs leasehold.aio: a thread cannot be cancelled; use "raise"')
        if not (on_lost is None or on_lost in ("cancel", "raise") or callable(on_lost)):
            raise ValueError(f'on_lost must be "cancel", "raise", a callable or None, not {on_lost!r}')
        if on_unavailable not in ("raise", "skip"):
            raise ValueError(f'on_unavailable must be "raise" or "skip", not {on_unavailable!r}')
        if fair and not self.store.fair:
            raise ValueError(f"fair=True: {self.store.scheme} cannot serve waiters in order; leave fair out")
        given = {key: value for key, value in options.items() if value is not None}
        merged = {**_DEFAULTS, **self.defaults}
        preset = self.kinds.get(kind)
        if preset is not None:
            merged.update(ttl=preset.ttl, share=preset.renew_every / preset.ttl)
        if preset is not None or "ttl" in given:
            merged.pop("renew_every", None)  # it was meant for another ttl
        merged.update(given)
        timeout, poll, backoff = merged.pop("timeout"), merged.pop("poll"), merged.pop("backoff")
        return Spec(
            name,
            kind,
            data,
            checks.data_text(data),
            policy.make_timing(**merged),
            None if timeout is None else policy.seconds(timeout, "timeout", zero=True),
            on_lost,
            on_unavailable == "skip",
            fair is not False,
            policy.check_poll(poll, backoff),
            backoff,
        )

    # Leases.

    def check_open(self) -> None:
        if self.closed is not None:
            raise ShuttingDown(self.closed)

    def add(self, lease: BaseLease) -> None:
        """Keep the lease from now on. Costs a comparison, unless it is due before anything else."""
        with self.mutex:
            self.leases[lease._claim.attempt] = lease
            sooner = lease._deadline < self.next_deadline
            if sooner:
                self.next_deadline = lease._deadline
        if sooner:
            timer.watch(self)
        self.busy = True
        self.cadence = min(self.cadence, lease._spec.timing.renew_every)
        if lease._due < self.next_look or not self.keeping:
            self.next_look = lease._due
            self.wake_keeper()

    def end(self, lease: BaseLease, reason: str) -> bool:
        """End the lease, once. True when this call did it."""
        with self.mutex:
            if lease._end is not None:
                return False
            lease._end = reason
        self.leases.pop(lease._claim.attempt, None)
        if reason != RELEASED:
            self.tell("lost", lease.name, lease.token, reason)
            lease._announce()
        return True

    def expire(self) -> None:
        """End what is past its deadline and find the next one. The timer's part: no I/O."""
        now = self.now()
        overdue = []
        with self.mutex:
            self.next_deadline = float("inf")
            for lease in list(self.leases.values()):
                if lease._deadline <= now:
                    overdue.append(lease)
                elif lease._deadline < self.next_deadline:
                    self.next_deadline = lease._deadline
        for lease in overdue:
            self.end(lease, lease._why_expired(now))

    def rung(self, attempt: str, news: Grant | Busy | None = None) -> None:
        """The store calls an attempt: wake its waiter, or have its lease looked at. From any thread."""
        bell = self.asking.get(attempt)
        if bell is not None:
            if news is not None:
                bell.news = news
            bell.ring()
        elif attempt in self.leases:
            self.urgent.add(attempt)
            self.next_look = 0.0
            self.wake_keeper()

    def settle(self, owed: Unsettled) -> None:
        """Have the keeper give something back. Takes no lock when the keeper runs: destructors come here."""
        self.unsettled.append(owed)
        self.next_look = 0.0
        self.wake_keeper()

    # Telling.

    def tell(self, event: str, name: str, token: int | None = None, reason: str | None = None) -> None:
        """Log an event and pass it to the listeners."""
        level, message = _MESSAGES[event]
        log(level, message, name, reason, event=event, name=name, token=token, owner=self.owner, reason=reason)
        if self.listeners:
            self.pass_on(Event(event, name, self.owner, token, reason))

    # What the shell adds.

    def wake_keeper(self) -> None:
        """Start the keeper if need be, and have it look now. Must not block once it is started."""
        raise NotImplementedError

    def pass_on(self, event: Event) -> None:
        """Call the listeners with the event, in order, without delaying anybody."""
        raise NotImplementedError


_MESSAGES = {
    "acquired": (INFO, "lease %r acquired (%s)"),
    "taken_over": (WARNING, "lease %r taken over: %s"),
    "busy": (INFO, "lease %r not acquired: %s"),
    "released": (INFO, "lease %r released (%s)"),
    "lost": (WARNING, "lease %r lost: %s"),
    "renewal_failed": (WARNING, "lease %r could not be renewed: %s"),
    "release_failed": (WARNING, "lease %r could not be given back: %s"),
    "unavailable": (WARNING, "lease %r cannot be asked for: %s"),
}


class BaseLease:
    """The state of one holding. Everything here is computed from the clock and needs neither I/O nor threads."""

    __slots__ = (
        "__weakref__",
        "_acquired",
        "_beat",
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
        if getattr(self, "_end", RELEASED) is None:
            self._end = RELEASED
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
            self._deadline = sent + ttl - self._spec.timing.margin
            self._claim = self._claim._replace(until=sent + ttl)
            self._failures = 0
            if self._due != float("inf"):
                self._due = self._cycle = sent + self._spec.timing.renew_every * ttl / self._spec.timing.ttl
            sooner = self._deadline < self._core.next_deadline
            if sooner:
                self._core.next_deadline = self._deadline
        if sooner:
            timer.watch(self._core)

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
            self._core.end(self, reason)
        with self._core.mutex:
            if self._given or self._end in (FORKED, CLOSED):
                return None
            self._given = True
        return held

    def _announce(self) -> None:
        """Wake those who wait on ``lost`` and call the callbacks. Comes from any thread, once."""
        raise NotImplementedError

    def _call(self, callbacks: list[Callable[..., object]]) -> None:
        raise NotImplementedError


_cores: weakref.WeakSet[Core] = weakref.WeakSet()

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


def _forked() -> None:
    timer.after_fork()
    for core in list(_cores):
        core.after_fork()


from .timer import timer  # noqa: E402  (the timer needs Core only as a type)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
