"""aetcd's Lock: grpcio's asyncio side. It has nothing for threads, which use it through a loop of their own."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import aetcd

from .base import Base


class Peer(Base):
    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._loop = asyncio.new_event_loop()
        self._clients: dict[Any, aetcd.Client] = {}

    def acquire(self, name: str, ttl: float = 30.0) -> Any:
        return self._loop.run_until_complete(self.aacquire(name, ttl))

    def release(self, handle: Any) -> None:
        self._loop.run_until_complete(handle.release())

    async def aacquire(self, name: str, ttl: float = 30.0) -> Any:
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            where = urlsplit(self.target)
            self._clients[loop] = aetcd.Client(host=where.hostname or "localhost", port=where.port or 2379)
        lock = self._clients[loop].lock(name.encode(), ttl=int(ttl))
        await lock.acquire(timeout=None)
        return lock

    async def arelease(self, handle: Any) -> None:
        await handle.release()

    def close(self) -> None:
        if client := self._clients.get(self._loop):
            self._loop.run_until_complete(client.close())

    async def aclose(self) -> None:
        if client := self._clients.get(asyncio.get_running_loop()):
            await client.close()
