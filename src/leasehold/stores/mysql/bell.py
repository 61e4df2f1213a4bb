"""A doorbell for MySQL and MariaDB, which have no push: an accelerator, never needed for correctness.

A session has one connection that sleeps in the server. It holds a named lock, by which others find it
(IS_USED_LOCK gives its connection's number), and to ring it they end its sleep: KILL QUERY, which every user may do
to connections of the same user, and which takes the number as an expression. It belongs to whoever holds that lock at
this moment, so a ring can never hit anything but a sleeping session of ours. Where named locks are refused (Galera),
waiters look by themselves.

A ring that comes between two sleeps would be lost. So a second lock says that it sleeps, who rings waits a moment until
it does, and when rung it looks who was called. Should it be held up for longer than that moment: after a ring
the next sleep is a short one, so that it soon looks again. The sleeping statement itself touches no table: it would
keep a lock on the table's definition, and with that hold up every ALTER TABLE.

In MariaDB two who end a SLEEP() each at the same moment may shut each other out, and every other SLEEP() of that server
with them, for two seconds. There it waits for a transaction that will never come, which is like a sleep otherwise.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any

from ...core import clock
from ...core.protocol import ALL, HELD, Busy
from ..common.sockets import hang_up
from ..sql.dialect import Result, Statement
from ..sql.rows import called_by
from ..sql.session import Deaf, Refused, Session, Work
from ..sql.threads import carry_out
from . import compat
from .sql import MySQL, asleep, bell, hexed

NAP = 45.0
"""How long one sleep in the server lasts."""
DOZE = 0.25
"""And the first after a ring: well below a first term, which a lost ring would use up."""
NAPPING = f"SELECT GET_LOCK('{bell('')}"
"""How a sleeping statement begins."""
INTERRUPTED = (1317, 3024, 1969)
_NEVER = f"{2**32 - 1}-1-{2**64 - 1}"
_SLEEP = f"CASE WHEN /*M!100010 MASTER_GTID_WAIT('{_NEVER}', %s) = -1 OR */ FALSE THEN 0 ELSE SLEEP(%s) END"
"""What begins with /*M! is read by MariaDB only; -1 is: waited in vain. One that knows no such waiting sleeps."""


class Standing:
    """Which attempts of the session wait for a ring, and what to ask the server about them. Pure."""

    def __init__(self, session: Session) -> None:
        self._session = session
        assert isinstance(session.dialect, MySQL)
        self._dialect = session.dialect
        self._names: dict[str, str] = {}
        """Of attempts that have not been rung since they began to wait."""
        self._lasts = NAP

    def add(self, attempt: str, busy: Busy | None) -> None:
        if busy is not None and busy.holder is not None:
            self._names[attempt] = busy.holder.name

    def discard(self, attempt: str) -> None:
        self._names.pop(attempt, None)

    def announce(self) -> Work[None]:
        """Take the lock by which we are found: also from a lost connection of ours that the server still has."""
        values = {"bell": bell(self._session.address)}
        got = (yield Statement("SELECT GET_LOCK(%(bell)s, 1)", values)).rows[0][0]
        if got == 0:
            holder = (yield Statement("SELECT IS_USED_LOCK(%(bell)s)", values)).rows[0][0]
            if holder is not None:
                try:
                    yield Statement(f"KILL {int(holder)}", {})
                except Refused:
                    pass  # it has just gone
            got = (yield Statement("SELECT GET_LOCK(%(bell)s, 3)", values)).rows[0][0]  # it may take its time to go
        if got != 1:
            raise Deaf("GET_LOCK failed: push needs a named lock")

    def nap(self) -> Work[Sequence[str]]:
        """Sleep until rung or slept out; then, whom of ours that was for. Raises OnlyReads."""
        values = {"asleep": asleep(self._session.address)}
        up = "RELEASE_LOCK(%(asleep)s)"
        sleep = _SLEEP % (self._lasts, self._lasts)
        slept = yield from _unless_rung(Statement(f"SELECT GET_LOCK(%(asleep)s, 0), {sleep}, {up}", values))
        rung = slept is None or bool(slept.rows[0][1])  # some servers tell it as an error, some as a result
        if not rung and self._lasts == NAP:
            # Nothing has happened for long. Who waits looks by itself more often than this; but a server that has
            # become a replica would be slept in for ever.
            if (found := (yield from _unless_rung(Statement(self._dialect.READS, {})))) is not None:
                self._dialect.check_writes(*found.rows[0])
                return []
            rung = True
        self._lasts = DOZE if rung else NAP
        for _ in range(10):
            look = self._look()
            if rung and not (yield from _unless_rung(Statement(f"SELECT {up}", values))):
                continue  # and again, while we get up
            if look is None:
                break
            found = yield from _unless_rung(look)
            if found:
                granted, next_ones = self._called(found)
                if rung and not granted:  # it was for one that is next, or for what we hold: nothing tells which
                    return [*next_ones, HELD] if next_ones else [ALL]
                return granted + next_ones
            rung = True
        return [ALL] if rung else []

    def _look(self) -> Statement | None:
        """Who is called? None when nobody waits, so that it must be about what is held."""
        names = dict(self._names)
        if not names:
            return None
        values, where = self._where(names)
        return Statement(f"SELECT attempt, more FROM {self._dialect.quoted} WHERE {where}", values)

    def _called(self, result: Result) -> tuple[list[str], list[str]]:
        """Of ours, those that hold, and those that are next. They count as rung."""
        holding: set[str] = set()
        following: set[str] = set()
        for attempt, more in result.rows:
            holding.add(attempt)
            others, queue = called_by(more)
            holding.update(others)
            following.update(queue)
        granted, next_ones = ([each for each in calls if each in self._names] for calls in (holding, following))
        for attempt in (*granted, *next_ones):
            self.discard(attempt)
        return granted, next_ones

    def _where(self, names: dict[str, str]) -> tuple[dict[str, Any], str]:
        values: dict[str, Any] = {f"n{at}": hexed(name) for at, name in enumerate(sorted(set(names.values())))}
        places = ", ".join(f"UNHEX(%({key})s)" for key in values)
        values["namespace"] = hexed(self._session.namespace)
        return values, f"namespace = UNHEX(%(namespace)s) AND name IN ({places})"


def _unless_rung(statement: Statement) -> Work[Result | None]:
    """The statement's result, or None when it was ended by a ring."""
    try:
        result: Result = yield statement
        return result
    except Refused as refused:
        if refused.code not in INTERRUPTED:
            raise
        return None


class MySQLListener:
    """The sleeping connection of a session, in a thread of its own."""

    def __init__(self, session: Session, open: Callable[[float], Any]) -> None:
        self._session = session
        self._open = open
        self._standing = Standing(session)
        self._socket: socket.socket | None = None
        self._stopped = False

    def run(self, ready: Callable[[], None], rung: Callable[[str], None]) -> None:
        connection = self._open(2.0)
        try:
            carry_out(self._session.check(), connection, clock.now() + 2.0)
            carry_out(self._standing.announce(), connection, clock.now() + 5.0)
            self._socket = compat.socket_of(connection.raw)
            ready()
            while not self._stopped:
                for attempt in carry_out(self._standing.nap(), connection, clock.now() + NAP + 5.0):
                    rung(attempt)
        finally:
            self._socket = None
            connection.close()

    def stop(self) -> None:
        self._stopped = True
        hang_up(self._socket)

    def close(self) -> None:
        pass

    def stand_by(self, attempt: str, busy: Busy | None) -> None:
        self._standing.add(attempt, busy)

    def forget(self, attempt: str) -> None:
        self._standing.discard(attempt)
