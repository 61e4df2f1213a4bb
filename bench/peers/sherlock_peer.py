"""sherlock's RedisLock: SET NX PX and a script, polled every 0.1 s while busy."""

from __future__ import annotations

from functools import cache
from typing import Any

import redis
import sherlock

from .base import Base


class Peer(Base):
    def __init__(self, target: str) -> None:
        super().__init__(target)
        client = redis.Redis.from_url(target)
        self._lock = cache(lambda name, ttl: sherlock.RedisLock(name, client=client, expire=int(ttl), timeout=600))

    def acquire(self, name: str, ttl: float = 30.0) -> Any:
        lock = self._lock(name, ttl)
        lock.acquire()
        return lock

    def release(self, handle: Any) -> None:
        handle.release()
