"""``locks.group`` for threads. See :mod:`leasehold.group`."""

from __future__ import annotations

from .group import BaseGroup, Member, Roster, Watch, leases_of, members
from .kinds import release_all
from .lock import Lease
from .log import ERROR, log
from .model import LeaseInfo
from .starting import start_thread
from .threads import ThreadCore
from .typed import Any


class Group(BaseGroup):
    """Members with heartbeats."""

    _core: ThreadCore

    def join(self, data: Any = None) -> Lease:
        """Become a member, with data for the others to see. The lease that is returned is the membership: it is lost
        when the heartbeats fail, and leaving is releasing it (or its block's end, :meth:`leave`, ``drain``)."""
        lease = self._core.acquire(Lease, self._joining(data), None, None)
        self._joined(lease)
        return lease

    def leave(self) -> None:
        """End every membership that was taken through this object. Again is harmless."""
        release_all(self._leaving())

    def members(self) -> Roster:
        """Who is a member now, in the order of joining."""
        return self._core.drive(members(self._core, self.name))

    def owner_of(self, key: str | bytes | bytearray | memoryview) -> Member | None:
        """The member to whom the key belongs, as the store says; with callbacks, as they saw it last, unless that is
        too long ago."""
        roster = self._watching()
        return (self.members() if roster is None else roster).owner_of(key)

    def leases_of(self, member: Member) -> list[LeaseInfo]:
        """What the member's owner holds, or held until it failed and nobody has taken since."""
        found = self._core.drive(leases_of(self._core, member.owner))
        return [each for each in found if each.name != self.name]

    def _start(self, watch: Watch) -> None:
        start_thread("leasehold-group", _tell, self._core, watch)


def _tell(core: ThreadCore, watch: Watch) -> None:
    try:
        while not watch.over():
            for callback, who in core.drive(watch.changes()):
                try:
                    callback(who)
                except Exception as error:
                    log(ERROR, "a callback of a group failed: %r", callback, exc=error)
    finally:
        watch.end()
