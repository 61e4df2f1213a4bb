"""The floor of a lease in SQLite: two bare fenced statements, and a poll each millisecond while busy.

No renewal, no loss, no queue, no waking, no time limit: what a lease library can at best come near.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .base import Base

_TABLE = """CREATE TABLE IF NOT EXISTS bare
    (name TEXT PRIMARY KEY, owner TEXT, token INTEGER, expires REAL) WITHOUT ROWID"""
_TAKE = """INSERT INTO bare VALUES (?, ?, 1, ?) ON CONFLICT (name) DO UPDATE
    SET owner = excluded.owner, token = token + 1, expires = excluded.expires WHERE expires <= ? RETURNING token"""
_GIVE = "UPDATE bare SET expires = 0 WHERE name = ? AND owner = ? AND token = ?"


class Peer(Base):
    crowds = False  # it has one worker thread

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._owner = os.urandom(8).hex()
        self._connection = sqlite3.connect(target, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA busy_timeout = 5000")
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute(_TABLE)
        self._worker = ThreadPoolExecutor(1)

    def acquire(self, name: str, ttl: float = 30.0) -> Any:
        while True:
            now = time.monotonic()
            found = self._connection.execute(_TAKE, (name, self._owner, now + ttl, now)).fetchall()
            if found:
                return name, found[0][0]
            time.sleep(0.001)

    def release(self, handle: Any) -> None:
        name, token = handle
        self._connection.execute(_GIVE, (name, self._owner, token))

    async def aacquire(self, name: str) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._worker, self.acquire, name)

    async def arelease(self, handle: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._worker, self.release, handle)
