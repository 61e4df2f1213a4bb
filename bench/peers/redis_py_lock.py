"""redis-py's Lock, with its defaults and a ttl: SET NX PX and a script, polled every 0.1 s while busy."""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio

from .base import Base


class Peer(Base):
    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._client = redis.Redis.from_url(target)
        self._aclient = redis.asyncio.Redis.from_url(
            target, max_connections=2_000
        )  # a crowd needs more than the default

    def acquire(self, name: str, ttl: float = 30.0) -> Any:
        lock = self._client.lock(name, timeout=ttl)
        lock.acquire()
        return lock

    def release(self, handle: Any) -> None:
        handle.release()

    async def aacquire(self, name: str) -> Any:
        lock = self._aclient.lock(name, timeout=30.0)
        await lock.acquire()
        return lock

    async def arelease(self, handle: Any) -> None:
        await handle.release()

    def close(self) -> None:
        self._client.close()

    async def aclose(self) -> None:
        await self._aclient.aclose()
