"""``locks.group`` for threads. See :mod:`leasehold.kinds.group.membership`."""

from __future__ import annotations

from typing import Any

from ...core.log import ERROR, log
from ...model import LeaseInfo
from ...runtime.thread_start import start_thread
from ...threads.lease import Lease
from ...threads.runner import ThreadRegistry
from ..joint.threads import release_all
from .membership import BaseGroup, Member, Roster, Watch, leases_of, members


class Group(BaseGroup):
    """Members with heartbeats. A member that stops sending them has failed."""

    _core: ThreadRegistry

    def join(self, data: Any = None) -> Lease:
        """Become a member. ``data`` (JSON) is visible to the others.

        Returns the membership as a lease: it is lost if the heartbeats fail. Leave with its ``release()``, the end of
        its block, :meth:`leave` or ``drain``. Raises ShuttingDown, StoreError."""
        lease = self._core.acquire(Lease, self._joining(data), None, None)
        self._joined(lease)
        return lease

    def leave(self) -> None:
        """End every membership that was acquired through this object. Idempotent. Raises StoreError."""
        release_all(self._leaving())

    def members(self) -> Roster:
        """The members now, in the order of joining. Raises StoreError."""
        return self._core.drive(members(self._core, self.name))

    def owner_of(self, key: str | bytes | bytearray | memoryview) -> Member | None:
        """The member that owns the key, or None: by the members in the store, or if the group has callbacks, by the
        members that they saw last, unless that was too long ago. See :meth:`Roster.owner_of`."""
        roster = self._watching()
        return (self.members() if roster is None else roster).owner_of(key)

    def leases_of(self, member: Member) -> list[LeaseInfo]:
        """The leases of the member's owner, without memberships of this group. Includes leases that expired when it
        failed and that nobody has taken over, where the store still lists them."""
        found = self._core.drive(leases_of(self._core, member.owner))
        return [each for each in found if each.name != self.name]

    def _start(self, watch: Watch) -> None:
        start_thread("leasehold-group", _tell, self._core, watch)


def _tell(core: ThreadRegistry, watch: Watch) -> None:
    try:
        while not watch.over():
            for callback, who in core.drive(watch.changes()):
                try:
                    callback(who)
                except Exception as error:
                    log(ERROR, "the group callback %r raised an error", callback, exc=error)
    finally:
        watch.end()
