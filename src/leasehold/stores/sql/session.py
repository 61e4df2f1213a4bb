"""What one ``Locks`` knows of its server, and how it asks: with a limit in time, again where that is safe, and with
the right words where it fails.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from ...core import clock
from ...core.log import WARNING, log
from ...core.protocol import SECOND, Steps
from ...errors import StoreUnavailable
from ..common.causes import cut_chain
from .dialect import Dialect, OnlyReads
from .requests import Broken, Full, Pause, Refused, Result, Statement, Turn, Unsent
from .waiting import Waiters

_ADDRESS = re.compile(r"[0-9a-f]{24}")
POOL_SIZE = 4
FIND_TRIES = 10
"""How often to check whether a listener that is awake sleeps again."""
GRACE = 0.2
"""Seconds, at most, by which a server gives up before we do, so that its answer still arrives."""
AT_LEAST = 1.0
"""Seconds that a call has once it has a connection, unless its limit was shorter: a statement that is cut short costs
the connection."""
PATIENCE, BRIEFLY = 1.0, 0.02
"""Seconds that an acquire waits for a locked row: ``acquire``, if it has the time, and ``try_acquire``."""
TO_ANSWER = 0.3
"""Seconds that are left after such a wait, if there are so many. Not half of all: MariaDB waits whole seconds, or not
at all."""
PROBE_FOR = 60.0
"""For how long, after a locked row, an acquire that must not wait probes first, where a statement would wait longer."""
CLOCK_EVERY = 60.0
"""How old what is known of the server's clock may be."""


def once_it_has_its_turn(ends: float, limit: float) -> float:
    """When a call ends that may have waited long for its connection: it has some time for itself."""
    return max(ends, clock.now() + min(limit, AT_LEAST))


def for_the_server(ends: float) -> float:
    """When the server gives up, for a call that ends then."""
    return ends - min(GRACE, (ends - clock.now()) / 10)


class Locked(StoreUnavailable):
    """Somebody's transaction has locked a row that an acquire wants, and its statement has done nothing."""


def no_connection(dialect: Dialect, code: Any, message: str) -> Exception:
    """Why there is none, from the server's code and words."""
    return dialect.turned_away(code, message) or (Full if dialect.is_full(code, message) else Broken)(message)


class Session:
    """Its dialect, its namespace, its address, its waiters, and what it has learned of the server."""

    def __init__(self, dialect: Dialect, namespace: str) -> None:
        self.dialect = dialect
        self.namespace = namespace
        self.waiters = Waiters()
        self.on_ring: Callable[[str], None] = lambda attempt: None
        self.prepares = True
        """Whether to prepare statements: not where something between us and the server does not keep them."""
        self._passed = False
        """Whether a connection has passed its check: the server that we were given is, or was, a primary."""
        self._clock: tuple[float, int] | None = None
        """What the server's clock said, and the local time at which we had the answer."""
        self._probe_until = 0.0
        self._warned = False
        """Whether a log line has said that the server refuses NOTIFY."""
        self.renew()

    def renew(self) -> None:
        """A new address, without waiters: in a new process, or in a forked one."""
        self.address = os.urandom(12).hex()
        self.waiters.reset()

    def rung(self, attempt: str) -> None:
        """The server notified an attempt (or ALL, or HELD)."""
        self.waiters.ring(attempt)
        self.on_ring(attempt)

    def relies_on_push(self, up: bool) -> bool:
        """Whether waiters can rely on wake-ups, given whether the listener is up."""
        return up and clock.now() >= self.waiters.distrusted_until

    def is_another(self, session: str) -> bool:
        """Whether a wake-up for that address is for another process."""
        return session != self.address and _ADDRESS.fullmatch(session) is not None

    def ask(self, statement: Statement, turn: Turn, waits: bool | None = None) -> Steps[Result]:
        """Send a statement, which grants nothing if it is carried out after its caller has given up. Raises StoreError,
        Broken.

        ``waits``: whether to wait for a locked row, for a while, or hardly; it then raises Locked. None: it does not
        matter, as long as there is time."""
        ends: float = yield turn
        until = self._by_the_server(ends) or (yield from self._ask_the_time(ends))
        patience = patience_of(waits, ends)
        probes = patience is not None and clock.now() < self._probe_until and self.dialect.waits_longer(patience)
        if probes and (yield from self.is_locked(turn.names)):  # the statement would wait long before it says so
            raise Locked("the row is locked by another transaction")
        statement = self.dialect.timed(statement, until, patience)
        try:
            result: Result = yield statement
        except Refused as refused:
            result = yield from self._again(statement, refused, patience is not None)
        except Broken:
            if patience is not None:
                self._probe_until = clock.now() + PROBE_FOR  # it may have been a locked row
            raise
        return result

    def is_locked(self, names: Sequence[str]) -> Steps[bool | None]:
        """Whether a row of these names is locked, and not just the space beside it. None: the server cannot tell."""
        probe = self.dialect.probe(self.namespace, names)
        if probe is None:
            return None
        try:
            yield probe
        except Refused as refused:
            return refused.code in self.dialect.LOCKED
        return False

    def clock_is(self, now: int) -> None:
        """What the server's clock said, in an answer that has just come."""
        self._clock = clock.now(), now

    def _by_the_server(self, ends: float) -> int:
        """What the server's clock will say, at least, at local time ``ends``; 0 when that is not known."""
        now = clock.now()
        if now >= ends:
            raise StoreUnavailable("timed out waiting for the server")
        if self._clock is None or now - self._clock[0] > CLOCK_EVERY:
            return 0
        then, said = self._clock
        return said + int((ends - then) * SECOND)

    def _ask_the_time(self, ends: float) -> Steps[int]:
        yield from self._read_clock(Statement(self.dialect.CLOCK, {}))
        return self._by_the_server(ends)

    def _read_clock(self, statement: Statement) -> Steps[Result]:
        """Send a statement whose answer begins with the server's clock."""
        try:
            result: Result = yield statement
        except Refused as refused:
            result = yield from self._again(statement, refused)
        self.clock_is(int(result.rows[0][0]))
        return result

    def check(self) -> Steps[None]:
        """Check the server and the table of a new connection; create the table if it is missing."""
        result = yield from self._read_clock(self.dialect.check())
        try:
            lacking = self.dialect.lacking(result)
        except OnlyReads as error:
            if not self._passed:
                raise
            # Waiters retry until there is a primary again, or until they time out.
            raise StoreUnavailable(f"the server has become read-only: {error}") from error
        yield from self.create(lacking)
        self._passed = True

    def create(self, lacking: Sequence[str]) -> Steps[None]:
        """Make the table, or what it lacks, where that is not there yet."""
        for sql in lacking:
            try:
                yield Statement(sql, {})
            except Refused as refused:
                if refused.code in self.dialect.DENIED:
                    raise self.dialect.not_there(lacking) from refused
                if refused.code not in self.dialect.CREATED:
                    raise self.dialect.error(refused.code, str(refused)) from refused

    def _again(self, statement: Statement, refused: Refused, impatient: bool = False) -> Steps[Result]:
        """After a refusal: send the statement again, create the table first, leave out the wake-ups, or raise."""
        unheard: Refused | None = None
        for tries in count(1):
            code = refused.code
            if impatient and code in self.dialect.LOCKED:
                self._probe_until = clock.now() + PROBE_FOR
                raise Locked(f"the row is locked by another transaction: {refused}") from refused
            if code in self.dialect.UNDONE:
                return Result((), 0)
            if code in self.dialect.UNPREPARED and tries < 3:
                self.prepares = False
            elif code in self.dialect.AGAIN and tries < 20:
                # It was chosen to make way for another, and has done nothing.
                if tries > 1:
                    yield Pause(random.random() * min(0.05, 0.001 * 2**tries))
            elif code in self.dialect.MISSING and tries == 1:
                yield from self.create(self.dialect.schema())
            elif (silent := self.dialect.without_notify(statement)) is not None:
                statement, unheard = silent, refused
            else:
                break
            try:
                result: Result = yield statement
            except Refused as another:
                refused = another
                continue
            if unheard is not None:
                self._notify_is_refused(unheard)
            return result
        raise self.dialect.error(refused.code, str(refused)) from (refused.__cause__ or refused)

    def _notify_is_refused(self, refused: Refused) -> None:
        self.waiters.distrust_push("the server refuses NOTIFY")
        if not self._warned:
            self._warned = True
            message = "the server refuses NOTIFY, waiters poll: %s"
            log(WARNING, message, refused, event="push_refused")

    def ring(self, rings: Sequence[tuple[str, str]]) -> Steps[None]:
        """Send the wake-ups of a swap that is done, where the swap has not. They are hints: a failure is no error."""
        for session, attempt in rings:
            if session == self.address:
                self.rung(attempt)
        for session in dict.fromkeys(session for session, _ in rings if self.is_another(session)):
            try:
                yield from self.wake(session)
            except Refused:
                pass  # it no longer listens, or this user may not wake it: it will check by itself
            except Broken:
                return  # the driver has noticed

    def wake(self, session: str) -> Steps[None]:
        """Wake a session, where an exchange has not notified it. One that is awake is woken once it sleeps again."""
        ring = self.dialect.wake_sleeping(session)
        if ring is not None:
            with suppress(Refused):
                yield ring
                return
        ask = self.dialect.find_listener(session)
        for tries in count():
            if ask is None:
                return
            found, awake = self.dialect.found_listener((yield ask))
            if not awake or tries >= FIND_TRIES:
                if found is not None:
                    yield found
                return
            yield Pause(0.005)


def patience_of(waits: bool | None, ends: float) -> float | None:
    """For how long a statement waits for a locked row; None: as long as there is time. Some time is left after it."""
    if waits is None:
        return None
    left = ends - clock.now()
    return min(PATIENCE, max(left - TO_ANSWER, left / 2)) if waits else min(BRIEFLY, left / 2)


def never_sent(steps: Steps[Any]) -> None:
    """End an operation that got no connection."""
    with suppress(Unsent):
        steps.throw(Unsent())


def broken(error: BaseException) -> StoreUnavailable:
    cut_chain(error.__cause__ or error)
    return StoreUnavailable(f"the connection to the server was lost, or timed out: {error}")
