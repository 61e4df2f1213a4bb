"""The SQL stores' driver for threads: a small pool of connections, and a listener in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from ... import clock
from ...bells import ThreadBell
from ...errors import StoreError, StoreNotReady, StoreUnavailable
from ...log import DEBUG, ERROR, log
from ...protocol import ALL, Busy, Steps, T
from ...starting import Life
from ..listening import start_listener
from .dialect import Hint, Result, Statement
from .session import (
    POOL_SIZE,
    Broken,
    Deaf,
    Finished,
    NoTurn,
    Refused,
    Session,
    Work,
    broken,
    never_sent,
    once_it_has_its_turn,
)
from .store import Pause
from .turns import LOOK, Slot, Turn, Turns, rank, standing

READY_WITHIN = 1.0
"""How long the first waiter waits until push is up."""
RETRY = 1.0
"""How soon a listener that has lost its connection tries again."""
RETRY_DEAF = 60.0
"""How soon one does that has a connection but hears nothing."""


class Connection(Protocol):
    """One connection in autocommit. Used by one thread at a time."""

    def execute(self, statement: Statement, limit: float) -> Result:
        """Raises Refused, Broken."""

    def stale(self) -> bool:
        """Whether the server has hung up while the connection was idle."""

    def close(self) -> None: ...


class Source(Protocol):
    """Where connections come from, and go to."""

    spare: bool
    """Whether there is one for us however many of its connections are in transactions of the user's."""

    def take(self, limit: float, turn: Turn | None = None) -> tuple[Connection, bool]:
        """A connection, and whether it is new to us. Raises Broken, StoreError. Only a pool of ours knows turns."""

    def give(self, connection: Connection, good: bool) -> None: ...

    def close(self) -> None: ...

    def after_fork(self) -> None: ...


class Listener(Protocol):
    """What waits for rings, in a thread of its own."""

    def run(self, ready: Callable[[], None], rung: Callable[[str], None]) -> None:
        """Listen until told to stop or the connection breaks; call ``ready`` once rings are sure to arrive.

        ``rung`` takes an attempt, or "" where the ring does not say which. Raises Broken, Refused, StoreError."""

    def stop(self) -> None: ...

    def close(self) -> None:
        """Its thread has ended."""

    def stand_by(self, attempt: str, busy: Busy | None) -> None:
        """An attempt is about to sleep until it is rung."""

    def forget(self, attempt: str) -> None: ...


class Pool:
    """At most ``size`` connections, each lent for one operation and never while anybody waits for a lease."""

    spare = True

    def __init__(self, open: Callable[[float], Connection], size: int = POOL_SIZE) -> None:
        self._open = open
        self._size = size
        self._inherited: list[Connection] = []
        self._turns: Turns[Connection] = Turns(size)
        self.after_fork()

    def after_fork(self) -> None:
        """The parent's connections are neither used nor closed: a word on them would be the parent's."""
        self._inherited.extend(slot.connection for slot in self._turns.slots if slot.connection is not None)
        self._turns = Turns(self._size)
        self._mutex = threading.RLock()
        self._closed = False
        self._answered = 0.0

    def take(self, limit: float, turn: Turn | None = None) -> tuple[Connection, bool]:
        turn = turn or standing()
        ends = clock.now() + limit
        bell = ThreadBell()
        turn.wake = bell.ring
        refused: Broken | None = None
        try:
            with self._mutex:
                self._turns.join(turn)
            while True:
                with self._mutex:
                    if self._closed:
                        raise StoreUnavailable("this Locks is closed")
                    self._turns.serve()
                    slot = self._turns.slot_of(turn)
                if slot is None:
                    left = ends - clock.now()
                    if left <= 0:
                        raise NoTurn(self._size, self._answered, limit) from refused
                    bell.wait(min(left, LOOK[turn.rank]))
                    continue
                try:
                    return self._ready(slot, ends)
                except Broken as error:
                    refused = error
                    with self._mutex:
                        if not self._turns.full(turn):
                            raise
        except BaseException:
            with self._mutex:
                self._turns.leave(turn)
            raise

    def _ready(self, slot: Slot[Connection], ends: float) -> tuple[Connection, bool]:
        """The connection of a slot that is ours, and whether it is new."""
        connection = slot.connection
        if connection is not None:
            clean, slot.clean = slot.clean, False
            if clean and (clock.now() - slot.since < 1.0 or not connection.stale()):
                return connection, False
            connection.close()
            slot.connection = None
        slot.connection = connection = self._open(max(0.1, ends - clock.now()))
        return connection, True

    def give(self, connection: Connection, good: bool) -> None:
        slot = self._turns.slot_with(connection)
        if slot is None:  # a child that was forked meanwhile: it is the parent's
            return
        if good:
            self._answered = slot.since = clock.now()
            slot.clean = True
        else:
            connection.close()
            slot.connection = None
        with self._mutex:
            slot.turn = None
            self._turns.serve()
        if self._closed:
            self._close_idle()

    def close(self) -> None:
        with self._mutex:
            self._closed = True
            for turn in self._turns.waiting():
                turn.wake()
        self._close_idle()

    def _close_idle(self) -> None:
        with self._mutex:
            idle = list(self._turns.idle())
        for slot in idle:
            if slot.connection is not None:
                slot.connection.close()
                slot.connection = None


class Gate:
    """An event whose waiters may be interrupted at any point. Once open, it stays open."""

    def __init__(self) -> None:
        self.is_open = False
        self._bell = ThreadBell()

    def open(self) -> None:
        self.is_open = True
        self._bell.ring()

    def wait(self, seconds: float) -> bool:
        if not self.is_open and self._bell.wait(seconds):
            self._bell.ring()  # for the next one
        return self.is_open


class SqlThreads:
    def __init__(self, session: Session, source: Source, listener: Callable[[Session], Listener | None]) -> None:
        self.session = session
        self.source = source
        self._make_listener = listener
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._listener: Listener | None = None
        self._thread: Life | None = None
        self._ready = False
        self._settled = Gate()
        self._known = Gate()
        """Open once rings have arrived, or it is sure that for some time none will."""
        self._closed = Gate()
        self._trouble = "it is turned off, or this driver has none"

    @property
    def on_ring(self) -> Callable[[str], None]:
        return self.session.on_ring

    @on_ring.setter
    def on_ring(self, callback: Callable[[str], None]) -> None:
        self.session.on_ring = callback

    def run(self, steps: Steps[T], limit: float) -> T:
        ends = clock.now() + limit
        try:
            request = next(steps)  # what is known already needs no connection
        except StopIteration as stop:
            known: T = stop.value
            return known
        turn = Turn(rank(request))
        with turn.life:
            return self._run(request, steps, limit, ends, turn)

    def _run(self, request: Any, steps: Steps[T], limit: float, ends: float, turn: Turn) -> T:
        try:
            connection, new = self.source.take(limit, turn)
        except BaseException as error:
            never_sent(steps)
            if isinstance(error, Broken):
                raise broken(error) from (error.__cause__ or error)
            raise
        ends = once_it_has_its_turn(ends, limit)
        good = False
        try:
            if new:
                carry_out(self.session.check(), connection, ends)
            result = carry_out(self.session.statements(request, steps, ends), connection, ends)
            good = True
            return result
        except Finished as finished:
            done: T = finished.result
            return done
        except Broken as error:
            raise broken(error) from (error.__cause__ or error)
        except StoreError as error:  # after any other, it may be in the middle of an answer
            good = not new and not isinstance(error, StoreUnavailable)
            raise
        finally:
            steps.close()
            self.source.give(connection, good)

    # Listening.

    def listen(self, attempt: str, busy: Busy | None) -> bool:
        with self._mutex:
            if self._closed.is_open:
                return False
            if self._thread is None:
                try:
                    self._listener = self._make_listener(self.session)
                except OSError:  # the process can open no more files
                    return False
                if self._listener is None:
                    return False
                self._thread = start_listener(self._listen, "leasehold-sql")
                if self._thread is None:
                    self._listener.close()
                    self._listener = None
                    return False
        listener = self._listener
        if attempt and listener is not None:
            self._settled.wait(READY_WITHIN)
            listener.stand_by(attempt, busy)
        return self.session.hears(self._ready)

    def trouble_listening(self, limit: float) -> str:
        """Why no rings arrive; empty when they do. A connection that broke is tried again, until the limit is over."""
        if not self.listen("", None):
            self._known.wait(limit if self._listener is not None else 0)
        return "" if self._ready else self._trouble

    def forget(self, attempt: str) -> None:
        self.session.waiters.forget(attempt)
        if self._listener is not None:
            self._listener.forget(attempt)

    def _listen(self) -> None:
        listener, closed, settled, known = self._listener, self._closed, self._settled, self._known
        assert listener is not None

        def up() -> None:
            # Whatever was called before this moment has not been heard: have everyone look.
            self._ready = True
            settled.open()
            known.open()
            self.session.rung(ALL)

        while not closed.is_open:
            pause = RETRY
            try:
                listener.run(up, self.session.rung)
            except (Broken, Refused, StoreError) as error:  # without push, waiters look by themselves
                self._trouble = str(error)
                log(DEBUG, "no push from the server: %s", error)
                if isinstance(error, (Deaf, Refused)):
                    pause = RETRY_DEAF  # so it will be for some time
                if isinstance(error, (Deaf, Refused, StoreNotReady)):
                    known.open()
            except Exception as error:
                log(ERROR, "the listener stumbled and goes on: %s", error, exc=error)
            self._ready = False
            settled.open()
            closed.wait(pause)

    def close(self) -> None:
        with self._mutex:
            self._closed.open()
            listener, thread = self._listener, self._thread
        if listener is not None and thread is not None:
            listener.stop()
            if thread.join(2.0):
                listener.close()
        self.source.close()

    def after_fork(self) -> None:
        self.session.renew()
        self.source.after_fork()
        self._reset()


def carry_out(work: Work[T], connection: Connection, ends: float) -> T:
    """Run statements on a connection until the work is done or the time is over."""
    answer: Result | None = None
    error: Refused | Broken | None = None
    try:
        while True:
            todo = work.send(answer) if error is None else work.throw(error)
            answer, error = None, None
            left = ends - clock.now()
            if left <= 0:
                raise StoreUnavailable("the server took too long")
            if isinstance(todo, Pause):
                time.sleep(min(todo.seconds, left))
                continue
            try:
                answer = connection.execute(todo, min(left, todo.within) if isinstance(todo, Hint) else left)
            except (Refused, Broken) as failed:
                error = failed
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        work.close()
