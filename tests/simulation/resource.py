"""What the processes of a simulation write to."""

from __future__ import annotations

from leasehold.core.registry import READERS
from leasehold.testing.history import Resource

LIMITS = {"semaphore": 2, "rwlock": READERS, "group": READERS}


class Counter:
    """The resource: it refuses a token that is lower than one that it has seen, for reading and for writing."""

    def __init__(self, fenced: bool = True, kind: str = "lock") -> None:
        self.fenced = fenced
        self.kind = kind
        """How its name is taken."""
        self.limit = LIMITS.get(kind, 1)
        """How many may hold its name."""
        self.value = self.token = 0
        self.log: list[tuple[int, str]] = []
        self.versions: dict[int, Counter] = {}
        """Of work that is done once: what each version of it writes to."""

    def admit(self, token: int) -> bool:
        if self.fenced and token < self.token:
            return False
        self.token = max(self.token, token)
        return True

    def write(self, value: int, token: int, owner: str) -> bool:
        if not self.admit(token):
            return False
        self.value = value
        self.log.append((token, owner))
        return True

    def result(self) -> Resource:
        return Resource(self.value, self.log)
