"""sherlock's RedisLock: SET NX PX and a script, polled every 0.1 s while busy."""

from __future__ import annotations

from typing import Any

import redis
import sherlock

from .base import Base


class Peer(Base):
    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._client = redis.Redis.from_url(target)

    def acquire(self, name: str, ttl: float = 30.0) -> Any:
        lock = sherlock.RedisLock(name, client=self._client, expire=int(ttl), timeout=600)
        lock.acquire()
        return lock

    def release(self, handle: Any) -> None:
        handle.release()
