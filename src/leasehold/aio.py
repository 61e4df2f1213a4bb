"""leasehold for asyncio: the names of :mod:`leasehold`, awaited. What they share is in ``core`` and ``engine``.

Renewal runs in the event loop: a loop that is blocked past the deadline loses its leases, and is told so.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Mapping
from types import TracebackType

from .connect import resolve
from .core import checks, keeper, listing, release
from .core.lease import HANDED_OVER, RELEASED, BaseLease, current, enter, leave, pop_block
from .core.options import Spec
from .core.protocol import Holding
from .core.timing import Preset
from .core.typed import TYPE_CHECKING, Any, Self, TypeVar
from .errors import (
    AcquireCancelled,
    AcquireTimeout,
    LeaseholdError,
    LeaseLost,
    ShuttingDown,
    StoreError,
    StoreNotReady,
    StoreUnavailable,
)
from .model import Counters, Event, LeaseInfo, LockMetrics
from .tasks import TaskRegistry

# Each knows what is only marked as a coroutine function, too: asyncio has lost that to inspect.
if sys.version_info >= (3, 12):
    from inspect import iscoroutinefunction
else:
    from asyncio import iscoroutinefunction

if TYPE_CHECKING:
    from .aio_kinds import AllOf, RWLock
    from .election_tasks import Election, Term
    from .group import Member
    from .group_tasks import Group
    from .joint import Holds
    from .once import OnceFailed, Outcome, TooManyOutcomes
    from .once_tasks import Once

__all__ = [
    "AcquireCancelled",
    "AcquireTimeout",
    "Counters",
    "Event",
    "Lease",
    "LeaseInfo",
    "LeaseLost",
    "LeaseholdError",
    "Lock",
    "LockMetrics",
    "Locks",
    "Member",
    "OnceFailed",
    "Outcome",
    "Preset",
    "ShuttingDown",
    "StoreError",
    "StoreNotReady",
    "StoreUnavailable",
    "Term",
    "TooManyOutcomes",
    "connect",
    "current",
]

# Loaded when first asked for: of most programs, never.
_HOMES = {
    "Term": "election_tasks",
    "Member": "group",
    "OnceFailed": "once",
    "Outcome": "once",
    "TooManyOutcomes": "once",
}


if not TYPE_CHECKING:  # or a type checker would take any name for one that is there

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(__import__(f"leasehold.{_HOMES[name]}", fromlist=[name]), name)
        return value


AF = TypeVar("AF", bound=Callable[..., Coroutine[Any, Any, Any]])
L = TypeVar("L", bound="Lease", covariant=True)


def connect(
    url: object = None,
    *,
    namespace: str = "",
    owner: str | None = None,
    kinds: Mapping[str, object] | None = None,
    **timing: Any,
) -> Locks:
    """As :func:`leasehold.connect`. Not awaited: it does no I/O."""
    opened, options = resolve(url, namespace, timing)
    core = TaskRegistry(opened.store, opened.tasks(), namespace=namespace, owner=owner, kinds=kinds, defaults=options)
    return Locks(core)


class Locks:
    """Leases of one namespace of one store. Made by :func:`leasehold.aio.connect`."""

    def __init__(self, core: TaskRegistry) -> None:
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
        from .once_tasks import Once

        spec = self._core.kind_spec(name, "once", options, on_lost="cancel")
        return Once(self, spec, make_policy(self._core, version, wait, retries, retry_by))

    def election(self, name: str, *, stop_before: float | None = None, **options: Any) -> Election:
        """One leader among candidates: those who call its ``run``. ``data=`` is what others see of the leader.

        A leader that cannot renew its term is told to stop ``stop_before`` seconds before the term ends. Options are
        those of a lease: ttl, renew_every, drift, max_renew_failures, data, kind."""
        from .election import stopping_before
        from .election_tasks import Election

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
        from .group_tasks import Group

        return Group(self, *make_spec(self._core, name, heartbeat, misses, kind, look))

    def semaphore(self, name: str, *, limit: int, **options: Any) -> Lock:
        """A name that at most ``limit`` can hold at once, each with a lease of its own. Options as for :meth:`lock`."""
        return Lock(self, self._core.semaphore_spec(name, limit, options))

    def rwlock(self, name: str, **options: Any) -> RWLock:
        """Many readers or one writer: ``.read()`` and ``.write()`` are locks. Options as for :meth:`lock`."""
        from .aio_kinds import RWLock

        return RWLock(self, name, options)

    def rlock(self, name: str, **options: Any) -> Lock:
        """A lock that its holder (this ``Locks``, in the same task) can enter again. Options as for :meth:`lock`."""
        from .aio_kinds import RLock

        return RLock(self, self._core.lock_spec("rlock", name, options))

    def all_of(self, *names: str, **options: Any) -> AllOf:
        """Several names, all or none. ``lease.tokens`` has the token of each. Options as for :meth:`lock`."""
        from .aio_kinds import AllOf

        return AllOf(self, self._core.all_specs(names, options))

    def accept(self, text: str, **options: Any) -> Acquiring[Lease]:
        """Take over a lease with what its holder's ``transfer()`` gave. See :meth:`leasehold.Locks.accept`."""
        from . import handover

        spec = handover.heir_spec(self._core, text, options)
        return Acquiring(self._core.acquire(Lease, spec, spec.timeout))

    def leases(self, prefix: str = "") -> AsyncIterator[LeaseInfo]:
        """What is held in this namespace now, by name."""
        holdings = self._holdings(checks.prefix(prefix))
        return (listing.info(holding) async for holding in holdings if holding.expires_in > 0)

    async def inspect(self, name: str) -> LeaseInfo | None:
        """Who holds ``name`` (of several holders, the first), or None."""
        holdings = await self._core.call(self._core.store.inspect(checks.name(name)))
        return listing.info(holdings[0]) if holdings else None

    async def break_lease(self, name: str, force: bool = False) -> bool:
        """Take a lease from its holder. False when nobody holds it. See :meth:`leasehold.Locks.break_lease`."""
        broken = bool(await self._core.call(self._core.store.interrupt(checks.name(name), force)))
        if broken:
            self._core.tell("broken", name, None, "free at once (force=True)" if force else "the holder is notified")
        return broken

    def counters(self) -> Counters:
        """How renewals and acquires of this ``Locks`` have fared. Asks nothing of the store, so there also when that is
        away: what to alert on."""
        return self._core.counters()

    async def metrics(self) -> LockMetrics:
        """What is held in the namespace, and :meth:`counters`. Goes through all records of the namespace."""
        return listing.metrics(self._core, [holding async for holding in self._holdings("")])

    def on_event(self, callback: Callable[[Event], object]) -> None:
        """Have ``callback(event)`` called, in the loop, for everything that happens to our leases."""
        checks.callback(callback, "on_event", tasks=True)
        self._core.listeners.append(callback)

    async def drain(self, grace: float = 300) -> list[str]:
        """Go out of service: no new leases (``ShuttingDown``), wait up to ``grace`` seconds for those that are held,
        mark what remains as lost, give it back, leave the groups. Returns the names of what had to be given up."""
        from .core.drain import drain

        return await self._core.drive(drain(self._core, grace))

    def drain_on_signals(self, grace: float = 300) -> None:
        """:meth:`drain` on SIGTERM and SIGINT; a second one ends the grace. Handlers that were there before are called
        too; where there were none, the process then exits with 0. To be called in the main thread, in the loop."""
        from .runtime.signals import TaskDrain, add

        self._core.bind()
        add(TaskDrain(self._core, grace))

    async def close(self) -> None:
        """Mark what is still held as lost, give it back, stop everything of ours. Again is harmless.

        A drain that a signal has begun is let finish first."""
        while self._core.signalled is not None and not self._core.signalled.done.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # (it is told by another thread)
        await self._core.close()

    async def __aenter__(self) -> Locks:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<leasehold.aio.Locks {self._core.store.scheme} namespace={self.namespace!r} owner={self.owner!r}>"

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is not None:
            core.drop()

    async def _holdings(self, prefix: str) -> AsyncIterator[Holding]:
        after: str | None = ""
        while after is not None:
            page, after = await self._core.call(self._core.store.scan(prefix, after, listing.PAGE))
            for holding in page:
                yield holding


class Lock:
    """A name to contend for. Holds no state of its own but the stack of open blocks: share it freely."""

    def __init__(self, locks: Locks, spec: Spec) -> None:
        self._locks = locks
        self._core = locks._core
        self._spec = spec
        self._open: dict[asyncio.Task[Any] | None, list[Lease]] = {}

    @property
    def name(self) -> str:
        return self._spec.name

    def acquire(self, timeout: float | None = None) -> Acquiring[Lease]:
        """Wait for the lease, at most ``timeout`` seconds (None: the lock's own). Raises AcquireTimeout.

        To be awaited, or used as ``async with lock.acquire(timeout=5) as lease:``.
        """
        return Acquiring(self._take(self._spec.timeout if timeout is None else timeout))

    def try_acquire(self, timeout: float = 0) -> Coroutine[Any, Any, Lease | None]:
        """The lease, or None where ``acquire`` would raise AcquireTimeout. By default without waiting."""
        return self._or_none(self._take(timeout))

    async def _or_none(self, taking: Coroutine[Any, Any, Lease]) -> Lease | None:
        try:
            return await taking
        except AcquireTimeout:
            return None
        except StoreUnavailable as error:
            if self._spec.skip_unavailable:
                self._core.tell("skipped", self.name, None, f"the store is unavailable ({error})")
                return None
            raise

    async def locked(self) -> bool:
        """Whether anybody holds the name now; of a semaphore, whether it has no permit to spare; of either side of a
        read/write lock, whether it has any reader or writer."""
        return self._spec.is_taken(await self._core.call(self._core.store.inspect(self.name)))

    def _take(self, timeout: float | None) -> Coroutine[Any, Any, Lease]:
        return self._core.acquire(Lease, self._spec, timeout)

    async def in_transaction(self, connection: Any) -> int:
        """Take the name inside the caller's own SQL transaction, on its connection to the store's database.

        Held until that transaction ends, by commit or rollback: whoever else wants the name waits for that.
        Returns the token. Raises AcquireTimeout at once when it is busy. Needs a SQL store."""
        from .stores.sql import transaction as sql

        return await sql.run_async(self._core, connection, sql.holding(self._core, self._spec))

    async def __aenter__(self) -> Lease:
        lease = await self.acquire()
        self._open.setdefault(asyncio.current_task(), []).append(lease)
        try:
            return await lease.__aenter__()
        except BaseException:  # the block will not be entered, so nobody would leave it
            pop_block(self._open, asyncio.current_task(), self.name)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await pop_block(self._open, asyncio.current_task(), self.name).__aexit__(kind, error, trace)

    def __call__(self, function: AF) -> AF:
        """As a decorator of an async function: each call holds the lease for its duration."""
        if not iscoroutinefunction(function):
            checks.decorated(function, tasks=True)

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            async with self.acquire():
                return await function(*args, **kwargs)

        return call  # type: ignore[return-value]

    def __repr__(self) -> str:
        return f"<leasehold.aio.Lock {self.name!r}>"


class Acquiring(Coroutine[Any, Any, L]):
    """What ``Lock.acquire`` returns: a coroutine of the lease, and an async context manager."""

    def __init__(self, acquire: Coroutine[Any, Any, L]) -> None:
        self._acquire = acquire
        self._lease: L | None = None

    def __await__(self) -> Generator[Any, Any, L]:
        return self._acquire.__await__()

    def send(self, value: Any) -> Any:
        return self._acquire.send(value)

    def throw(self, *error: Any) -> Any:
        return self._acquire.throw(*error)

    def close(self) -> None:
        self._acquire.close()

    async def __aenter__(self) -> L:
        self._lease = await self._acquire
        return await self._lease.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._lease is not None
        await self._lease.__aexit__(kind, error, trace)


class Lease(BaseLease):
    """One holding. Ends with its block, :meth:`release`, or loss."""

    __slots__ = ("_body", "_cancelled", "_cancelling")
    _core: TaskRegistry

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._start_body()

    def _start_body(self) -> None:
        self._body: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._cancelled = False

    @property
    def lost(self) -> asyncio.Event:
        """Set when the lease is lost; never after a clean release."""
        with self._core.mutex:
            event: LostEvent | None = self._lost() if self._lost is not None else None
            if event is None:
                event = LostEvent(self)
                self._lost = weakref.ref(event)
                if self._end is not None and self._end != RELEASED:
                    event.set()
        return event

    async def renew(self, ttl: float | None = None) -> None:
        """Renew now, from here on for ``ttl`` seconds a term. Raises LeaseLost when it is refused.

        A shorter ttl never shortens the term that the store has granted: if this process dies, others still wait for
        the end of that one.
        """
        await self._core.drive(keeper.renew(self._core, self, ttl))

    async def release(self) -> bool:
        """Give the lease back. False when it was no longer ours (lost, or released before)."""
        core, giver = self._core, object()
        try:
            held = self._finish(giver)
            if held is None:
                return False
            claim = self._claim
            core.giving.add(claim.attempt)
            steps = core.store.release(claim.name, claim.attempt, claim.token, claim.hint)
            given = await core.driver.run(steps, self._spec.timing.call_limit)
            release.gave_back(core, self, given)
        except BaseException as error:
            if self._given is giver:
                release.failed_to_give(core, self, error)
            raise
        if held and not given:
            core.belie(self)
        return given and held

    async def transfer(self) -> str:
        """A text with which another process takes this lease over. See :meth:`leasehold.Lease.transfer`."""
        from . import handover

        handover.check(self)
        await self._core.drive(keeper.renew(self._core, self, None, offered=True))
        return handover.promise(self)

    async def downgrade(self) -> Lease:
        """Make a reader of this writer in one step: a new lease, with a token of its own; this one has ended."""
        giver, done = object(), False
        try:
            spec, left = release.downgraded(self._core, self, giver)
            reader = await self._core.acquire(Lease, spec, left)
            done = True
            return reader
        finally:
            release.after_downgrade(self._core, self, giver, done)

    async def in_transaction(self, connection: Any) -> int:
        """Check the lease inside the caller's own SQL transaction, on its connection to the store's database.

        Until that transaction ends nobody else can be granted the name, so what it writes is written under this
        lease. Returns the token; raises LeaseLost when the lease is no longer ours. Needs a SQL store."""
        from .stores.sql import transaction as sql

        return await sql.run_async(self._core, connection, sql.checking(self))

    async def __aenter__(self) -> Self:
        enter(self)
        if self._spec.on_lost == "cancel":
            self._body = asyncio.current_task()
            assert self._body is not None
            self._cancelling = self._body.cancelling()
            if self.lost_reason is not None:  # already: cancelling a task that has not begun would come too late
                await self.__aexit__(None, None, None)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave(self)
        body, self._body = self._body, None
        # As in asyncio.timeout: if somebody else has cancelled the task too, that cancellation wins.
        ours = body is not None and self._cancelled and body.uncancel() <= self._cancelling
        try:
            if self._promised:
                self._leave_to_heir()
            else:
                await self.release()
        except StoreError:
            pass  # told as an event and in the log; the keeper goes on trying, and the store forgets it in time
        reason = self.lost_reason
        if reason is None or (reason == HANDED_OVER and not ours):
            return
        if ours and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise LeaseLost(self.name, reason) from error
        if kind is None and self._spec.on_lost in ("raise", "cancel"):
            raise LeaseLost(self.name, reason)

    def _announce(self) -> None:
        self._core.in_loop(self._announce_in_loop)

    def _wake(self) -> None:
        event = self._lost() if self._lost is not None else None
        if event is not None:
            event.set()

    def _announce_in_loop(self) -> None:
        self._wake()
        self._cancel_body()
        self._call(self._callbacks)

    def _cancel_body(self) -> None:
        if self._body is not None and not self._cancelled:
            self._cancelled = True
            self._body.cancel(f"lease {self.name!r} is lost: {self.lost_reason}")

    def _call(self, callbacks: list[Callable[..., object]]) -> None:
        for callback in callbacks:
            self._core.call_back(callback, self)


class LostEvent(asyncio.Event):
    """An event that tells the truth by the clock, also before the loop has come to set it."""

    def __init__(self, lease: Lease) -> None:
        super().__init__()
        self._lease = lease

    def is_set(self) -> bool:
        return self._lease.lost_reason is not None

    async def wait(self) -> bool:  # type: ignore[override]
        return self.is_set() or await super().wait()
