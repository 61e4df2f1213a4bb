"""The listener of one ``Locks``: receives the calls for its waiters, in the best way that the server allows.

Its generators yield requests of :mod:`.requests`; a driver runs them in a thread or a task of its own. An answer that
does not come in time is an error, whatever the client's options are: a dead connection is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pymongo
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from ...core import clock
from ...core.log import ERROR, INFO, log
from ...core.protocol import HELD, Busy, Grant, Steps
from ...errors import StoreError
from . import calls
from .access import Access
from .calls import MARK, any_call, callees, cap_calls, make_calls, open_cursor, ways
from .errors import NOT_CAPPED, refuses_push, translate
from .requests import Sleep
from .url import CALLS, STREAM

LONGEST_PAUSE = 5.0
CAP_ANYWAY = 5
"""The try at which to cap the collection of calls though another process was to do it: 1.5 s after the first."""


class CallListener:
    def __init__(self, session: str, where: str, ring: Callable[[str, Grant | Busy | None], None]) -> None:
        self.own = self.session = session
        """The session; ``session`` is how others write it in a call."""
        self._where = where
        self._ring = ring
        self.attempts: set[str] = set()
        """The attempts that listen; "" is the keeper's."""
        self.up = self.refused = self.stopped = False
        self.since = 0.0
        """When the cursor was opened."""
        self._broke = False
        self._way = ""
        self._cursor: Any = None

    @property
    def by_stream(self) -> bool:
        return self.up and self._way == STREAM

    def hear(self) -> Steps[None]:
        """Listen until stopped."""
        try:
            access: Access = yield lambda access: access
        except StoreError:
            return  # closed, or a client that cannot be used
        if not access.take_connection():
            self._refuse("the client's pool has no connection left for the listener: raise maxPoolSize")
            return
        try:
            reasons = []
            for way in ways(access):
                reason = yield from self._hear_by(way)
                if self.stopped:
                    return
                reasons.append(f"{way}: {reason}")
                if self.session != self.own:
                    break  # others do not insert our calls anywhere
            self._refuse("; ".join(reasons) or "push=none")
        finally:
            access.give_connection_back()

    def _hear_by(self, way: str) -> Steps[str]:
        """Until stopped, or until it turns out that this way is not to be had. Returns why."""
        pauses, uncapped = reopen_pauses(), 0
        while not self.stopped:
            before = self.since
            try:
                if uncapped and not (yield from cap_calls(anyway=uncapped >= CAP_ANYWAY)):
                    return "the collection has documents of another program"
                if way == CALLS and not (yield from make_calls()):
                    return "the collection does not exist, and this user may not create it"
                yield from self._follow(way)
            except PyMongoError as error:
                if way == CALLS and isinstance(error, OperationFailure) and error.code == NOT_CAPPED:
                    uncapped += 1
                elif refuses_push(error):
                    return str(translate(error, self._where))
            except StoreError as error:
                return str(error)
            except Exception as error:  # for example a RuntimeError when the system refuses pymongo a thread
                log(ERROR, "listener failed unexpectedly; retrying: %s", error, exc=error)
            if self.since > before and clock.now() - self.since > LONGEST_PAUSE:
                pauses, uncapped = reopen_pauses(), 0  # it was up for long: not the next of many failures
            yield Sleep(next(pauses))
        return "closed"

    def _follow(self, way: str) -> Steps[None]:
        """Hear calls until the cursor breaks or the listener is stopped."""
        with pymongo.timeout(calls.SILENCE):
            cursor = self._cursor = yield lambda access: open_cursor(access, way, self.own)
        cancelled = False
        try:
            if cursor.alive:
                self._opened(way)
            while cursor.alive and not self.stopped:
                with pymongo.timeout(calls.AWAIT + calls.SILENCE):
                    found = yield lambda access: cursor.try_next()
                if found is not None:
                    for session, attempt, news in callees(found.get("call")):
                        if session.endswith(self.own):
                            self._ring(attempt, news)
        except GeneratorExit:
            cancelled = True
            raise
        finally:
            self._cursor = None
            if self.up:
                self.up, self._broke = False, True
                if not cancelled:
                    self.wake_all()

    def _opened(self, way: str) -> None:
        self.since = clock.now()
        self._way = way
        if way == STREAM:
            self.session = MARK + self.own
        self.up = True  # last: another thread that sees it may ask by which way
        if self._broke:
            self.wake_all()  # calls in between, or changes that an election has undone, are not heard
        elif way == STREAM:
            self._ring(HELD, None)  # nor breaks of earlier; a waiter asks again (see ``MongoDriver.hears``)

    def wake_all(self) -> None:
        for attempt in list(self.attempts):
            self._ring(attempt, None)

    def _refuse(self, reason: str) -> None:
        self.refused = True
        log(INFO, "no push through MongoDB, waiters poll: %s", reason, event="no_push", reason=reason)

    def interrupt(self) -> Steps[None]:
        """Have the request that waits on the server answered, from outside of the listener.

        A server notices a killed cursor only when something is written: to the collection of calls, or to the log of
        the replica set, which a linearizable read does."""
        cursor = self._cursor
        if cursor is None:
            return
        if self._way == CALLS:
            if (yield any_call) is not None:
                yield lambda access: access.calls.insert_one({"to": [self.own], "call": ""})
            return
        yield lambda access: access.database.command("killCursors", access.leases.name, cursors=[cursor.cursor_id])
        linearizable = ReadConcern("linearizable")
        yield lambda access: access.leases.with_options(read_concern=linearizable).find_one({"_id": 0}, {"_id": 1})


def reopen_pauses() -> Iterator[float]:
    """Pauses before a cursor that broke is opened again, for each failure in a row."""
    pause = 0.1
    while True:
        yield pause
        pause = min(pause * 2, LONGEST_PAUSE)
