"""The three calls that a lease takes, through kazoo, two of them together: what no library on it can be below.

Knows only names that nobody else wants.
"""

from __future__ import annotations

import os
from typing import Any

from kazoo.client import KazooClient

from .base import Base


class Peer(Base):
    waits = False

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._client = KazooClient(target.partition("://")[2], timeout=30)
        self._client.start()
        self._made: set[str] = set()

    def acquire(self, name: str, ttl: float = 30.0) -> Any:
        parent = f"/bare/{name}"
        if parent not in self._made:
            self._client.ensure_path(parent)
            self._made.add(parent)
        path = f"{parent}/{os.urandom(16).hex()}."
        born = self._client.create_async(path, b"", ephemeral=True, sequence=True, include_data=True)
        there = self._client.get_children_async(parent)
        (path, _), (only,) = born.get(), there.get()
        assert path.endswith(only)
        return path

    def release(self, handle: Any) -> None:
        self._client.delete(handle)

    def close(self) -> None:
        self._client.stop()
        self._client.close()
