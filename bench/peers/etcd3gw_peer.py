"""etcd3gw's Lock: the JSON gateway through requests. It cannot wait; its users poll, here every 10 ms."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlsplit

import etcd3gw

from .threaded import Threaded


class Peer(Threaded):
    def __init__(self, target: str) -> None:
        super().__init__(target)
        where = urlsplit(target)
        self._client = etcd3gw.client(host=where.hostname or "localhost", port=where.port or 2379)

    def acquire(self, name: str, ttl: float = 30.0) -> Any:
        lock = self._client.lock(name, ttl=int(ttl))
        while not lock.acquire():
            lock.lease.revoke()
            time.sleep(0.01)
        return lock

    def release(self, handle: Any) -> None:
        handle.release()
