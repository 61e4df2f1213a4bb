"""``Lock``, for asyncio: as an ``async with`` block, a decorator, or by ``await acquire()``. The docstrings are in
``contract/lock.py``."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from ..contract import habits
from ..contract.habits import OfTasks, explained
from ..contract.lock import LockContract
from ..core import checks
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


OnLost: TypeAlias = Literal["cancel", "raise", "log"] | Callable[[Lease], object]


class LockOptions(CommonOptions, total=False):
    """The options of ``Locks.lock``, which the other kinds of lock accept too."""

    on_lost: OnLost | None


class Lock(OfTasks, LockContract):
    """A name to acquire: as a block, as a decorator, or with :meth:`acquire`. Made by :meth:`Locks.lock`.

    Reusable, and shared freely between tasks: the state of a holding is in its :class:`Lease`. ::

        async with locks.lock("invoice:42") as lease:
            lease.check()

        @locks.lock("nightly", timeout=5)
        async def report():
            aio.current().check()
    """

    def __init__(self, core: TaskRegistry, spec: Spec, locks: object) -> None:
        self._core = core
        self._spec = spec
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
        return self._spec.is_taken(await self._core.call(self._core.store.inspect(self.name)))

    def _take(self, timeout: Duration | None) -> Coroutine[Any, Any, Lease]:
        return self._core.acquire(Lease, self._spec, timeout)

    async def in_transaction(self, connection: Any) -> int:
        from ..stores import callers
        from ..stores.sql import transaction

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
        """Decorate an async ``function``: each call acquires the lease, and releases it at the end."""
        if not iscoroutinefunction(function):
            checks.decorated(function, tasks=True)

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            async with self.acquire():
                return await function(*args, **kwargs)

        return call  # type: ignore[return-value]

    def __repr__(self) -> str:
        return f"<leasehold.aio.Lock {self.name!r}>"


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
