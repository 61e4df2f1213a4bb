"""The user's own SQLAlchemy ``Engine`` or ``AsyncEngine``: theirs, never closed by us.

Each operation borrows a connection in AUTOCOMMIT from the engine's pool and gives it back, so a pool of size 1 is
enough, and no transaction of the user's is ever touched.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from weakref import WeakSet

import sqlalchemy
from sqlalchemy import exc

from ...core.protocol import Opened, TaskDriver, ThreadDriver
from ..mysql.sql import MySQL
from ..postgresql.sql import PostgreSQL
from .dialect import DEFAULT_TABLE, Dialect, Result, Statement
from .lines import RESERVED
from .opening import or_closed, or_closed_by_task
from .session import POOL_SIZE, Broken, Refused, Session, no_connection
from .store import SqlStore
from .tasks import AsyncListener, TasksOfALoop
from .threads import Listener, SqlThreads
from .url import Place, without

_PLACE = re.compile(r"%\((\w+)\)s")
_NUMBERS = {"ttl", "token", "version", "state", "acquired", "expires", "length", "most", "until", "patience"}


def open_client(engine: Any, namespace: str) -> Opened:
    """A store on an Engine (for threads) or an AsyncEngine (for asyncio).

    Another table than ``leasehold``: ``engine.execution_options(leasehold_table="…")``."""
    if not hasattr(engine, "dialect") or not hasattr(engine, "connect"):
        raise TypeError(f"connect() takes an Engine or an AsyncEngine of SQLAlchemy, not {type(engine).__name__}")
    table = str(engine.get_execution_options().get("leasehold_table", DEFAULT_TABLE))
    name = engine.dialect.name
    if name == "postgresql":
        dialect: Dialect = PostgreSQL(table)
    elif name in ("mysql", "mariadb"):
        dialect = MySQL(table, name)
    else:
        raise ValueError(f"an engine of {name} is not supported: leasehold supports postgresql, mysql and mariadb")
    is_async = hasattr(engine, "sync_engine")
    store = SqlStore(name)

    def threads() -> ThreadDriver:
        if is_async:
            raise TypeError("an AsyncEngine is for leasehold.aio.connect(); leasehold.connect() takes an Engine")
        return SqlThreads(
            Session(dialect, namespace, store.waiters),
            Engine(engine, dialect),
            lambda session: _listener(engine, session),
        )

    def tasks() -> TaskDriver:
        if not is_async:
            raise TypeError("an Engine is for leasehold.connect(); leasehold.aio.connect() takes an AsyncEngine")
        return TasksOfALoop(
            Session(dialect, namespace, store.waiters),
            AsyncEngine(engine, dialect),
            lambda session: _async_listener(engine, session),
        )

    return Opened(store, threads, tasks)


# Push: a connection of the engine's making that is no longer in its pool, where the driver is one that we know.


def _place(engine: Any) -> Place:
    return Place(None, None, None, _password(engine), None, {}, DEFAULT_TABLE, 1, True)


def _listener(engine: Any, session: Session) -> Listener | None:
    def take(limit: float) -> Any:
        try:
            lent = engine.raw_connection()
        except Exception as error:
            raise _no_connection(error, session.dialect, _password(engine)) from error
        raw = lent.driver_connection
        lent.detach()
        return raw

    if engine.dialect.driver == "psycopg":
        from ..postgresql.threads import Connection as PostgreSQLConnection
        from ..postgresql.threads import Listener as PostgreSQLListener

        def connect(limit: float) -> PostgreSQLConnection:
            raw = take(limit)
            with or_closed(raw):
                raw.rollback()
                raw.autocommit = True
            return PostgreSQLConnection(raw, _place(engine))

        return PostgreSQLListener(session, connect, pooled=True)
    if engine.dialect.driver == "pymysql":
        from ..mysql.bell import Listener as MySQLListener
        from ..mysql.threads import Connection

        def open(limit: float) -> Connection:
            raw = take(limit)
            with or_closed(raw):
                raw.autocommit(True)
            return Connection(raw, _place(engine))

        return MySQLListener(session, open)
    return None


def _async_listener(engine: Any, session: Session) -> AsyncListener | None:
    async def take(limit: float) -> Any:
        try:
            lent = await engine.raw_connection()
        except Exception as error:
            raise _no_connection(error, session.dialect, _password(engine)) from error
        raw = lent.driver_connection
        lent.detach()
        return raw

    if engine.dialect.driver == "psycopg":
        from ..postgresql.tasks import AsyncConnection as PostgreSQLConnection
        from ..postgresql.tasks import AsyncListener as PostgreSQLListener

        async def connect(limit: float) -> PostgreSQLConnection:
            raw = await take(limit)
            async with or_closed_by_task(raw):
                await raw.rollback()
                await raw.set_autocommit(True)
            return PostgreSQLConnection(raw, _place(engine))

        return PostgreSQLListener(session, connect, pooled=True)
    if engine.dialect.driver == "aiomysql":
        from ..mysql.tasks import AsyncConnection
        from ..mysql.tasks import AsyncListener as MySQLListener

        async def open(limit: float) -> AsyncConnection:
            raw = await take(limit)
            async with or_closed_by_task(raw):
                await raw.autocommit(True)
            return AsyncConnection(raw, _place(engine))

        return MySQLListener(session, open)
    return None


@lru_cache(500)
def _text(sql: str) -> Any:
    """The statement as SQLAlchemy likes it, with numbers declared as large ones."""
    names = set(_PLACE.findall(sql))
    text = sqlalchemy.text(_PLACE.sub(r":\1", sql))
    large = [sqlalchemy.bindparam(each, type_=sqlalchemy.BigInteger) for each in names if _is_number(each)]
    return text.bindparams(*large) if large else text


def _is_number(name: str) -> bool:
    return name in _NUMBERS or bool(re.fullmatch(r"[td]\d+", name))


def _values(values: Mapping[str, Any]) -> dict[str, Any]:
    return dict(values)


def _code(original: BaseException | None) -> Any:
    """The server's code, wherever the driver keeps it: for MySQL its number, which some give beside the SQLSTATE."""
    arguments = getattr(original, "args", ())
    if arguments and isinstance(arguments[0], int):
        return arguments[0]
    for name in ("sqlstate", "pgcode"):
        if isinstance(code := getattr(original, name, None), str):
            return code
    return getattr(original, "errno", None)


def _failure(error: exc.SQLAlchemyError, password: str | None) -> Exception:
    if not isinstance(error, exc.DBAPIError):
        return Broken(without(error, password))
    code = _code(error.orig)
    message = without(error.orig, password)
    lost = code[:2] in ("08", "57") if isinstance(code, str) else code is None or 2000 <= code < 3000
    if error.connection_invalidated or lost:
        return Broken(message)
    return Refused(code, message)


def _no_connection(error: Exception, dialect: Dialect, password: str | None) -> Exception:
    """Why the engine gives none; what it is depends on the driver, and on how SQLAlchemy was asked."""
    original = error.orig if isinstance(error, exc.DBAPIError) else error
    message = without(original, password) or "timed out connecting to the server"
    return no_connection(dialect, _code(original), message)


def _result(found: Any) -> Result:
    if found.returns_rows:
        rows = [tuple(row) for row in found.fetchall()]
        return Result(rows, len(rows))
    try:
        last = found.lastrowid or 0
    except Exception:  # drivers without such a thing
        last = 0
    return Result((), found.rowcount, last)


def _password(engine: Any) -> str | None:
    return str(engine.url.password) if engine.url.password is not None else None


class _Connection:
    def __init__(self, raw: Any, password: str | None) -> None:
        self.raw = raw
        self._password = password

    def execute(self, statement: Statement, limit: float) -> Result:
        try:
            return _result(self.raw.execute(_text(statement.sql), _values(statement.values)))
        except exc.SQLAlchemyError as error:
            raise _failure(error, self._password) from error

    def stale(self) -> bool:
        return False

    def close(self) -> None:
        self.raw.close()


def _size(engine: Any) -> int:
    """How many connections the engine keeps. A pool that keeps none, or any number, has room for as many as ours."""
    size = getattr(engine.pool, "size", None)
    return (size() if callable(size) else size) or POOL_SIZE + RESERVED


def _is_new(raw: Any, source: object) -> bool:
    """Whether this source has not had the connection before. What is noted goes with the driver's connection."""
    known: WeakSet[object] = raw.info.setdefault("leasehold", WeakSet())
    new = source not in known
    known.add(source)
    return new


class Engine:
    """Borrows from the engine's pool. How long that may take is the engine's ``pool_timeout``."""

    spare = False

    def __init__(self, engine: Any, dialect: Dialect) -> None:
        self._engine = engine
        self._dialect = dialect

    def take(self, limit: float) -> tuple[_Connection, bool]:
        password = _password(self._engine)
        try:
            raw = self._engine.connect()
            with or_closed(raw):
                raw = raw.execution_options(isolation_level="AUTOCOMMIT")
        except Exception as error:
            raise _no_connection(error, self._dialect, password) from error
        return _Connection(raw, password), _is_new(raw, self)

    def give(self, connection: Any, good: bool) -> None:
        try:
            if not good:
                connection.raw.invalidate()  # else the pool would lend it again: it may be to a server that only reads
        finally:
            connection.close()

    def size(self) -> int:
        return _size(self._engine)

    def after_fork(self) -> None:
        """The parent's connections are the parent's; the pool starts anew."""
        self._engine.dispose(close=False)


class _AsyncConnection:
    def __init__(self, raw: Any, password: str | None) -> None:
        self.raw = raw
        self._password = password

    async def execute(self, statement: Statement, limit: float) -> Result:
        try:
            async with asyncio.timeout(limit):
                return _result(await self.raw.execute(_text(statement.sql), _values(statement.values)))
        except exc.SQLAlchemyError as error:
            raise _failure(error, self._password) from error
        except (TimeoutError, OSError) as error:
            await self.raw.invalidate()
            raise Broken(str(error) or "timed out waiting for the server") from error

    def stale(self) -> bool:
        return False

    async def close(self) -> None:
        await self.raw.close()

    def drop(self) -> None:
        """The pool is the user's."""


class AsyncEngine:
    spare = False

    def __init__(self, engine: Any, dialect: Dialect) -> None:
        self._engine = engine
        self._dialect = dialect

    async def take(self, limit: float) -> tuple[_AsyncConnection, bool]:
        password = _password(self._engine)
        try:
            async with asyncio.timeout(limit):
                raw = await self._engine.connect()
                async with or_closed_by_task(raw):
                    raw = await raw.execution_options(isolation_level="AUTOCOMMIT")
        except Exception as error:
            raise _no_connection(error, self._dialect, password) from error
        return _AsyncConnection(raw, password), _is_new(raw, self)

    async def give(self, connection: Any, good: bool) -> None:
        try:
            if not good:
                await connection.raw.invalidate()
        finally:
            await connection.close()

    def size(self) -> int:
        return _size(self._engine)

    def after_fork(self) -> None:
        self._engine.sync_engine.dispose(close=False)

    def new_loop(self) -> None:
        self.after_fork()
