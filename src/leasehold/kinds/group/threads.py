"""``locks.group`` for threads. See :mod:`leasehold.kinds.group.membership`."""

from __future__ import annotations

from typing import Any

from ...core.log import ERROR, log
from ...model import LeaseInfo
from ...runtime.thread_start import start_thread
from ...threads.lease import Lease
from ...threads.runner import ThreadRegistry
from ..joint.threads import release_all
from .membership import BaseGroup, Member, MemberMonitor, Roster, leases_of, members


class Group(BaseGroup):
    """Members with heartbeats. A member that stops sending them has failed.

    Made by :meth:`Locks.group`. ::

        group = locks.group("workers")
        with group.join(data={"port": 80}):
            member = group.owner_of("customer:7")
    """

    _core: ThreadRegistry

    def join(self, data: Any = None) -> Lease:
        lease = self._core.acquire(Lease, self._joining(data), None, None)
        self._joined(lease)
        return lease

    def leave(self) -> None:
        release_all(self._leaving())

    def members(self) -> Roster:
        return self._core.drive(members(self._core, self.name))

    def owner_of(self, key: str | bytes | bytearray | memoryview) -> Member | None:
        roster = self._monitored()
        return (self.members() if roster is None else roster).owner_of(key)

    def leases_of(self, member: Member) -> list[LeaseInfo]:
        found = self._core.drive(leases_of(self._core, member.owner))
        return [each for each in found if each.name != self.name]

    def _start(self, monitor: MemberMonitor) -> None:
        start_thread("leasehold-group", _call_back, self._core, monitor)


def _call_back(core: ThreadRegistry, monitor: MemberMonitor) -> None:
    try:
        while not monitor.must_stop():
            for callback, member in core.drive(monitor.changes()):
                try:
                    callback(member)
                except Exception as error:
                    log(ERROR, "the group callback %r raised an error", callback, exc=error)
    finally:
        monitor.end()
