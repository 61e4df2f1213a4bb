"""PostgreSQL for asyncio: the same as for threads, waiting in the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg

from .. import clock
from ..protocol import Busy
from .postgresql_sql import channel
from .postgresql_threads import (
    PROOF,
    PROOF_WITHIN,
    TimedOut,
    close,
    failure,
    heard,
    hung_up,
    options,
    refusal,
)
from .postgresql_threads import make as make_threads
from .sql_dialect import Result, Statement
from .sql_session import Broken, Session
from .sql_tasks import AsyncPool, SqlTasks, carry_out
from .sql_url import Place


class AsyncWire(psycopg.AsyncConnection[Any]):
    """psycopg's connection with a limit on every wait. Its tasks are never cancelled, so it need not see to that."""

    ends = float("inf")

    async def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        fd = self.pgconn.socket
        try:
            wanted = next(gen)
            while True:
                wanted = gen.send(await ready(fd, wanted, self.ends))
        except StopIteration as stop:
            return stop.value


async def ready(fd: int, wanted: int, ends: float) -> int:
    """Wait until the socket can be read (1), written (2), or either (3). Raises TimedOut."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[int] = loop.create_future()

    def wake(how: int) -> None:
        if not done.done():
            done.set_result(how)

    left = ends - clock.now()
    if left <= 0:
        raise TimedOut("no answer in time")
    timer = loop.call_later(left, wake, 0) if left != float("inf") else None
    if wanted & 1:
        loop.add_reader(fd, wake, 1)
    if wanted & 2:
        loop.add_writer(fd, wake, 2)
    try:
        how = await done
    finally:
        if timer is not None:
            timer.cancel()
        if wanted & 1:
            loop.remove_reader(fd)
        if wanted & 2:
            loop.remove_writer(fd)
    if not how:
        raise TimedOut("no answer in time")
    return how


class AsyncConnection:
    def __init__(self, wire: AsyncWire, place: Place) -> None:
        self.wire = wire
        self._password = place.password
        self._cursor = wire.cursor()

    async def execute(self, statement: Statement, limit: float) -> Result:
        self.wire.ends = clock.now() + limit
        cursor = self._cursor
        try:
            await cursor.execute(statement.sql, statement.values or None)
            rows = await cursor.fetchall() if cursor.description is not None else ()
            return Result(rows, cursor.rowcount)
        except psycopg.Error as error:
            raise failure(error, self.wire.closed, self._password) from error
        except (TimedOut, OSError) as error:
            raise Broken(str(error)) from error

    def stale(self) -> bool:
        return hung_up(self.wire.pgconn.socket)

    async def close(self) -> None:
        close(self.wire)


def make(session: Session, conninfo: str, place: Place) -> SqlTasks:
    prepared = True

    def unprepare() -> None:
        nonlocal prepared
        prepared = False

    async def connect(limit: float) -> AsyncWire:
        try:
            async with asyncio.timeout(limit):
                wire = await AsyncWire.connect(conninfo, **options(session, limit))
        except psycopg.Error as error:
            raise refusal(error, session, place.password) from error
        except TimeoutError as error:
            raise Broken("no connection in time") from error
        if not prepared:
            wire.prepare_threshold = None
        return wire

    async def open(limit: float) -> AsyncConnection:
        return AsyncConnection(await connect(limit), place)

    session.unprepare = unprepare

    def listener(session: Session) -> AsyncListener | None:
        return AsyncListener(session, connect, place) if place.push else None

    def threads() -> Any:
        return make_threads(Session(session.dialect, session.namespace), conninfo, place)

    return SqlTasks(session, AsyncPool(open, place.pool_size), listener, threads)


class AsyncListener:
    """LISTEN on one connection, for all waiters of a session."""

    def __init__(self, session: Session, connect: Callable[[float], Any], place: Place) -> None:
        self._session = session
        self._connect = connect
        self._place = place

    async def run(self, up: Callable[[], None], rung: Callable[[str], None]) -> None:
        wire: AsyncWire = await self._connect(2.0)
        try:
            await carry_out(self._session.check(), AsyncConnection(wire, self._place), clock.now() + 2.0)
            wire.ends = clock.now() + PROOF_WITHIN
            await wire.execute(f'LISTEN "{channel(self._session.address)}"')
            await self._prove(wire)
            up()
            while True:
                for attempt in heard(wire):
                    rung(attempt)
                await ready(wire.pgconn.socket, 1, float("inf"))
        except psycopg.Error as error:
            raise Broken(str(error)) from error
        finally:
            close(wire)

    async def _prove(self, wire: AsyncWire) -> None:
        """A pooler may take our LISTEN and give the connection to others: have another connection ring us once."""
        other: AsyncWire = await self._connect(2.0)
        try:
            other.ends = clock.now() + PROOF_WITHIN
            await other.execute("SELECT pg_notify(%s, %s)", (channel(self._session.address), PROOF))
        finally:
            close(other)
        ends = clock.now() + PROOF_WITHIN
        try:
            while PROOF not in heard(wire):
                await ready(wire.pgconn.socket, 1, ends)
        except TimedOut:
            raise Broken("LISTEN was accepted, but nothing arrives: a pooler in transaction mode?") from None

    def stand_by(self, attempt: str, busy: Busy | None) -> None:
        pass

    def forget(self, attempt: str) -> None:
        pass
