"""A doorbell for MySQL and MariaDB, which have no push: an accelerator, never needed for correctness.

A session has one connection that sleeps in the server. It holds a named lock, by which others find it
(IS_USED_LOCK gives its connection's number), and to ring it they end its sleep: KILL QUERY, which every user may do
to connections of the same user. The number belongs to whoever holds that lock at this moment, so a ring can never
hit anything but a sleeping session of ours. Where named locks are refused (Galera), waiters look by themselves.

A ring that comes between two sleeps is not lost: a sleep begins by looking whether anything was granted meanwhile.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Sequence
from typing import Any

from .. import clock
from ..entry import GRANTED
from ..protocol import Busy
from .mysql_sql import bell, hexed
from .sql_dialect import Result, Statement
from .sql_session import Broken, Refused, Session
from .sql_threads import carry_out

NAP = 25.0
"""How long one sleep in the server lasts."""
INTERRUPTED = (1317, 3024, 1969)


class Standing:
    """Which attempts of the session wait for a ring, and what to ask the server about them. Pure."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._names: dict[str, str] = {}
        """Of attempts that have not been rung since they began to wait."""

    def add(self, attempt: str, busy: Busy | None) -> None:
        if busy is not None and busy.holder is not None:
            self._names[attempt] = busy.holder.name

    def discard(self, attempt: str) -> None:
        self._names.pop(attempt, None)

    def announce(self) -> Statement:
        return Statement("SELECT GET_LOCK(%(bell)s, 1)", {"bell": bell(self._session.address)})

    def sleep(self) -> Statement:
        """Sleep, unless something was granted to one of ours already."""
        names = dict(self._names)
        if not names:
            return Statement(f"SELECT SLEEP({NAP})", {})
        values, where = self._where(names)
        attempts = ", ".join(f"%(a{at})s" for at in range(len(names)))
        values |= {f"a{at}": attempt for at, attempt in enumerate(names)}
        found = f"SELECT COUNT(*) FROM {self._session.dialect.quoted} WHERE {where}"
        return Statement(
            f"SELECT SLEEP(IF(({found} AND state = {GRANTED} AND attempt IN ({attempts})) > 0, 0, {NAP}))", values
        )

    def look(self) -> Statement | None:
        """Who is called? None when nobody waits, so that it must be about what is held."""
        names = dict(self._names)
        if not names:
            return None
        values, where = self._where(names)
        return Statement(f"SELECT attempt, more FROM {self._session.dialect.quoted} WHERE {where}", values)

    def called(self, result: Result) -> Sequence[str]:
        """Of ours, those that hold or are next. They count as rung. [""] when there is none: all look then."""
        calls = set()
        for attempt, more in result.rows:
            calls.add(attempt)
            if more is not None:
                *_, others, queue = json.loads(more)
                calls.update(each[0] for each in others)
                calls.update(each[0] for each in queue[:1])
        ours = [attempt for attempt in calls if attempt in self._names]
        for attempt in ours:
            self.discard(attempt)
        return ours or [""]

    def _where(self, names: dict[str, str]) -> tuple[dict[str, Any], str]:
        values: dict[str, Any] = {f"n{at}": hexed(name) for at, name in enumerate(sorted(set(names.values())))}
        places = ", ".join(f"UNHEX(%({key})s)" for key in values)
        values["namespace"] = hexed(self._session.namespace)
        return values, f"namespace = UNHEX(%(namespace)s) AND name IN ({places})"


class Listener:
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
            if connection.execute(self._standing.announce(), 2.0).rows[0][0] != 1:
                raise Broken("the server gives no named lock")
            self._socket = connection.raw._sock
            ready()
            while not self._stopped:
                try:
                    begun = clock.now()
                    connection.execute(self._standing.sleep(), NAP + 5.0)
                    if clock.now() - begun >= NAP:
                        continue
                except Refused as refused:
                    if refused.code not in INTERRUPTED:
                        raise
                for attempt in self._called(connection):
                    rung(attempt)
        finally:
            self._socket = None
            connection.close()

    def _called(self, connection: Any) -> Sequence[str]:
        for _ in range(5):
            look = self._standing.look()
            if look is None:
                break
            try:
                return self._standing.called(connection.execute(look, 2.0))
            except Refused as refused:  # rung again while it looked
                if refused.code not in INTERRUPTED:
                    raise
        return [""]

    def stop(self) -> None:
        self._stopped = True
        if (sleeping := self._socket) is not None:
            try:
                sleeping.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        pass

    def stand_by(self, attempt: str, busy: Busy | None) -> None:
        self._standing.add(attempt, busy)

    def forget(self, attempt: str) -> None:
        self._standing.discard(attempt)
