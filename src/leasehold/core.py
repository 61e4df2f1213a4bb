"""What threads and tasks share: the books of a ``Locks``."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping

from . import checks, clock, policy
from .errors import ShuttingDown
from .lease import FORKED, RELEASED, TAKEN, BaseLease, Unsettled
from .log import INFO, WARNING, log
from .model import Event
from .protocol import Bell, Busy, Driver, Grant, Store
from .spec import Spec, make_spec
from .timer import timer
from .typed import Any

EXIT_LIMIT = 1.0
"""How long the interpreter's exit may be held up by giving back what is held."""


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
        self.renewals = self.renewal_failures = self.unavailable = 0
        self.closed: str | None = None
        self.dropped = False
        self.generation = 0
        self.driver = driver
        driver.on_ring = self.rung
        self.spec("defaults")  # wrong ones are refused here, not at the first lock
        self.reset()
        _cores.add(self)

    def reset(self) -> None:
        """Start with empty books, in a new process or in a forked one."""
        self.mutex = threading.Lock()
        self.leases: weakref.WeakValueDictionary[str, BaseLease] = weakref.WeakValueDictionary()
        self.asking: dict[str, Bell] = {}
        self.unsettled: deque[Unsettled] = deque()
        self.urgent: set[str] = set()
        self.next_look = self.next_deadline = float("inf")
        self.cadence = float("inf")
        self.busy = False
        self.keeping = False
        self.finished = False

    def after_fork(self) -> None:
        """In the child: own nothing, share nothing with the parent."""
        for lease in self.held():
            lease._end = lease._end or FORKED
        if not self.owner_given:
            self.owner = checks.make_owner()
        self.generation += 1
        self.driver.after_fork()
        self.reset()

    def spec(self, name: str, **options: Any) -> Spec:
        return make_spec(
            name,
            store=self.store,
            kinds=self.kinds,
            defaults=self.defaults,
            can_cancel=self.cancel_on_loss,
            **options,
        )

    # Leases.

    def check_open(self) -> None:
        if self.closed is not None:
            raise ShuttingDown(self.closed)

    def held(self) -> list[BaseLease]:
        """The leases that are kept now. A copy: others come and go in other threads meanwhile."""
        return [lease for ref in self.leases.valuerefs() if (lease := ref()) is not None]

    def add(self, lease: BaseLease) -> None:
        """Keep the lease from now on. Costs a comparison, unless it is due before anything else."""
        with self.mutex:
            self.leases[lease._claim.attempt] = lease
            self.busy = True
            self.cadence = min(self.cadence, lease._spec.timing.renew_every)
        self.reckon(lease)

    def reckon(self, lease: BaseLease) -> None:
        """The lease has a new deadline and is due anew: tell timer and keeper, if that comes before all else."""
        with self.mutex:
            ends_first = lease._deadline < self.next_deadline
            if ends_first:
                self.next_deadline = lease._deadline
            due_first = lease._due < self.next_look or not self.keeping
            if due_first:
                self.next_look = lease._due
        if ends_first:
            timer.watch(self)
        if due_first:
            self.wake_keeper()

    def end(self, lease: BaseLease, reason: str) -> bool:
        """End the lease, once, and wake those who wait for that. True when this call did it."""
        with self.mutex:
            if lease._end is not None:
                return False
            lease._end = reason
        self.leases.pop(lease._claim.attempt, None)
        if reason != RELEASED:
            lease._announce()
        return True

    def belie(self, lease: BaseLease) -> None:
        """It was trusted until it was released, and then the store said that it had been another's already."""
        with self.mutex:
            lease._end = TAKEN
        lease._announce()
        self.tell("lost", lease.name, lease.token, TAKEN)

    def lose(self, lease: BaseLease, reason: str) -> None:
        """End the lease and tell everybody. Not for the timer: log handlers and listeners may take their time."""
        if self.end(lease, reason):
            self.tell("lost", lease.name, lease.token, reason)

    def expire(self) -> None:
        """End what is past its deadline and find the next one. The timer's part: no I/O, nothing that may block."""
        now = self.now()
        overdue = []
        with self.mutex:
            self.next_deadline = float("inf")
            for lease in self.held():
                if lease._deadline <= now:
                    overdue.append(lease)
                elif lease._deadline < self.next_deadline:
                    self.next_deadline = lease._deadline
        lost = [lease for lease in overdue if self.end(lease, lease._why_expired(now))]
        if lost:
            aside("leasehold-lost", self.report, lost)

    def report(self, lost: list[BaseLease]) -> None:
        """Tell what the timer ended, in a thread of its own."""
        for lease in lost:
            self.tell("lost", lease.name, lease.token, lease.lost_reason)

    def rung(self, attempt: str, news: Grant | Busy | None = None) -> None:
        """The store calls an attempt: wake its waiter, or have its lease looked at. From any thread.

        An empty one calls them all: rings may have been missed, or do not say whom they mean."""
        if not attempt:
            for bell in list(self.asking.values()):
                bell.ring()
            if held := [lease._claim.attempt for lease in self.held() if lease._due != float("inf")]:
                self.urgent.update(held)
                self.look_now()
            return
        waiting = self.asking.get(attempt)
        if waiting is not None:
            if news is not None:
                waiting.news = news
            waiting.ring()
        elif attempt in self.leases:
            self.urgent.add(attempt)
            self.look_now()

    def settle(self, owed: Unsettled) -> None:
        """Have the keeper give something back. Takes no lock when the keeper runs: destructors come here."""
        self.owe(owed)
        if self.closed is None:
            self.look_now()

    def owe(self, owed: Unsettled) -> None:
        """Something is to be given back. Until it is, these books are kept, though everybody else may drop them."""
        self.unsettled.append(owed)
        _owing.add(self)

    def settled(self, owed: Unsettled) -> None:
        try:
            self.unsettled.remove(owed)
        except ValueError:
            pass  # another was faster
        if not self.unsettled:
            _owing.discard(self)
            if self.unsettled:  # a destructor came in between
                _owing.add(self)

    def look_now(self) -> None:
        self.next_look = min(self.next_look, self.now())
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

    def at_exit(self, limit: float) -> None:
        """The interpreter exits: give back what is held."""
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


def aside(name: str, function: Callable[..., object], *args: object) -> None:
    """Call a function that may take its time in a thread of its own."""
    try:
        threading.Thread(target=function, args=args, name=name, daemon=True).start()
    except RuntimeError:
        pass  # the interpreter is shutting down: there is nobody left to tell


_cores: weakref.WeakSet[Core] = weakref.WeakSet()
_owing: set[Core] = set()


def _forked() -> None:
    timer.after_fork()
    _owing.clear()
    for core in list(_cores):
        core.after_fork()


def _at_exit() -> None:
    ends = clock.now() + EXIT_LIMIT
    for core in {*_cores, *_owing}:
        if not core.finished or any(owed.until > clock.now() for owed in list(core.unsettled)):
            core.at_exit(max(0.0, ends - clock.now()))


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
