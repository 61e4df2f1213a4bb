"""``rwlock`` for asyncio. :mod:`leasehold.kinds.rwlock.threads` is the twin."""

from __future__ import annotations

from typing import Any

from ...tasks.lock import Lock
from ...tasks.locks import Locks


class RWLock:
    """Many readers or one writer. Each reader has a lease of its own. A reader that comes after a waiting writer waits
    too, so writers do not starve."""

    def __init__(self, locks: Locks, name: str, options: dict[str, Any]) -> None:
        self._locks = locks
        self._options = options
        self.name = locks._core.rw_spec(name, False, options).name

    def read(self, **options: Any) -> Lock:
        """The lock of a reader. Options are those of :meth:`Locks.lock`, and override those given to ``rwlock``."""
        return Lock(self._locks, self._locks._core.rw_spec(self.name, False, {**self._options, **options}))

    def write(self, **options: Any) -> Lock:
        """The lock of a writer. Options as for :meth:`read`. ``lease.downgrade()`` turns a writer into a reader."""
        return Lock(self._locks, self._locks._core.rw_spec(self.name, True, {**self._options, **options}))

    def __repr__(self) -> str:
        return f"<leasehold.aio.RWLock {self.name!r}>"
