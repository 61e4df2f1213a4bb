"""Connections of the user's ``AsyncEngine``, for asyncio."""

from __future__ import annotations

import asyncio
from typing import Any

from sqlalchemy import exc

from ..sql.dialect import Dialect
from ..sql.opening import or_closed_by_task
from ..sql.requests import Broken, Result, Statement
from ..sql.session import Session
from ..sql.tasks import AsyncListener
from .statements import address_of, failure, is_new, no_connection_from, password_of, result_of, size_of, text_of


class AsyncEngineConnection:
    def __init__(self, raw: Any, password: str | None) -> None:
        self.raw = raw
        self._password = password

    async def execute(self, statement: Statement, limit: float) -> Result:
        try:
            async with asyncio.timeout(limit):
                return result_of(await self.raw.execute(text_of(statement.sql), dict(statement.values)))
        except exc.SQLAlchemyError as error:
            raise failure(error, self._password) from error
        except (TimeoutError, OSError) as error:
            await self.raw.invalidate()
            raise Broken(str(error) or "timed out waiting for the server") from error

    def stale(self) -> bool:
        return False

    async def close(self) -> None:
        await self.raw.close()

    def drop(self) -> None:
        """The pool is the user's."""


class AsyncEngineSource:
    spare = False

    def __init__(self, engine: Any, dialect: Dialect) -> None:
        self._engine = engine
        self._dialect = dialect

    async def take(self, limit: float) -> tuple[AsyncEngineConnection, bool]:
        password = password_of(self._engine)
        try:
            async with asyncio.timeout(limit):
                raw = await self._engine.connect()
                async with or_closed_by_task(raw):
                    raw = await raw.execution_options(isolation_level="AUTOCOMMIT")
        except Exception as error:
            raise no_connection_from(error, self._dialect, password) from error
        return AsyncEngineConnection(raw, password), is_new(raw, self)

    async def give(self, connection: Any, good: bool) -> None:
        try:
            if not good:
                await connection.raw.invalidate()
        finally:
            await connection.close()

    def size(self) -> int:
        return size_of(self._engine)

    def after_fork(self) -> None:
        self._engine.sync_engine.dispose(close=False)

    def new_loop(self) -> None:
        self.after_fork()


def listener(engine: Any, session: Session) -> AsyncListener | None:
    async def take(limit: float) -> Any:
        try:
            lent = await engine.raw_connection()
        except Exception as error:
            raise no_connection_from(error, session.dialect, password_of(engine)) from error
        raw = lent.driver_connection
        lent.detach()
        return raw

    if engine.dialect.driver == "psycopg":
        from ..postgresql.tasks import AsyncPostgreSQLConnection, AsyncPostgreSQLListener

        async def connect(limit: float) -> AsyncPostgreSQLConnection:
            raw = await take(limit)
            async with or_closed_by_task(raw):
                await raw.rollback()
                await raw.set_autocommit(True)
            return AsyncPostgreSQLConnection(raw, address_of(engine))

        return AsyncPostgreSQLListener(session, connect, pooled=True)
    if engine.dialect.driver == "aiomysql":
        from ..mysql.tasks import AsyncMySQLConnection, AsyncMySQLListener

        async def open(limit: float) -> AsyncMySQLConnection:
            raw = await take(limit)
            async with or_closed_by_task(raw):
                await raw.autocommit(True)
            return AsyncMySQLConnection(raw, address_of(engine))

        return AsyncMySQLListener(session, open)
    return None
