"""``Lock``, for asyncio: as an ``async with`` block, a decorator, or by ``await acquire()``; and ``SkippingLock``. The
docstrings are in ``contract/lock.py``."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable, Coroutine, Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, ParamSpec, TypeAlias, TypeVar

from ..contract import habits
from ..contract.habits import OfTasks, explained
from ..contract.lock import LockContract, SkippingLockContract
from ..core import checks
from ..core.call_names import Args, Kwargs, call_names
from ..core.lease import pop_block
from ..core.options import CommonOptions, Spec
from ..core.timing import Duration
from ..errors import AcquireTimeout, StoreUnavailable
from .lease import Lease
from .runner import TaskRegistry

# These also recognise functions that are only marked as coroutine functions. Python 3.12 moved the mark to inspect.
if sys.version_info >= (3, 12):
    from inspect import iscoroutinefunction
else:
    from asyncio import iscoroutinefunction


AF = TypeVar("AF", bound=Callable[..., Coroutine[Any, Any, Any]])
L = TypeVar("L", bound="Lease", covariant=True)
P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K", bound="Lock")


OnLost: TypeAlias = Literal["cancel", "raise", "log"] | Callable[[Lease], object]


class LockOptions(CommonOptions, total=False):
    """The options of ``Locks.lock``, which the other kinds of lock accept too."""

    on_lost: OnLost | None


class Lock(OfTasks, LockContract):
    """A name to acquire: as a block, as a decorator, or with :meth:`acquire`. Made by :meth:`Locks.lock`.

    Reusable, and shared freely between tasks: the state of a holding is in its :class:`Lease`. ::

        async with locks.lock("invoice:42") as lease:
            lease.check()

        @locks.lock("report:{customer}", timeout=5)
        async def report(customer):
            aio.current().check()
    """

    def __init__(self, core: TaskRegistry, spec: Spec, locks: object) -> None:
        self._core = core
        self._spec = spec
        self._specs = [spec]
        self._locks = locks  # kept alive: a Locks that is garbage-collected acquires no more leases
        self._open: dict[asyncio.Task[Any] | None, list[Lease]] = {}

    @property
    def name(self) -> str:
        return self._spec.name

    @explained
    def acquire(self, timeout: Duration | None = None) -> Acquiring[Lease]:
        return Acquiring(self._take(self._spec.timeout if timeout is None else timeout))

    @explained
    def try_acquire(self, timeout: Duration = 0) -> Coroutine[Any, Any, Lease | None]:
        checks.patient(timeout)
        return self._take_or_skip(self._take(timeout), None)

    async def _take_or_skip(self, taking: Coroutine[Any, Any, Lease], skipped: str | None) -> Lease | None:
        """The lease, or None if the name is busy. ``skipped``: what is left out then, for the log."""
        try:
            return await taking
        except AcquireTimeout as error:
            if skipped is not None:
                why = f"{error}; {skipped} was not called"
                self._core.tell("skipped", self.name, None, why, kind=self._spec.kind)
            return None
        except StoreUnavailable as error:
            if self._spec.skip_unavailable:
                why = f"the store is unavailable ({error})"
                self._core.tell("skipped", self.name, None, why, kind=self._spec.kind)
                return None
            raise

    async def locked(self) -> bool:
        self._spec.check_named()
        return self._spec.is_taken(await self._core.call(self._core.store.inspect(self.name)))

    def _take(self, timeout: Duration | None) -> Coroutine[Any, Any, Lease]:
        return self._core.acquire(Lease, self._spec, timeout)

    async def in_transaction(self, connection: Any) -> int:
        from ..stores import callers
        from ..stores.sql import transaction

        self._spec.check_named()
        return await callers.run_async(self._core, connection, transaction.holding(self._core, self._spec))

    async def __aenter__(self) -> Lease:
        lease = await self.acquire()
        self._open.setdefault(asyncio.current_task(), []).append(lease)
        try:
            return await lease.__aenter__()
        except BaseException:  # the block does not begin, so nothing else ends it
            pop_block(self._open, asyncio.current_task(), self.name)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await pop_block(self._open, asyncio.current_task(), self.name).__aexit__(kind, error, trace)

    def __call__(self, function: AF) -> AF:
        """Decorate an async ``function``: each call acquires the lease, and releases it at the end.

        A ``{field}`` of the lock's name is an argument of the call."""
        _check_async(function)
        lock_of = self._lock_of_calls(function)

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            async with lock_of(args, kwargs).acquire():
                return await function(*args, **kwargs)

        return call  # type: ignore[return-value]

    def _lock_of_calls(self, function: Callable[..., Any]) -> Callable[[Args, Kwargs], Lock]:
        """What returns the lock of a call of ``function``: this one, unless its name depends on the arguments."""
        names = call_names(function, self._specs)
        return (lambda args, kwargs: self) if names is None else lambda args, kwargs: self._named(names(args, kwargs))

    def _named(self, names: Sequence[str]) -> Lock:
        """The same lock with another name, or other names."""
        return Lock(self._core, self._spec._replace(name=names[0], name_of=None), self._locks)

    def __repr__(self) -> str:
        return f"<leasehold.aio.Lock {self.name!r}>"


def _check_async(function: Callable[..., Any]) -> None:
    if not iscoroutinefunction(function):
        checks.decorated(function, tasks=True)


class SkippingLock(OfTasks, SkippingLockContract):
    """A lock with ``if_busy="skip"``: a decorated call returns None while another holder has the name. ::

    @locks.lock("nightly", if_busy="skip")
    async def report():
        aio.current().check()
    """

    def __init__(self, lock: Lock) -> None:
        self._lock = lock

    @property
    def name(self) -> str:
        return self._lock.name

    def try_acquire(self, timeout: Duration = 0) -> Coroutine[Any, Any, Lease | None]:
        return self._lock.try_acquire(timeout)

    async def locked(self) -> bool:
        return await self._lock.locked()

    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T | None]]:
        """Decorate an async ``function``: a call acquires the lease, or returns None if another holder has the name."""
        _check_async(function)
        lock_of, called = self._lock._lock_of_calls(function), checks.called(function)

        @functools.wraps(function)
        async def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
            lock = lock_of(args, kwargs)
            lease = await lock._take_or_skip(lock._take(self._lock._spec.timeout), called)
            if lease is None:
                return None
            async with lease:
                del lease  # the block alone keeps it, as in ``Lock``
                return await function(*args, **kwargs)

        return call

    if not TYPE_CHECKING:  # a type checker reports their use

        def acquire(self, timeout: Duration | None = None) -> NoReturn:
            """Not supported: raises TypeError. Use :meth:`try_acquire`, or a lock without if_busy="skip".

            Args:
                timeout: not used. Default: None.

            Raises:
                TypeError: always.
            """
            raise checks.only_skips(self.name)

        async def __aenter__(self) -> NoReturn:
            raise checks.only_skips(self.name)

        async def __aexit__(self, *exc: object) -> None: ...

    def __repr__(self) -> str:
        return f"<leasehold.aio.SkippingLock {self.name!r}>"


def skipping(lock: K) -> K | SkippingLock:
    """The lock, as its ``if_busy`` asks for it."""
    return SkippingLock(lock) if lock._spec.if_busy == "skip" else lock


class Acquiring(OfTasks, Coroutine[Any, Any, L]):
    """What ``Lock.acquire`` returns: a coroutine of the lease, and an async context manager."""

    def __init__(self, acquire: Coroutine[Any, Any, L]) -> None:
        self._acquire = acquire
        self._lease: L | None = None

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            habits.missing(self, name, habits.UNAWAITED)

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
