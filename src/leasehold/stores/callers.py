"""``in_transaction``: the statements of :mod:`.sql.transaction`, on a connection of the caller's of any library.

Such a connection needs an open transaction for them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from typing import Any

from .sql.requests import Result, Statement
from .sql.transaction import Aside, Inside

_IN_TRANSACTION = 1  # SERVER_STATUS_IN_TRANS


def run(core: Any, connection: Any, work: Inside) -> int:
    """On a connection of SQLAlchemy (or a Session), psycopg or PyMySQL (or one like it)."""
    answer = None
    try:
        execute = _on(connection)
        while True:
            todo = work.send(answer)
            answer = core.call(todo.steps) if isinstance(todo, Aside) else execute(todo)
    except StopIteration as stop:
        token: int = stop.value
        return token
    finally:
        work.close()


async def run_async(core: Any, connection: Any, work: Inside) -> int:
    """On an async connection of SQLAlchemy (or an AsyncSession), psycopg or aiomysql (or one like it)."""
    answer = None
    try:
        execute = await _on_async(connection)
        while True:
            todo = work.send(answer)
            answer = await (core.call(todo.steps) if isinstance(todo, Aside) else execute(todo))
    except StopIteration as stop:
        token: int = stop.value
        return token
    finally:
        work.close()


def _on(connection: Any) -> Callable[[Statement], Result]:
    """What runs a statement there. Raises ValueError in autocommit, TypeError where that cannot be asked."""
    connection = getattr(connection, "driver_connection", connection)  # of what engine.raw_connection() gives
    if _is_sqlalchemy(connection):
        from sqlalchemy import Connection

        if not isinstance(connection, Connection):
            connection = connection.connection()  # a Session's, in which the rest of its transaction runs
        lent = connection.connection
        refuse_autocommit(lent.driver_connection, lent.dbapi_connection)
        return lambda statement: _through_sqlalchemy(connection, statement)
    refuse_autocommit(connection)
    return lambda statement: _through_a_cursor(connection, statement)


async def _on_async(connection: Any) -> Callable[[Statement], Awaitable[Result]]:
    """The same for async connections of SQLAlchemy, psycopg or aiomysql (or one like it)."""
    if _is_sqlalchemy(connection):
        if not hasattr(connection, "get_raw_connection"):
            connection = await connection.connection()
        lent = await connection.get_raw_connection()
        refuse_autocommit(lent.driver_connection, lent.dbapi_connection)
        return lambda statement: _through_sqlalchemy_async(connection, statement)
    refuse_autocommit(connection)
    return lambda statement: _through_a_cursor_async(connection, statement)


def _is_sqlalchemy(connection: Any) -> bool:
    """A Session may be of a class of the user's own."""
    return any(each.__module__.partition(".")[0] == "sqlalchemy" for each in type(connection).__mro__)


def refuse_autocommit(*connections: Any, user: str = "in_transaction") -> None:
    """If each statement is committed by itself, the lock is gone at once. Ask the driver: an engine, a Session and a
    server's default can all have said so. Of several, all the same connection, the first that can be asked is."""
    for connection in connections:
        alone = _autocommit(connection)
        if alone is None:
            continue
        if alone and not _has_begun(connection):
            raise ValueError(f"{user} needs a connection with an open transaction, and this one is in autocommit")
        return
    kind = type(connections[0])
    raise TypeError(
        f"{user} cannot ask a {kind.__module__}.{kind.__qualname__} whether it has a transaction open: give it "
        "a connection of SQLAlchemy, psycopg, PyMySQL or aiomysql, or a Session"
    )


def _autocommit(connection: Any) -> bool | None:
    """What it says, if it is one that can say it: PyMySQL and its like by a method, psycopg and most others, as PEP 249
    has it, by an attribute (which is a method in PyMySQL, and turns it on)."""
    if hasattr(connection, "get_autocommit"):
        ask = connection.get_autocommit
        return None if iscoroutinefunction(ask) else bool(ask())
    said = getattr(connection, "autocommit", None)
    if not hasattr(connection, "autocommit") and isinstance(getattr(connection, "in_transaction", None), bool):
        return True  # SQLite's, before Python 3.12: :func:`_has_begun` tells
    return bool(said) if isinstance(said, int) else None


def _has_begun(connection: Any) -> bool:
    """Whether a transaction was begun in autocommit: by ``BEGIN``, or by psycopg's ``transaction()``."""
    status = getattr(getattr(connection, "info", None), "transaction_status", None)  # psycopg, psycopg2
    if status is not None:
        return int(status) != 0
    if isinstance(status := getattr(connection, "server_status", None), int):  # PyMySQL, aiomysql
        return bool(status & _IN_TRANSACTION)
    return getattr(connection, "in_transaction", False) is True  # mysql-connector


def _through_sqlalchemy(connection: Any, statement: Statement) -> Result:
    from .sqlalchemy.statements import result_of, text_of

    return result_of(connection.execute(text_of(statement.sql), dict(statement.values)))


async def _through_sqlalchemy_async(connection: Any, statement: Statement) -> Result:
    from .sqlalchemy.statements import result_of, text_of

    return result_of(await connection.execute(text_of(statement.sql), dict(statement.values)))


def _through_a_cursor(connection: Any, statement: Statement) -> Result:
    cursor = connection.cursor()
    try:
        cursor.execute(statement.sql, dict(statement.values))
        rows = cursor.fetchall() if cursor.description else ()
        return Result(rows, cursor.rowcount, getattr(cursor, "lastrowid", 0) or 0)
    finally:
        cursor.close()


async def _through_a_cursor_async(connection: Any, statement: Statement) -> Result:
    cursor = connection.cursor()
    if hasattr(cursor, "__await__"):
        cursor = await cursor
    try:
        await cursor.execute(statement.sql, dict(statement.values))
        rows = await cursor.fetchall() if cursor.description else ()
        return Result(rows, cursor.rowcount, getattr(cursor, "lastrowid", 0) or 0)
    finally:
        await cursor.close()
