"""Leases inside the caller's own transaction: the lease's check and the caller's writes commit together.

The statements run on the caller's connection and in its transaction; nothing is committed, rolled back or retried here,
and the driver's own errors (a deadlock, a lost connection) come out as they are, for the caller's own handling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import AcquireTimeout, LeaseLost
from .sql_dialect import Result, Statement

if TYPE_CHECKING:
    from ..core import Core
    from ..lease import BaseLease
    from ..spec import Spec
    from .sql_session import Session

_IN_TRANSACTION = 1  # SERVER_STATUS_IN_TRANS


def session_of(core: Core) -> Session:
    session: Session | None = getattr(core.driver, "session", None)
    if session is None:
        raise ValueError(f"in_transaction needs a SQL store, which {core.store.scheme}:// is not")
    return session


def holding(core: Core, spec: Spec) -> Statement:
    """Takes the name for the length of a transaction."""
    session = session_of(core)
    if (spec.shape, spec.limit) != ("lock", 1):
        raise ValueError("in_transaction takes plain locks only")
    key = session.dialect.key(session.namespace, spec.name)
    return session.dialect.hold({**key, "owner": core.owner, "kind": spec.kind})


def held(core: Core, spec: Spec, result: Result) -> int:
    """The token, or AcquireTimeout: there is no waiting inside a transaction."""
    token = session_of(core).dialect.taken(result)
    if not token:
        raise AcquireTimeout(f"{spec.name!r} could not be had in this transaction: it is held, or others wait for it")
    return token


def checking(lease: BaseLease) -> Statement:
    """Finds the lease's row, locked until the transaction ends, if it still is the lease's."""
    session = session_of(lease._core)
    if lease._spec.shape != "lock":
        raise ValueError("in_transaction is for exclusive leases only")
    lease.check()
    key = session.dialect.key(session.namespace, lease.name)
    values = {**key, "attempt": lease._claim.attempt, "token": lease.token}
    return Statement(session.dialect.CHECK_HELD, values)


def checked(lease: BaseLease, result: Result) -> int:
    if not result.rows:
        raise LeaseLost(lease.name, "the store says that it is no longer ours")
    return lease.token


def run(connection: Any, statement: Statement) -> Result:
    """Run a statement on a connection of SQLAlchemy, psycopg or PyMySQL (or one like it)."""
    kind = _kind(connection)
    if kind == "sqlalchemy":
        from .sql_engine import _result, _text

        return _result(connection.execute(_text(statement.sql), dict(statement.values)))
    cursor = connection.cursor()
    try:
        cursor.execute(statement.sql, dict(statement.values))
        rows = cursor.fetchall() if cursor.description else ()
        return Result(rows, cursor.rowcount, getattr(cursor, "lastrowid", 0) or 0)
    finally:
        cursor.close()


async def run_async(connection: Any, statement: Statement) -> Result:
    """Run a statement on an async connection of SQLAlchemy, psycopg or aiomysql (or one like it)."""
    if _kind(connection) == "sqlalchemy":
        from .sql_engine import _result, _text

        return _result(await connection.execute(_text(statement.sql), dict(statement.values)))
    cursor = connection.cursor()
    if hasattr(cursor, "__await__"):
        cursor = await cursor
    try:
        await cursor.execute(statement.sql, dict(statement.values))
        rows = await cursor.fetchall() if cursor.description else ()
        return Result(rows, cursor.rowcount, getattr(cursor, "lastrowid", 0) or 0)
    finally:
        await cursor.close()


def _kind(connection: Any) -> str:
    """Which library's it is. Refuses one that commits each statement by itself: the lock would be gone at once."""
    package = type(connection).__module__.partition(".")[0]
    alone = False
    if package == "sqlalchemy":
        if hasattr(connection, "get_execution_options"):
            alone = connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT"
    elif package == "psycopg":
        alone = connection.autocommit and int(connection.info.transaction_status) == 0
    elif hasattr(connection, "get_autocommit"):
        status = getattr(connection, "server_status", 0) or 0
        alone = bool(connection.get_autocommit()) and not status & _IN_TRANSACTION
    if alone:
        raise ValueError("in_transaction needs a connection with an open transaction, and this one is in autocommit")
    return package
