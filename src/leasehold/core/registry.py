"""What threads and tasks share: the books of a ``Locks``."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import ShuttingDown
from ..model import Counters, Event
from ..runtime.hooks import owing, registries
from ..runtime.thread_start import aside
from ..runtime.timer import timer
from ..runtime.wakeups import refuse_late_patch
from . import checks, clock, timing
from .claim import FORKED, HANDED_OVER, INTERRUPTED, RELEASED, TAKEN, Unsettled
from .log import DEBUG, INFO, WARNING, heard, log
from .options import LOCK_OPTIONS, Spec, make_spec
from .protocol import ALL, HELD, Bell, Busy, Driver, Grant, Store

if TYPE_CHECKING:
    from .lease import BaseLease

L = TypeVar("L", bound="BaseLease")

_KIND_OPTIONS = ("ttl", "renew_every", "drift", "max_renew_failures", "data", "kind")
_OF_LOCKS_ALONE = ("timeout", "max_hold", "min_hold", "beat_every")
"""Defaults of ``connect`` that would end a term, a membership or once's work, or the wait for one."""


READERS = checks.MAX_PERMITS
"""The capacity of a read/write lock: as many readers as there may be at once."""


class Registry:
    """The books of one ``Locks``: what it holds, what it owes the store, whom it tells.

    ``mutex`` guards the end of each lease, so that it ends once; it is held for a few instructions and never over I/O.
    A signal handler or a destructor may run in the middle of that, in the same thread, and release or acquire a lease:
    so the mutex is re-entrant, and what it guards is compared and written with no call in between.
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
        self.kinds = dict(timing.PRESETS)
        if kinds is not None and not isinstance(kinds, Mapping):
            raise TypeError(f"kinds must be a mapping of presets by kind, not {type(kinds).__name__}")
        for kind, value in (kinds or {}).items():
            self.kinds[checks.text(kind, "a kind", checks.MAX_LABEL)] = timing.preset(kind, value)
        refuse_late_patch()
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
        registries.add(self)

    def reset(self) -> None:
        """Start with empty books, in a new process or in a forked one."""
        self.mutex = threading.RLock()
        self.leases: dict[str, weakref.ref[BaseLease]] = {}  # by attempt; each lease takes itself out
        self.asking: dict[str, Bell] = {}
        self.unsettled: deque[Unsettled] = deque()
        self.urgent: set[str] = set()
        self.next_look = self.next_deadline = float("inf")  # written by those who sleep until then, keeper and timer
        self.cadence = float("inf")
        # How soon one of the leases that came since the keeper's last look was due, or the timer's ended.
        self.soonest = self.shortest = float("inf")
        self.keeping = False
        self.finished = False
        self.giving: set[str] = set()  # attempts that are being released just now
        # For ``drain``. ``standing`` are leases by attempt that nobody else need keep and that it does not wait for:
        # memberships of groups. ``on_drain`` are called when it begins. ``signalled`` is one that a signal has begun.
        self.draining: str | None = None
        self.hurried = False
        self.standing: dict[str, BaseLease] = {}
        self.on_drain: list[Callable[[], object]] = []
        self.signalled: Any = None

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
        return self._spec(self.defaults, name, **options)

    def lock_spec(self, function: str, name: str, options: Mapping[str, Any]) -> Spec:
        """As ``spec``, for a public function that passes on what it is given, and is to be named when that is wrong."""
        unknown = sorted(set(options) - set(LOCK_OPTIONS))
        if unknown:
            raise TypeError(f"{function}() has no option {unknown[0]!r}; it accepts the options of lock()")
        return self.spec(name, **options)

    def _spec(self, defaults: Mapping[str, Any], name: str, **options: Any) -> Spec:
        return make_spec(
            name,
            store=self.store,
            kinds=self.kinds,
            defaults=defaults,
            can_cancel=self.cancel_on_loss,
            **options,
        )

    def kind_spec(self, name: str, kind: str, options: Mapping[str, Any], **more: Any) -> Spec:
        """The options of something that is made of one lease. They are fewer than a lock's."""
        unknown = sorted(set(options) - set(_KIND_OPTIONS))
        if unknown:
            known = ", ".join(_KIND_OPTIONS)
            raise TypeError(f"{kind}() has no option {unknown[0]!r}; of the options of lock() it accepts {known}")
        return self.lasting_spec(name, **{"kind": kind, **options, **more})

    def lasting_spec(self, name: str, **options: Any) -> Spec:
        """As ``spec``, for a lease that is held and waited for as long as it takes: without what ``connect`` says of
        locks that are not."""
        defaults = {key: value for key, value in self.defaults.items() if key not in _OF_LOCKS_ALONE}
        return self._spec(defaults, name, renew=True, **options)

    def counters(self) -> Counters:
        return Counters(self.renewals, self.renewal_failures, self.unavailable)

    def need(self, ability: str) -> None:
        """Refuse what the store cannot do, when it is asked for."""
        why = self.store.lacks.get(ability)
        if why is not None:
            raise ValueError(f"{self.store.scheme} does not support this ({ability}): {why}")

    def semaphore_spec(self, name: str, limit: int, options: Mapping[str, Any]) -> Spec:
        self.need("semaphore")
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise TypeError(f"limit must be an int, not {type(limit).__name__}")
        if not 1 <= limit <= checks.MAX_PERMITS:
            raise ValueError(f"limit must be 1 to {checks.MAX_PERMITS}, not {limit}")
        spec = self.lock_spec("semaphore", name, {"kind": "semaphore", **options})
        return spec._replace(shape="semaphore", limit=limit)

    def rw_spec(self, name: str, write: bool, options: Mapping[str, Any]) -> Spec:
        """A reader takes one of very many permits, a writer all of them."""
        self.need("rwlock")
        if options.get("fair") is False:
            raise ValueError("rwlock does not support fair=False: readers would starve waiting writers; leave fair out")
        spec = self.lock_spec("rwlock", name, {"kind": "write" if write else "read", **options})
        return spec._replace(shape="rwlock", limit=READERS, weight=READERS if write else 1)

    def all_specs(self, names: tuple[str, ...], options: Mapping[str, Any]) -> list[Spec]:
        """One of each name, in the one order in which everybody takes them: so nobody waits in a circle."""
        if not names:
            raise ValueError("all_of needs at least one name")
        if len(set(names)) < len(names):
            raise ValueError("all_of was given the same name twice")
        return [self.lock_spec("all_of", name, options) for name in sorted(checks.name(name) for name in names)]

    # Leases.

    def check_open(self) -> None:
        """Raise ShuttingDown if there is nothing to be asked of the store any more."""
        if self.closed is not None:
            raise ShuttingDown(self.closed)

    def check_giving_out(self, heir: tuple[str, int] | None = None) -> None:
        """Raise ShuttingDown if there are to be no new leases. One in place of our own (``heir``) is not new."""
        refuse_late_patch()
        if self.closed is None and self.draining is None:
            return
        self.check_open()
        if self.draining is not None and (heir is None or heir[0] not in self.giving):
            raise ShuttingDown(self.draining)

    def held(self) -> list[BaseLease]:
        """The leases that are kept now. A copy: others come and go in other threads meanwhile."""
        return [lease for ref in list(self.leases.values()) if (lease := ref()) is not None]

    def add(self, lease: BaseLease) -> None:
        """Keep the lease from now on. Costs a comparison, unless it is due before anything else."""
        self.leases[lease._claim.attempt] = weakref.ref(lease)
        self.reckon(lease)

    def hold(self, make: Callable[..., L], specs: Sequence[Spec], taken: Sequence[Any], bell: Bell) -> list[L]:
        """Make the leases that were taken together, and keep them. ``bell`` is what they were asked for with."""
        leases = [
            make(self, spec, each.claim, each.sent, each.trusted) for spec, each in zip(specs, taken, strict=True)
        ]
        for lease in leases:
            self.add(lease)
            del self.asking[lease._claim.attempt]
        if bell.rang():  # called since the grant: one may have been broken already
            for lease in leases:
                self.rung(lease._claim.attempt)
        return leases

    def reckon(self, lease: BaseLease) -> None:
        """The lease has a new deadline and is due anew: tell timer and keeper, if they would sleep longer.

        Nothing is noted here of what they were told: an interrupt before that would keep the next lease from it, too.
        """
        every = lease._spec.timing.renew_every
        due, deadline, sent = lease._due, lease._deadline, lease._sent
        if every < self.cadence:
            self.cadence = every
        if due - sent < self.soonest:
            self.soonest = due - sent
        if deadline - sent < self.shortest:
            self.shortest = deadline - sent
        if deadline < self.next_deadline:
            self.watch_deadline()
        if due < self.next_look or not self.keeping:
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
            lease._end = reason = HANDED_OVER if lease._promised else TAKEN
        lease._announce()
        self.tell("lost", lease.name, lease.token, reason)

    def lose(self, lease: BaseLease, reason: str) -> None:
        """End the lease and tell everybody. Not for the timer: log handlers and listeners may take their time."""
        if lease._promised and reason == TAKEN:
            reason = HANDED_OVER
        if self.end(lease, reason):
            if reason == INTERRUPTED:
                self.tell("broken", lease.name, lease.token, reason)
            self.tell("lost", lease.name, lease.token, reason)

    def expire(self) -> None:
        """End what is past its deadline and find the next one. The timer's part: no I/O, nothing that may block."""
        now = self.now()
        overdue = []
        self.next_deadline = float("inf")  # until it is known: a lease that comes now is seen here, or tells us
        # While leases come and go, look again when another such that comes now would end: then none has to wake us.
        soonest, self.shortest = now + self.shortest, float("inf")
        for lease in self.held():
            if lease._deadline <= now:
                overdue.append(lease)
            elif lease._deadline < soonest:
                soonest = lease._deadline
        self.next_deadline = soonest
        lost = [lease for lease in overdue if self.end(lease, lease._why_expired(now))]
        if lost:
            self.report_aside(lost)

    def report(self, lost: list[BaseLease]) -> None:
        """Tell what the timer ended, in a thread of its own."""
        for lease in lost:
            self.tell("lost", lease.name, lease.token, lease.lost_reason)

    def rung(self, attempt: str, news: Grant | Busy | None = None) -> None:
        """The store calls an attempt: wake its waiter, or have its lease looked at. From any thread.

        ``ALL``: rings may have been missed, or do not say whom they mean. ``HELD``: whoever waits is not meant."""
        if attempt in (ALL, HELD):
            if attempt == ALL:
                for bell in list(self.asking.values()):
                    _ring(bell)
            if held := [lease._claim.attempt for lease in self.held() if lease._due != float("inf")]:
                self.urgent.update(held)
                self.wake_keeper()
            return
        waiting = self.asking.get(attempt)
        if waiting is not None:
            _ring(waiting, news)
        elif attempt in self.leases:
            self.urgent.add(attempt)
            self.wake_keeper()

    def settle(self, owed: Unsettled) -> None:
        """Have the keeper give something back. Takes no lock when the keeper runs: destructors come here."""
        self.owe(owed)
        self.settle_soon()

    def settle_soon(self) -> None:
        """Have the keeper give back now what is owed."""
        if self.closed is None:
            try:
                self.wake_keeper()
            except RuntimeError:
                pass  # no thread can be started for the keeper: it is given back when the next one needs it

    def owe(self, owed: Unsettled) -> None:
        """Something is to be given back. Until it is, these books are kept, though everybody else may drop them."""
        self.unsettled.append(owed)
        owing.add(self)

    def settled(self, owed: Unsettled) -> None:
        try:
            self.unsettled.remove(owed)
        except ValueError:
            pass  # another was faster
        if not self.unsettled:
            owing.discard(self)
            if self.unsettled:  # a destructor came in between
                owing.add(self)

    # Where time other than the machine's comes in: a simulation has a timer of its own, and no threads.

    def watch_deadline(self) -> None:
        """See to it that ``expire`` is called, now and then at ``next_deadline``."""
        timer.watch(self)

    def report_aside(self, lost: list[BaseLease]) -> None:
        aside("leasehold-lost", self.report, lost)

    # Telling.

    def tell(self, event: str, name: str, token: int | None = None, reason: str | None = None, **fields: Any) -> None:
        """Log an event, with ``fields`` beside the usual ones, and pass it to the listeners."""
        level, message = _MESSAGES[event]
        told = heard(level)
        if not told and not self.listeners:
            return
        if reason is None and token is not None:
            reason = f"token {token}"
        if told:
            who: dict[str, Any] = {"name": name, "token": token, "owner": self.owner, "reason": reason}
            log(level, message, name, reason, event=event, **who, **fields)
        if self.listeners:
            self.pass_on(Event(event, name, self.owner, token, reason))

    # What the shell adds.

    def new_bell(self) -> Bell:
        """Something to sleep on, for whoever carries out effects here."""
        raise NotImplementedError

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
    "refused": (INFO, "lease %r not acquired: %s"),
    "skipped": (INFO, "lease %r skipped: %s"),
    "released": (INFO, "lease %r released (%s)"),
    "lost": (WARNING, "lease %r lost: %s"),
    "broken": (INFO, "lease %r broken: %s"),
    "renewed": (DEBUG, "lease %r renewed (%s)"),
    "renewal_failed": (WARNING, "renewal of lease %r failed: %s"),
    "release_failed": (WARNING, "release of lease %r failed; retrying: %s"),
    "unavailable": (WARNING, "the store is unavailable for lease %r: %s"),
}


def _ring(bell: Bell, news: Grant | Busy | None = None) -> None:
    """Without news its waiter is to ask, though it may not have read yet that it need not. One that has not read yet
    that it was granted the lease is to read that: what says that another has it may be older, and come late."""
    waiting = not isinstance(bell.news, Grant)
    if isinstance(news, Grant) or (waiting and (news is not None or bell.news is not None)):
        bell.news = news
    bell.ring()
