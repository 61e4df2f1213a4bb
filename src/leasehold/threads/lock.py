"""``Lock``, for threads: as a ``with`` block, a decorator, or by ``acquire``; and ``SkippingLock``. The docstrings are
in ``contract/lock.py``."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, ParamSpec, TypeAlias, TypeVar

from ..contract.habits import OfThreads, explained
from ..contract.lock import LockContract, SkippingLockContract
from ..core import checks
from ..core.call_names import Args, Kwargs, call_names
from ..core.lease import leave, pop_block
from ..core.options import CommonOptions, Spec
from ..core.timing import Duration
from ..errors import AcquireTimeout, StoreError, StoreUnavailable
from .lease import Lease
from .runner import ThreadRegistry

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
T = TypeVar("T")
L = TypeVar("L", bound="Lock")


OnLost: TypeAlias = Literal["raise", "log"] | Callable[[Lease], object]


class LockOptions(CommonOptions, total=False):
    """The options of ``Locks.lock``, which the other kinds of lock accept too."""

    on_lost: OnLost | None


class Lock(OfThreads, LockContract):
    """A name to acquire: as a block, as a decorator, or with :meth:`acquire`. Made by :meth:`Locks.lock`.

    Reusable, and shared freely between threads: the state of a holding is in its :class:`Lease`. ::

        with locks.lock("invoice:42") as lease:
            lease.check()

        @locks.lock("report:{customer}", timeout=5)
        def report(customer):
            leasehold.current().check()
    """

    def __init__(self, core: ThreadRegistry, spec: Spec, locks: object) -> None:
        self._core = core
        self._spec = spec
        self._specs = [spec]
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
        checks.patient(timeout)
        return self._take_or_skip(timeout, None, cancel)

    def _take_or_skip(
        self, timeout: Duration | None, skipped: str | None, cancel: threading.Event | None = None
    ) -> Lease | None:
        """The lease, or None if the name is busy. ``skipped``: what is left out then, for the log."""
        try:
            return self._take(timeout, cancel)
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

    def locked(self) -> bool:
        self._spec.check_named()
        return self._spec.is_taken(self._core.call(self._core.store.inspect(self.name)))

    def _take(self, timeout: Duration | None, cancel: threading.Event | None) -> Lease:
        return self._core.acquire(Lease, self._spec, timeout, cancel)

    def in_transaction(self, connection: Any) -> int:
        from ..stores import callers
        from ..stores.sql import transaction

        self._spec.check_named()
        return callers.run(self._core, connection, transaction.holding(self._core, self._spec))

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
        """Decorate ``function``: each call acquires the lease, and releases it at the end.

        A ``{field}`` of the lock's name is an argument of the call."""
        checks.decorated(function, tasks=False)
        lock_of = self._lock_of_calls(function)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with lock_of(args, kwargs).acquire():
                result = function(*args, **kwargs)
                checks.has_run(result, checks.called(function))
                return result

        return call  # type: ignore[return-value]

    def _lock_of_calls(self, function: Callable[..., Any]) -> Callable[[Args, Kwargs], Lock]:
        """What returns the lock of a call of ``function``: this one, unless its name depends on the arguments."""
        names = call_names(function, self._specs)
        return (lambda args, kwargs: self) if names is None else lambda args, kwargs: self._named(names(args, kwargs))

    def _named(self, names: Sequence[str]) -> Lock:
        """The same lock with another name, or other names."""
        return Lock(self._core, self._spec._replace(name=names[0], name_of=None), self._locks)

    def __repr__(self) -> str:
        return f"<leasehold.Lock {self.name!r}>"


class SkippingLock(OfThreads, SkippingLockContract):
    """A lock with ``if_busy="skip"``: a decorated call returns None while another holder has the name. ::

    @locks.lock("nightly", if_busy="skip")
    def report():
        leasehold.current().check()
    """

    def __init__(self, lock: Lock) -> None:
        self._lock = lock

    @property
    def name(self) -> str:
        return self._lock.name

    def try_acquire(self, timeout: Duration = 0, *, cancel: threading.Event | None = None) -> Lease | None:
        return self._lock.try_acquire(timeout, cancel=cancel)

    def locked(self) -> bool:
        return self._lock.locked()

    def __call__(self, function: Callable[P, T]) -> Callable[P, T | None]:
        """Decorate ``function``: a call acquires the lease, or returns None if another holder has the name."""
        checks.decorated(function, tasks=False)
        lock_of, called = self._lock._lock_of_calls(function), checks.called(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
            lease = lock_of(args, kwargs)._take_or_skip(self._lock._spec.timeout, called)
            if lease is None:
                return None
            with lease:
                del lease  # the block alone keeps it, as in ``Lock``
                result = function(*args, **kwargs)
                checks.has_run(result, called)
                return result

        return call

    if not TYPE_CHECKING:  # a type checker reports their use

        def acquire(self, timeout: Duration | None = None, *, cancel: threading.Event | None = None) -> NoReturn:
            """Not supported: raises TypeError. Use :meth:`try_acquire`, or a lock without if_busy="skip".

            Args:
                timeout: not used. Default: None.
                cancel: not used. Default: None.

            Raises:
                TypeError: always.
            """
            raise checks.only_skips(self.name)

        def __enter__(self) -> NoReturn:
            raise checks.only_skips(self.name)

        def __exit__(self, *exc: object) -> None: ...

    def __repr__(self) -> str:
        return f"<leasehold.SkippingLock {self.name!r}>"


def skipping(lock: L) -> L | SkippingLock:
    """The lock, as its ``if_busy`` asks for it."""
    return SkippingLock(lock) if lock._spec.if_busy == "skip" else lock
