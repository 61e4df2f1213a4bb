"""The floor of a lease in MySQL or MariaDB: leasehold's two statements, sent by the bare drivers.

No renewal, no loss, no queue, no time limit; a poll each millisecond while busy.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any
from urllib.parse import urlsplit

import aiomysql
import pymysql

from leasehold.stores.mysql.sql import MySQL, hexed

from .bare_postgresql import ask
from .base import Base

SQL = MySQL("bare")


class Peer(Base):
    crowds = False  # it has one cursor
    expires = False  # an expired lease is taken by another statement

    def __init__(self, target: str) -> None:
        super().__init__(target)
        url = urlsplit(target)
        self._place = {"host": url.hostname, "port": url.port, "user": url.username, "autocommit": True}
        self._database = url.path[1:]
        self._connection = pymysql.connect(**self._place, database=self._database, charset="utf8mb4")
        self._cursor = self._connection.cursor()
        for statement in SQL.schema():
            self._cursor.execute(statement)
        self._async: Any = None

    def acquire(self, name: str, ttl: float = 30.0) -> Any:
        values = {**ask(name, ttl), "name": hexed(name)}
        while not (self._cursor.execute(SQL.TAKE, values) and self._cursor.lastrowid):
            time.sleep(0.001)
        return {**values, "token": self._cursor.lastrowid}

    def release(self, handle: Any) -> None:
        self._cursor.execute(SQL.FREE, handle)

    async def aacquire(self, name: str) -> Any:
        if self._async is None:
            connection = await aiomysql.connect(**self._place, db=self._database, charset="utf8mb4")
            self._async = await connection.cursor()
        values = {**ask(name, 30.0), "name": hexed(name)}
        while not (await self._async.execute(SQL.TAKE, values) and self._async.lastrowid):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return {**values, "token": self._async.lastrowid}

    async def arelease(self, handle: Any) -> None:
        await self._async.execute(SQL.FREE, handle)

    def close(self) -> None:
        self._connection.close()

    async def aclose(self) -> None:
        if self._async is not None:
            self._async.connection.close()
