"""The user's own aiomysql ``Pool``: theirs, never closed by us. (PyMySQL, for threads, has none.)

Each operation borrows a connection, turns autocommit on, and returns the connection as it was. A pool of 1 is enough:
the connection that sleeps in the server for the push is made beside the pool, as the pool makes its own.
"""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakSet

import aiomysql
import pymysql

from ...core.protocol import Opened, TaskDriver, ThreadDriver
from ...errors import StoreNotReady
from ..sql.dialect import DEFAULT_TABLE
from ..sql.opening import or_closed_by_task
from ..sql.requests import Broken
from ..sql.session import POOL_SIZE, Session
from ..sql.slots import RESERVED
from ..sql.store import SqlStore
from ..sql.tasks import TasksOfALoop
from ..sql.url import SqlAddress
from . import failure, refusal
from .compat import abort, options_of
from .sql import MySQL
from .tasks import AsyncMySQLConnection, AsyncMySQLListener, connect


def open_client(pool: Any, namespace: str) -> Opened:
    """A store on a pool of aiomysql's, for asyncio.

    Another table than ``leasehold``: ``pool.leasehold_table = "…"``."""
    if not isinstance(pool, aiomysql.Pool):
        raise TypeError(f"connect() takes an aiomysql Pool, not {type(pool).__name__}")

    session = Session(MySQL(getattr(pool, "leasehold_table", DEFAULT_TABLE)), namespace)

    def threads() -> ThreadDriver:
        raise TypeError(
            "a pool of aiomysql is for leasehold.aio.connect(); leasehold.connect() takes a URL or an Engine"
        )

    def tasks() -> TaskDriver:
        lender = AsyncLender(pool, session)
        return TasksOfALoop(session, lender, lambda session: AsyncMySQLListener(session, lender.open))

    return Opened(SqlStore(session), threads, tasks)


class AsyncLender:
    spare = False

    def __init__(self, pool: Any, session: Session) -> None:
        self._pool = pool
        self._session = session
        options = options_of(pool)
        password = options.get("password") or options.get("passwd")
        self._place = SqlAddress(None, None, None, password, None, {}, DEFAULT_TABLE, 1, True)
        self._known: WeakSet[Any] = WeakSet()
        self._left_behind = ""

    async def take(self, limit: float) -> tuple[AsyncMySQLConnection, bool]:
        if self._left_behind:
            raise StoreNotReady(f"this pool {self._left_behind}")
        try:
            async with asyncio.timeout(limit):
                raw = await self._pool.acquire()
        except pymysql.err.Error as error:
            raise refusal(error, self._session, self._place.password) from error
        except RuntimeError as error:
            if "closing" not in str(error):  # aiomysql: "Cannot acquire connection after closing pool"
                raise Broken(str(error)) from error
            raise StoreNotReady("this pool is closed: close the Locks before the pool") from error
        except (TimeoutError, OSError) as error:
            raise Broken(str(error) or "timed out waiting for a connection of the pool") from error
        connection = _Lent(raw, self._place)
        try:
            async with asyncio.timeout(limit):
                await self._prepare(raw)
        except BaseException as error:
            await self.give(connection, False)
            if isinstance(error, (pymysql.err.Error, TimeoutError, OSError)):
                raise Broken(str(failure(error, self._place.password))) from error
            raise
        new = raw not in self._known
        self._known.add(raw)
        return connection, new

    async def _prepare(self, raw: Any) -> None:
        if raw.charset != "utf8mb4":
            raise StoreNotReady(f"this pool's connections have charset {raw.charset}: it must be utf8mb4")
        await raw.autocommit(True)

    async def give(self, connection: Any, good: bool) -> None:
        as_it_was = False
        try:
            if good:
                await connection.raw.autocommit(connection.was)
                as_it_was = True
        except (pymysql.err.Error, OSError, RuntimeError):
            pass
        finally:  # also when this is cancelled, at whatever point: else the pool would be smaller by one for ever
            try:
                if not as_it_was:
                    # Not close(): the pool finds a lost connection by itself, but wakes nobody for a closed one.
                    abort(connection.raw)
                    await asyncio.sleep(0)
            finally:
                await asyncio.shield(self._pool.release(connection.raw))

    def size(self) -> int:
        return self._pool.maxsize or POOL_SIZE + RESERVED

    def after_fork(self) -> None:
        self._left_behind = "was created before the fork: create a pool and a Locks in the child process"

    def new_loop(self) -> None:
        self._left_behind = "belongs to another event loop: create a pool and a Locks in this loop"

    async def open(self, limit: float) -> AsyncMySQLConnection:
        """A connection beside the pool."""
        try:
            async with asyncio.timeout(limit):
                raw = await connect(options_of(self._pool))
                async with or_closed_by_task(raw):
                    await raw.autocommit(True)
        except pymysql.err.Error as error:
            raise refusal(error, self._session, self._place.password) from error
        except (TimeoutError, OSError) as error:
            raise Broken(str(error) or "timed out connecting to the server") from error
        return AsyncMySQLConnection(raw, self._place)


class _Lent(AsyncMySQLConnection):
    def __init__(self, raw: Any, place: SqlAddress) -> None:
        super().__init__(raw, place)
        self.was = raw.get_autocommit()
