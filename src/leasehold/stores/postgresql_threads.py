"""PostgreSQL for threads: connections of psycopg whose every wait has an end, and the thread that listens."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import Any

import psycopg

from .. import clock
from ..protocol import Busy
from .postgresql_sql import channel
from .sql_dialect import Result, Statement
from .sql_session import Broken, Refused, Session
from .sql_threads import Pool, SqlThreads, carry_out
from .sql_url import Place, without

_EVENTS = {1: select.POLLIN, 2: select.POLLOUT, 3: select.POLLIN | select.POLLOUT}
PROOF_WITHIN = 1.0
"""How long a listener waits for the ring that it sends itself."""


class TimedOut(Exception):
    """No answer in time."""


class Wire(psycopg.Connection[Any]):
    """psycopg's connection with a limit on every wait."""

    ends = float("inf")

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        fd = self.pgconn.socket
        poll = select.poll()
        try:
            wanted = next(gen)
            poll.register(fd, _EVENTS[wanted])
            while True:
                left = self.ends - clock.now()
                if left <= 0:
                    raise TimedOut("no answer in time")
                ready = poll.poll(None if left == float("inf") else left * 1000 + 1)
                if ready:
                    event = ready[0][1]
                    is_ready = (1 if event & ~select.POLLOUT else 0) | (2 if event & select.POLLOUT else 0)
                    wanted = gen.send(is_ready)
                    poll.modify(fd, _EVENTS[wanted])
        except StopIteration as stop:
            return stop.value


class Connection:
    def __init__(self, wire: Wire, place: Place) -> None:
        self.wire = wire
        self._password = place.password
        self._cursor = wire.cursor()

    def execute(self, statement: Statement, limit: float) -> Result:
        self.wire.ends = clock.now() + limit
        cursor = self._cursor
        try:
            cursor.execute(statement.sql, statement.values or None)
            rows = cursor.fetchall() if cursor.description is not None else ()
            return Result(rows, cursor.rowcount)
        except psycopg.Error as error:
            raise failure(error, self.wire.closed, self._password) from error
        except (TimedOut, OSError) as error:
            raise Broken(str(error)) from error

    def stale(self) -> bool:
        return hung_up(self.wire.pgconn.socket)

    def close(self) -> None:
        close(self.wire)


def failure(error: psycopg.Error, closed: bool, password: str | None) -> Exception:
    """The server's refusal, unless the connection went with it: 57P… is the server going away."""
    code = error.sqlstate
    message = without(error, password)
    if closed or code is None or code[:2] in ("08", "57"):
        return Broken(message)
    return Refused(code, message)


def hung_up(fd: int) -> bool:
    """An idle connection on which there is something to read has been closed by the server."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def close(wire: Any) -> None:
    try:
        wire.pgconn.finish()
    except Exception:
        pass


def options(session: Session, limit: float) -> dict[str, Any]:
    """How we connect. libpq refuses less than 2 s."""
    return {
        "autocommit": True,
        "connect_timeout": max(2, int(limit + 0.5)),
        "application_name": "leasehold",
        "prepare_threshold": 5,
    }


def refusal(error: psycopg.Error, session: Session, password: str | None) -> Exception:
    """Why there is no connection. libpq gives the reason in words only."""
    message = without(error, password)
    words = (
        *("authentication failed", "does not exist", "no password supplied", "no pg_hba.conf entry"),
        *("not permitted", "permission denied", "certificate"),
    )
    if any(each in message for each in words) and "could not translate" not in message:
        return session.dialect.error("28000", message)
    return Broken(message)


def make(session: Session, conninfo: str, place: Place) -> SqlThreads:
    prepared = True

    def unprepare() -> None:
        nonlocal prepared
        prepared = False

    def connect(limit: float) -> Wire:
        try:
            wire = Wire.connect(conninfo, **options(session, limit))
        except psycopg.Error as error:
            raise refusal(error, session, place.password) from error
        if not prepared:
            wire.prepare_threshold = None
        return wire

    session.unprepare = unprepare
    pool = Pool(lambda limit: Connection(connect(limit), place), place.pool_size)

    def listener(session: Session) -> Listener | None:
        return Listener(session, connect, place) if place.push else None

    return SqlThreads(session, pool, listener)


class Listener:
    """LISTEN on one connection, for all waiters of a session."""

    def __init__(self, session: Session, connect: Callable[[float], Wire], place: Place) -> None:
        self._session = session
        self._connect = connect
        self._place = place
        self._ends, self._poke = os.pipe()
        self._stopped = False

    def run(self, ready: Callable[[], None], rung: Callable[[str], None]) -> None:
        wire = self._connect(2.0)
        try:
            carry_out(self._session.check(), Connection(wire, self._place), clock.now() + 2.0)
            wire.ends = clock.now() + PROOF_WITHIN
            wire.execute(f'LISTEN "{channel(self._session.address)}"')
            self._prove(wire)
            ready()
            wire.ends = float("inf")
            poll = select.poll()
            poll.register(wire.pgconn.socket, select.POLLIN)
            poll.register(self._ends, select.POLLIN)
            while not self._stopped:
                for attempt in heard(wire):
                    rung(attempt)
                poll.poll()
        except psycopg.Error as error:
            raise Broken(str(error)) from error
        finally:
            close(wire)

    def _prove(self, wire: Wire) -> None:
        """A pooler may take our LISTEN and give the connection to others: have another connection ring us once."""
        other = self._connect(2.0)
        try:
            other.ends = clock.now() + PROOF_WITHIN
            other.execute("SELECT pg_notify(%s, %s)", (channel(self._session.address), PROOF))
        finally:
            close(other)
        ends = clock.now() + PROOF_WITHIN
        poll = select.poll()
        poll.register(wire.pgconn.socket, select.POLLIN)
        while PROOF not in heard(wire):
            left = ends - clock.now()
            if left <= 0:
                raise Broken("LISTEN was accepted, but nothing arrives: a pooler in transaction mode?")
            poll.poll(left * 1000)

    def stop(self) -> None:
        self._stopped = True
        os.write(self._poke, b"!")

    def stand_by(self, attempt: str, busy: Busy | None) -> None:
        pass

    def forget(self, attempt: str) -> None:
        pass

    def close(self) -> None:
        os.close(self._ends)
        os.close(self._poke)


PROOF = "-"


def heard(wire: Any) -> list[str]:
    """The attempts that were called since the last look."""
    wire.pgconn.consume_input()
    found = []
    while (notice := wire.pgconn.notifies()) is not None:
        found.append(notice.extra.decode("ascii", "replace"))
    return found
