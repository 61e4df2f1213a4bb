"""MySQL and MariaDB for threads, over PyMySQL."""

from __future__ import annotations

import select
import ssl
from typing import Any

import pymysql

from .mysql import arguments, failure, refusal
from .mysql_bell import Listener
from .sql_dialect import Result, Statement
from .sql_session import Broken, Session
from .sql_threads import Pool, SqlThreads
from .sql_url import Place


class Connection:
    def __init__(self, raw: Any, place: Place) -> None:
        self.raw = raw
        self._password = place.password
        self._cursor = raw.cursor()

    def execute(self, statement: Statement, limit: float) -> Result:
        self.raw._read_timeout = self.raw._write_timeout = limit
        cursor = self._cursor
        try:
            cursor.execute(statement.sql, statement.values or None)
            return Result(cursor.fetchall() if cursor.description else (), cursor.rowcount, cursor.lastrowid or 0)
        except pymysql.err.Error as error:
            failed = failure(error, self._password)
            if self.raw._sock is None:
                failed = Broken(str(failed))
            raise failed from error
        except OSError as error:
            raise Broken(str(error)) from error

    def stale(self) -> bool:
        if self.raw._sock is None:
            return True
        poll = select.poll()
        poll.register(self.raw._sock, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        try:
            self.raw._force_close()
        except Exception:
            pass


def make(session: Session, place: Place) -> SqlThreads:
    def open(limit: float) -> Connection:
        options = {**arguments(place, limit), **driver_options(place)}
        try:
            return Connection(pymysql.connect(**options, read_timeout=limit, write_timeout=limit), place)
        except pymysql.err.Error as error:
            raise refusal(error, session, place.password) from error
        except (OSError, ssl.SSLError) as error:
            raise Broken(str(error)) from error

    def listener(session: Session) -> Listener | None:
        return Listener(session, open) if place.push else None

    return SqlThreads(session, Pool(open, place.pool_size), listener)


def driver_options(place: Place) -> dict[str, Any]:
    flags = ("ssl_verify_cert", "ssl_verify_identity")
    return {
        key: value.lower() in ("1", "true", "yes", "on") if key in flags else value
        for key, value in place.options.items()
    }
