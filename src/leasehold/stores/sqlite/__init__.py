"""The SQLite store: leases for all processes of one machine, in one file.

``file`` says which file that is, ``store`` has the tables and the statements, ``threads`` and ``tasks`` the listeners,
``admin`` the doctor's checks. A release wakes the next waiter, and the death of a holder is noticed, through a FIFO
(:mod:`leasehold.stores.common.doorbell`).
"""

from __future__ import annotations

from ...core.protocol import Opened, TaskDriver, ThreadDriver


def open_url(url: str, namespace: str) -> Opened:
    from ..common.entries import JointEntryStore
    from .file import path_of

    path = path_of(url)

    def threads() -> ThreadDriver:
        from .threads import SqliteThreads

        return SqliteThreads(path, namespace)

    def tasks() -> TaskDriver:
        from .tasks import SqliteTasks

        return SqliteTasks(path, namespace)

    return Opened(JointEntryStore("sqlite"), threads, tasks)
