"""python-redis-lock, with a ttl: a script, and BLPOP on a signal key while busy."""

from __future__ import annotations

from functools import cache
from typing import Any

import redis
import redis_lock

from .base import Base


class Peer(Base):
    def __init__(self, target: str) -> None:
        super().__init__(target)
        client = redis.Redis.from_url(target, socket_timeout=None)
        self._lock = cache(lambda name, ttl: redis_lock.Lock(client, name, expire=int(ttl)))

    def acquire(self, name: str, ttl: float = 30.0) -> Any:
        lock = self._lock(name, ttl)
        lock.acquire()
        return lock

    def release(self, handle: Any) -> None:
        handle.release()
