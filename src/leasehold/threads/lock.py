"""``Lock``, for threads: as a ``with`` block, a decorator, or by ``acquire``. The docstrings are in
``contract/lock.py``."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, TypeAlias, TypeVar

from ..contract.habits import OfThreads, explained
from ..contract.lock import LockContract
from ..core import checks
from ..core.lease import leave, pop_block
from ..core.options import CommonOptions, Spec
from ..core.timing import Duration
from ..errors import AcquireTimeout, StoreError, StoreUnavailable
from .lease import Lease
from .runner import ThreadRegistry

F = TypeVar("F", bound=Callable[..., Any])


OnLost: TypeAlias = Literal["raise", "log"] | Callable[[Lease], object]


class LockOptions(CommonOptions, total=False):
    """The options of ``Locks.lock``, which the other kinds of lock accept too."""

    on_lost: OnLost | None


class Lock(OfThreads, LockContract):
    """A name to acquire: as a block, as a decorator, or with :meth:`acquire`. Made by :meth:`Locks.lock`.

    Reusable, and shared freely between threads: the state of a holding is in its :class:`Lease`. ::

        with locks.lock("invoice:42") as lease:
            lease.check()

        @locks.lock("nightly", timeout=5)
        def report():
            leasehold.current().check()
    """

    def __init__(self, core: ThreadRegistry, spec: Spec, locks: object) -> None:
        self._core = core
        self._spec = spec
        self._locks = locks  # kept alive: a Locks that is garbage-collected acquires no more leases
        self._open: dict[int, list[Lease]] = {}

    @property
    def name(self) -> str:
        return self._spec.name

    @explained
    def acquire(self, timeout: Duration | None = None, *, cancel: threading.Event | None = None) -> Lease:
        return self._take(self._spec.timeout if timeout is None else timeout, cancel)

    @explained
    def try_acquire(self, timeout: Duration = 0, *, cancel: threading.Event | None = None) -> Lease | None:
        try:
            return self._take(timeout, cancel)
        except AcquireTimeout:
            return None
        except StoreUnavailable as error:
            if self._spec.skip_unavailable:
                self._core.tell("skipped", self.name, None, f"the store is unavailable ({error})")
                return None
            raise

    def locked(self) -> bool:
        return self._spec.is_taken(self._core.call(self._core.store.inspect(self.name)))

    def _take(self, timeout: Duration | None, cancel: threading.Event | None) -> Lease:
        return self._core.acquire(Lease, self._spec, timeout, cancel)

    def in_transaction(self, connection: Any) -> int:
        from ..stores.sql import transaction as sql

        return sql.run(self._core, connection, sql.holding(self._core, self._spec))

    def __enter__(self) -> Lease:
        lease = self.acquire()
        try:
            self._open.setdefault(threading.get_ident(), []).append(lease)
            return lease.__enter__()
        except BaseException:  # KeyboardInterrupt, for example: the block does not begin, so nothing else ends it
            if lease in self._open.get(threading.get_ident(), ()):
                pop_block(self._open, threading.get_ident(), self.name)
            leave(lease)
            try:
                lease.release()
            except StoreError:
                pass  # the keeper retries it
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pop_block(self._open, threading.get_ident(), self.name).__exit__(kind, error, trace)

    def __call__(self, function: F) -> F:
        """Decorate ``function``: each call acquires the lease, and releases it at the end."""
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
