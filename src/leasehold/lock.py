"""leasehold for threads. :mod:`leasehold.aio` is its twin for asyncio; what they share is in core and engine."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType

from .core import checks, clock, keeper, listing, release
from .core.lease import HANDED_OVER, BaseLease, enter, leave, pop_block
from .core.log import ERROR, log
from .core.options import Spec
from .core.protocol import Holding
from .core.typed import TYPE_CHECKING, Any, Self, TypeVar
from .errors import AcquireTimeout, LeaseLost, StoreError, StoreUnavailable
from .model import Counters, Event, LeaseInfo, LockMetrics
from .runtime.thread_start import aside
from .runtime.timer import NAP
from .runtime.wakeups import ThreadBell
from .threads import ThreadRegistry

if TYPE_CHECKING:
    from .election_threads import Election
    from .group_threads import Group
    from .joint import Holds
    from .kinds import AllOf, RWLock
    from .once_threads import Once

F = TypeVar("F", bound=Callable[..., Any])


class Locks:
    """Leases of one namespace of one store. Made by :func:`leasehold.connect`."""

    def __init__(self, core: ThreadRegistry) -> None:
        self._core = core
        self._holds: Holds = weakref.WeakValueDictionary()

    @property
    def owner(self) -> str:
        return self._core.owner

    @property
    def namespace(self) -> str:
        return self._core.namespace

    def lock(
        self,
        name: str,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        kind: str = "lock",
        data: Any = None,
        renew: bool | None = None,
        renew_every: float | None = None,
        max_hold: float | None = None,
        min_hold: float | None = None,
        beat_every: float | None = None,
        on_lost: Callable[[Lease], object] | str | None = None,
        on_unavailable: str = "raise",
        fair: bool | None = None,
        poll: tuple[float, float] | None = None,
        backoff: str | None = None,
        drift: float | None = None,
        max_renew_failures: int | None = None,
    ) -> Lock:
        """A name to contend for. Nothing is asked of the store yet; wrong options are refused here."""
        spec = self._core.spec(
            name,
            ttl=ttl,
            timeout=timeout,
            kind=kind,
            data=data,
            renew=renew,
            renew_every=renew_every,
            max_hold=max_hold,
            min_hold=min_hold,
            beat_every=beat_every,
            on_lost=on_lost,
            on_unavailable=on_unavailable,
            fair=fair,
            poll=poll,
            backoff=backoff,
            drift=drift,
            max_renew_failures=max_renew_failures,
        )
        return Lock(self, spec)

    def once(
        self,
        name: str,
        *,
        version: str | int = 1,
        wait: bool = True,
        retries: int = 0,
        retry_by: str = "any",
        **options: Any,
    ) -> Once:
        """Work that is done once per ``version``: the others wait for its outcome, or (``wait=False``) go on.

        Work that fails is tried ``retries`` times again: by whoever is next, or ``retry_by="same"``. Options are those
        of a lease: ttl, renew_every, drift, max_renew_failures, data, kind."""
        from .once import make_policy
        from .once_threads import Once

        spec = self._core.kind_spec(name, "once", options)
        return Once(self, spec, make_policy(self._core, version, wait, retries, retry_by))

    def election(self, name: str, *, stop_before: float | None = None, **options: Any) -> Election:
        """One leader among candidates: those who call its ``run``. ``data=`` is what others see of the leader.

        A leader that cannot renew its term is told to stop ``stop_before`` seconds before the term ends. Options are
        those of a lease: ttl, renew_every, drift, max_renew_failures, data, kind."""
        from .election import stopping_before
        from .election_threads import Election

        spec = self._core.kind_spec(name, "election", options)
        return Election(self, spec, stopping_before(spec, stop_before))

    def group(
        self,
        name: str,
        *,
        heartbeat: float | None = None,
        misses: int = 3,
        kind: str = "member",
        look: float | None = None,
    ) -> Group:
        """Members that beat every ``heartbeat`` seconds (that of the kind's preset, else 30); one that has missed
        ``misses`` beats has failed. Who comes and goes is looked for every ``look`` seconds."""
        from .group import make_spec
        from .group_threads import Group

        return Group(self, *make_spec(self._core, name, heartbeat, misses, kind, look))

    def semaphore(self, name: str, *, limit: int, **options: Any) -> Lock:
        """A name that at most ``limit`` can hold at once, each with a lease of its own. Options as for :meth:`lock`."""
        return Lock(self, self._core.semaphore_spec(name, limit, options))

    def rwlock(self, name: str, **options: Any) -> RWLock:
        """Many readers or one writer: ``.read()`` and ``.write()`` are locks. Options as for :meth:`lock`."""
        from .kinds import RWLock

        return RWLock(self, name, options)

    def rlock(self, name: str, **options: Any) -> Lock:
        """A lock that its holder (this ``Locks``, in the same thread) can enter again. Options as for :meth:`lock`."""
        from .kinds import RLock

        return RLock(self, self._core.lock_spec("rlock", name, options))

    def all_of(self, *names: str, **options: Any) -> AllOf:
        """Several names, all or none. ``lease.tokens`` has the token of each. Options as for :meth:`lock`."""
        from .kinds import AllOf

        return AllOf(self, self._core.all_specs(names, options))

    def accept(self, text: str, **options: Any) -> Lease:
        """Take over a lease with what its holder's ``transfer()`` gave, at once and with a new token.

        Options are those of :meth:`lock`; ttl, kind and data are the holder's unless given. Raises LeaseLost when there
        is nothing to be taken over any more."""
        from . import handover

        spec = handover.heir_spec(self._core, text, options)
        return self._core.acquire(Lease, spec, spec.timeout, None)

    def leases(self, prefix: str = "") -> Iterator[LeaseInfo]:
        """What is held in this namespace now, by name."""
        holdings = self._holdings(checks.prefix(prefix))
        return (listing.info(holding) for holding in holdings if holding.expires_in > 0)

    def inspect(self, name: str) -> LeaseInfo | None:
        """Who holds ``name`` (of several holders, the first), or None."""
        holdings = self._core.call(self._core.store.inspect(checks.name(name)))
        return listing.info(holdings[0]) if holdings else None

    def break_lease(self, name: str, force: bool = False) -> bool:
        """Take a lease from its holder. False when nobody holds it.

        The holder is told and no longer renewed; the name is free when its block has ended or its lease has run
        out. ``force=True`` frees it at once, while the holder may still believe in it until it hears of it.
        """
        broken = bool(self._core.call(self._core.store.interrupt(checks.name(name), force)))
        if broken:
            self._core.tell("broken", name, None, "free at once (force=True)" if force else "the holder is notified")
        return broken

    def counters(self) -> Counters:
        """How renewals and acquires of this ``Locks`` have fared. Asks nothing of the store, so there also when that is
        away: what to alert on."""
        return self._core.counters()

    def metrics(self) -> LockMetrics:
        """What is held in the namespace, and :meth:`counters`. Goes through all records of the namespace."""
        return listing.metrics(self._core, self._holdings(""))

    def on_event(self, callback: Callable[[Event], object]) -> None:
        """Have ``callback(event)`` called, from a thread of its own, for everything that happens to our leases."""
        checks.callback(callback, "on_event", tasks=False)
        self._core.listeners.append(callback)

    def drain(self, grace: float = 300) -> list[str]:
        """Go out of service: no new leases (``ShuttingDown``), wait up to ``grace`` seconds for those that are held,
        mark what remains as lost, give it back, leave the groups. Returns the names of what had to be given up."""
        from .core.drain import drain

        return self._core.drive(drain(self._core, grace))

    def drain_on_signals(self, grace: float = 300) -> None:
        """:meth:`drain` on SIGTERM and SIGINT; a second one ends the grace. Handlers that were there before are called
        too; where there were none, the process then exits with 0. To be called in the main thread."""
        from .runtime.signals import ThreadDrain, add

        add(ThreadDrain(self._core, grace))

    def close(self) -> None:
        """Mark what is still held as lost, give it back, stop everything of ours. Again is harmless.

        A drain that a signal has begun is let finish first."""
        if self._core.signalled is not None:
            self._core.signalled.done.wait()
        self._core.close()

    def __enter__(self) -> Locks:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<leasehold.Locks {self._core.store.scheme} namespace={self.namespace!r} owner={self.owner!r}>"

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is not None:
            core.drop()

    def _holdings(self, prefix: str) -> Iterator[Holding]:
        after: str | None = ""
        while after is not None:
            page, after = self._core.call(self._core.store.scan(prefix, after, listing.PAGE))
            yield from page


class Lock:
    """A name to contend for. Holds no state of its own but the stack of open ``with`` blocks: share it freely."""

    def __init__(self, locks: Locks, spec: Spec) -> None:
        self._locks = locks
        self._core = locks._core
        self._spec = spec
        self._open: dict[int, list[Lease]] = {}

    @property
    def name(self) -> str:
        return self._spec.name

    def acquire(self, timeout: float | None = None, *, cancel: threading.Event | None = None) -> Lease:
        """Wait for the lease, at most ``timeout`` seconds (None: the lock's own). Raises AcquireTimeout."""
        return self._take(self._spec.timeout if timeout is None else timeout, cancel)

    def try_acquire(self, timeout: float = 0) -> Lease | None:
        """The lease, or None where ``acquire`` would raise AcquireTimeout. By default without waiting."""
        try:
            return self._take(timeout, None)
        except AcquireTimeout:
            return None
        except StoreUnavailable as error:
            if self._spec.skip_unavailable:
                self._core.tell("skipped", self.name, None, f"the store is unavailable ({error})")
                return None
            raise

    def locked(self) -> bool:
        """Whether anybody holds the name now; of a semaphore, whether it has no permit to spare; of either side of a
        read/write lock, whether it has any reader or writer."""
        return self._spec.is_taken(self._core.call(self._core.store.inspect(self.name)))

    def _take(self, timeout: float | None, cancel: threading.Event | None) -> Lease:
        return self._core.acquire(Lease, self._spec, timeout, cancel)

    def in_transaction(self, connection: Any) -> int:
        """Take the name inside the caller's own SQL transaction, on its connection to the store's database.

        Held until that transaction ends, by commit or rollback: whoever else wants the name waits for that.
        Returns the token. Raises AcquireTimeout at once when it is busy. Needs a SQL store."""
        from .stores.sql import transaction as sql

        return sql.run(self._core, connection, sql.holding(self._core, self._spec))

    def __enter__(self) -> Lease:
        lease = self.acquire()
        try:
            self._open.setdefault(threading.get_ident(), []).append(lease)
            return lease.__enter__()
        except BaseException:  # a KeyboardInterrupt, say: the block will not be entered, so nobody would leave it
            if lease in self._open.get(threading.get_ident(), ()):
                pop_block(self._open, threading.get_ident(), self.name)
            leave(lease)
            try:
                lease.release()
            except StoreError:
                pass  # the keeper goes on trying
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pop_block(self._open, threading.get_ident(), self.name).__exit__(kind, error, trace)

    def __call__(self, function: F) -> F:
        """As a decorator: each call holds the lease for its duration."""
        checks.decorated(function, tasks=False)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.acquire():
                result = function(*args, **kwargs)
                checks.has_run(result, checks.called(function))
                return result

        return call  # type: ignore[return-value]

    def __repr__(self) -> str:
        return f"<leasehold.Lock {self.name!r}>"


class Lease(BaseLease):
    """One holding. Usable from any thread; ends with its block, :meth:`release`, or loss."""

    __slots__ = ()
    _core: ThreadRegistry

    @property
    def lost(self) -> threading.Event:
        """Set when the lease is lost; never after a clean release."""
        while True:
            seen = self._lost
            event: LostEvent | None = seen() if seen is not None else None
            if event is not None:
                return event
            event = LostEvent(self)
            ref = weakref.ref(event)
            with self._core.mutex:
                if self._lost is seen:  # else another was faster
                    self._lost = ref
                    return event

    def renew(self, ttl: float | None = None) -> None:
        """Renew now, from here on for ``ttl`` seconds a term. Raises LeaseLost when it is refused.

        A shorter ttl never shortens the term that the store has granted: if this process dies, others still wait for
        the end of that one.
        """
        self._core.drive(keeper.renew(self._core, self, ttl))

    def release(self) -> bool:
        """Give the lease back. False when it was no longer ours (lost, or released before)."""
        core, giver = self._core, object()
        try:
            held = self._finish(giver)
            if held is None:
                return False
            claim = self._claim
            core.giving.add(claim.attempt)
            steps = core.store.release(claim.name, claim.attempt, claim.token, claim.hint)
            given = core.driver.run(steps, self._spec.timing.call_limit)
            release.gave_back(core, self, given)
        except BaseException as error:
            if self._given is giver:
                release.failed_to_give(core, self, error)
            raise
        if held and not given:
            core.belie(self)
        return given and held

    def transfer(self) -> str:
        """A text with which another process takes this lease over: see :meth:`Locks.accept`.

        Renewed first, so that there is a whole ttl for that, and renewed on to the end of its block. From now on this
        lease can be trusted no longer: another may have it. ``on_lost`` is told when it is taken. The end of its
        block no longer gives it back; ``release`` does, and so takes the offer back."""
        from . import handover

        handover.check(self)
        self._core.drive(keeper.renew(self._core, self, None, offered=True))
        return handover.promise(self)

    def downgrade(self) -> Lease:
        """Make a reader of this writer in one step: a new lease, with a token of its own; this one has ended."""
        giver, done = object(), False
        try:
            spec, left = release.downgraded(self._core, self, giver)
            reader = self._core.acquire(Lease, spec, left, None)
            done = True
            return reader
        finally:
            release.after_downgrade(self._core, self, giver, done)

    def in_transaction(self, connection: Any) -> int:
        """Check the lease inside the caller's own SQL transaction, on its connection to the store's database.

        Until that transaction ends nobody else can be granted the name, so what it writes is written under this
        lease. Returns the token; raises LeaseLost when the lease is no longer ours. Needs a SQL store."""
        from .stores.sql import transaction as sql

        return sql.run(self._core, connection, sql.checking(self))

    def __enter__(self) -> Self:
        enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave(self)
        try:
            if self._promised:
                self._leave_to_heir()
            else:
                self.release()
        except StoreError:
            pass  # told as an event and in the log; the keeper goes on trying, and the store forgets it in time
        reason = self.lost_reason
        if reason is not None and reason != HANDED_OVER and kind is None and self._spec.on_lost == "raise":
            raise LeaseLost(self.name, reason)

    def _wake(self) -> None:
        event = self._lost() if self._lost is not None else None
        if event is not None:
            event.set()

    def _announce(self) -> None:
        self._wake()
        if self._callbacks:
            self._call(self._callbacks)

    def _call(self, callbacks: list[Callable[..., object]]) -> None:
        def run() -> None:
            for callback in callbacks:
                try:
                    callback(self)
                except Exception as error:
                    log(ERROR, "an on_lost callback of lease %r raised an error", self.name, exc=error)

        aside("leasehold-callback", run)


class LostEvent(threading.Event):
    """An event that tells the truth by the clock, also before the timer has come to set it.

    It holds the lease; the lease holds it weakly. So there is no cycle, and an event costs nothing until asked for.
    Nothing of ``threading.Event`` is used but its name: a waiter that is interrupted can leave that one's mutex locked.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._waiting: dict[ThreadBell, None] = {}

    def is_set(self) -> bool:
        return self._lease.lost_reason is not None

    def set(self) -> None:
        for bell in list(self._waiting):
            bell.ring()

    def clear(self) -> None:
        """A loss is final."""

    def wait(self, timeout: float | None = None) -> bool:
        ends = None if timeout is None else clock.now() + timeout
        bell = ThreadBell()
        self._waiting[bell] = None
        try:
            # Whoever was to wake us may have been interrupted just before that: so look, too.
            while not self.is_set():
                left = NAP if ends is None else min(NAP, ends - clock.now())
                if left <= 0:
                    return False
                if bell.wait(left):
                    return True
            return True
        finally:
            self._waiting.pop(bell, None)
