"""``rlock``: recognises that a thread or task holds the lock already, and lets it enter again."""

from __future__ import annotations

import threading
from collections.abc import MutableMapping
from typing import Any, TypeAlias

from ...core.lease import BaseLease, own_state_of, registry_of
from ...core.release import drop
from .joint_lease import Joint

ENTERING = 0
"""A placeholder among the entries for one that is being made, so that no other entry counts as the last meanwhile."""


class Hold:
    """One holding of a re-entrant lock: the lease, and the open entries by their ``id``.

    The gate is re-entrant: a destructor may call ``leave`` while the same thread is in the gate."""

    __slots__ = ("__weakref__", "entries", "gate", "holds", "key", "over", "root")

    def __init__(self, root: BaseLease, holds: Holds, key: Any) -> None:
        self.root = root
        self.holds = holds
        self.key = key
        self.gate = threading.RLock()
        self.over = False
        self.entries: set[int] = {ENTERING}
        holds[key] = self

    def enter(self) -> bool:
        """Begin another entry. False if the last entry has just been released."""
        with self.gate:
            self.entries.add(ENTERING)  # before the check of ``over``: a destructor may run in between
            if self.over:
                self.entries.discard(ENTERING)
            return not self.over

    def leave(self, entry: int) -> bool:
        """Remove an entry. True if it was the last."""
        if own_state_of(self.root).generation != registry_of(self.root).generation:
            return False  # in a forked child: it owns nothing, and the gate may stay locked for ever
        with self.gate:
            self.entries.discard(entry)
            if self.entries or self.over:
                return False
            self.over = True
            if self.holds.get(self.key) is self:
                self.holds.pop(self.key, None)
            return True

    def drop(self) -> None:
        """Have the keeper release the lease, unless somebody does."""
        drop(registry_of(self.root), own_state_of(self.root))


Holds: TypeAlias = MutableMapping[Any, Hold]


def enter_again(holds: Holds, key: Any) -> Hold | None:
    """The holding that this thread or task has already, or None. Raises LeaseLost if it can no longer be trusted.

    If the entry is then not made, the caller must call ``not_entered``."""
    hold = holds.get(key)
    if hold is None or not hold.enter():
        return None
    hold.root.check()
    return hold


def count(holds: Holds, key: Any) -> int:
    """How many entries this thread or task has not released yet."""
    hold = holds.get(key)
    return 0 if hold is None else len(hold.entries - {ENTERING})


def not_entered(holds: Holds, key: Any) -> None:
    """The entry of this thread or task was not made: remove its placeholder."""
    hold = holds.get(key)
    if hold is not None and hold.leave(ENTERING):  # there is no other entry
        hold.drop()


class BaseRLockLease(Joint):
    """One entry into a re-entrant lock: a handle on the lease that is held."""

    _hold: Hold

    def _enter_hold(self, hold: Hold) -> None:
        self._hold = hold
        hold.entries.add(id(self))
        hold.entries.discard(ENTERING)

    def _drop_parts(self) -> None:
        self._hold.leave(id(self))
        if self._hold.over:
            self._hold.drop()

    def __del__(self) -> None:
        # As for any lease: a collected entry cannot be released any more. ``leave`` does nothing if it was released.
        hold = getattr(self, "_hold", None)
        if hold is not None and hold.leave(id(self)):
            hold.drop()
