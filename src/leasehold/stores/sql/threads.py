"""The SQL stores' driver for threads: a small pool of connections, and a listener in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from ...core import clock
from ...core.log import DEBUG, ERROR, log
from ...core.protocol import ALL, Busy, Steps, T
from ...errors import StoreError, StoreNotReady, StoreUnavailable
from ...runtime.thread_start import Life, start_thread
from ...runtime.wakeups import ThreadBell
from ..common.main_thread import MainThread
from .pool import Fetch, Pool, PutBack, Wait
from .requests import ASK, Broken, Finished, Hint, NoPush, Pause, Refused, Result, Statement, Turn
from .session import POOL_SIZE, Session, broken, for_the_server, never_sent, once_it_has_its_turn
from .slots import RESERVED, Lent

READY_WITHIN = 1.0
"""How long the first waiter waits until push is up."""
RETRY = 1.0
"""How soon a listener that has lost its connection tries again."""
RETRY_WITHOUT_PUSH = 60.0
"""How soon a listener retries that has a connection on which no wake-up arrives."""


class Connection(Protocol):
    """One connection in autocommit. Used by one thread at a time."""

    def execute(self, statement: Statement, limit: float) -> Result:
        """Raises Refused, Broken."""

    def stale(self) -> bool:
        """Whether the server has hung up while the connection was idle."""

    def close(self) -> None: ...


class Source(Protocol):
    """A pool of the user's: where connections come from for each operation, and go back to."""

    spare: bool
    """Whether there is one for us however many of its connections are in transactions of the user's."""

    def size(self) -> int:
        """How many connections it lends."""

    def take(self, limit: float) -> tuple[Connection, bool]:
        """A connection, and whether it is new to us. Raises Broken, StoreError."""

    def give(self, connection: Connection, good: bool) -> None: ...

    def after_fork(self) -> None: ...


class Listener(Protocol):
    """Waits for wake-ups, in a thread of its own."""

    def run(self, ready: Callable[[], None], rung: Callable[[str], None]) -> None:
        """Listen until stopped or the connection breaks. Calls ``ready`` once wake-ups are sure to arrive.

        ``rung`` takes an attempt, or "" where the wake-up does not say which. Raises Broken, Refused, StoreError."""

    def stop(self) -> None: ...

    def close(self) -> None:
        """Its thread has ended."""

    def stand_by(self, attempt: str, busy: Busy | None) -> None:
        """An attempt is about to wait for a wake-up."""

    def forget(self, attempt: str) -> None: ...


class SqlPool:
    """Our own connections: ``size``, and one more for renewals, releases and claims alone."""

    spare = True

    def __init__(self, open: Callable[[float], Connection], size: int = POOL_SIZE) -> None:
        self._open = open
        self._pool: Pool[Connection] = Pool(size + RESERVED, Connection.close, keeps=True, checks=True)

    def take(self, limit: float, urgency: int = ASK) -> Lent[Connection]:
        """Raises Broken, StoreError."""
        return drive(self._pool.take(limit, urgency, ThreadBell()), self._do)

    def give(self, lent: Lent[Connection], good: bool) -> None:
        drive(self._pool.give(lent, good), self._do)

    def close(self) -> None:
        drive(self._pool.close(), self._do)

    def after_fork(self) -> None:
        """The parent's connections are neither used nor closed: a word on them would be the parent's."""
        self._pool.anew(kept=True)

    def _fetch(self, limit: float) -> tuple[Connection, bool]:
        return self._open(limit), True

    def _put_back(self, connection: Connection, good: bool) -> None:
        connection.close()

    def _do(self, todo: Fetch | PutBack | Wait) -> Any:
        match todo:
            case Fetch(limit):
                return self._fetch(limit)
            case PutBack(connection, good):
                return self._put_back(connection, good)
            case Wait(bell, seconds):
                return bell.wait(seconds)


class BorrowedPool(SqlPool):
    """The same over a pool of the user's: of its connections, our acquires leave one to renewals and releases."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._pool = Pool(source.size(), lambda connection: source.give(connection, False), keeps=False, checks=True)

    def after_fork(self) -> None:
        super().after_fork()
        self._source.after_fork()

    def _fetch(self, limit: float) -> tuple[Connection, bool]:
        return self._source.take(limit)

    def _put_back(self, connection: Connection, good: bool) -> None:
        self._source.give(connection, good)


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
    def __init__(
        self, session: Session, source: SqlPool | Source, listener: Callable[[Session], Listener | None]
    ) -> None:
        self.session = session
        self.source = source
        self.pool = source if isinstance(source, SqlPool) else BorrowedPool(source)
        self._make_listener = listener
        self._reset()

    def _reset(self) -> None:
        # A pool of the user's has mutexes and counts that an exception out of a signal handler leaves wrong for good.
        self._main = None if self.source is self.pool else MainThread(self.session.dialect.scheme)
        self._listener: Listener | None = None
        self._life: Life | None = None
        self._begun = threading.Lock()
        """The thread that listens has it. Nobody waits for it."""
        self._ready = False
        self._settled = Gate()
        self._known = Gate()
        """Open once wake-ups arrive, or once it is sure that for some time none will."""
        self._closed = Gate()
        self._trouble = "push is off, or the driver does not support it"

    @property
    def on_ring(self) -> Callable[[str], None]:
        return self.session.on_ring

    @on_ring.setter
    def on_ring(self, callback: Callable[[str], None]) -> None:
        self.session.on_ring = callback

    def run(self, steps: Steps[T], limit: float) -> T:
        return self._run(steps, limit) if self._main is None else self._main.run(self._run, steps, limit)

    def _run(self, steps: Steps[T], limit: float) -> T:
        ends = clock.now() + limit
        try:
            turn: Turn = next(steps)
        except StopIteration as stop:
            known: T = stop.value
            return known
        try:
            lent = self.pool.take(limit, turn.urgency)
        except BaseException as error:
            never_sent(steps)
            if isinstance(error, Broken):
                raise broken(error) from (error.__cause__ or error)
            raise
        ends = once_it_has_its_turn(ends, limit)
        good = False
        try:
            if lent.new:
                carry_out(self.session.check(), lent.connection, ends)
            result = carry_out(steps, lent.connection, ends, turn)
            good = True
            return result
        except Finished as finished:
            done: T = finished.result
            return done
        except Broken as error:
            raise broken(error) from (error.__cause__ or error)
        except StoreError as error:  # after any other, it may be in the middle of an answer
            good = not lent.new and not isinstance(error, StoreUnavailable)
            raise
        finally:
            try:
                steps.close()
            finally:
                self.pool.give(lent, good)

    # Listening.

    def listen(self, attempt: str, busy: Busy | None) -> bool:
        if self._closed.is_open:
            return False
        if not self._begun.locked():
            try:
                start_thread("leasehold-sql", self._listen)
            except RuntimeError:  # the process can have no more threads: waiters poll, the next one tries again
                return False
        if attempt:
            self._settled.wait(READY_WITHIN)
            if self._listener is not None:
                self._listener.stand_by(attempt, busy)
        return self.session.relies_on_push(self._ready)

    def trouble_listening(self, limit: float) -> str:
        """Why no wake-ups arrive; empty when they do. Retries a connection that broke until the limit is over."""
        if not self.listen("", None):
            self._known.wait(limit)
        return "" if self._ready else self._trouble

    def forget(self, attempt: str) -> None:
        self.session.waiters.forget(attempt)
        if self._listener is not None:
            self._listener.forget(attempt)

    def _listen(self) -> None:
        if not self._begun.acquire(False):
            return  # another listens already
        with Life() as self._life:
            self._keep_listening()

    def _keep_listening(self) -> None:
        begun, closed, settled, known = self._begun, self._closed, self._settled, self._known
        try:
            self._listener = listener = self._make_listener(self.session)
        except OSError:  # the process can open no more files: the next one tries again
            settled.open()
            begun.release()
            return
        if listener is None:
            settled.open()
            known.open()
            return

        def up() -> None:
            # Earlier wake-ups were missed: have every waiter check.
            self._ready = True
            settled.open()
            known.open()
            self.session.rung(ALL)

        while not closed.is_open:
            pause = RETRY
            try:
                listener.run(up, self.session.rung)
            except (Broken, Refused, StoreError) as error:  # without push, waiters poll
                self._trouble = str(error)
                log(DEBUG, "no push from the server, waiters poll: %s", error)
                if isinstance(error, (NoPush, Refused)):
                    pause = RETRY_WITHOUT_PUSH  # so it will be for some time
                if isinstance(error, (NoPush, Refused, StoreNotReady)):
                    known.open()
            except Exception as error:
                log(ERROR, "listener failed unexpectedly; retrying: %s", error, exc=error)
            self._ready = False
            settled.open()
            closed.wait(pause)
        listener.close()

    def close(self) -> None:
        self._closed.open()
        listener, life = self._listener, self._life
        if listener is not None and life is not None:
            listener.stop()
            life.join(2.0)
        self.pool.close()
        if self._main is not None:
            self._main.end()

    def after_fork(self) -> None:
        self.session.renew()
        self.pool.after_fork()
        self._reset()


def carry_out(steps: Steps[T], connection: Connection, ends: float, turn: Turn | None = None) -> T:
    """Run an operation on a connection until it is done or the time is over. ``turn``: what it has yielded already.

    Raises Finished if it is done although the connection broke."""
    server_ends, lost = for_the_server(ends), False

    def do(todo: Turn | Pause | Statement) -> Any:
        nonlocal lost
        left = ends - clock.now()
        if left <= 0:
            raise StoreUnavailable("timed out waiting for the server")
        if isinstance(todo, Turn):
            return server_ends
        if isinstance(todo, Pause):
            return time.sleep(min(todo.seconds, left))
        try:
            return connection.execute(todo, min(left, todo.within) if isinstance(todo, Hint) else left)
        except Broken:
            lost = True
            raise

    result = drive(steps, do, turn)
    if lost:
        raise Finished(result)
    return result


def drive(steps: Steps[T], do: Callable[[Any], Any], todo: Any = None) -> T:
    """Do what the steps yield: the result is sent back, an error thrown in. ``todo``: what they yielded already."""
    answer: Any = None
    error: BaseException | None = None
    try:
        while True:
            if todo is None:
                todo = steps.send(answer) if error is None else steps.throw(error)
            answer = error = None
            try:
                answer = do(todo)
            except BaseException as failed:
                error = failed
            todo = None
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        error = None  # its traceback refers to this frame
        steps.close()
