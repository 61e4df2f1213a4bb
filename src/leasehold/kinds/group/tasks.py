"""``locks.group`` for asyncio. See :mod:`leasehold.kinds.group.membership`."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from ...core.lease import own_state_of
from ...core.log import ERROR, log
from ...core.options import Spec
from ...core.release import begin_replacing, drop
from ...model import LeaseInfo
from ...tasks.lease import Lease
from ...tasks.runner import TaskRegistry
from ..joint.tasks import release_all
from .membership import BaseGroup, Member, MemberMonitor, Roster, check_unique, leases_of, members


class Group(BaseGroup):
    """Members with heartbeats. A member that stops sending them has failed.

    Made by :meth:`Locks.group`. ::

        group = locks.group("workers")
        async with await group.join(data={"port": 80}):
            member = await group.owner_of("customer:7")
    """

    _core: TaskRegistry
    _update: asyncio.Task[None] | None = None
    """The update that was begun last, until it is done."""

    async def join(self, data: Any = None, *, unique: bool = False) -> Lease:
        spec = self._joining(data)
        if unique:
            self._core.bind()
            await self._core.drive(check_unique(self._core, self.name, None))
        lease = await self._core.acquire(Lease, spec, None)
        if unique:  # again: another may have joined at the same time
            try:
                await self._core.drive(check_unique(self._core, self.name, lease.token))
            except BaseException:
                drop(self._core, own_state_of(lease))
                raise
        self._joined(lease)
        return lease

    async def update(self, data: Any) -> None:
        spec = self._joining(data)
        loop = self._core.bind()
        before = self._update if self._update is not None and self._update.get_loop() is loop else None
        self._update = self._core.spawn(self._replace_all(spec, before))
        self._update.add_done_callback(
            lambda update: update.cancelled() or update.exception()
        )  # its caller may be gone
        await asyncio.shield(self._update)  # a caller that is cancelled does not end the membership

    async def _replace_all(self, spec: Spec, before: asyncio.Task[None] | None) -> None:
        """Replace the memberships, after the update ``before``: meanwhile they are not valid."""
        try:
            if before is not None:
                await asyncio.wait({before})
            for lease in self._updating():
                await self._replace(lease, spec)
        finally:
            if self._update is asyncio.current_task():
                self._update = None

    async def _replace(self, lease: Lease, spec: Spec) -> None:
        old, caller, done = own_state_of(lease), object(), False
        try:
            heir, left = begin_replacing(self._core, old, spec, caller)
            new = await self._core.acquire(Lease, heir, left)
            done = True
        finally:
            self._replaced(old, caller, done)
        self._updated(lease, new)

    async def leave(self) -> None:
        await release_all(self._leaving())

    async def members(self) -> Roster:
        self._core.bind()
        return await self._core.drive(members(self._core, self.name))

    async def owner_of(self, key: str | bytes | bytearray | memoryview) -> Member | None:
        self._core.bind()
        roster = self._monitored()
        return (await self.members() if roster is None else roster).owner_of(key)

    async def leases_of(self, member: Member) -> list[LeaseInfo]:
        self._core.bind()
        found = await self._core.drive(leases_of(self._core, member.owner))
        return [each for each in found if each.name != self.name]

    def _start(self, monitor: MemberMonitor) -> None:
        self._core.bind()
        self._core.spawn(_call_back(self._core, monitor))


async def _call_back(core: TaskRegistry, monitor: MemberMonitor) -> None:
    try:
        while not monitor.must_stop():
            for subscription, member in await core.drive(monitor.changes()):
                try:
                    result = subscription.callback(member) if subscription.active else None
                    if inspect.isawaitable(result):
                        await result  # one after the other, so that they stay in order
                except Exception as error:
                    log(ERROR, "the group callback %r raised an error", subscription.callback, exc=error)
    finally:
        monitor.end()
