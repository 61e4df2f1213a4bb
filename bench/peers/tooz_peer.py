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
        self._started: list[Any] = []
        self._coordinator = cache(self._start)
        self._lock = cache(lambda name, ttl: self._coordinator(ttl).get_lock(name.encode()))

    def _start(self, ttl: float) -> Any:
        """A coordinator whose locks have this ttl."""
        url = f"{self.target}?timeout=30&lock_timeout={int(ttl)}"
        coordinator = coordination.get_coordinator(url, str(os.getpid()).encode())
        coordinator.start()
        self._started.append(coordinator)
        return coordinator

    def acquire(self, name: str, ttl: float = 30.0) -> Any:
        lock = self._lock(name, ttl)
        lock.acquire()
        return lock

    def release(self, handle: Any) -> None:
        handle.release()

    def close(self) -> None:
        for each in self._started:
            each.stop()
