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
from ..sql.requests import Broken, NoPush, Refused, Result, Statement
from ..sql.session import Session, no_connection
from ..sql.threads import SqlPool, SqlThreads, carry_out
from ..sql.url import SqlAddress, without
from .libpq import READ, LibpqConnection
from .sql import channel

CHECK_EVERY = 25.0
"""After how many seconds without a notification a listener checks that they still arrive."""
PING_WITHIN = 5.0
"""How long it waits for the answer to that check."""
PROOF_WITHIN = 3.0
"""How long a listener waits for the notification that it sends itself. If none arrives there is no push for a minute,
so this allows for a busy machine."""


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
        link: LibpqConnection | None = None,
    ) -> None:
        self.raw = raw
        self._password = place.password
        self._libpq = link or LibpqConnection(raw.pgconn, may_prepare)

    def execute(self, statement: Statement, limit: float) -> Result:
        ends = clock.now() + limit
        steps = self._libpq.execute(statement)
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
            # Otherwise the server would continue it although nobody waits: for a locked row, perhaps for long.
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
                for attempt in notifications(connection.raw):
                    rung(attempt)
                if not readable(connection.raw.pgconn.socket, self._ends, within=CHECK_EVERY):
                    self._prove_again(connection, rung)
        except psycopg.Error as error:
            raise Broken(str(error)) from error
        finally:
            connection.close()

    def prove(self, connection: PostgreSQLConnection, other: PostgreSQLConnection, rung: Callable[[str], None]) -> None:
        """A pooler may accept LISTEN and lend the connection to others: have another connection notify this one."""
        mark = new_mark()
        try:
            other.execute(proof(self._session.address, mark), PROOF_WITHIN)
        finally:
            other.close()
        ends = clock.now() + PROOF_WITHIN
        while not self._stopped:
            left = ends - clock.now()  # read before the check: what had arrived by then counts
            found = notifications(connection.raw)
            for attempt in found:
                if attempt != mark:
                    rung(attempt)
            if mark in found:
                return
            if left <= 0:
                raise NoPush(NO_NOTIFICATION)
            readable(connection.raw.pgconn.socket, within=left)

    def _prove_again(self, connection: PostgreSQLConnection, rung: Callable[[str], None]) -> None:
        """Prove again that notifications arrive: what lies between may have changed. Without a second connection, check
        only that this one answers. A user's pool is not asked: nothing would be received while it has none to lend."""
        try:
            other = None if self._pooled else self._open(2.0)
        except (Broken, StoreError):
            other = None
        if other is None:
            connection.execute(PING, PING_WITHIN)
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


PING = Statement("SELECT 1", {})
NO_NOTIFICATION = "LISTEN was accepted, but no notification arrives: is there a pooler in transaction mode?"


def listening(address: str) -> Statement:
    return Statement(f'LISTEN "{channel(address)}"', {})


def new_mark() -> str:
    """A payload that is no attempt, and that no earlier listener used: a pooler may deliver that one only now."""
    return f"-{os.urandom(8).hex()}"


def proof(address: str, mark: str) -> Statement:
    return Statement("SELECT pg_notify(%(channel)s, %(mark)s)", {"channel": channel(address), "mark": mark})


def notifications(raw: Any) -> list[str]:
    """The attempts that were notified since the last call."""
    raw.pgconn.consume_input()
    found = []
    while (notice := raw.pgconn.notifies()) is not None:
        found.append(notice.extra.decode("ascii", "replace"))
    return found
