"""Connections of the user's ``Engine``, for threads."""

from __future__ import annotations

from typing import Any

from sqlalchemy import exc

from ..sql.dialect import Dialect
from ..sql.opening import or_closed
from ..sql.requests import Result, Statement
from ..sql.session import Session
from ..sql.threads import Listener
from .statements import address_of, failure, is_new, no_connection_from, password_of, result_of, size_of, text_of


class EngineConnection:
    def __init__(self, raw: Any, password: str | None) -> None:
        self.raw = raw
        self._password = password

    def execute(self, statement: Statement, limit: float) -> Result:
        try:
            return result_of(self.raw.execute(text_of(statement.sql), dict(statement.values)))
        except exc.SQLAlchemyError as error:
            raise failure(error, self._password) from error

    def stale(self) -> bool:
        return False

    def close(self) -> None:
        self.raw.close()


class EngineSource:
    """Borrows from the engine's pool. How long that may take is the engine's ``pool_timeout``."""

    spare = False

    def __init__(self, engine: Any, dialect: Dialect) -> None:
        self._engine = engine
        self._dialect = dialect

    def take(self, limit: float) -> tuple[EngineConnection, bool]:
        password = password_of(self._engine)
        try:
            raw = self._engine.connect()
            with or_closed(raw):
                raw = raw.execution_options(isolation_level="AUTOCOMMIT")
        except Exception as error:
            raise no_connection_from(error, self._dialect, password) from error
        return EngineConnection(raw, password), is_new(raw, self)

    def give(self, connection: Any, good: bool) -> None:
        try:
            if not good:
                connection.raw.invalidate()  # its server may have become read-only: the pool must not lend it again
        finally:
            connection.close()

    def size(self) -> int:
        return size_of(self._engine)

    def after_fork(self) -> None:
        """Forget the parent's connections without closing them; the engine's pool starts anew."""
        self._engine.dispose(close=False)


def listener(engine: Any, session: Session) -> Listener | None:
    def take(limit: float) -> Any:
        try:
            lent = engine.raw_connection()
        except Exception as error:
            raise no_connection_from(error, session.dialect, password_of(engine)) from error
        raw = lent.driver_connection
        lent.detach()
        return raw

    if engine.dialect.driver == "psycopg":
        from ..postgresql.threads import PostgreSQLConnection, PostgreSQLListener

        def connect(limit: float) -> PostgreSQLConnection:
            raw = take(limit)
            with or_closed(raw):
                raw.rollback()
                raw.autocommit = True
            return PostgreSQLConnection(raw, address_of(engine))

        return PostgreSQLListener(session, connect, pooled=True)
    if engine.dialect.driver == "pymysql":
        from ..mysql.listener import MySQLListener
        from ..mysql.threads import MySQLConnection

        def open(limit: float) -> MySQLConnection:
            raw = take(limit)
            with or_closed(raw):
                raw.autocommit(True)
            return MySQLConnection(raw, address_of(engine))

        return MySQLListener(session, open)
    return None
