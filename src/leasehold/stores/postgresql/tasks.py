"""PostgreSQL for asyncio: the same as for threads, waiting in the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg

from ...core import clock
from ...core.protocol import Busy
from ...errors import StoreError
from ..sql.opening import unless_cancelled
from ..sql.requests import Broken, NoPush, Result, Statement
from ..sql.session import Session
from ..sql.tasks import AsyncSqlPool, SqlTasks, carry_out
from ..sql.url import SqlAddress
from .libpq import READ, LibpqConnection
from .threads import (
    CHECK_EVERY,
    GIVE_UP_WITHIN,
    NO_NOTIFICATION,
    PING,
    PING_WITHIN,
    PROOF_WITHIN,
    TimedOut,
    close,
    failure,
    listening,
    new_mark,
    notifications,
    options,
    proof,
    refusal,
    under_way,
)
from .threads import make as make_threads


class Input:
    """Reads what arrives on a connection, and wakes the task that waits for it. It stays registered with the loop:
    that saves two calls for each wait, and shows when the server has closed the connection."""

    def __init__(self, pgconn: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self._pgconn = pgconn
        self._file = pgconn.socket  # as it was: libpq closes it when the connection is lost
        self._waiter: asyncio.Future[None] | None = None
        self.lost: psycopg.Error | None = None
        self._loop.add_reader(self._file, self._came)

    def _came(self) -> None:
        try:
            self._pgconn.consume_input()
        except psycopg.Error as error:
            self.lost = error
            self.stop()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, wanted: int, ends: float) -> None:
        """Until something came (or can be sent). Raises TimedOut, and psycopg's error when the connection is lost."""
        if self.lost is None:
            left = ends - clock.now()
            timer = self._loop.call_later(left, self._wake) if left != float("inf") else None
            self._waiter = self._loop.create_future()
            if wanted != READ:
                self._loop.add_writer(self._file, self._wake)
            try:
                await self._waiter
            finally:
                self._waiter = None
                if wanted != READ:
                    self._loop.remove_writer(self._file)
                if timer is not None:
                    timer.cancel()
        if self.lost is not None:
            raise self.lost
        if clock.now() >= ends:
            raise TimedOut("timed out waiting for the server")

    def stop(self) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(self._file)


class AsyncPostgreSQLConnection:
    def __init__(
        self,
        raw: psycopg.AsyncConnection[Any],
        place: SqlAddress,
        may_prepare: Callable[[], bool] = bool,
        link: LibpqConnection | None = None,
    ) -> None:
        self.raw = raw
        self.input = Input(raw.pgconn)
        self._password = place.password
        self._libpq = link or LibpqConnection(raw.pgconn, may_prepare)

    async def execute(self, statement: Statement, limit: float) -> Result:
        ends = clock.now() + limit
        steps = self._libpq.execute(statement)
        try:
            wanted = next(steps)
            while True:
                await self.input.wait(wanted, ends)
                wanted = next(steps)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        except psycopg.Error as error:
            raise failure(error, self.raw.closed, self._password) from error
        except (TimedOut, OSError) as error:
            raise Broken(str(error)) from error

    def stale(self) -> bool:
        return self.input.lost is not None

    async def close(self) -> None:
        if under_way(self.raw):
            try:
                await self.raw.cancel_safe(timeout=GIVE_UP_WITHIN)
                ends = clock.now() + GIVE_UP_WITHIN
                while self.raw.pgconn.is_busy():
                    await self.input.wait(READ, ends)
            except (psycopg.Error, TimedOut, OSError):
                pass
        self.drop()

    def drop(self) -> None:
        self.input.stop()
        close(self.raw)


def make(session: Session, conninfo: str, place: SqlAddress) -> SqlTasks:
    async def open(limit: float) -> AsyncPostgreSQLConnection:
        try:
            async with asyncio.timeout(limit):
                raw = await psycopg.AsyncConnection.connect(conninfo, **options(conninfo, limit))
        except psycopg.Error as error:
            raise refusal(error, session, place.password) from error
        except TimeoutError as error:
            raise Broken("timed out connecting to the server") from error
        return AsyncPostgreSQLConnection(raw, place, lambda: session.prepares)

    def listener(session: Session) -> AsyncPostgreSQLListener | None:
        return AsyncPostgreSQLListener(session, open) if place.push else None

    def threads() -> Any:
        return make_threads(session, conninfo, place)

    return SqlTasks(session, AsyncSqlPool(open, place.pool_size), listener, threads)


class AsyncPostgreSQLListener:
    """LISTEN on one connection, for all waiters of a session."""

    def __init__(self, session: Session, open: Callable[[float], Any], pooled: bool = False) -> None:
        """``pooled``: as in :class:`.postgresql_threads.Listener`."""
        self._session = session
        self._open = unless_cancelled(open)
        self._pooled = pooled

    async def run(self, up: Callable[[], None], rung: Callable[[str], None]) -> None:
        connection: AsyncPostgreSQLConnection = await self._open(2.0)
        try:
            await carry_out(self._session.check(), connection, clock.now() + 2.0)
            await connection.execute(listening(self._session.address), PROOF_WITHIN)
            await self.prove(connection, await self._open(2.0), rung)
            up()
            while True:
                for attempt in notifications(connection.raw):
                    rung(attempt)
                try:
                    await connection.input.wait(READ, clock.now() + CHECK_EVERY)
                except TimedOut:
                    await self._prove_again(connection, rung)
        except psycopg.Error as error:
            raise Broken(str(error)) from error
        finally:
            await connection.close()

    async def prove(
        self, connection: AsyncPostgreSQLConnection, other: AsyncPostgreSQLConnection, rung: Callable[[str], None]
    ) -> None:
        """A pooler may accept LISTEN and lend the connection to others: have another connection notify this one."""
        mark = new_mark()
        try:
            await other.execute(proof(self._session.address, mark), PROOF_WITHIN)
        finally:
            await other.close()
        ends = clock.now() + PROOF_WITHIN
        while True:
            late = clock.now() >= ends  # read before the check: what had arrived by then counts
            found = notifications(connection.raw)
            for attempt in found:
                if attempt != mark:
                    rung(attempt)
            if mark in found:
                return
            if late:
                raise NoPush(NO_NOTIFICATION)
            with suppress(TimedOut):
                await connection.input.wait(READ, ends)

    async def _prove_again(self, connection: AsyncPostgreSQLConnection, rung: Callable[[str], None]) -> None:
        """As for threads."""
        try:
            other: AsyncPostgreSQLConnection | None = None if self._pooled else await self._open(2.0)
        except (Broken, StoreError):
            other = None
        if other is None:
            await connection.execute(PING, PING_WITHIN)
        else:
            await self.prove(connection, other, rung)

    def stand_by(self, attempt: str, busy: Busy | None) -> None:
        pass

    def forget(self, attempt: str) -> None:
        pass
