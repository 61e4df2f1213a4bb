"""leasehold for threads. :mod:`leasehold.aio` is its twin for asyncio; what they share is in core and engine."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar

from . import checks, engine, policy
from .bells import ThreadBell
from .core import RELEASED, BaseLease, Core, Spec, enter, leave
from .errors import AcquireCancelled, AcquireTimeout, LeaseLost, StoreError, StoreUnavailable
from .log import ERROR, log
from .model import Event, LeaseInfo, LockMetrics
from .protocol import Holding, Store, ThreadDriver

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

CANCEL_SLICE = 0.05
"""How often a wait with a ``cancel`` event looks at it."""
_COROUTINE = 0x80  # inspect.CO_COROUTINE, without importing inspect


class Locks:
    """Leases of one namespace of one store. Made by :func:`leasehold.connect`."""

    def __init__(self, core: ThreadCore) -> None:
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

    def leases(self, prefix: str = "") -> Iterator[LeaseInfo]:
        """What is held in this namespace now, by name."""
        return (engine.info(holding) for holding in self._holdings(prefix) if holding.expires_in > 0)

    def inspect(self, name: str) -> LeaseInfo | None:
        """Who holds ``name`` (of several holders, the first), or None."""
        holdings = self._core.call(self._core.store.inspect(checks.name(name)))
        return engine.info(holdings[0]) if holdings else None

    def break_lease(self, name: str, force: bool = False) -> bool:
        """Take a lease from its holder. False when nobody holds it.

        The holder is told and no longer renewed; the name is free when its block has ended or its lease has run
        out. ``force=True`` frees it at once, while the holder may still believe in it until it hears of it.
        """
        return bool(self._core.call(self._core.store.interrupt(checks.name(name), force)))

    def metrics(self) -> LockMetrics:
        return engine.metrics(self._core, self._holdings(""))

    def on_event(self, callback: Callable[[Event], object]) -> None:
        """Have ``callback(event)`` called, from a thread of its own, for everything that happens to our leases."""
        self._core.listeners.append(callback)

    def close(self) -> None:
        """Mark what is still held as lost, give it back, stop everything of ours. Again is harmless."""
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
            page, after = self._core.call(self._core.store.scan(prefix, after, engine.PAGE))
            yield from page


class Lock:
    """A name to contend for. Holds no state of its own but the stack of open ``with`` blocks: share it freely."""

    def __init__(self, locks: Locks, spec: Spec) -> None:
        self._locks = locks
        self._core = locks._core
        self._spec = spec
        self._open: list[tuple[int, Lease]] = []

    @property
    def name(self) -> str:
        return self._spec.name

    def acquire(self, timeout: float | None = None, *, cancel: threading.Event | None = None) -> Lease:
        """Wait for the lease, at most ``timeout`` seconds (None: the lock's own). Raises AcquireTimeout."""
        return self._core.acquire(self._spec, self._spec.timeout if timeout is None else timeout, cancel)

    def try_acquire(self, timeout: float = 0) -> Lease | None:
        """The lease, or None where ``acquire`` would raise AcquireTimeout. By default without waiting."""
        try:
            return self._core.acquire(self._spec, timeout, None)
        except AcquireTimeout:
            return None
        except StoreUnavailable:
            if self._spec.skip_unavailable:
                return None
            raise

    def locked(self) -> bool:
        """Whether anybody holds the name now."""
        return self._locks.inspect(self.name) is not None

    def __enter__(self) -> Lease:
        lease = self.acquire()
        self._open.append((threading.get_ident(), lease))
        return lease.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_block().__exit__(kind, error, trace)

    def _close_block(self) -> Lease:
        me = threading.get_ident()
        for place in range(len(self._open) - 1, -1, -1):
            if self._open[place][0] == me:
                return self._open.pop(place)[1]
        if len(self._open) == 1:  # entered in one thread, left in another, as some frameworks do
            return self._open.pop()[1]
        raise RuntimeError(
            f"which block of lock {self.name!r} ends here is unclear: it was entered in other threads; "
            "use `with lock.acquire() as lease:`"
        )

    def __call__(self, function: F) -> F:
        """As a decorator: each call holds the lease for its duration."""
        if getattr(getattr(function, "__code__", None), "co_flags", 0) & _COROUTINE:
            raise TypeError(f"{function.__qualname__} is async: use a lock of leasehold.aio")

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.acquire():
                return function(*args, **kwargs)

        return call  # type: ignore[return-value]

    def __repr__(self) -> str:
        return f"<leasehold.Lock {self.name!r}>"


class Lease(BaseLease):
    """One holding. Usable from any thread; ends with its block, :meth:`release`, or loss."""

    __slots__ = ()
    _core: ThreadCore

    @property
    def lost(self) -> threading.Event:
        """Set when the lease is lost; never after a clean release."""
        with self._core.mutex:
            event: LostEvent | None = self._lost() if self._lost is not None else None
            if event is None:
                event = LostEvent(self)
                self._lost = weakref.ref(event)
                if self._end is not None and self._end != RELEASED:
                    event.set()
        return event

    def renew(self, ttl: float | None = None) -> None:
        """Renew now, from here on for ``ttl`` seconds a term. Raises LeaseLost when it is refused."""
        self._core.drive(engine.renew(self._core, self, ttl))

    def release(self) -> bool:
        """Give the lease back. False when it was no longer ours (lost, or released before)."""
        held = self._finish()
        if held is None:
            return False
        return self._core.drive(engine.release(self._core, self)) and held

    def __enter__(self) -> Lease:
        enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave(self)
        reason = self.lost_reason
        try:
            self.release()
        except StoreError:
            pass  # told as an event and in the log; the keeper goes on trying, and the store forgets it in time
        if reason is not None and kind is None and self._spec.on_lost == "raise":
            raise LeaseLost(self.name, reason)

    def _announce(self) -> None:
        event = self._lost() if self._lost is not None else None
        if event is not None:
            event.set()
        if self._callbacks:
            self._call(self._callbacks)

    def _call(self, callbacks: list[Callable[..., object]]) -> None:
        def run() -> None:
            for callback in callbacks:
                try:
                    callback(self)
                except Exception as error:
                    log(ERROR, "an on_lost callback of lease %r failed", self.name, exc=error)

        threading.Thread(target=run, name="leasehold-lost", daemon=True).start()


class LostEvent(threading.Event):
    """An event that tells the truth by the clock, also before the timer has come to set it.

    It holds the lease; the lease holds it weakly. So there is no cycle, and an event costs nothing until asked for.
    """

    def __init__(self, lease: Lease) -> None:
        super().__init__()
        self._lease = lease

    def is_set(self) -> bool:
        return self._lease.lost_reason is not None

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set() or super().wait(timeout) or self.is_set()


class ThreadCore(Core):
    """The books of a ``Locks``, and what carries out effects with threads."""

    driver: ThreadDriver

    def __init__(
        self,
        store: Store,
        driver: ThreadDriver,
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
            cancel_on_loss=False,
        )

    def reset(self) -> None:
        super().reset()
        self.bell = ThreadBell()
        self.keeper: threading.Thread | None = None
        self.events: Any = None

    def drive(self, effects: engine.Effects[T], cancel: threading.Event | None = None) -> T:
        """Carry out effects in this thread."""
        try:
            effect = next(effects)
            while True:
                try:
                    answer = self._carry_out(effect, cancel)
                except Exception as error:
                    effect = effects.throw(error)
                else:
                    effect = effects.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            effects.close()  # at once, also when a KeyboardInterrupt went past it

    def _carry_out(self, effect: engine.Run | engine.Wait | engine.Listen, cancel: threading.Event | None) -> Any:
        match effect:
            case engine.Run(steps, limit):
                return self.driver.run(steps, limit)
            case engine.Wait(bell, seconds):
                assert isinstance(bell, ThreadBell)
                return bell.wait(seconds) if cancel is None else self._wait_or_cancel(bell, seconds, cancel)
            case engine.Listen(attempt, busy):
                return self.driver.listen(attempt, busy)

    def _wait_or_cancel(self, bell: ThreadBell, seconds: float | None, cancel: threading.Event) -> bool:
        end = None if seconds is None else self.now() + seconds
        while not cancel.is_set():
            left = CANCEL_SLICE if end is None else min(CANCEL_SLICE, end - self.now())
            if left <= 0:
                return False
            if bell.wait(left):
                return True
        raise AcquireCancelled("the cancel event was set while waiting for the lease")

    def call(self, steps: Any) -> Any:
        self.check_open()
        return self.driver.run(steps, policy.CALL_LIMIT)

    def acquire(self, spec: Spec, timeout: float | None, cancel: threading.Event | None) -> Lease:
        if timeout is not None:
            policy.seconds(timeout, "timeout", zero=True)
        if cancel is not None and cancel.is_set():
            raise AcquireCancelled(f"the cancel event was set before {spec.name!r} was asked for")
        self.check_open()
        bell = ThreadBell()
        ask = spec.ask(self.owner, queue=timeout is None or timeout > 0)
        self.asking[ask.attempt] = bell
        try:
            taken = self.drive(engine.acquire(self, spec, ask, timeout, bell), cancel)
            lease = Lease(self, spec, taken.claim, taken.sent, taken.trusted)
            self.add(lease)
            return lease
        except BaseException as error:
            if engine.owes(ask, error):
                self.drive(engine.abandon(self, ask, error))
            raise
        finally:
            self.asking.pop(ask.attempt, None)

    # The keeper and the events, each in a daemon thread that starts when first needed.

    def wake_keeper(self) -> None:
        if not self.keeping:
            with self.mutex:
                if not self.keeping:
                    self.keeping = True
                    self.keeper = threading.Thread(target=self._keep, name="leasehold-keeper", daemon=True)
                    self.keeper.start()
        self.bell.ring()

    def _keep(self) -> None:
        self.drive(engine.keep(self, self.bell))
        if self.dropped:
            self.close()

    def drop(self) -> None:
        """Nobody has the ``Locks`` any more: end with the last lease. Called by a destructor."""
        self.dropped = True
        if self.keeping:
            self.bell.ring()
        elif self.closed is None:
            self.closed = "this Locks is gone"
            self.driver.close()

    def pass_on(self, event: Event) -> None:
        if self.events is None:
            import queue

            with self.mutex:
                if self.events is None:
                    self.events = queue.SimpleQueue()
                    threading.Thread(target=self._tell, name="leasehold-events", daemon=True).start()
        self.events.put(event)

    def _tell(self) -> None:
        events = self.events
        while (event := events.get()) is not None:
            for listener in list(self.listeners):
                try:
                    listener(event)
                except Exception as error:
                    log(ERROR, "an event listener failed on %r", event.type, exc=error)

    def close(self, limit: float = policy.CALL_LIMIT) -> None:
        with self.mutex:
            if self.closed is not None:
                return
            self.closed = "this Locks is closed"
        self.drive(engine.close(self, limit, ThreadBell()))
        self.bell.ring()
        if self.keeper is not None and self.keeper is not threading.current_thread():
            self.keeper.join(limit)
        if self.events is not None:
            self.events.put(None)
        self.driver.close()
