"""MySQL and MariaDB for asyncio, over aiomysql."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Any

import aiomysql
import pymysql

from .. import clock
from ..protocol import Busy
from .mysql import arguments, failure, refusal
from .mysql_bell import INTERRUPTED, NAP, Standing
from .mysql_threads import make as make_threads
from .sql_dialect import Result, Statement
from .sql_session import Broken, Refused, Session
from .sql_tasks import AsyncPool, SqlTasks, carry_out
from .sql_url import Place


class AsyncConnection:
    def __init__(self, raw: Any, place: Place) -> None:
        self.raw = raw
        self._password = place.password

    async def execute(self, statement: Statement, limit: float) -> Result:
        try:
            async with asyncio.timeout(limit):
                cursor = await self.raw.cursor()
                await cursor.execute(statement.sql, statement.values or None)
                rows = await cursor.fetchall() if cursor.description else ()
                return Result(rows, cursor.rowcount, cursor.lastrowid or 0)
        except pymysql.err.Error as error:
            failed = failure(error, self._password)
            if self.raw.closed:
                failed = Broken(str(failed))
            raise failed from error
        except (TimeoutError, OSError, RuntimeError) as error:
            raise Broken(str(error) or "no answer in time") from error

    def stale(self) -> bool:
        reader = self.raw._reader
        return self.raw.closed or reader is None or reader.at_eof() or bool(reader._buffer)

    async def close(self) -> None:
        writer = self.raw._writer
        self.raw.close()
        if writer is not None:
            writer.transport.abort()


def make(session: Session, place: Place) -> SqlTasks:
    async def open(limit: float) -> AsyncConnection:
        options = arguments(place, limit)
        options["db"] = options.pop("database", None)
        try:
            async with asyncio.timeout(limit):
                raw = await aiomysql.connect(**options, **_driver_options(place))
                return AsyncConnection(raw, place)
        except pymysql.err.Error as error:
            raise refusal(error, session, place.password) from error
        except (TimeoutError, OSError) as error:
            raise Broken(str(error) or "no connection in time") from error

    def listener(session: Session) -> AsyncListener | None:
        return AsyncListener(session, open) if place.push else None

    def threads() -> Any:
        return make_threads(Session(session.dialect, session.namespace), place)

    return SqlTasks(session, AsyncPool(open, place.pool_size), listener, threads)


def _driver_options(place: Place) -> dict[str, Any]:
    """aiomysql takes a context where PyMySQL takes files."""
    given = dict(place.options)
    found: dict[str, Any] = {}
    if "unix_socket" in given:
        found["unix_socket"] = given.pop("unix_socket")
    given.pop("bind_address", None)
    if given:
        context = ssl.create_default_context(cafile=given.get("ssl_ca"))
        context.check_hostname = given.get("ssl_verify_identity", "").lower() in ("1", "true", "yes", "on")
        if "ssl_ca" not in given:
            context.verify_mode = ssl.CERT_NONE
        if "ssl_cert" in given:
            context.load_cert_chain(given["ssl_cert"], given.get("ssl_key"))
        found["ssl"] = context
    return found


class AsyncListener:
    """The sleeping connection of a session, in a task of its own."""

    def __init__(self, session: Session, open: Callable[[float], Any]) -> None:
        self._session = session
        self._open = open
        self._standing = Standing(session)

    async def run(self, ready: Callable[[], None], rung: Callable[[str], None]) -> None:
        connection: AsyncConnection = await self._open(2.0)
        try:
            await carry_out(self._session.check(), connection, clock.now() + 2.0)
            if (await connection.execute(self._standing.announce(), 2.0)).rows[0][0] != 1:
                raise Broken("the server gives no named lock")
            ready()
            while True:
                try:
                    begun = clock.now()
                    await connection.execute(self._standing.sleep(), NAP + 5.0)
                    if clock.now() - begun >= NAP:
                        continue
                except Refused as refused:
                    if refused.code not in INTERRUPTED:
                        raise
                for attempt in await self._called(connection):
                    rung(attempt)
        finally:
            await connection.close()

    async def _called(self, connection: AsyncConnection) -> Sequence[str]:
        for _ in range(5):
            look = self._standing.look()
            if look is None:
                break
            try:
                return self._standing.called(await connection.execute(look, 2.0))
            except Refused as refused:  # rung again while it looked
                if refused.code not in INTERRUPTED:
                    raise
        return [""]

    def stand_by(self, attempt: str, busy: Busy | None) -> None:
        self._standing.add(attempt, busy)

    def forget(self, attempt: str) -> None:
        self._standing.discard(attempt)
