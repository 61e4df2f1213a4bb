"""pottery's Redlock, on one node or on those of a ``redlock://`` URL."""

from __future__ import annotations

from typing import Any

import redis
from pottery import Redlock

from .base import Base


class Peer(Base):
    def __init__(self, target: str) -> None:
        super().__init__(target)
        nodes = target.partition("://")[2].split(",")
        self._masters = {redis.Redis.from_url(f"redis://{node}") for node in nodes}

    def acquire(self, name: str, ttl: float = 30.0) -> Any:
        lock = Redlock(key=name, masters=self._masters, auto_release_time=ttl)
        lock.acquire()
        return lock

    def release(self, handle: Any) -> None:
        handle.release()
