"""leasehold, with its defaults, over whatever store the URL names."""

from __future__ import annotations

from functools import cache
from typing import Any

import leasehold
from leasehold import aio

from .base import Base


class Peer(Base):
    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.use(leasehold.connect(target), aio.connect(target))

    def use(self, locks: leasehold.Locks, alocks: aio.Locks) -> None:
        self.locks, self.alocks = locks, alocks
        # As a program does: a Lock is made once for a name and used again.
        self._made: dict[tuple[str, float], leasehold.Lock] = {}
        self._alock = cache(alocks.lock)

    def acquire(self, name: str, ttl: float = 30.0) -> leasehold.Lease:
        lock = self._made.get((name, ttl))
        if lock is None:
            lock = self._made[name, ttl] = self.locks.lock(name, ttl=ttl)
        return lock.acquire()

    def release(self, handle: Any) -> None:
        handle.release()

    async def aacquire(self, name: str) -> Any:
        return await self._alock(name).acquire()

    async def arelease(self, handle: Any) -> None:
        await handle.release()

    async def waiters(self, name: str) -> int:
        try:
            found = await self.alocks.inspect(name)
        except leasehold.StoreUnavailable:  # it has not answered in time, with so many who ask
            return 0
        return (found and found.waiters) or 0

    def close(self) -> None:
        self.locks.close()

    async def aclose(self) -> None:
        await self.alocks.close()
