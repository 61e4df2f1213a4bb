"""tooz, with its drivers for PostgreSQL (advisory locks) and MySQL (GET_LOCK)."""

from __future__ import annotations

import os
from typing import Any

from tooz import coordination

from .threaded import Threaded


class Peer(Threaded):
    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._coordinator = coordination.get_coordinator(target.replace("mariadb://", "mysql://"), os.urandom(8))
        self._coordinator.start()

    def acquire(self, name: str, ttl: float = 30.0) -> Any:
        lock = self._coordinator.get_lock(name.encode())
        while not lock.acquire():
            pass
        return lock

    def release(self, handle: Any) -> None:
        handle.release()

    def close(self) -> None:
        self._coordinator.stop()
