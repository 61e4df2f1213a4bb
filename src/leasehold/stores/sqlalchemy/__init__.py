"""The user's own SQLAlchemy ``Engine`` or ``AsyncEngine``: theirs, leasehold never closes it.

Stored are the rows of ``stores/postgresql`` or ``stores/mysql``, by the database's clock. Each operation borrows a
connection in AUTOCOMMIT from the engine's pool and returns it: a pool of size 1 is enough, and no transaction of the
user's is ever touched. Waiters are woken as on those stores, by a connection that the engine makes and that is then no
longer in its pool; with a driver that leasehold does not know, they poll.

**To read next**: :mod:`.statements` (statements, results and errors as SQLAlchemy has them), then :mod:`.threads` and
:mod:`.tasks` (connections that are borrowed and returned, and the one that listens).
"""

from __future__ import annotations

from typing import Any

from ...core.protocol import Opened, TaskDriver, ThreadDriver
from ..mysql.sql import MySQL
from ..postgresql.sql import PostgreSQL
from ..sql.dialect import DEFAULT_TABLE, Dialect
from ..sql.session import Session
from ..sql.store import SqlStore


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
    session = Session(dialect, namespace)

    def threads() -> ThreadDriver:
        if is_async:
            raise TypeError("an AsyncEngine is for leasehold.aio.connect(); leasehold.connect() takes an Engine")
        from ..sql.threads import SqlThreads
        from .threads import EngineSource, listener

        return SqlThreads(session, EngineSource(engine, dialect), lambda session: listener(engine, session))

    def tasks() -> TaskDriver:
        if not is_async:
            raise TypeError("an Engine is for leasehold.connect(); leasehold.aio.connect() takes an AsyncEngine")
        from ..sql.tasks import TasksOfALoop
        from .tasks import AsyncEngineSource, listener

        return TasksOfALoop(session, AsyncEngineSource(engine, dialect), lambda session: listener(engine, session))

    return Opened(SqlStore(session), threads, tasks)
