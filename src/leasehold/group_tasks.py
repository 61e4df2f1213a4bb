"""``locks.group`` for asyncio. See :mod:`leasehold.group`."""

from __future__ import annotations

import inspect

from .aio import Lease
from .aio_kinds import release_all
from .group import BaseGroup, Member, Roster, Watch, leases_of, members
from .log import ERROR, log
from .model import LeaseInfo
from .tasks import TaskCore
from .typed import Any


class Group(BaseGroup):
    """Members with heartbeats."""

    _core: TaskCore

    async def join(self, data: Any = None) -> Lease:
        """Become a member, with data for the others to see. The lease that is returned is the membership: it is lost
        when the heartbeats fail, and leaving is releasing it (or its block's end, :meth:`leave`, ``drain``)."""
        lease = await self._core.acquire(Lease, self._joining(data), None)
        self._joined(lease)
        return lease

    async def leave(self) -> None:
        """End every membership that was taken through this object. Again is harmless."""
        await release_all(self._leaving())

    async def members(self) -> Roster:
        """Who is a member now, in the order of joining."""
        self._core.bind()
        return await self._core.drive(members(self._core, self.name))

    async def owner_of(self, key: str | bytes | bytearray | memoryview) -> Member | None:
        """The member to whom the key belongs, as the store says; with callbacks, as they saw it last, unless that is
        too long ago."""
        self._core.bind()
        roster = self._watching()
        return (await self.members() if roster is None else roster).owner_of(key)

    async def leases_of(self, member: Member) -> list[LeaseInfo]:
        """What the member's owner holds, or held until it failed and nobody has taken since."""
        self._core.bind()
        found = await self._core.drive(leases_of(self._core, member.owner))
        return [each for each in found if each.name != self.name]

    def _start(self, watch: Watch) -> None:
        self._core.bind()
        self._core.spawn(_tell(self._core, watch))


async def _tell(core: TaskCore, watch: Watch) -> None:
    try:
        while not watch.over():
            for callback, who in await core.drive(watch.changes()):
                try:
                    result = callback(who)
                    if inspect.isawaitable(result):
                        await result  # one after the other: so they stay in order
                except Exception as error:
                    log(ERROR, "a callback of a group failed: %r", callback, exc=error)
    finally:
        watch.end()
