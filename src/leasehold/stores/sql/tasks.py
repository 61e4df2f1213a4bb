"""The SQL stores' driver for asyncio.

An operation runs in a task of its own that a cancelled caller leaves behind: no connection is ever left in the middle
of an answer. Whatever is asked about the same name after that waits for it, so that giving up comes last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from ...core import clock
from ...core.log import DEBUG, ERROR, log
from ...core.protocol import ALL, Busy, Steps, T
from ...errors import StoreError, StoreUnavailable
from .pool import Fetch, Pool, PutBack, Wait
from .requests import ASK, Broken, Finished, Hint, NoPush, Pause, Refused, Result, Statement, Turn
from .session import POOL_SIZE, Session, broken, for_the_server, never_sent, once_it_has_its_turn
from .slots import RESERVED, Lent
from .threads import READY_WITHIN, RETRY, RETRY_WITHOUT_PUSH, SqlThreads


class AsyncConnection(Protocol):
    """One connection in autocommit. Used by one task at a time, which is never cancelled."""

    async def execute(self, statement: Statement, limit: float) -> Result: ...

    def stale(self) -> bool: ...

    async def close(self) -> None: ...

    def drop(self) -> None:
        """Close it although its loop is gone."""


class AsyncSource(Protocol):
    """A pool of the user's."""

    spare: bool
    """As in :class:`.threads.Source`."""

    def size(self) -> int: ...

    async def take(self, limit: float) -> tuple[AsyncConnection, bool]:
        """As in :class:`.threads.Source`."""

    async def give(self, connection: AsyncConnection, good: bool) -> None: ...

    def after_fork(self) -> None: ...

    def new_loop(self) -> None:
        """The loop of all connections so far is gone."""


class AsyncListener(Protocol):
    async def run(self, ready: Callable[[], None], rung: Callable[[str], None]) -> None:
        """Listen until cancelled or the connection breaks."""

    def stand_by(self, attempt: str, busy: Busy | None) -> None: ...

    def forget(self, attempt: str) -> None: ...


class _Bell:
    def __init__(self) -> None:
        self.rung = asyncio.get_running_loop().create_future()

    def ring(self) -> None:
        if not self.rung.done():
            self.rung.set_result(None)

    async def wait(self, seconds: float) -> bool:
        await asyncio.wait([self.rung], timeout=max(0.0, seconds))
        rung = self.rung.done()
        if rung:
            self.rung = asyncio.get_running_loop().create_future()
        return rung


class AsyncSqlPool:
    """As :class:`.threads.SqlPool`."""

    spare = True

    def __init__(self, open: Callable[[float], Any], size: int = POOL_SIZE) -> None:
        self._open = open
        self._pool: Pool[AsyncConnection] = Pool(size + RESERVED, _drop, keeps=True, checks=False)

    async def take(self, limit: float, urgency: int = ASK) -> Lent[AsyncConnection]:
        return await drive(self._pool.take(limit, urgency, _Bell()), self._do)

    async def give(self, lent: Lent[AsyncConnection], good: bool) -> None:
        await drive(self._pool.give(lent, good), self._do)

    async def close(self) -> None:
        await drive(self._pool.close(), self._do)

    def after_fork(self) -> None:
        self._pool.anew(kept=True)

    def new_loop(self) -> None:
        for slot in self._pool.anew(kept=False):
            connection, slot.connection = slot.connection, None
            if connection is not None:
                connection.drop()

    async def _fetch(self, limit: float) -> tuple[AsyncConnection, bool]:
        return await self._open(limit), True

    async def _put_back(self, connection: AsyncConnection, good: bool) -> None:
        await connection.close()

    async def _do(self, todo: Fetch | PutBack | Wait) -> Any:
        match todo:
            case Fetch(limit):
                return await self._fetch(limit)
            case PutBack(connection, good):
                return await self._put_back(connection, good)
            case Wait(bell, seconds):
                return await bell.wait(seconds)


def _drop(connection: AsyncConnection) -> None:
    connection.drop()


class AsyncBorrowedPool(AsyncSqlPool):
    """As :class:`.threads.BorrowedPool`."""

    def __init__(self, source: AsyncSource) -> None:
        self._source = source
        self._pool = Pool(source.size(), _drop, keeps=False, checks=False)

    def after_fork(self) -> None:
        super().after_fork()
        self._source.after_fork()

    def new_loop(self) -> None:
        super().after_fork()
        self._source.new_loop()

    async def _fetch(self, limit: float) -> tuple[AsyncConnection, bool]:
        return await self._source.take(limit)

    async def _put_back(self, connection: AsyncConnection, good: bool) -> None:
        await self._source.give(connection, good)


class SqlTasks:
    def __init__(
        self,
        session: Session,
        source: AsyncSqlPool | AsyncSource,
        listener: Callable[[Session], AsyncListener | None],
        threads: Callable[[], SqlThreads],
    ) -> None:
        self.session = session
        self.source = source
        self.pool = source if isinstance(source, AsyncSqlPool) else AsyncBorrowedPool(source)
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
            turn: Turn = next(steps)  # which names it is about is known before anything is sent
        except StopIteration as stop:
            result: T = stop.value
            return result
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        task = loop.create_task(self._answer(done, turn, steps, limit))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        try:
            return await done
        except (asyncio.CancelledError, GeneratorExit):
            if not loop.is_closed() and not done.cancel() and not done.cancelled():
                done.exception()  # nobody else will ask
            if not task.done():
                for name in turn.names:
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

    async def _answer(self, done: asyncio.Future[T], turn: Turn, steps: Steps[T], limit: float) -> None:
        """Run an operation and give its caller the result one turn of the loop before the task ends."""
        try:
            result = await self._run(turn, steps, limit)
        except asyncio.CancelledError:
            done.cancel()
            raise
        except Exception as error:
            if not done.done():
                done.set_exception(error)
        else:
            if not done.done():
                done.set_result(result)

    async def _run(self, turn: Turn, steps: Steps[T], limit: float) -> T:
        ends = clock.now() + limit
        if left := {task for name in turn.names for task in self._left.get(name, ())}:
            _, late = await asyncio.wait(left, timeout=limit)
            if late:
                steps.close()
                raise StoreUnavailable("timed out waiting for an earlier, cancelled call")
        try:
            lent = await self.pool.take(max(0.1, ends - clock.now()), turn.urgency)
        except BaseException as error:
            never_sent(steps)
            if isinstance(error, Broken):
                raise broken(error) from (error.__cause__ or error)
            raise
        ends = once_it_has_its_turn(ends, limit)
        good = False
        try:
            if lent.new:
                await carry_out(self.session.check(), lent.connection, ends)
            result = await carry_out(steps, lent.connection, ends, turn)
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
            steps.close()
            await self.pool.give(lent, good)

    # Listening.

    async def listen(self, attempt: str, busy: Busy | None) -> bool:
        if self._closed:
            return False
        if self._listening is None or self._listening.done():  # another task may have cancelled every task of the loop
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
        return self.session.relies_on_push(self._ready and not listening.cancelling())

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
            except (Broken, Refused, StoreError) as error:  # without push, waiters poll
                log(DEBUG, "no push from the server, waiters poll: %s", error)
                if isinstance(error, (NoPush, Refused)):
                    pause = RETRY_WITHOUT_PUSH  # so it will be for some time
            except Exception as error:
                log(ERROR, "listener failed unexpectedly; retrying: %s", error, exc=error)
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
        await self.pool.close()

    def new_loop(self) -> None:
        self.pool.new_loop()
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
        self.pool.after_fork()
        self._reset()


class TasksOfALoop(SqlTasks):
    """With an engine or a pool of the user's that lives in its event loop."""

    def __init__(
        self, session: Session, source: AsyncSource, listener: Callable[[Session], AsyncListener | None]
    ) -> None:
        def threads() -> SqlThreads:
            message = "an async engine or pool needs its event loop: close the Locks before the loop ends"
            raise StoreUnavailable(message)

        super().__init__(session, source, listener, threads)

    def run_at_exit(self, steps: Steps[T], limit: float) -> T:
        try:
            return super().run_at_exit(steps, limit)
        finally:
            steps.close()


async def carry_out(steps: Steps[T], connection: AsyncConnection, ends: float, turn: Turn | None = None) -> T:
    """As for threads."""
    server_ends, lost = for_the_server(ends), False

    async def do(todo: Turn | Pause | Statement) -> Any:
        nonlocal lost
        left = ends - clock.now()
        if left <= 0:
            raise StoreUnavailable("timed out waiting for the server")
        if isinstance(todo, Turn):
            return server_ends
        if isinstance(todo, Pause):
            return await asyncio.sleep(min(todo.seconds, left))
        try:
            return await connection.execute(todo, min(left, todo.within) if isinstance(todo, Hint) else left)
        except Broken:
            lost = True
            raise

    result = await drive(steps, do, turn)
    if lost:
        raise Finished(result)
    return result


async def drive(steps: Steps[T], do: Callable[[Any], Awaitable[Any]], todo: Any = None) -> T:
    """As for threads."""
    answer: Any = None
    error: BaseException | None = None
    try:
        while True:
            if todo is None:
                todo = steps.send(answer) if error is None else steps.throw(error)
            answer = error = None
            try:
                answer = await do(todo)
            except BaseException as failed:
                error = failed
            todo = None
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        error = None  # its traceback refers to this frame
        steps.close()
