"""python-redis-lock, with a ttl: a script, and BLPOP on a signal key while busy."""

from __future__ import annotations

from typing import Any

import redis
import redis_lock

from .base import Base


class Peer(Base):
    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._client = redis.Redis.from_url(target, socket_timeout=None)

    def acquire(self, name: str, ttl: float = 30.0) -> Any:
        lock = redis_lock.Lock(self._client, name, expire=int(ttl))
        lock.acquire()
        return lock

    def release(self, handle: Any) -> None:
        handle.release()
