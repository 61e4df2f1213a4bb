"""The floor of a lease in PostgreSQL: leasehold's two statements, sent by the bare driver.

No renewal, no loss, no queue, no time limit; a poll each millisecond while busy.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import psycopg

from leasehold.stores.postgresql.sql import PostgreSQL

from .base import Base

SQL = PostgreSQL("bare")


class Peer(Base):
    expires = False  # an expired lease is taken by another statement

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._connection = psycopg.connect(target, autocommit=True)
        self._connection.execute("SELECT pg_advisory_lock(1)")  # two that create a table at once may both fail
        for statement in SQL.schema():
            self._connection.execute(statement)
        self._connection.execute("SELECT pg_advisory_unlock(1)")
        self._async: psycopg.AsyncConnection[Any] | None = None

    def acquire(self, name: str, ttl: float = 30.0) -> Any:
        values = ask(name, ttl)
        while not (found := self._connection.execute(SQL.TAKE, values).fetchone()):
            time.sleep(0.001)
        return {**values, "token": found[0]}

    def release(self, handle: Any) -> None:
        self._connection.execute(SQL.FREE, handle)

    async def aacquire(self, name: str) -> Any:
        if self._async is None:
            self._async = await psycopg.AsyncConnection.connect(self.target, autocommit=True)
        values = ask(name, 30.0)
        while not (found := await (await self._async.execute(SQL.TAKE, values)).fetchone()):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return {**values, "token": found[0]}

    async def arelease(self, handle: Any) -> None:
        assert self._async is not None
        await self._async.execute(SQL.FREE, handle)

    def close(self) -> None:
        self._connection.close()

    async def aclose(self) -> None:
        if self._async is not None:
            await self._async.close()


def ask(name: str, ttl: float) -> dict[str, Any]:
    who = {"attempt": os.urandom(16).hex(), "session": "", "owner": "bare", "kind": "lock", "data": None}
    return {"namespace": "", "name": name, "ttl": int(ttl * 1e6), "until": 2**62, "patience": 1000, **who}
