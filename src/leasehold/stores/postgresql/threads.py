"""PostgreSQL for threads: connections of psycopg whose every wait has an end, and the thread that listens."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from ...core import clock
from ...core.protocol import Busy
from ...errors import StoreError
from ...runtime.ready import readable
from ..sql.dialect import Result, Statement
from ..sql.session import Broken, Deaf, Refused, Session, no_connection
from ..sql.threads import SqlPool, SqlThreads, carry_out
from ..sql.url import SqlAddress, without
from .link import READ, Link
from .sql import channel

LOOK_EVERY = 25.0
"""How often a listener to whom nobody speaks sees whether rings still arrive."""
STILL_WITHIN = 5.0
"""And how long it waits for the answer."""
PROOF_WITHIN = 3.0
"""How long a listener waits for the ring that it sends itself: without it there is no push for a minute, so that this
is long enough for a machine that is busy."""


GIVE_UP_WITHIN = 0.3
"""How long it may take to cancel a statement that is still under way when its connection is closed."""


class TimedOut(Exception):
    """No answer in time."""


class PostgreSQLConnection:
    def __init__(
        self,
        raw: psycopg.Connection[Any],
        place: SqlAddress,
        may_prepare: Callable[[], bool] = bool,
        link: Link | None = None,
    ) -> None:
        self.raw = raw
        self._password = place.password
        self._link = link or Link(raw.pgconn, may_prepare)

    def execute(self, statement: Statement, limit: float) -> Result:
        ends = clock.now() + limit
        steps = self._link.execute(statement)
        try:
            wanted = next(steps)
            while True:
                self._wait(wanted, ends)
                self.raw.pgconn.consume_input()
                wanted = next(steps)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        except psycopg.Error as error:
            raise failure(error, self.raw.closed, self._password) from error
        except (TimedOut, OSError) as error:
            raise Broken(str(error)) from error

    def _wait(self, wanted: int, ends: float) -> None:
        more = wanted != READ  # the statement is larger than what the kernel takes at once
        while not readable(self.raw.pgconn.socket, within=max(0.0, ends - clock.now()) + 0.001, writable=more):
            if clock.now() >= ends:
                raise TimedOut("timed out waiting for the server")

    def stale(self) -> bool:
        """An idle connection on which there is something to read has been closed by the server."""
        return readable(self.raw.pgconn.socket, within=0)

    def close(self) -> None:
        if under_way(self.raw):
            # Else it would go on in the server, though nobody waits for it: perhaps for a row, as long as that takes.
            try:
                self.raw.cancel_safe(timeout=GIVE_UP_WITHIN)
                ends = clock.now() + GIVE_UP_WITHIN
                while self.raw.pgconn.is_busy():
                    self._wait(READ, ends)
                    self.raw.pgconn.consume_input()
            except (psycopg.Error, TimedOut, OSError):
                pass
        close(self.raw)


def under_way(raw: Any) -> bool:
    return bool(raw.pgconn.transaction_status == pq.TransactionStatus.ACTIVE)


def failure(error: psycopg.Error, closed: bool, password: str | None) -> Exception:
    """The server's refusal, unless the connection went with it: 57P… is the server going away."""
    code = error.sqlstate
    message = without(error, password)
    if closed or code is None or code[:2] in ("08", "57"):
        return Broken(message)
    return Refused(code, message)


def close(raw: Any) -> None:
    try:
        raw.pgconn.finish()
    except Exception:
        pass


def options(conninfo: str, limit: float) -> dict[str, Any]:
    """How we connect, but for what the URL says. libpq waits so long for each host, and refuses less than 2 s."""
    given = conninfo_to_dict(conninfo)
    hosts = str(given.get("host", "")).count(",") + 1
    ours = {
        "connect_timeout": max(2, int(limit / hosts + 0.5)),
        "application_name": "leasehold",
        # A server that is gone without a word is noticed within half a minute.
        "keepalives_idle": 15,
        "keepalives_interval": 5,
        "keepalives_count": 3,
    }
    kept = {name: value for name, value in ours.items() if name not in given}
    return {"autocommit": True, "client_encoding": "utf8", **kept}


def refusal(error: psycopg.Error, session: Session, password: str | None) -> Exception:
    """Why there is no connection. libpq gives the reason in words only."""
    message = without(error, password)
    return no_connection(session.dialect, error.sqlstate, message)


def make(session: Session, conninfo: str, place: SqlAddress) -> SqlThreads:
    def open(limit: float) -> PostgreSQLConnection:
        try:
            raw = psycopg.Connection.connect(conninfo, **options(conninfo, limit))
        except psycopg.Error as error:
            raise refusal(error, session, place.password) from error
        return PostgreSQLConnection(raw, place, lambda: session.prepares)

    def listener(session: Session) -> PostgreSQLListener | None:
        return PostgreSQLListener(session, open) if place.push else None

    return SqlThreads(session, SqlPool(open, place.pool_size), listener)


class PostgreSQLListener:
    """LISTEN on one connection, for all waiters of a session."""

    def __init__(self, session: Session, open: Callable[[float], PostgreSQLConnection], pooled: bool = False) -> None:
        """``pooled``: what ``open`` gives is out of a pool, for which it may have to wait for others."""
        self._session = session
        self._open = open
        self._pooled = pooled
        self._ends, self._poke = socket.socketpair()
        self._stopped = False

    def run(self, ready: Callable[[], None], rung: Callable[[str], None]) -> None:
        connection = self._open(2.0)
        try:
            carry_out(self._session.check(), connection, clock.now() + 2.0)
            connection.execute(listening(self._session.address), PROOF_WITHIN)
            self.prove(connection, self._open(2.0), rung)
            ready()
            while not self._stopped:
                for attempt in heard(connection.raw):
                    rung(attempt)
                if not readable(connection.raw.pgconn.socket, self._ends, within=LOOK_EVERY):
                    self._prove_again(connection, rung)
        except psycopg.Error as error:
            raise Broken(str(error)) from error
        finally:
            connection.close()

    def prove(self, connection: PostgreSQLConnection, other: PostgreSQLConnection, rung: Callable[[str], None]) -> None:
        """A pooler may take our LISTEN and give the connection to others: have another connection ring us once."""
        mark = new_mark()
        try:
            other.execute(proof(self._session.address, mark), PROOF_WITHIN)
        finally:
            other.close()
        ends = clock.now() + PROOF_WITHIN
        while not self._stopped:
            left = ends - clock.now()  # before the look: what had come by then counts, however late we get to it
            found = heard(connection.raw)
            for attempt in found:
                if attempt != mark:
                    rung(attempt)
            if mark in found:
                return
            if left <= 0:
                raise Deaf(HEARD_NOTHING)
            readable(connection.raw.pgconn.socket, within=left)

    def _prove_again(self, connection: PostgreSQLConnection, rung: Callable[[str], None]) -> None:
        """What lies between may have changed since. Where there is no other connection, see that ours is still there:
        that is no reason to give it up. And who waits for one out of a pool would hear nothing meanwhile."""
        try:
            other = None if self._pooled else self._open(2.0)
        except (Broken, StoreError):
            other = None
        if other is None:
            connection.execute(STILL_THERE, STILL_WITHIN)
        else:
            self.prove(connection, other, rung)

    def stop(self) -> None:
        self._stopped = True
        try:
            self._poke.send(b"!")
        except OSError:
            pass  # it has ended

    def stand_by(self, attempt: str, busy: Busy | None) -> None:
        pass

    def forget(self, attempt: str) -> None:
        pass

    def close(self) -> None:
        self._ends.close()
        self._poke.close()


STILL_THERE = Statement("SELECT 1", {})
HEARD_NOTHING = "LISTEN was accepted, but no notification arrives: is there a pooler in transaction mode?"


def listening(address: str) -> Statement:
    return Statement(f'LISTEN "{channel(address)}"', {})


def new_mark() -> str:
    """What no attempt is called, and no earlier listener was rung with: a pooler may hand over its ring only now."""
    return f"-{os.urandom(8).hex()}"


def proof(address: str, mark: str) -> Statement:
    return Statement("SELECT pg_notify(%(channel)s, %(mark)s)", {"channel": channel(address), "mark": mark})


def heard(raw: Any) -> list[str]:
    """The attempts that were called since the last look."""
    raw.pgconn.consume_input()
    found = []
    while (notice := raw.pgconn.notifies()) is not None:
        found.append(notice.extra.decode("ascii", "replace"))
    return found
