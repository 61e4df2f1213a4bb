"""leasehold for asyncio: the names of :mod:`leasehold`, awaited. What they share is in ``core`` and ``engine``.

Renewal runs in the event loop: a loop that is blocked past the deadline loses its leases, and is told so.
"""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Mapping
from types import TracebackType

from . import checks, engine
from .connect import resolve
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
from .lease import RELEASED, BaseLease, current, enter, leave, pop_block
from .model import Event, LeaseInfo, LockMetrics
from .policy import Preset
from .protocol import Holding
from .spec import Spec
from .tasks import TaskCore
from .typed import Any, TypeVar

__all__ = [
    "AcquireCancelled",
    "AcquireTimeout",
    "Event",
    "Lease",
    "LeaseInfo",
    "LeaseLost",
    "LeaseholdError",
    "Lock",
    "LockMetrics",
    "Locks",
    "Preset",
    "ShuttingDown",
    "StoreError",
    "StoreNotReady",
    "StoreUnavailable",
    "connect",
    "current",
]

AF = TypeVar("AF", bound=Callable[..., Coroutine[Any, Any, Any]])


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
    core = TaskCore(opened.store, opened.tasks(), namespace=namespace, owner=owner, kinds=kinds, defaults=options)
    return Locks(core)


class Locks:
    """Leases of one namespace of one store. Made by :func:`leasehold.aio.connect`."""

    def __init__(self, core: TaskCore) -> None:
        self._core = core

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

    async def leases(self, prefix: str = "") -> AsyncIterator[LeaseInfo]:
        """What is held in this namespace now, by name."""
        async for holding in self._holdings(prefix):
            if holding.expires_in > 0:
                yield engine.info(holding)

    async def inspect(self, name: str) -> LeaseInfo | None:
        """Who holds ``name`` (of several holders, the first), or None."""
        holdings = await self._core.call(self._core.store.inspect(checks.name(name)))
        return engine.info(holdings[0]) if holdings else None

    async def break_lease(self, name: str, force: bool = False) -> bool:
        """Take a lease from its holder. False when nobody holds it. See :meth:`leasehold.Locks.break_lease`."""
        return bool(await self._core.call(self._core.store.interrupt(checks.name(name), force)))

    async def metrics(self) -> LockMetrics:
        return engine.metrics(self._core, [holding async for holding in self._holdings("")])

    def on_event(self, callback: Callable[[Event], object]) -> None:
        """Have ``callback(event)`` called, in the loop, for everything that happens to our leases."""
        self._core.listeners.append(callback)

    async def close(self) -> None:
        """Mark what is still held as lost, give it back, stop everything of ours. Again is harmless."""
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
            page, after = await self._core.call(self._core.store.scan(prefix, after, engine.PAGE))
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

    def acquire(self, timeout: float | None = None) -> Acquiring:
        """Wait for the lease, at most ``timeout`` seconds (None: the lock's own). Raises AcquireTimeout.

        To be awaited, or used as ``async with lock.acquire(timeout=5) as lease:``.
        """
        return Acquiring(self._core.acquire(Lease, self._spec, self._spec.timeout if timeout is None else timeout))

    async def try_acquire(self, timeout: float = 0) -> Lease | None:
        """The lease, or None where ``acquire`` would raise AcquireTimeout. By default without waiting."""
        try:
            return await self._core.acquire(Lease, self._spec, timeout)
        except AcquireTimeout:
            return None
        except StoreUnavailable:
            if self._spec.skip_unavailable:
                return None
            raise

    async def locked(self) -> bool:
        """Whether anybody holds the name now."""
        return await self._locks.inspect(self.name) is not None

    async def in_transaction(self, connection: Any) -> int:
        """Take the name inside the caller's own SQL transaction, on its connection to the store's database.

        Held until that transaction ends, by commit or rollback: whoever else wants the name waits for that.
        Returns the token. Raises AcquireTimeout at once when it is busy. Needs a SQL store."""
        from .stores import sql_transaction as sql

        return sql.held(self._core, self._spec, await sql.run_async(connection, sql.holding(self._core, self._spec)))

    async def __aenter__(self) -> Lease:
        lease = await self.acquire()
        self._open.setdefault(asyncio.current_task(), []).append(lease)
        return await lease.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await pop_block(self._open, asyncio.current_task(), self.name).__aexit__(kind, error, trace)

    def __call__(self, function: AF) -> AF:
        """As a decorator of an async function: each call holds the lease for its duration."""
        if not asyncio.iscoroutinefunction(function):
            raise TypeError(f"{function!r} is not async: use a lock of leasehold.connect()")

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            async with self.acquire():
                return await function(*args, **kwargs)

        return call  # type: ignore[return-value]

    def __repr__(self) -> str:
        return f"<leasehold.aio.Lock {self.name!r}>"


class Acquiring(Coroutine[Any, Any, "Lease"]):
    """What ``Lock.acquire`` returns: a coroutine of the lease, and an async context manager."""

    def __init__(self, acquire: Coroutine[Any, Any, Lease]) -> None:
        self._acquire = acquire
        self._lease: Lease | None = None

    def __await__(self) -> Generator[Any, Any, Lease]:
        return self._acquire.__await__()

    def send(self, value: Any) -> Any:
        return self._acquire.send(value)

    def throw(self, *error: Any) -> Any:
        return self._acquire.throw(*error)

    def close(self) -> None:
        self._acquire.close()

    async def __aenter__(self) -> Lease:
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
    _core: TaskCore

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
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
        """Renew now, from here on for ``ttl`` seconds a term. Raises LeaseLost when it is refused."""
        await self._core.drive(engine.renew(self._core, self, ttl))

    async def release(self) -> bool:
        """Give the lease back. False when it was no longer ours (lost, or released before)."""
        held = self._finish()
        if held is None:
            return False
        given = await self._core.drive(engine.release(self._core, self))
        if held and not given:
            self._core.belie(self)
        return given and held

    async def in_transaction(self, connection: Any) -> int:
        """Check the lease inside the caller's own SQL transaction, on its connection to the store's database.

        Until that transaction ends nobody else can be granted the name, so what it writes is written under this
        lease. Returns the token; raises LeaseLost when the lease is no longer ours. Needs a SQL store."""
        from .stores import sql_transaction as sql

        return sql.checked(self, await sql.run_async(connection, sql.checking(self)))

    async def __aenter__(self) -> Lease:
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
            await self.release()
        except StoreError:
            pass  # told as an event and in the log; the keeper goes on trying, and the store forgets it in time
        reason = self.lost_reason
        if reason is None:
            return
        if ours and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise LeaseLost(self.name, reason) from error
        if kind is None and self._spec.on_lost in ("raise", "cancel"):
            raise LeaseLost(self.name, reason)

    def _announce(self) -> None:
        self._core.in_loop(self._announce_in_loop)

    def _announce_in_loop(self) -> None:
        event = self._lost() if self._lost is not None else None
        if event is not None:
            event.set()
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
