"""``Lock``, for threads: a name to contend for, as a ``with`` block, a decorator, or by ``acquire``."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from ..core import checks
from ..core.lease import leave, pop_block
from ..core.options import Spec
from ..errors import AcquireTimeout, StoreError, StoreUnavailable
from .lease import Lease
from .runner import ThreadRegistry

F = TypeVar("F", bound=Callable[..., Any])


class Lock:
    """A name to contend for. Holds no state of its own but the stack of open ``with`` blocks: share it freely."""

    def __init__(self, core: ThreadRegistry, spec: Spec, locks: object) -> None:
        self._core = core
        self._spec = spec
        self._locks = locks  # kept alive: a Locks that is collected gives out no more leases
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
        from ..stores.sql import transaction as sql

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
