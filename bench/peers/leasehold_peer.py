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
        self.locks = leasehold.connect(target)
        self.alocks = aio.connect(target)
        # As a program does: a Lock is made once for a name and used again.
        self._lock = cache(self.locks.lock)
        self._alock = cache(self.alocks.lock)

    def acquire(self, name: str, ttl: float = 30.0) -> leasehold.Lease:
        return self._lock(name, ttl=ttl).acquire()

    def release(self, handle: Any) -> None:
        handle.release()

    async def aacquire(self, name: str) -> Any:
        return await self._alock(name).acquire()

    async def arelease(self, handle: Any) -> None:
        await handle.release()

    def close(self) -> None:
        self.locks.close()

    async def aclose(self) -> None:
        await self.alocks.close()
