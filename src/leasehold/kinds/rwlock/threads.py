"""``rwlock`` for threads. :mod:`leasehold.kinds.rwlock.tasks` is the twin."""

from __future__ import annotations

from typing import Literal, Unpack, overload

from ...contract.lock import RWLockContract
from ...core.options import IfBusy, LockName
from ...threads.lock import Lock, LockOptions, SkippingLock, skipping
from ...threads.runner import ThreadRegistry


class RWLock(RWLockContract):
    """Many readers or one writer. Made by :meth:`Locks.rwlock`.

    Each reader has a lease of its own. A reader that arrives after a waiting writer waits too, so writers do not
    starve. ::

        with locks.rwlock("catalogue").write() as lease:
            lease.check()
    """

    def __init__(self, core: ThreadRegistry, name: LockName, options: LockOptions, locks: object) -> None:
        self._core = core
        self._locks = locks
        self._options = options
        self._name = name
        self.name = core.rw_spec(name, False, options).name

    @overload
    def read(self, *, if_busy: Literal["wait", "raise"] = ..., **options: Unpack[LockOptions]) -> Lock: ...

    @overload
    def read(self, *, if_busy: Literal["skip"], **options: Unpack[LockOptions]) -> SkippingLock: ...

    def read(self, *, if_busy: IfBusy = "wait", **options: Unpack[LockOptions]) -> Lock | SkippingLock:
        return self._side(False, options, if_busy)

    @overload
    def write(self, *, if_busy: Literal["wait", "raise"] = ..., **options: Unpack[LockOptions]) -> Lock: ...

    @overload
    def write(self, *, if_busy: Literal["skip"], **options: Unpack[LockOptions]) -> SkippingLock: ...

    def write(self, *, if_busy: IfBusy = "wait", **options: Unpack[LockOptions]) -> Lock | SkippingLock:
        return self._side(True, options, if_busy)

    def _side(self, write: bool, options: LockOptions, if_busy: IfBusy) -> Lock | SkippingLock:
        spec = self._core.rw_spec(self._name, write, {**self._options, **options}, if_busy)
        return skipping(Lock(self._core, spec, self._locks))

    def __repr__(self) -> str:
        return f"<leasehold.RWLock {self.name!r}>"
