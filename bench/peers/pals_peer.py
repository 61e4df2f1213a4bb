"""pals: PostgreSQL's advisory locks."""

from __future__ import annotations

from typing import Any

import pals

from .threaded import Threaded


class Peer(Threaded):
    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._locker = pals.Locker("bench", target.replace("postgresql://", "postgresql+psycopg2://"))

    def acquire(self, name: str, ttl: float = 30.0) -> Any:
        lock = self._locker.lock(name, blocking=True, acquire_timeout=60_000)
        while not lock.acquire():
            pass
        return lock

    def release(self, handle: Any) -> None:
        handle.release()
