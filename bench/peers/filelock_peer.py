"""filelock's FileLock and AsyncFileLock, with their defaults: flock(2) on a file per name, polled while busy."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from filelock import AsyncFileLock, FileLock

from .base import Base


class Peer(Base):
    crowds = False  # one lock object per name, which lets in every task of its process

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._lock = cache(lambda name: FileLock(os.path.join(target, name + ".lock")))
        self._alock = cache(lambda name: AsyncFileLock(os.path.join(target, name + ".lock")))

    def acquire(self, name: str, ttl: float = 30.0) -> Any:
        lock = self._lock(name)
        lock.acquire()
        return lock

    def release(self, handle: Any) -> None:
        handle.release()

    async def aacquire(self, name: str) -> Any:
        lock = self._alock(name)
        await lock.acquire()
        return lock

    async def arelease(self, handle: Any) -> None:
        await handle.release()
