"""MySQL and MariaDB for threads, over PyMySQL."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from math import ceil
from typing import Any

import pymysql
from pymysql.cursors import Cursor

from ...core import clock
from ...errors import StoreError
from ...runtime.ready import readable
from ..sql.requests import Broken, Hint, Result, Statement
from ..sql.session import Session
from ..sql.threads import SqlPool, SqlThreads, carry_out
from ..sql.url import SqlAddress
from . import GIVE_UP_WITHIN, arguments, compat, composed, ending, failure, refusal
from .listener import MySQLListener

ANSWERS_WITHIN = 0.02
"""How long to wait for a statement whose caller was interrupted, before it is ended."""


class MySQLConnection:
    """``end`` ends a statement of this connection by way of another one."""

    def __init__(self, raw: Any, place: SqlAddress, end: Callable[[int, str], None] | None = None) -> None:
        self.raw = raw
        self._cursor = raw.cursor(Cursor)  # whatever kind of cursor a user's engine has as its default
        self._password = place.password
        self._end = end
        self._under_way = ""

    def execute(self, statement: Statement, limit: float) -> Result:
        # In steps of 0.1 s: PyMySQL sets the socket's timeout only when it changes.
        compat.limit(self.raw, ceil(limit * 10) / 10)
        try:
            text = composed(statement, self.raw.escape)
            self._under_way = "" if isinstance(statement, Hint) else text
            touched = self._cursor.execute(text)
            self._under_way = ""
            return Result(self._cursor.fetchall() or (), touched, self._cursor.lastrowid or 0)
        except pymysql.err.Error as error:
            failed = failure(error, self._password)
            if not self.raw.open:
                failed = Broken(str(failed))
            else:
                self._under_way = ""
            raise failed from error
        except OSError as error:
            raise Broken(str(error)) from error

    def stale(self) -> bool:
        socket = compat.socket_of(self.raw)
        return socket is None or readable(socket, within=0)

    def close(self) -> None:
        socket = compat.socket_of(self.raw)
        if self._under_way and socket is not None and readable(socket, within=ANSWERS_WITHIN):
            self._under_way = ""  # its caller was interrupted, but the statement has ended
        try:
            compat.close_at_once(self.raw)
        except Exception:
            pass
        if self._under_way and self._end is not None:
            self._end(self.raw.thread_id(), self._under_way)


def make(session: Session, place: SqlAddress) -> SqlThreads:
    def open(limit: float) -> MySQLConnection:
        options = arguments(place, limit)
        if "bind_address" in place.options:
            options["bind_address"] = place.options["bind_address"]
        try:
            raw = pymysql.connect(**options, read_timeout=limit, write_timeout=limit)
            return MySQLConnection(raw, place, end)
        except pymysql.err.Error as error:
            raise refusal(error, session, place.password) from error
        except (OSError, ssl.SSLError) as error:
            raise Broken(str(error)) from error

    def end(number: int, text: str) -> None:
        ends = clock.now() + GIVE_UP_WITHIN
        try:
            other = open(GIVE_UP_WITHIN)
            other._end = None
            try:
                carry_out(ending(number, text), other, ends)
            finally:
                other.close()
        except (Broken, StoreError):
            pass

    def listener(session: Session) -> MySQLListener | None:
        return MySQLListener(session, open) if place.push else None

    return SqlThreads(session, SqlPool(open, place.pool_size), listener)
