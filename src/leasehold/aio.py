"""leasehold for asyncio: the names of :mod:`leasehold`, awaited. What they share is in ``core`` and ``engine``.

Renewal runs in the event loop: a loop that is blocked past the deadline loses its leases, and is told so.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Mapping
from types import TracebackType
from typing import Any, TypeVar

from . import checks, engine, policy
from .connect import resolve
from .core import RELEASED, BaseLease, Core, Spec, current, enter, leave
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
from .log import ERROR, WARNING, log
from .model import Event, LeaseInfo, LockMetrics
from .policy import Preset
from .protocol import Bell, Busy, Grant, Holding, Store, TaskDriver

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

T = TypeVar("T")
AF = TypeVar("AF", bound=Callable[..., Coroutine[Any, Any, Any]])

GRACE = 0.05
"""How long a cancelled acquire waits until what it may have left is given back; the rest goes on alone."""
BLOCKED = 0.25
"""A renewal that the loop has not come to for so long is called a blocked loop."""


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
        self._open: list[tuple[object, Lease]] = []

    @property
    def name(self) -> str:
        return self._spec.name

    def acquire(self, timeout: float | None = None) -> Acquiring:
        """Wait for the lease, at most ``timeout`` seconds (None: the lock's own). Raises AcquireTimeout.

        To be awaited, or used as ``async with lock.acquire(timeout=5) as lease:``.
        """
        return Acquiring(self._core.acquire(self._spec, self._spec.timeout if timeout is None else timeout))

    async def try_acquire(self, timeout: float = 0) -> Lease | None:
        """The lease, or None where ``acquire`` would raise AcquireTimeout. By default without waiting."""
        try:
            return await self._core.acquire(self._spec, timeout)
        except AcquireTimeout:
            return None
        except StoreUnavailable:
            if self._spec.skip_unavailable:
                return None
            raise

    async def locked(self) -> bool:
        """Whether anybody holds the name now."""
        return await self._locks.inspect(self.name) is not None

    async def __aenter__(self) -> Lease:
        lease = await self.acquire()
        self._open.append((asyncio.current_task(), lease))
        return await lease.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close_block().__aexit__(kind, error, trace)

    def _close_block(self) -> Lease:
        me = asyncio.current_task()
        for place in range(len(self._open) - 1, -1, -1):
            if self._open[place][0] is me:
                return self._open.pop(place)[1]
        if len(self._open) == 1:  # entered in one task, left in another, as some frameworks do
            return self._open.pop()[1]
        raise RuntimeError(
            f"which block of lock {self.name!r} ends here is unclear: it was entered in other tasks; "
            "use `async with lock.acquire() as lease:`"
        )

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


class Acquiring:
    """What ``Lock.acquire`` returns: await it for the lease, or use it as an async context manager."""

    def __init__(self, acquire: Coroutine[Any, Any, Lease]) -> None:
        self._acquire = acquire
        self._lease: Lease | None = None

    def __await__(self) -> Generator[Any, Any, Lease]:
        return self._acquire.__await__()

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

    __slots__ = ("_body", "_cancelling")
    _core: TaskCore

    _body: asyncio.Task[Any] | None
    _cancelling: int | None

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
        # Cancelling the caller must not leave the lease behind: the store hears of the release in any case.
        return await self._core.shielded(engine.release(self._core, self)) and held

    async def __aenter__(self) -> Lease:
        enter(self)
        if self._spec.on_lost == "cancel":
            self._body = asyncio.current_task()
            if self.lost_reason is not None:
                self._cancel_body()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave(self)
        reason = self.lost_reason
        body, self._body = getattr(self, "_body", None), None
        cancelled = getattr(self, "_cancelling", None)
        ours = body is not None and cancelled is not None and body.uncancel() <= cancelled
        try:
            await self.release()
        except StoreError:
            pass  # told as an event and in the log; the keeper goes on trying, and the store forgets it in time
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
        """``on_lost="cancel"``: as asyncio.timeout does, so that a cancellation from outside can be told apart."""
        body = getattr(self, "_body", None)
        if body is not None and getattr(self, "_cancelling", None) is None:
            self._cancelling = body.cancelling()
            body.cancel(f"lease {self.name!r} is lost: {self.lost_reason}")

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


class TaskBell:
    """What a task sleeps on until somebody rings, from any thread."""

    __slots__ = ("_loop", "_rung", "_waiter", "news")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.news: Grant | Busy | None = None
        self._loop = loop
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        self._rung = True
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            pass  # the loop is closed: nobody sleeps there

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, seconds: float | None) -> bool:
        if not self._rung and (seconds is None or seconds > 0):
            self._waiter = self._loop.create_future()
            timer = None if seconds is None else self._loop.call_later(seconds, self._wake)
            try:
                await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        rung, self._rung = self._rung, False
        return rung


class TaskCore(Core):
    """The books of a ``Locks``, and what carries out effects with tasks."""

    driver: TaskDriver

    def __init__(
        self,
        store: Store,
        driver: TaskDriver,
        *,
        namespace: str,
        owner: str | None,
        kinds: Mapping[str, object] | None,
        defaults: Mapping[str, Any],
    ) -> None:
        super().__init__(
            store,
            driver,
            namespace=namespace,
            owner=owner,
            kinds=kinds,
            defaults=defaults,
            cancel_on_loss=True,
        )

    def reset(self) -> None:
        super().reset()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.loop_thread = 0
        self.bell: TaskBell | None = None
        self.tasks: set[asyncio.Task[Any]] = set()

    def bind(self) -> asyncio.AbstractEventLoop:
        """The running loop, which must be the one that the leases live in."""
        loop = asyncio.get_running_loop()
        if self.loop is not loop:
            if self.loop is not None and not self.loop.is_closed():
                raise RuntimeError("this Locks is in use in another event loop: connect once per loop")
            if self.loop is not None:
                self.driver.after_fork()  # what it had in the closed loop is of no use any more
                self.reset()
            self.loop, self.loop_thread = loop, threading.get_ident()
            self.bell = TaskBell(loop)
        return loop

    async def drive(self, effects: engine.Effects[T]) -> T:
        """Carry out effects in this task."""
        try:
            effect = next(effects)
            while True:
                try:
                    answer = await self._carry_out(effect)
                except Exception as error:
                    effect = effects.throw(error)
                else:
                    effect = effects.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            effects.close()

    def _carry_out(self, effect: engine.Run | engine.Wait | engine.Listen) -> Awaitable[Any]:
        match effect:
            case engine.Run(steps, limit):
                return self.driver.run(steps, limit)
            case engine.Wait(bell, seconds):
                assert isinstance(bell, TaskBell)
                return bell.wait(seconds)
            case engine.Listen(attempt, busy):
                return self.driver.listen(attempt, busy)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that lives until it is done, whoever forgets it; ``close`` waits for it."""
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def shielded(self, effects: engine.Effects[T]) -> T:
        """Carry out effects to the end, also when the caller is cancelled meanwhile."""
        return await asyncio.shield(self.spawn(self.drive(effects)))

    async def call(self, steps: Any) -> Any:
        self.check_open()
        self.bind()
        return await self.driver.run(steps, policy.CALL_LIMIT)

    async def acquire(self, spec: Spec, timeout: float | None) -> Lease:
        if timeout is not None:
            policy.seconds(timeout, "timeout", zero=True)
        self.check_open()
        bell: Bell = TaskBell(self.bind())
        ask = spec.ask(self.owner, queue=timeout is None or timeout > 0)
        self.asking[ask.attempt] = bell
        try:
            taken = await self.drive(engine.acquire(self, spec, ask, timeout, bell))
            lease = Lease(self, spec, taken.claim, taken.sent, taken.trusted)
            self.add(lease)
            return lease
        except BaseException as error:
            if engine.owes(ask, error):
                await self._give_up(ask, error)
            raise
        finally:
            self.asking.pop(ask.attempt, None)

    async def _give_up(self, ask: Any, error: BaseException) -> None:
        """Give back what a failed acquire may have left; not longer than GRACE here, the rest in the background."""
        task = self.spawn(self.drive(engine.abandon(self, ask, error)))
        if isinstance(error, GeneratorExit):
            return  # the coroutine is being thrown away: it may not await any more
        await asyncio.wait({task}, timeout=GRACE)

    # The keeper, the events, and what other threads have to say.

    def wake_keeper(self) -> None:
        if not self.keeping:
            self.keeping = True
            assert self.bell is not None
            self.spawn(self._keep(self.bell))
        if self.bell is not None:
            self.bell.ring()

    async def _keep(self, bell: TaskBell) -> None:
        await self.drive(engine.keep(self, bell))

    def in_loop(self, function: Callable[[], object]) -> None:
        """Call the function in the loop; without one (closed, or never used) nobody is there to be told."""
        if self.loop is not None:
            try:
                self.loop.call_soon_threadsafe(function)
            except RuntimeError:
                pass

    def expire(self) -> None:
        """The timer's part, in the timer's thread: also say where the loop is stuck, if it is."""
        overdue = self.now() - self.next_look
        lost = [lease.name for lease in list(self.leases.values()) if lease._deadline <= self.now()]
        if lost and self.keeping and overdue > BLOCKED:
            frame = sys._current_frames().get(self.loop_thread)
            where = "unknown"
            if frame is not None:
                code = frame.f_code
                where = f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}"
            log(
                WARNING,
                "the event loop has been blocked for %.2f s or more, at %s; lost through it: %s",
                overdue,
                where,
                ", ".join(lost),
                event="blocked",
                blocked_for=overdue,
                where=where,
            )
        super().expire()

    def pass_on(self, event: Event) -> None:
        for listener in list(self.listeners):
            self.in_loop(functools.partial(self.call_back, listener, event))

    def call_back(self, callback: Callable[..., object], *args: object) -> None:
        """Call a user's function in the loop; if it is async, in a task of its own."""

        async def finish(awaitable: Awaitable[object]) -> None:
            try:
                await awaitable
            except Exception as error:
                log(ERROR, "a callback of leasehold failed: %r", callback, exc=error)

        try:
            result = callback(*args)
        except Exception as error:
            log(ERROR, "a callback of leasehold failed: %r", callback, exc=error)
        else:
            if asyncio.iscoroutine(result):
                self.spawn(finish(result))

    async def close(self, limit: float = policy.CALL_LIMIT) -> None:
        with self.mutex:
            if self.closed is not None:
                return
            self.closed = "this Locks is closed"
        loop = self.bind()
        await self.drive(engine.close(self, limit, TaskBell(loop)))
        if self.bell is not None:
            self.bell.ring()
        pending = self.tasks - {asyncio.current_task()}
        if pending:
            await asyncio.wait(pending, timeout=limit)
        await self.driver.close()
