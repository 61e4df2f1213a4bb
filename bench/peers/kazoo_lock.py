"""kazoo's Lock: an ephemeral sequential node, and a watch on the one before. Its ttl is that of its session."""

from __future__ import annotations

from typing import Any

from kazoo.client import KazooClient

from .threaded import Threaded


class Peer(Threaded):
    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._client: KazooClient | None = None

    def acquire(self, name: str, ttl: float = 30.0) -> Any:
        if self._client is None:
            self._client = KazooClient(self.target.partition("://")[2], timeout=ttl)
            self._client.start()
        lock = self._client.Lock(f"/bench/{name}")
        lock.acquire()
        return lock

    def release(self, handle: Any) -> None:
        handle.release()

    def close(self) -> None:
        if self._client is not None:
            self._client.stop()
            self._client.close()

    async def aclose(self) -> None:
        self.close()
