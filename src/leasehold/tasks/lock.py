"""``Lock``, for asyncio: a name to contend for, as an ``async with`` block, a decorator, or by ``await acquire()``."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, TypeVar

from ..core import checks
from ..core.lease import pop_block
from ..core.options import Spec
from ..errors import AcquireTimeout, StoreUnavailable
from .lease import Lease
from .runner import TaskRegistry

# Each knows what is only marked as a coroutine function, too: asyncio has lost that to inspect.
if sys.version_info >= (3, 12):
    from inspect import iscoroutinefunction
else:
    from asyncio import iscoroutinefunction


AF = TypeVar("AF", bound=Callable[..., Coroutine[Any, Any, Any]])
L = TypeVar("L", bound="Lease", covariant=True)


class Lock:
    """A name to contend for. Holds no state of its own but the stack of open blocks: share it freely."""

    def __init__(self, core: TaskRegistry, spec: Spec, locks: object) -> None:
        self._core = core
        self._spec = spec
        self._locks = locks  # kept alive: a Locks that is collected gives out no more leases
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
        from ..stores.sql import transaction as sql

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
