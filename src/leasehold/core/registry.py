"""The books of a ``Locks``: its leases, its waiters, what it owes the store. For threads and tasks alike."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..contract.habits import unknown_option
from ..errors import LeaseLost, ShuttingDown
from ..model import Counters, Event
from ..runtime.hooks import owing, registries
from ..runtime.thread_start import aside
from ..runtime.timer import timer
from ..runtime.wakeups import refuse_late_patch
from . import checks, clock, timing
from .claim import BY_OPERATOR, FORKED, HANDED_OVER, RELEASED, TAKEN, Unsettled
from .log import DEBUG, INFO, WARNING, is_shown, log
from .observing import AcquireFailed, Observed, Observer, outcome_of
from .options import KIND_OPTIONS, LOCK_OPTIONS, IfBusy, LockName, Spec, make_spec
from .protocol import ALL, HELD, Bell, Busy, Driver, Grant, Store
from .state import NEVER, LeaseState

if TYPE_CHECKING:
    from .lease import BaseLease

L = TypeVar("L", bound="BaseLease")

_OF_LOCKS_ALONE = ("timeout", "max_hold", "min_hold", "beat_every")
"""Defaults of ``connect`` that would end a term, a membership or the work of ``once``, or the wait for one."""

READERS = checks.MAX_PERMITS
"""The capacity of a read/write lock: as many readers as there may be at once."""


class Registry:
    """The books of one ``Locks``.

    ``mutex`` guards the end of each lease, so that it ends once. It is held for a few instructions and never over I/O.
    A signal handler or a destructor may run in the middle of that, in the same thread, and release or acquire a lease.
    So the mutex is re-entrant, and what it guards is compared and written with no call in between.

    It holds the state of each lease weakly: the handle keeps it alive, and a handle that is collected releases it.
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
        self.presets_told: set[str] = set()
        """The kinds whose preset has been logged."""
        self.defaults = defaults
        self.cancel_on_loss = cancel_on_loss
        self.now = now
        self.listeners: list[Callable[[Event], object]] = []
        self.observers: list[Observer] = []
        self.renewals = self.renewal_failures = self.unavailable = 0
        self.closed: str | None = None
        self.dropped = False
        self.generation = 0
        self.driver = driver
        driver.on_ring = self.rung
        self.spec("defaults")  # so that wrong defaults are refused here, not at the first lock
        self.reset()
        registries.add(self)

    def reset(self) -> None:
        """Start with empty books, in a new process or in a forked one."""
        self.mutex = threading.RLock()
        self.leases: dict[str, weakref.ref[LeaseState]] = {}
        """By attempt. Whoever ends a lease removes it."""
        self.asking: dict[str, Bell] = {}
        """The bells of the acquires under way, by attempt."""
        self.unsettled: deque[Unsettled] = deque()
        """What the keeper has to give back."""
        self.giving: set[str] = set()
        """Attempts that are being released at this moment."""
        self.urgent: set[str] = set()
        """Attempts whose lease the keeper has to renew now, because of a wake-up."""
        self.next_look = self.next_deadline = NEVER
        """Until when the keeper and the timer sleep. Each writes its own."""
        self.cadence = NEVER
        """The shortest ``renew_every`` so far."""
        self.soonest = self.shortest = NEVER
        """Of the leases that came since the keeper (the timer) last looked: the shortest time to a renewal (a
        deadline)."""
        self.keeping = False
        """Whether the keeper runs, or is being started."""
        self.finished = False
        self.draining: str | None = None
        """Why there are no new leases, once a drain has begun."""
        self.hurried = False
        """Whether a second signal ended the grace period."""
        self.standing: dict[str, BaseLease] = {}
        """By attempt, memberships of groups: kept alive here, and not waited for by a drain."""
        self.on_drain: list[Callable[[], object]] = []
        """Called when a drain begins."""
        self.signalled: Any = None
        """The drain that a signal has begun."""

    def after_fork(self) -> None:
        """In the child: own nothing, share nothing with the parent."""
        for state in self.held():
            state.end = state.end or FORKED
        if not self.owner_given:
            self.owner = checks.make_owner()
        self.generation += 1
        self.driver.after_fork()
        self.reset()

    def spec(self, name: LockName, **options: Any) -> Spec:
        """The spec of a lock. A callable ``name`` makes the names of decorated calls."""
        if callable(name):
            checks.callback(name, "a lease's name", tasks=True)
            if checks.deferred(name) is not None:
                raise TypeError(f"the function for a lock's name must not be async: {checks.called(name)}")
            return self._spec(self.defaults, checks.called(name), **options)._replace(name_of=name)
        return self._spec(self.defaults, name, **options)

    def lock_spec(self, function: str, name: LockName, options: Mapping[str, Any], if_busy: IfBusy = "wait") -> Spec:
        """As ``spec``, for a public function that passes its options on. Errors name that ``function``."""
        unknown = sorted(set(options) - set(LOCK_OPTIONS))
        if unknown:
            raise unknown_option(function, unknown[0], LOCK_OPTIONS, "it accepts the options of lock()")
        return self.spec(name, if_busy=if_busy, **options)

    def _spec(self, defaults: Mapping[str, Any], name: str, **options: Any) -> Spec:
        spec = make_spec(
            name,
            store=self.store,
            kinds=self.kinds,
            defaults=defaults,
            can_cancel=self.cancel_on_loss,
            **options,
        )
        if spec.kind in self.kinds and spec.kind not in self.presets_told:
            self.presets_told.add(spec.kind)
            text = "kind %r is a preset of timing: ttl %g s, renewed every %.3g s"
            preset = self.kinds[spec.kind]
            log(INFO, text, spec.kind, preset.ttl, preset.renew_every, event="preset", kind=spec.kind)
        return spec

    def kind_spec(self, name: str, kind: str, options: Mapping[str, Any], **more: Any) -> Spec:
        """The spec of a kind that is made of one lease. It accepts fewer options than a lock."""
        unknown = sorted(set(options) - set(KIND_OPTIONS))
        if unknown:
            otherwise = f"of the options of lock() it accepts {', '.join(KIND_OPTIONS)}"
            raise unknown_option(kind, unknown[0], KIND_OPTIONS, otherwise)
        return self.lasting_spec(name, **{"kind": kind, **options, **more})

    def lasting_spec(self, name: str, **options: Any) -> Spec:
        """As ``spec``, for a lease that is held and waited for without limit: defaults of ``connect`` that would limit
        it do not apply. Its loss is for the code around it, not for a block: that logs it only."""
        defaults = {key: value for key, value in self.defaults.items() if key not in _OF_LOCKS_ALONE}
        return self._spec(defaults, name, renew=True, **{"on_lost": "log", **options})

    def counters(self) -> Counters:
        return Counters(self.renewals, self.renewal_failures, self.unavailable)

    def need(self, ability: str) -> None:
        """Raise ValueError if the store lacks the ability."""
        why = self.store.lacks.get(ability)
        if why is not None:
            raise ValueError(f"{self.store.scheme} does not support this ({ability}): {why}")

    def semaphore_spec(self, name: LockName, limit: int, options: Mapping[str, Any], if_busy: IfBusy = "wait") -> Spec:
        self.need("semaphore")
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise TypeError(f"limit must be an int, not {type(limit).__name__}")
        if not 1 <= limit <= checks.MAX_PERMITS:
            raise ValueError(f"limit must be 1 to {checks.MAX_PERMITS}, not {limit}")
        spec = self.lock_spec("semaphore", name, {"kind": "semaphore", **options}, if_busy)
        return spec._replace(shape="semaphore", limit=limit)

    def rw_spec(self, name: LockName, write: bool, options: Mapping[str, Any], if_busy: IfBusy = "wait") -> Spec:
        """A reader takes one of very many permits, a writer all of them."""
        self.need("rwlock")
        if options.get("fair") is False:
            raise ValueError("rwlock does not support fair=False: readers would starve waiting writers; leave fair out")
        spec = self.lock_spec("rwlock", name, {"kind": "write" if write else "read", **options}, if_busy)
        return spec._replace(shape="rwlock", limit=READERS, weight=READERS if write else 1)

    def all_specs(self, names: tuple[LockName, ...], options: Mapping[str, Any], if_busy: IfBusy) -> list[Spec]:
        """One spec for each name, in the order in which to take them."""
        if not names:
            raise ValueError("all_of needs at least one name")
        return in_order([self.lock_spec("all_of", name, options, if_busy) for name in names])

    # Leases.

    def check_open(self) -> None:
        """Raise ShuttingDown if this ``Locks`` is closed."""
        if self.closed is not None:
            raise ShuttingDown(self.closed)

    def check_giving_out(self, heir: tuple[str, int] | None = None) -> None:
        """Raise ShuttingDown if there are no new leases any more. One in place of our own (``heir``) is not new."""
        refuse_late_patch()
        if self.closed is None and self.draining is None:
            return
        self.check_open()
        if self.draining is not None and (heir is None or heir[0] not in self.giving):
            raise ShuttingDown(self.draining)

    def owns(self, state: LeaseState) -> bool:
        """Whether this process may release the lease: not in a forked child, not after ``close``."""
        return state.generation == self.generation and self.closed is None

    def check_process(self, born: int, name: str) -> None:
        """Raise LeaseLost in a child that was forked since the generation ``born``: what began then is the parent's."""
        if born != self.generation:
            raise LeaseLost(name, FORKED)

    def held(self) -> list[LeaseState]:
        """The leases that are kept now. A copy: other threads add and remove leases meanwhile."""
        return [state for ref in list(self.leases.values()) if (state := ref()) is not None]

    def add(self, state: LeaseState) -> None:
        """Keep the lease from now on. Costs a comparison, unless it is due before all others."""
        self.leases[state.claim.attempt] = weakref.ref(state)
        self.schedule(state)

    def hold(
        self, make: Callable[..., L], specs: Sequence[Spec], taken: Sequence[Any], bell: Bell, born: int
    ) -> list[L]:
        """Make the leases that were acquired together, and keep them.

        ``bell`` is the one of their acquire, ``born`` the generation in which it began."""
        states = [
            LeaseState(born, self.owner, spec, each.claim, each.sent, each.trusted)
            for spec, each in zip(specs, taken, strict=True)
        ]
        leases = [make(self, state) for state in states]
        me = self.me()
        for state in states:
            state.acquirer = me
            self.add(state)
            self.asking.pop(state.claim.attempt, None)  # a fork has emptied it
        if bell.rang():  # a wake-up since the grant: a lease may have been broken already
            for state in states:
                self.rung(state.claim.attempt)
        if born != self.generation:  # forked meanwhile: what was added after that is the parent's, too
            for state in states:
                state.end = FORKED
                self.leases.pop(state.claim.attempt, None)
            self.check_process(born, specs[0].name)
        return leases

    def schedule(self, state: LeaseState) -> None:
        """The lease has a new deadline and a new time of renewal: wake timer and keeper if they would sleep too long.

        Does not write down when they will wake: an interrupt before they do would leave the next lease without them.
        """
        every = state.spec.timing.renew_every
        due, deadline, sent = state.due, state.deadline, state.sent
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

    def renewed(self, state: LeaseState, sent: float, ttl: float, chosen: bool) -> None:
        """The store has confirmed a term of ``ttl`` that was requested at ``sent``: see ``LeaseState.extend``."""
        now = self.now()
        with self.mutex:
            extended = state.extend(sent, ttl, chosen, now)
        if extended:
            self.schedule(state)

    def end(self, state: LeaseState, reason: str) -> bool:
        """End the lease, once, and notify its handle of a loss. True when this call did it."""
        with self.mutex:
            if state.end is not None:
                return False
            state.end = reason
        self.leases.pop(state.claim.attempt, None)
        if reason != RELEASED:
            state.announce()
        return True

    def lose(self, state: LeaseState, reason: str) -> None:
        """End the lease as lost, and report that. Not for the timer: log handlers and listeners may be slow."""
        if state.offered and reason == TAKEN:
            reason = HANDED_OVER
        if self.end(state, reason):
            if reason == BY_OPERATOR:
                self.tell("broken", state.name, state.token, reason, ended=state)
            self.tell("lost", state.name, state.token, reason, ended=state)

    def lose_after_release(self, state: LeaseState, reason: str = TAKEN) -> None:
        """The lease was trusted until its release, but the store answered that it no longer held the name, or what was
        to replace it did not."""
        with self.mutex:
            state.end = reason = HANDED_OVER if state.offered else reason
        state.announce()
        self.tell("lost", state.name, state.token, reason, ended=state)

    def expire(self) -> None:
        """End the leases whose deadline has passed, and find the next deadline. Called by the timer: does not block."""
        now = self.now()
        overdue = []
        self.next_deadline = NEVER  # until it is known: a lease that comes now is found below, or wakes the timer
        # If another lease as short as the last ones comes now, its deadline is ``soonest``: it need not wake the timer.
        soonest, self.shortest = now + self.shortest, NEVER
        for state in self.held():
            if state.deadline <= now:
                overdue.append(state)
            elif state.deadline < soonest:
                soonest = state.deadline
        self.next_deadline = soonest
        lost = [state for state in overdue if self.end(state, state.why_expired(now))]
        if lost:
            self.report_aside(lost)

    def report(self, lost: list[LeaseState]) -> None:
        """Report what the timer ended. Runs in a thread of its own."""
        for state in lost:
            self.tell("lost", state.name, state.token, state.end, ended=state)

    def rung(self, attempt: str, news: Grant | Busy | None = None) -> None:
        """A wake-up from the store: wake the attempt's waiter, or have the keeper check its lease. From any thread.

        ``ALL``: wake-ups may have been missed, or do not name an attempt. ``HELD``: the same, but not for waiters."""
        if attempt in (ALL, HELD):
            if attempt == ALL:
                for bell in list(self.asking.values()):
                    ring(bell)
            if held := [state.claim.attempt for state in self.held() if state.due != NEVER]:
                self.urgent.update(held)
                self.wake_keeper()
            return
        waiting = self.asking.get(attempt)
        if waiting is not None:
            ring(waiting, news)
        elif attempt in self.leases:
            self.urgent.add(attempt)
            self.wake_keeper()

    def check_places_from(self, due: float) -> None:
        """A waiter begins to sleep; its place is due for a check then. Wake the keeper if it would sleep too long."""
        if due < self.next_look or not self.keeping:
            try:
                self.wake_keeper()
            except RuntimeError:
                pass  # no thread can be started: the waiter checks by itself

    # What is owed to the store.

    def give_back_soon(self, owed: Unsettled) -> None:
        """Have the keeper give something back. Takes no mutex when the keeper runs: destructors call this."""
        self.owe(owed)
        self.settle_soon()

    def settle_soon(self) -> None:
        """Have the keeper give back now what is owed."""
        if self.closed is None:
            try:
                self.wake_keeper()
            except RuntimeError:
                pass  # no thread can be started now; the next lease that needs the keeper starts it

    def owe(self, owed: Unsettled) -> None:
        """Note something to give back. Until that is done, this registry is kept alive."""
        self.unsettled.append(owed)
        owing.add(self)

    def settled(self, owed: Unsettled) -> None:
        """Note that something was given back, or has expired."""
        try:
            self.unsettled.remove(owed)
        except ValueError:
            pass  # another thread was faster
        if not self.unsettled:
            owing.discard(self)
            if self.unsettled:  # a destructor ran in between
                owing.add(self)

    # A simulation replaces these two: it has a timer of its own, and no threads.

    def watch_deadline(self) -> None:
        """Make sure that ``expire`` is called, now and again at ``next_deadline``."""
        timer.watch(self)

    def report_aside(self, lost: list[LeaseState]) -> None:
        aside("leasehold-lost", self.report, lost)

    # Events.

    def tell(
        self,
        event: str,
        name: str,
        token: int | None = None,
        reason: str | None = None,
        *,
        kind: str | None = None,
        asked: float | None = None,
        ended: LeaseState | None = None,
        deadline: float | None = None,
        **fields: Any,
    ) -> None:
        """Log an event, with ``fields`` beside the usual ones, and pass it to observers and listeners.

        ``asked``: when the acquire began. ``ended``: the state of the lease that has ended. ``deadline``:
        the one that a renewal has moved. Durations are computed from these only if somebody gets the event."""
        level, message = _MESSAGES[event]
        shown = is_shown(level)
        if not shown and not self.listeners and not self.observers:
            return
        if reason is None and token is not None:
            reason = f"token {token}"
        now = self.now()
        held = None
        if ended is not None:
            kind, held = ended.spec.kind, max(0.0, min(now, ended.deadline) - ended.acquired)
        waited = None if asked is None else now - asked
        remaining = None if deadline is None else max(0.0, deadline - now)
        happened = Event(event, name, self.owner, token, reason, self.store.scheme, kind, waited, held, remaining)
        if shown:
            shown_fields = happened._asdict()
            log(level, message, name, reason, event=shown_fields.pop("type"), **shown_fields, **fields)
        if self.observers:
            self.note(happened)
        if self.listeners:
            self.pass_on(happened)

    def note(self, observed: Observed) -> None:
        """Pass to the observers what happened."""
        for observer in self.observers:
            observer(observed)

    def note_failure(self, kind: str, asked: float, error: BaseException) -> None:
        """Pass to the observers that an acquire, begun at ``asked``, ended with an error."""
        if self.observers:
            self.note(AcquireFailed(self.store.scheme, kind, outcome_of(error), self.now() - asked))

    # What the shell adds.

    caller: str
    """What a caller is: "thread" or "task"."""

    def me(self) -> object | None:
        """The calling thread or task, to be compared: a weak reference. None outside of tasks."""
        raise NotImplementedError

    def new_bell(self) -> Bell:
        """A bell to sleep on, for effects that this registry drives."""
        raise NotImplementedError

    def wake_keeper(self) -> None:
        """Wake the keeper; start it if it does not run. Does not block once it runs."""
        raise NotImplementedError

    def pass_on(self, event: Event) -> None:
        """Call the listeners with the event, in order. Does not wait for them."""
        raise NotImplementedError

    def at_exit(self, limit: float) -> None:
        """The interpreter exits: release what is held, within ``limit`` seconds."""
        raise NotImplementedError


def in_order(specs: Sequence[Spec]) -> list[Spec]:
    """The specs of several names, sorted: all callers take them in the same order, so none waits in a circle."""
    seen = set()
    for spec in specs:
        if (name := spec.name_of or spec.name) in seen:
            raise ValueError(f"all_of was given the same name twice: {spec.name!r}")
        seen.add(name)
    return sorted(specs, key=lambda spec: spec.name)


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


def ring(bell: Bell, news: Grant | Busy | None = None) -> None:
    """Wake a waiter. A bare wake-up overrides an unread Busy; an unread Grant is never overwritten: a Busy that comes
    after it may be older."""
    waiting = not isinstance(bell.news, Grant)
    if isinstance(news, Grant) or (waiting and (news is not None or bell.news is not None)):
        bell.news = news
    bell.ring()
