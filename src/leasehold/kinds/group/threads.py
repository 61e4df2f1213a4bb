"""``locks.group`` for threads. See :mod:`leasehold.kinds.group.membership`."""

from __future__ import annotations

from typing import Any

from ...core.lease import own_state_of
from ...core.log import ERROR, log
from ...core.options import Spec
from ...core.release import begin_replacing, drop
from ...model import LeaseInfo
from ...runtime.thread_start import start_thread
from ...threads.lease import Lease
from ...threads.runner import ThreadRegistry
from ..joint.threads import release_all
from .membership import BaseGroup, Member, MemberMonitor, Roster, check_unique, leases_of, members


class Group(BaseGroup):
    """Members with heartbeats. A member that stops sending them has failed.

    Made by :meth:`Locks.group`. ::

        group = locks.group("workers")
        with group.join(data={"port": 80}):
            member = group.owner_of("customer:7")
    """

    _core: ThreadRegistry

    def join(self, data: Any = None, *, unique: bool = False) -> Lease:
        spec = self._joining(data)
        if unique:
            self._core.drive(check_unique(self._core, self.name, None))
        lease = self._core.acquire(Lease, spec, None, None)
        if unique:  # again: another may have joined at the same time
            try:
                self._core.drive(check_unique(self._core, self.name, lease.token))
            except BaseException:
                drop(self._core, own_state_of(lease))
                raise
        self._joined(lease)
        return lease

    def update(self, data: Any) -> None:
        spec = self._joining(data)
        with self._core.updating:  # one at a time: meanwhile the membership is not valid
            for lease in self._updating():
                self._replace(lease, spec)

    def _replace(self, lease: Lease, spec: Spec) -> None:
        old, caller, done = own_state_of(lease), object(), False
        try:
            heir, left = begin_replacing(self._core, old, spec, caller)
            new = self._core.acquire(Lease, heir, left, None)
            done = True
        finally:
            self._replaced(old, caller, done)
        self._updated(lease, new)

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
            for subscription, member in core.drive(monitor.changes()):
                try:
                    if subscription.active:
                        subscription.callback(member)
                except Exception as error:
                    log(ERROR, "the group callback %r raised an error", subscription.callback, exc=error)
    finally:
        monitor.end()
