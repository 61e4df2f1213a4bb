"""The SQL stores' driver for asyncio.

An operation runs in a task of its own that a cancelled caller leaves behind: no connection is ever left in the middle
of an answer. Whatever is asked about the same name after that waits for it, so that giving up comes last.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from .. import clock
from ..errors import StoreError, StoreUnavailable
from ..log import DEBUG, ERROR, log
from ..protocol import Busy, Steps, T
from .sql import Pause
from .sql_dialect import Result, Statement
from .sql_session import POOL_SIZE, Broken, Refused, Session, Work, broken
from .sql_threads import READY_WITHIN, RETRY, SqlThreads


class AsyncConnection(Protocol):
    """One connection in autocommit. Used by one task at a time, which is never cancelled."""

    async def execute(self, statement: Statement, limit: float) -> Result: ...

    def stale(self) -> bool: ...

    async def close(self) -> None: ...


class AsyncSource(Protocol):
    """Where connections come from, and go to."""

    async def take(self, limit: float) -> tuple[AsyncConnection, bool]: ...

    async def give(self, connection: AsyncConnection, good: bool) -> None: ...

    async def close(self) -> None: ...

    def after_fork(self) -> None: ...


class AsyncListener(Protocol):
    async def run(self, ready: Callable[[], None], rung: Callable[[str], None]) -> None:
        """Listen until cancelled or the connection breaks."""

    def stand_by(self, attempt: str, busy: Busy | None) -> None: ...

    def forget(self, attempt: str) -> None: ...


class AsyncPool:
    """At most ``size`` connections, each lent for one operation; whoever waits longest is served first."""

    def __init__(self, open: Callable[[float], Any], size: int = POOL_SIZE) -> None:
        self._open = open
        self._size = size
        self._inherited: list[AsyncConnection] = []
        self._idle: list[tuple[float, AsyncConnection]] = []
        self.after_fork()

    def after_fork(self) -> None:
        self._inherited.extend(connection for _, connection in self._idle)
        self._idle = []
        self._free = self._size
        self._queue: deque[asyncio.Future[None]] = deque()
        self._closed = False

    async def take(self, limit: float) -> tuple[AsyncConnection, bool]:
        ends = clock.now() + limit
        if self._free:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            self._queue.append(turn)
            await asyncio.wait([turn], timeout=limit)
            if not turn.done():
                turn.cancel()
                raise StoreUnavailable(f"all {self._size} connections of the pool were busy for too long")
        while self._idle:
            since, connection = self._idle.pop()
            if clock.now() - since < 1.0 or not connection.stale():
                return connection, False
            await connection.close()
        try:
            connection = await self._open(max(0.1, ends - clock.now()))
            return connection, True
        except BaseException:
            self._return()
            raise

    async def give(self, connection: AsyncConnection, good: bool) -> None:
        if good and not self._closed:
            self._idle.append((clock.now(), connection))
            self._return()
        else:
            self._return()
            await connection.close()

    def _return(self) -> None:
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            await self._idle.pop()[1].close()


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
            request = next(steps)  # which name it is about is known before anything is sent
        except StopIteration as stop:
            result: T = stop.value
            return result
        name = getattr(request, "name", None)
        task = asyncio.ensure_future(self._run(_resumed(request, steps), limit, name))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        try:
            return await asyncio.shield(task)
        except (asyncio.CancelledError, GeneratorExit):
            if name is not None and not task.done():
                self._leave(name, task)
            raise

    def _leave(self, name: str, task: asyncio.Task[Any]) -> None:
        """The caller was cancelled; later operations on the name come after this one."""
        left = self._left.setdefault(name, set())
        left.add(task)

        def done(task: asyncio.Task[Any]) -> None:
            left.discard(task)
            if not left and self._left.get(name) is left:
                del self._left[name]
            if not task.cancelled():
                task.exception()  # nobody else will ask

        task.add_done_callback(done)

    async def _run(self, steps: Steps[T], limit: float, name: str | None) -> T:
        ends = clock.now() + limit
        if name is not None and name in self._left:
            await asyncio.wait(set(self._left[name]), timeout=limit)
        try:
            connection, new = await self.source.take(max(0.1, ends - clock.now()))
        except Broken as error:
            steps.close()
            raise broken(error) from (error.__cause__ or error)
        good = False
        try:
            if new:
                await carry_out(self.session.check(), connection, ends)
            result = await carry_out(self.session.statements(steps), connection, ends)
            good = True
            return result
        except Broken as error:
            raise broken(error) from (error.__cause__ or error)
        except Exception as error:
            good = not new and not isinstance(error, StoreUnavailable)
            raise
        finally:
            steps.close()
            await self.source.give(connection, good)

    # Listening.

    async def listen(self, attempt: str, busy: Busy | None) -> bool:
        if self._closed:
            return False
        if self._listening is None:
            self._listener = self._make_listener(self.session)
            if self._listener is None:
                return False
            self._settled = asyncio.get_running_loop().create_future()
            self._listening = asyncio.ensure_future(self._listen(self._listener, self._settled))
        if attempt and self._settled is not None and self._listener is not None:
            if not self._settled.done():
                await asyncio.wait([self._settled], timeout=READY_WITHIN)
            self._listener.stand_by(attempt, busy)
        return self._ready

    def forget(self, attempt: str) -> None:
        if self._listener is not None:
            self._listener.forget(attempt)

    async def _listen(self, listener: AsyncListener, settled: asyncio.Future[None]) -> None:
        def up() -> None:
            self._ready = True
            if not settled.done():
                settled.set_result(None)
            self.on_ring("")

        while not self._closed:
            try:
                await listener.run(up, self.on_ring)
            except (Broken, Refused, StoreError) as error:  # without push, waiters look by themselves
                log(DEBUG, "no push from the server: %s", error)
            except Exception as error:
                log(ERROR, "the listener stumbled and goes on: %s", error, exc=error)
            self._ready = False
            if not settled.done():
                settled.set_result(None)
            await asyncio.sleep(RETRY)

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
        self.source.after_fork()
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
        self.new_loop()


def _resumed(request: Any, steps: Steps[T]) -> Steps[T]:
    """Steps whose first request has already been asked for."""
    while True:
        try:
            answer = yield request
        except Exception as error:
            try:
                request = steps.throw(error)
            except StopIteration as stop:
                result: T = stop.value
                return result
        else:
            try:
                request = steps.send(answer)
            except StopIteration as stop:
                result = stop.value
                return result


async def carry_out(work: Work[T], connection: AsyncConnection, ends: float) -> T:
    """Run statements on a connection until the work is done or the time is over."""
    answer: Result | None = None
    error: Refused | None = None
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
                answer = await connection.execute(todo, left)
            except Refused as refused:
                error = refused
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        work.close()
