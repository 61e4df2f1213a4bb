"""The user's own psycopg_pool ``ConnectionPool`` or ``AsyncConnectionPool``: theirs, never closed by us.

Each operation borrows a connection and gives it back as it was: what is sent over libpq itself is a transaction of its
own, whatever psycopg's ``autocommit`` says. A pool of one is enough: what listens for the push is a connection beside
the pool, made as the pool makes its own.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolClosed

from ...core import clock
from ...core.protocol import Opened, TaskDriver, ThreadDriver
from ...errors import StoreNotReady
from ...runtime.ready import readable
from ..sql.dialect import DEFAULT_TABLE
from ..sql.opening import or_closed, or_closed_by_task
from ..sql.requests import Broken
from ..sql.session import Session
from ..sql.store import SqlStore
from ..sql.tasks import SqlTasks, TasksOfALoop
from ..sql.threads import SqlThreads
from ..sql.url import SqlAddress
from .compat import configure_of
from .libpq import LibpqConnection
from .sql import PostgreSQL
from .tasks import AsyncPostgreSQLConnection, AsyncPostgreSQLListener
from .threads import PostgreSQLConnection, PostgreSQLListener, refusal


def open_client(pool: Any, namespace: str) -> Opened:
    """A store on a ConnectionPool (for threads) or an AsyncConnectionPool (for asyncio).

    Another table than ``leasehold``: ``pool.leasehold_table = "…"``."""
    if not isinstance(pool, (ConnectionPool, AsyncConnectionPool)):
        kind = type(pool).__name__
        raise TypeError(f"connect() takes a ConnectionPool or an AsyncConnectionPool of psycopg_pool, not {kind}")
    session = Session(PostgreSQL(getattr(pool, "leasehold_table", DEFAULT_TABLE)), namespace)

    def threads() -> ThreadDriver:
        if isinstance(pool, AsyncConnectionPool):
            raise TypeError(
                "an AsyncConnectionPool is for leasehold.aio.connect(); leasehold.connect() takes a ConnectionPool"
            )
        return SqlThreads(
            session, Lender(pool, session), lambda session: PostgreSQLListener(session, opener(pool, session))
        )

    def tasks() -> TaskDriver:
        if isinstance(pool, ConnectionPool):
            raise TypeError(
                "a ConnectionPool is for leasehold.connect(); leasehold.aio.connect() takes an AsyncConnectionPool"
            )
        return _tasks(pool, session)

    return Opened(SqlStore(session), threads, tasks)


def _tasks(pool: AsyncConnectionPool[Any], session: Session) -> SqlTasks:
    return TasksOfALoop(
        session,
        AsyncLender(pool, session),
        lambda session: AsyncPostgreSQLListener(session, async_opener(pool, session)),
    )


class _Lender:
    """What both kinds of lenders know of their pool and its connections."""

    spare = False

    def __init__(self, pool: Any, session: Session) -> None:
        self.pool = pool
        self.session = session
        self._links: WeakKeyDictionary[Any, LibpqConnection] = WeakKeyDictionary()
        """Of connections that we had before, with what is prepared there."""
        self._left_behind = ""

    def size(self) -> int:
        return int(self.pool.max_size)

    def check(self) -> None:
        if self._left_behind:
            raise StoreNotReady(f"this pool {self._left_behind}")

    def known(self, raw: Any) -> tuple[LibpqConnection, bool]:
        """The link over a connection, and whether that is new to us."""
        link = self._links.get(raw)
        if link is not None:
            return link, False
        if raw.info.encoding != "utf-8":
            raise StoreNotReady(f"this pool's connections have client_encoding {raw.info.encoding}: it must be UTF8")

        # A user who turned this off in psycopg (for PgBouncer, say) wants no prepared statements of ours either. The
        # entry does not keep the connection alive.
        may = raw.prepare_threshold is not None
        link = self._links[raw] = LibpqConnection(raw.pgconn, lambda: may and self.session.prepares)
        return link, True

    def refused(self, error: Exception) -> Exception:
        if isinstance(error, PoolClosed):
            return StoreNotReady(f"{error}: open the pool before it is used, and close the Locks before the pool")
        return Broken(str(error))

    def after_fork(self) -> None:
        """Its connections are the parent's, and its workers are not here; one that was not open yet can be opened."""
        if not self.pool.closed:
            self._left_behind = "was opened before the fork: create a pool and a Locks in the child process"


def lost(raw: Any) -> bool:
    """Whether the server has hung up. What else came (a notification of the user's) is left to psycopg."""
    try:
        for _ in range(10):
            if not readable(raw.pgconn.socket, within=0):
                break
            raw.pgconn.consume_input()
    except psycopg.Error:
        return True
    return False


class Lender(_Lender):
    def take(self, limit: float) -> tuple[PostgreSQLConnection, bool]:
        ends = clock.now() + limit
        while True:
            self.check()
            try:
                raw = self.pool.getconn(timeout=max(0.1, ends - clock.now()))
            except psycopg.Error as error:
                raise self.refused(error) from error
            try:
                if raw.closed or lost(raw):
                    raw.close()
                    self.pool.putconn(raw)
                    continue
                link, new = self.known(raw)
                return PostgreSQLConnection(raw, _place(raw.info.password), link=link), new
            except BaseException:
                self.pool.putconn(raw)
                raise

    def give(self, connection: Any, good: bool) -> None:
        if not good:
            connection.close()
        self.pool.putconn(connection.raw)


class AsyncLender(_Lender):
    async def take(self, limit: float) -> tuple[AsyncPostgreSQLConnection, bool]:
        ends = clock.now() + limit
        while True:
            self.check()
            try:
                raw = await self.pool.getconn(timeout=max(0.1, ends - clock.now()))
            except psycopg.Error as error:
                raise self.refused(error) from error
            try:
                if raw.closed or lost(raw):
                    await raw.close()
                    await self.pool.putconn(raw)
                    continue
                link, new = self.known(raw)
                return AsyncPostgreSQLConnection(raw, _place(raw.info.password), link=link), new
            except BaseException:
                await self.pool.putconn(raw)
                raise

    async def give(self, connection: Any, good: bool) -> None:
        if good:
            connection.input.stop()  # psycopg watches the socket itself
        else:
            await connection.close()
        await self.pool.putconn(connection.raw)

    def new_loop(self) -> None:
        if not self.pool.closed:
            self._left_behind = "belongs to another event loop: create a pool and a Locks in this loop"


# The connection that listens.


def _place(password: str | None) -> SqlAddress:
    return SqlAddress(None, None, None, password or None, None, {}, DEFAULT_TABLE, 1, True)


def opener(pool: ConnectionPool[Any], session: Session) -> Callable[[float], PostgreSQLConnection]:
    def open(limit: float) -> PostgreSQLConnection:
        given: tuple[Any, Any] = pool.conninfo, pool.kwargs
        conninfo, options = (each() if callable(each) else each for each in given)
        try:
            raw = pool.connection_class.connect(conninfo or "", **(options or {}))
            with or_closed(raw):
                if (configure := configure_of(pool)) is not None:
                    configure(raw)
                raw.autocommit = True
        except psycopg.Error as error:
            raise refusal(error, session, None) from error
        return PostgreSQLConnection(raw, _place(raw.info.password))

    return open


def async_opener(pool: AsyncConnectionPool[Any], session: Session) -> Callable[[float], Any]:
    async def open(limit: float) -> AsyncPostgreSQLConnection:
        try:
            async with asyncio.timeout(limit):
                conninfo, options = [await _resolved(each) for each in (pool.conninfo, pool.kwargs)]
                raw = await pool.connection_class.connect(conninfo or "", **(options or {}))
                async with or_closed_by_task(raw):
                    if (configure := configure_of(pool)) is not None:
                        await configure(raw)
                    await raw.set_autocommit(True)
        except psycopg.Error as error:
            raise refusal(error, session, None) from error
        except TimeoutError as error:
            raise Broken("timed out connecting to the server") from error
        return AsyncPostgreSQLConnection(raw, _place(raw.info.password))

    return open


async def _resolved(given: Any) -> Any:
    """psycopg_pool also takes functions, plain or async."""
    found = given() if callable(given) else given
    return await found if inspect.isawaitable(found) else found
