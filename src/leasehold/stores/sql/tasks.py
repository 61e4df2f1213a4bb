"""The SQL stores' driver for asyncio.

An operation runs in a task of its own that a cancelled caller leaves behind: no connection is ever left in the middle
of an answer. Whatever is asked about the same name after that waits for it, so that giving up comes last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ... import clock
from ...errors import StoreError, StoreUnavailable
from ...log import DEBUG, ERROR, log
from ...protocol import ALL, Busy, Steps, T
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
from .store import Pause, ReadAll
from .threads import READY_WITHIN, RETRY, RETRY_DEAF, SqlThreads
from .turns import Slot, Turn, Turns, rank, standing


class AsyncConnection(Protocol):
    """One connection in autocommit. Used by one task at a time, which is never cancelled."""

    async def execute(self, statement: Statement, limit: float) -> Result: ...

    def stale(self) -> bool: ...

    async def close(self) -> None: ...

    def drop(self) -> None:
        """Close it although its loop is gone."""


class AsyncSource(Protocol):
    """Where connections come from, and go to."""

    spare: bool
    """As in :class:`.threads.Source`."""

    async def take(self, limit: float, turn: Turn | None = None) -> tuple[AsyncConnection, bool]:
        """As in :class:`.threads.Source`."""

    async def give(self, connection: AsyncConnection, good: bool) -> None: ...

    async def close(self) -> None: ...

    def after_fork(self) -> None: ...

    def new_loop(self) -> None:
        """The loop of all connections so far is gone."""


class AsyncListener(Protocol):
    async def run(self, ready: Callable[[], None], rung: Callable[[str], None]) -> None:
        """Listen until cancelled or the connection breaks."""

    def stand_by(self, attempt: str, busy: Busy | None) -> None: ...

    def forget(self, attempt: str) -> None: ...


class AsyncPool:
    """At most ``size`` connections, each lent for one operation. Whose turn it is, :mod:`.turns` says."""

    spare = True

    def __init__(self, open: Callable[[float], Any], size: int = POOL_SIZE) -> None:
        self._open = open
        self._size = size
        self._inherited: list[AsyncConnection] = []
        self._turns: Turns[AsyncConnection] = Turns(size)
        self.after_fork()

    def after_fork(self) -> None:
        self._inherited.extend(slot.connection for slot in self._turns.slots if slot.connection is not None)
        self._turns = Turns(self._size)
        self._closed = False
        self._answered = 0.0

    def new_loop(self) -> None:
        for slot in self._turns.slots:
            if slot.connection is not None:
                slot.connection.drop()
                slot.connection = None
        self.after_fork()

    async def take(self, limit: float, turn: Turn | None = None) -> tuple[AsyncConnection, bool]:
        turn = turn or standing()
        ends = clock.now() + limit
        refused: Broken | None = None
        try:
            self._turns.join(turn)
            while True:
                slot = await self._wait(turn, max(0.0, ends - clock.now()))
                if slot is None:
                    raise NoTurn(self._size, self._answered, limit) from refused
                try:
                    return await self._ready(slot, ends)
                except Broken as error:
                    refused = error
                    if not self._turns.full(turn):
                        raise
        except BaseException:
            self._turns.leave(turn)
            raise

    async def _wait(self, turn: Turn, limit: float) -> Slot[AsyncConnection] | None:
        woken = asyncio.get_running_loop().create_future()
        turn.wake = lambda: None if woken.done() else woken.set_result(None)
        if self._turns.slot_of(turn) is None:
            await asyncio.wait([woken], timeout=limit)
        return self._turns.slot_of(turn)

    async def _ready(self, slot: Slot[AsyncConnection], ends: float) -> tuple[AsyncConnection, bool]:
        """The connection of a slot that is ours, and whether it is new."""
        connection = slot.connection
        if connection is not None:
            clean, slot.clean = slot.clean, False
            if clean and (clock.now() - slot.since < 1.0 or not connection.stale()):
                return connection, False
            await connection.close()
            slot.connection = None
        opened: AsyncConnection = await self._open(max(0.1, ends - clock.now()))
        slot.connection = opened
        return opened, True

    async def give(self, connection: AsyncConnection, good: bool) -> None:
        slot = self._turns.slot_with(connection)
        if slot is None:  # of a loop that is gone, or the parent's
            return
        try:
            if good and not self._closed:
                self._answered = slot.since = clock.now()
                slot.clean = True
            else:
                await connection.close()
                slot.connection = None
        finally:
            slot.turn = None
            self._turns.serve()

    async def close(self) -> None:
        self._closed = True
        for slot in list(self._turns.idle()):
            if slot.connection is not None:
                await slot.connection.close()
                slot.connection = None


class SqlTasks:
    def __init__(
        self,
        session: Session,
        source: AsyncSource,
        listener: Callable[[Session], AsyncListener | None],
        threads: Callable[[], SqlThreads],
    ) -> None:
        self.session = session
        self.source = source
        self._make_listener = listener
        self._threads = threads
        self._reset()

    def _reset(self) -> None:
        self._under_way: set[asyncio.Task[Any]] = set()
        self._left: dict[str, set[asyncio.Task[Any]]] = {}
        self._listener: AsyncListener | None = None
        self._listening: asyncio.Task[None] | None = None
        self._ready = False
        self._settled: asyncio.Future[None] | None = None
        self._closed = False
        self._at_exit: SqlThreads | None = None

    @property
    def on_ring(self) -> Callable[[str], None]:
        return self.session.on_ring

    @on_ring.setter
    def on_ring(self, callback: Callable[[str], None]) -> None:
        self.session.on_ring = callback

    async def run(self, steps: Steps[T], limit: float) -> T:
        try:
            request = next(steps)  # which names it is about is known before anything is sent
        except StopIteration as stop:
            result: T = stop.value
            return result
        names = _names(request)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        task = loop.create_task(self._answer(done, request, steps, limit, names))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        try:
            return await done
        except (asyncio.CancelledError, GeneratorExit):
            if not loop.is_closed() and not done.cancel() and not done.cancelled():
                done.exception()  # nobody else will ask
            if not task.done():
                for name in names:
                    self._leave(name, task)
            raise

    def _leave(self, name: str, task: asyncio.Task[Any]) -> None:
        """The caller was cancelled; later operations on the name come after this one."""
        left = self._left.setdefault(name, set())
        left.add(task)

        def ended(task: asyncio.Task[Any]) -> None:
            left.discard(task)
            if not left and self._left.get(name) is left:
                del self._left[name]

        task.add_done_callback(ended)

    async def _answer(
        self, done: asyncio.Future[T], request: Any, steps: Steps[T], limit: float, names: Sequence[str]
    ) -> None:
        """Run an operation, and tell whoever still waits: a turn of the loop sooner than by the end of a task."""
        try:
            result = await self._run(request, steps, limit, names)
        except asyncio.CancelledError:
            done.cancel()
            raise
        except Exception as error:
            if not done.done():
                done.set_exception(error)
        else:
            if not done.done():
                done.set_result(result)

    async def _run(self, request: Any, steps: Steps[T], limit: float, names: Sequence[str]) -> T:
        ends = clock.now() + limit
        if left := {task for name in names for task in self._left.get(name, ())}:
            _, late = await asyncio.wait(left, timeout=limit)
            if late:
                steps.close()
                raise StoreUnavailable("no answer to what was asked before")
        turn = Turn(rank(request))
        with turn.life:
            return await self._run_in_turn(request, steps, limit, ends, turn)

    async def _run_in_turn(self, request: Any, steps: Steps[T], limit: float, ends: float, turn: Turn) -> T:
        try:
            connection, new = await self.source.take(max(0.1, ends - clock.now()), turn)
        except BaseException as error:
            never_sent(steps)
            if isinstance(error, Broken):
                raise broken(error) from (error.__cause__ or error)
            raise
        ends = once_it_has_its_turn(ends, limit)
        good = False
        try:
            if new:
                await carry_out(self.session.check(), connection, ends)
            result = await carry_out(self.session.statements(request, steps, ends), connection, ends)
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
            await self.source.give(connection, good)

    # Listening.

    async def listen(self, attempt: str, busy: Busy | None) -> bool:
        if self._closed:
            return False
        if self._listening is None or self._listening.done():  # somebody has cancelled every task there is
            self._listener = self._make_listener(self.session)
            if self._listener is None:
                return False
            self._settled = asyncio.get_running_loop().create_future()
            self._listening = asyncio.ensure_future(self._listen(self._listener, self._settled))
        listening = self._listening
        if attempt and self._settled is not None and self._listener is not None:
            if not self._settled.done():
                await asyncio.wait([self._settled], timeout=READY_WITHIN)
            self._listener.stand_by(attempt, busy)
        return self.session.hears(self._ready and not listening.cancelling())

    def forget(self, attempt: str) -> None:
        self.session.waiters.forget(attempt)
        if self._listener is not None:
            self._listener.forget(attempt)

    async def _listen(self, listener: AsyncListener, settled: asyncio.Future[None]) -> None:
        def up() -> None:
            self._ready = True
            if not settled.done():
                settled.set_result(None)
            self.session.rung(ALL)

        while not self._closed:
            pause = RETRY
            try:
                await listener.run(up, self.session.rung)
            except (Broken, Refused, StoreError) as error:  # without push, waiters look by themselves
                log(DEBUG, "no push from the server: %s", error)
                if isinstance(error, (Deaf, Refused)):
                    pause = RETRY_DEAF  # so it will be for some time
            except Exception as error:
                log(ERROR, "the listener stumbled and goes on: %s", error, exc=error)
            finally:
                self._ready = False
                if not settled.done() and not settled.get_loop().is_closed():
                    settled.set_result(None)
            await asyncio.sleep(pause)

    async def close(self) -> None:
        self._closed = True
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.cancel()
            await asyncio.wait([listening], timeout=2.0)
        if self._under_way:
            await asyncio.wait(set(self._under_way), timeout=2.0)
        await self.source.close()

    def new_loop(self) -> None:
        self.source.new_loop()
        self.session.waiters.reset()
        self._reset()

    def run_at_exit(self, steps: Steps[T], limit: float) -> T:
        if self._at_exit is None:
            self._at_exit = self._threads()
        return self._at_exit.run(steps, limit)

    def close_at_exit(self) -> None:
        if self._at_exit is not None:
            self._at_exit.close()

    def after_fork(self) -> None:
        self.session.renew()
        self.source.after_fork()
        self._reset()


class TasksOfALoop(SqlTasks):
    """With an engine or a pool of the user's that lives in its event loop."""

    def __init__(
        self, session: Session, source: AsyncSource, listener: Callable[[Session], AsyncListener | None]
    ) -> None:
        def threads() -> SqlThreads:
            message = "an async engine or pool cannot be used without its event loop: close the Locks before that ends"
            raise StoreUnavailable(message)

        super().__init__(session, source, listener, threads)

    def run_at_exit(self, steps: Steps[T], limit: float) -> T:
        try:
            return super().run_at_exit(steps, limit)
        finally:
            steps.close()


def _names(request: Any) -> Sequence[str]:
    """The names that an operation is about, by its first request; renewals, which wait for nobody, tell none."""
    if isinstance(request, ReadAll):
        return request.names
    return (request.name,) if hasattr(request, "name") else ()


async def carry_out(work: Work[T], connection: AsyncConnection, ends: float) -> T:
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
                await asyncio.sleep(min(todo.seconds, left))
                continue
            try:
                answer = await connection.execute(todo, min(left, todo.within) if isinstance(todo, Hint) else left)
            except (Refused, Broken) as failed:
                error = failed
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        work.close()
