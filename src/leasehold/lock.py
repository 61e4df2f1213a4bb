"""leasehold for threads. :mod:`leasehold.aio` is its twin for asyncio; what they share is in core and engine."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType

from . import checks, engine
from .core import aside
from .errors import AcquireTimeout, LeaseLost, StoreError, StoreUnavailable
from .lease import RELEASED, BaseLease, enter, leave, pop_block
from .log import ERROR, log
from .model import Event, LeaseInfo, LockMetrics
from .protocol import Holding
from .spec import Spec
from .threads import ThreadCore
from .typed import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

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
        self._open: dict[int, list[Lease]] = {}

    @property
    def name(self) -> str:
        return self._spec.name

    def acquire(self, timeout: float | None = None, *, cancel: threading.Event | None = None) -> Lease:
        """Wait for the lease, at most ``timeout`` seconds (None: the lock's own). Raises AcquireTimeout."""
        return self._core.acquire(Lease, self._spec, self._spec.timeout if timeout is None else timeout, cancel)

    def try_acquire(self, timeout: float = 0) -> Lease | None:
        """The lease, or None where ``acquire`` would raise AcquireTimeout. By default without waiting."""
        try:
            return self._core.acquire(Lease, self._spec, timeout, None)
        except AcquireTimeout:
            return None
        except StoreUnavailable:
            if self._spec.skip_unavailable:
                return None
            raise

    def locked(self) -> bool:
        """Whether anybody holds the name now."""
        return self._locks.inspect(self.name) is not None

    def in_transaction(self, connection: Any) -> int:
        """Take the name inside the caller's own SQL transaction, on its connection to the store's database.

        Held until that transaction ends, by commit or rollback: whoever else wants the name waits for that.
        Returns the token. Raises AcquireTimeout at once when it is busy. Needs a SQL store."""
        from .stores import sql_transaction as sql

        return sql.held(self._core, self._spec, sql.run(connection, sql.holding(self._core, self._spec)))

    def __enter__(self) -> Lease:
        lease = self.acquire()
        try:
            self._open.setdefault(threading.get_ident(), []).append(lease)
            return lease.__enter__()
        except BaseException:  # a KeyboardInterrupt, say: the block will not be entered, so nobody would leave it
            if lease in self._open.get(threading.get_ident(), ()):
                pop_block(self._open, threading.get_ident(), self.name)
            leave(lease)
            lease.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pop_block(self._open, threading.get_ident(), self.name).__exit__(kind, error, trace)

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
        given = self._core.drive(engine.release(self._core, self))
        if held and not given:
            self._core.belie(self)
        return given and held

    def in_transaction(self, connection: Any) -> int:
        """Check the lease inside the caller's own SQL transaction, on its connection to the store's database.

        Until that transaction ends nobody else can be granted the name, so what it writes is written under this
        lease. Returns the token; raises LeaseLost when the lease is no longer ours. Needs a SQL store."""
        from .stores import sql_transaction as sql

        return sql.checked(self, sql.run(connection, sql.checking(self)))

    def __enter__(self) -> Lease:
        enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave(self)
        try:
            self.release()
        except StoreError:
            pass  # told as an event and in the log; the keeper goes on trying, and the store forgets it in time
        reason = self.lost_reason
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

        aside("leasehold-callback", run)


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
