"""``rwlock`` for asyncio. :mod:`leasehold.kinds.rwlock.threads` is the twin."""

from __future__ import annotations

from typing import Unpack

from ...contract.lock import RWLockContract
from ...tasks.lock import Lock, LockOptions
from ...tasks.runner import TaskRegistry


class RWLock(RWLockContract):
    """Many readers or one writer. Made by :meth:`Locks.rwlock`.

    Each reader has a lease of its own. A reader that arrives after a waiting writer waits too, so writers do not
    starve. ::

        async with locks.rwlock("catalogue").write() as lease:
            lease.check()
    """

    def __init__(self, core: TaskRegistry, name: str, options: LockOptions, locks: object) -> None:
        self._core = core
        self._locks = locks
        self._options = options
        self.name = core.rw_spec(name, False, options).name

    def read(self, **options: Unpack[LockOptions]) -> Lock:
        return self._side(False, options)

    def write(self, **options: Unpack[LockOptions]) -> Lock:
        return self._side(True, options)

    def _side(self, write: bool, options: LockOptions) -> Lock:
        spec = self._core.rw_spec(self.name, write, {**self._options, **options})
        return Lock(self._core, spec, self._locks)

    def __repr__(self) -> str:
        return f"<leasehold.aio.RWLock {self.name!r}>"
