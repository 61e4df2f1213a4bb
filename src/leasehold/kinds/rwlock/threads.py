"""``rwlock`` for threads. :mod:`leasehold.kinds.rwlock.tasks` is the twin."""

from __future__ import annotations

from typing import Any

from ...threads.lock import Lock
from ...threads.runner import ThreadRegistry


class RWLock:
    """Many readers or one writer. Each reader has a lease of its own. A reader that comes after a waiting writer waits
    too, so writers do not starve."""

    def __init__(self, core: ThreadRegistry, name: str, options: dict[str, Any], locks: object) -> None:
        self._core = core
        self._locks = locks
        self._options = options
        self.name = core.rw_spec(name, False, options).name

    def read(self, **options: Any) -> Lock:
        """The lock of a reader. Options are those of :meth:`Locks.lock`, and override those given to ``rwlock``."""
        return self._side(False, options)

    def write(self, **options: Any) -> Lock:
        """For a writer. ``lease.downgrade()`` makes a reader of it."""
        return self._side(True, options)

    def _side(self, write: bool, options: dict[str, Any]) -> Lock:
        spec = self._core.rw_spec(self.name, write, {**self._options, **options})
        return Lock(self._core, spec, self._locks)

    def __repr__(self) -> str:
        return f"<leasehold.RWLock {self.name!r}>"
