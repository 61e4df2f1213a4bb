"""tooz's Redis driver: redis-py's Lock behind a coordinator."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from tooz import coordination

from .base import Base


class Peer(Base):
    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._coordinator = coordination.get_coordinator(f"{target}?timeout=30", str(os.getpid()).encode())
        self._coordinator.start()
        self._lock = cache(lambda name: self._coordinator.get_lock(name.encode()))

    def acquire(self, name: str, ttl: float = 30.0) -> Any:
        lock = self._lock(name)
        lock.acquire()
        return lock

    def release(self, handle: Any) -> None:
        handle.release()

    def close(self) -> None:
        self._coordinator.stop()
