"""Push for MySQL and MariaDB, which have none: a connection that sleeps in the server, and is woken with KILL QUERY.

Leases do not depend on it: without push, waiters poll. Each session has one connection that sleeps. It holds a named
lock, from which other processes learn its connection id (IS_USED_LOCK). They wake it with KILL QUERY, which a user may
send to connections of the same user, and which takes an expression: the id is that of the session that holds the lock
now, so a wake-up never hits anything else. Where named locks are refused (Galera), waiters poll.

A wake-up that arrives between two sleeps would be lost. So a second lock says that the connection sleeps, the sender
waits a moment for it, and after each wake-up the listener reads which attempts were granted the name. A listener that
is delayed for longer sleeps only briefly after a wake-up, and reads again. The sleeping statement names no table: it
would lock the table's definition, and every ALTER TABLE would wait for it.

On MariaDB, two wake-ups at the same moment can block each other, and every SLEEP() of the server, for two seconds.
There the statement waits for a transaction that never comes instead, which takes as long.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any

from ...core import clock
from ...core.protocol import ALL, HELD, Busy, Steps
from ..common.sockets import hang_up
from ..sql.requests import NoPush, Refused, Result, Statement
from ..sql.rows import called_by
from ..sql.session import Session
from ..sql.threads import carry_out
from . import compat
from .sql import MySQL, hexed, listener_lock, sleep_lock

SLEEP = 45.0
"""How long one sleep in the server lasts."""
SHORT_SLEEP = 0.25
"""How long the first sleep after a wake-up lasts: well below a first term, which a lost wake-up would use up."""
SLEEPING = f"SELECT GET_LOCK('{listener_lock('')}"
"""How a sleeping statement begins."""
INTERRUPTED = (1317, 3024, 1969)
_NEVER = f"{2**32 - 1}-1-{2**64 - 1}"
_SLEEP = f"CASE WHEN /*M!100010 MASTER_GTID_WAIT('{_NEVER}', %s) = -1 OR */ FALSE THEN 0 ELSE SLEEP(%s) END"
"""Only MariaDB reads what begins with /*M!. MASTER_GTID_WAIT returns -1 when it times out. MySQL sleeps."""


class SleepingListener:
    """The statements of the connection that sleeps, and the attempts that wait for a wake-up. No I/O."""

    def __init__(self, session: Session) -> None:
        self._session = session
        assert isinstance(session.dialect, MySQL)
        self._dialect = session.dialect
        self._names: dict[str, str] = {}
        """The lease that each attempt waits for. An attempt leaves when it is notified."""
        self._lasts = SLEEP

    def add(self, attempt: str, busy: Busy | None) -> None:
        if busy is not None and busy.holder is not None:
            self._names[attempt] = busy.holder.name

    def discard(self, attempt: str) -> None:
        self._names.pop(attempt, None)

    def announce(self) -> Steps[None]:
        """Take the lock by which other processes find this connection. A lost connection of ours may still hold it."""
        values = {"lock": listener_lock(self._session.address)}
        got = (yield Statement("SELECT GET_LOCK(%(lock)s, 1)", values)).rows[0][0]
        if got == 0:
            holder = (yield Statement("SELECT IS_USED_LOCK(%(lock)s)", values)).rows[0][0]
            if holder is not None:
                try:
                    yield Statement(f"KILL {int(holder)}", {})
                except Refused:
                    pass  # it has just gone
            # The killed connection may take a while to end.
            got = (yield Statement("SELECT GET_LOCK(%(lock)s, 3)", values)).rows[0][0]
        if got != 1:
            raise NoPush("GET_LOCK failed: push needs a named lock")

    def sleep(self) -> Steps[Sequence[str]]:
        """Sleep until a wake-up or the end of the time. Returns the attempts to notify. Raises OnlyReads."""
        values = {"asleep": sleep_lock(self._session.address)}
        up = "RELEASE_LOCK(%(asleep)s)"
        sleep = _SLEEP % (self._lasts, self._lasts)
        slept = yield from _unless_ended(Statement(f"SELECT GET_LOCK(%(asleep)s, 0), {sleep}, {up}", values))
        woken = slept is None or bool(slept.rows[0][1])  # some servers answer with an error, some with a result
        if not woken and self._lasts == SLEEP:
            # No wake-up for a long time. Waiters check more often than this. But the server may have become a replica,
            # in which the listener would sleep for ever.
            if (found := (yield from _unless_ended(Statement(self._dialect.READS, {})))) is not None:
                self._dialect.check_writes(*found.rows[0])
                return []
            woken = True
        self._lasts = SHORT_SLEEP if woken else SLEEP
        for _ in range(10):
            check = self._check()
            if woken and not (yield from _unless_ended(Statement(f"SELECT {up}", values))):
                continue  # another wake-up, before this connection had released the lock
            if check is None:
                break
            found = yield from _unless_ended(check)
            if found:
                granted, next_ones = self._notified(found)
                if woken and not granted:  # for the next waiter, or for a held lease: unknown which
                    return [*next_ones, HELD] if next_ones else [ALL]
                return granted + next_ones
            woken = True
        return [ALL] if woken else []

    def _check(self) -> Statement | None:
        """Reads which attempts hold or are next. None without waiters: the wake-up is for a held lease."""
        names = dict(self._names)
        if not names:
            return None
        values, where = self._where(names)
        return Statement(f"SELECT attempt, more FROM {self._dialect.quoted} WHERE {where}", values)

    def _notified(self, result: Result) -> tuple[list[str], list[str]]:
        """The attempts of this session that hold a name, and those that are next. They no longer wait for a wake-up."""
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


def _unless_ended(statement: Statement) -> Steps[Result | None]:
    """The statement's result, or None when a wake-up ended it."""
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
        self._sleeping = SleepingListener(session)
        self._socket: socket.socket | None = None
        self._stopped = False

    def run(self, ready: Callable[[], None], rung: Callable[[str], None]) -> None:
        connection = self._open(2.0)
        try:
            carry_out(self._session.check(), connection, clock.now() + 2.0)
            carry_out(self._sleeping.announce(), connection, clock.now() + 5.0)
            self._socket = compat.socket_of(connection.raw)
            ready()
            while not self._stopped:
                for attempt in carry_out(self._sleeping.sleep(), connection, clock.now() + SLEEP + 5.0):
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
        self._sleeping.add(attempt, busy)

    def forget(self, attempt: str) -> None:
        self._sleeping.discard(attempt)
