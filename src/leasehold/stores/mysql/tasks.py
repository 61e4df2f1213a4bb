"""MySQL and MariaDB for asyncio, over aiomysql."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiomysql
import pymysql
from pymysql.constants import CLIENT, CR

from ...core import clock
from ...core.protocol import Busy
from ...errors import StoreError
from ..sql.opening import or_closed_by_task, unless_cancelled
from ..sql.requests import Broken, Hint, Result, Statement
from ..sql.session import Session
from ..sql.tasks import AsyncSqlPool, SqlTasks, carry_out
from ..sql.url import SqlAddress
from . import GIVE_UP_WITHIN, arguments, composed, ending, failure, refusal
from .compat import abort, close_without_loop, is_stale, result_of
from .listener import SLEEP, SleepingListener
from .threads import make as make_threads

UNLIMITED = {"connect_timeout": None}
"""How aiomysql is to connect: the limit is ours. Its own is Python's ``wait_for``, which in 3.11 forgets that it was
cancelled if that came in the moment in which it was done. A listener that was cancelled would continue."""


class _Demanding(aiomysql.Connection):  # type: ignore[misc]  # aiomysql has no types
    """Refuses a server without TLS as soon as it says so. aiomysql would continue, and send the password."""

    @property
    def server_capabilities(self) -> int:
        return self._offered

    @server_capabilities.setter
    def server_capabilities(self, offered: int) -> None:
        if not offered & CLIENT.SSL:
            raise pymysql.err.OperationalError(CR.CR_SSL_CONNECTION_ERROR, "SSL is required but the server has none")
        self._offered = offered


async def connect(options: Mapping[str, Any]) -> Any:
    """As ``aiomysql.connect``; where TLS is demanded, nothing is sent before it is there."""
    options = {**options, **UNLIMITED}
    if not options.get("ssl"):
        return await aiomysql.connect(**options)
    raw = _Demanding(**options)
    async with or_closed_by_task(raw):
        await raw.ping()  # connects
    return raw


class AsyncMySQLConnection:
    """``end`` ends a statement of this connection by way of another one."""

    def __init__(self, raw: Any, place: SqlAddress, end: Callable[[int, str], Awaitable[None]] | None = None) -> None:
        self.raw = raw
        self._password = place.password
        self._end = end
        self._under_way = ""

    async def execute(self, statement: Statement, limit: float) -> Result:
        # An answer that does not come in time ends the connection, and with it the wait.
        timer = asyncio.get_running_loop().call_later(limit, abort, self.raw)
        try:
            text = composed(statement, self.raw.escape)
            self._under_way = "" if isinstance(statement, Hint) else text
            await self.raw.query(text)
            found = result_of(self.raw)
            self._under_way = ""
            return Result(found.rows or (), found.affected_rows, found.insert_id or 0)
        except pymysql.err.Error as error:
            failed = failure(error, self._password)
            if self.raw.closed:
                failed = Broken(str(failed))
            else:
                self._under_way = ""
            raise failed from error
        except (OSError, RuntimeError) as error:
            raise Broken(str(error)) from error
        finally:
            timer.cancel()

    def stale(self) -> bool:
        return is_stale(self.raw)

    def drop(self) -> None:
        close_without_loop(self.raw)

    async def close(self) -> None:
        abort(self.raw)
        self.raw.close()
        if self._under_way and self._end is not None:
            await self._end(self.raw.thread_id(), self._under_way)


def make(session: Session, place: SqlAddress) -> SqlTasks:
    async def open(limit: float) -> AsyncMySQLConnection:
        options = arguments(place, limit)
        options["db"] = options.pop("database", None)
        try:
            async with asyncio.timeout(limit):
                return AsyncMySQLConnection(await connect(options), place, end)
        except pymysql.err.Error as error:
            raise refusal(error, session, place.password) from error
        except (TimeoutError, OSError) as error:
            raise Broken(str(error) or "timed out connecting to the server") from error

    async def end(number: int, text: str) -> None:
        ends = clock.now() + GIVE_UP_WITHIN
        try:
            other = await open(GIVE_UP_WITHIN)
            other._end = None
            try:
                await carry_out(ending(number, text), other, ends)
            finally:
                await other.close()
        except (Broken, StoreError):
            pass

    def listener(session: Session) -> AsyncMySQLListener | None:
        return AsyncMySQLListener(session, open) if place.push else None

    def threads() -> Any:
        return make_threads(session, place)

    return SqlTasks(session, AsyncSqlPool(open, place.pool_size), listener, threads)


class AsyncMySQLListener:
    """The sleeping connection of a session, in a task of its own."""

    def __init__(self, session: Session, open: Callable[[float], Any]) -> None:
        self._session = session
        self._open = unless_cancelled(open)
        self._sleeping = SleepingListener(session)

    async def run(self, ready: Callable[[], None], rung: Callable[[str], None]) -> None:
        connection: AsyncMySQLConnection = await self._open(2.0)
        try:
            await carry_out(self._session.check(), connection, clock.now() + 2.0)
            await carry_out(self._sleeping.announce(), connection, clock.now() + 5.0)
            ready()
            while True:
                for attempt in await carry_out(self._sleeping.sleep(), connection, clock.now() + SLEEP + 5.0):
                    rung(attempt)
        finally:
            await connection.close()

    def stand_by(self, attempt: str, busy: Busy | None) -> None:
        self._sleeping.add(attempt, busy)

    def forget(self, attempt: str) -> None:
        self._sleeping.discard(attempt)
