"""``locks.group`` for asyncio. See :mod:`leasehold.kinds.group.membership`."""

from __future__ import annotations

import inspect
from typing import Any

from ...core.log import ERROR, log
from ...model import LeaseInfo
from ...tasks.lease import Lease
from ...tasks.runner import TaskRegistry
from ..joint.tasks import release_all
from .membership import BaseGroup, Member, Roster, Watch, leases_of, members


class Group(BaseGroup):
    """Members with heartbeats. A member that stops sending them has failed."""

    _core: TaskRegistry

    async def join(self, data: Any = None) -> Lease:
        """Become a member. ``data`` (JSON) is visible to the others.

        Returns the membership as a lease: it is lost if the heartbeats fail. Leave with its ``release()``, the end of
        its block, :meth:`leave` or ``drain``. Raises ShuttingDown, StoreError."""
        lease = await self._core.acquire(Lease, self._joining(data), None)
        self._joined(lease)
        return lease

    async def leave(self) -> None:
        """End every membership that was acquired through this object. Idempotent. Raises StoreError."""
        await release_all(self._leaving())

    async def members(self) -> Roster:
        """The members now, in the order of joining. Raises StoreError."""
        self._core.bind()
        return await self._core.drive(members(self._core, self.name))

    async def owner_of(self, key: str | bytes | bytearray | memoryview) -> Member | None:
        """The member that owns the key, or None: by the members in the store, or if the group has callbacks, by the
        members that they saw last, unless that was too long ago. See :meth:`Roster.owner_of`."""
        self._core.bind()
        roster = self._watching()
        return (await self.members() if roster is None else roster).owner_of(key)

    async def leases_of(self, member: Member) -> list[LeaseInfo]:
        """The leases of the member's owner, without memberships of this group. Includes leases that expired when it
        failed and that nobody has taken over, where the store still lists them."""
        self._core.bind()
        found = await self._core.drive(leases_of(self._core, member.owner))
        return [each for each in found if each.name != self.name]

    def _start(self, watch: Watch) -> None:
        self._core.bind()
        self._core.spawn(_tell(self._core, watch))


async def _tell(core: TaskRegistry, watch: Watch) -> None:
    try:
        while not watch.over():
            for callback, who in await core.drive(watch.changes()):
                try:
                    result = callback(who)
                    if inspect.isawaitable(result):
                        await result  # one after the other, so that they stay in order
                except Exception as error:
                    log(ERROR, "the group callback %r raised an error", callback, exc=error)
    finally:
        watch.end()
