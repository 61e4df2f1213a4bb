"""The MongoDB store's driver for asyncio: pymongo's AsyncMongoClient, and a task that listens for calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import suppress
from contextvars import Context
from inspect import isawaitable
from typing import Any

import pymongo
from bson.errors import BSONError
from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError

from ...core import clock
from ...core.protocol import Busy, Steps, T, await_steps
from ...errors import StoreError, StoreUnavailable
from ..common.main_thread import name_of
from .access import CLOSING, Access
from .driver import Lane, MongoDriver
from .errors import translate
from .requests import PassOn, Sender, Sleep
from .threads import MongoThreads

_left_behind: list[Any] = []
"""Clients of a parent process, or of a loop that was closed with tasks in it, and their tasks: neither used nor
collected here."""


REVIVE = 0.1
"""How long after its listener was cancelled a waiter is woken, if the loop still runs."""


class MongoTasks(MongoDriver):
    client = AsyncMongoClient
    semaphore = asyncio.Semaphore

    def _reset(self) -> None:
        super()._reset()
        self._at_exit: MongoThreads | None = None
        self._cancelled: dict[asyncio.Task[Any], str | None] = {}  # calls under way, and the name each is about
        self._listener: asyncio.Task[None] | None = None
        self._closer: asyncio.Task[None] | None = None

    async def run(self, steps: Steps[T], limit: float) -> T:
        """In a task and a context of its own: cancelling the caller does not tear the connection, and a
        pymongo.timeout() around the caller's code is not about our calls."""
        ends = clock.now() + limit
        if self._cancelled and (before := self._cancelled_of(name_of(steps))):
            # Calls about one name happen in order, also if nobody waits for the first any more.
            _, pending = await asyncio.wait(before, timeout=limit)
            limit = ends - clock.now()
            if pending or limit <= 0:
                raise StoreUnavailable(f"{self._target.where}: timed out waiting for an earlier, cancelled call")
        try:
            lane = self._lane(steps)
        except StopIteration as done:  # nothing is asked
            result: T = done.value
            return result
        if lane is not None:
            await _take_turn(lane, limit)
        task = asyncio.get_running_loop().create_task(self._send(steps, ends), context=Context())
        if lane is not None:
            task.add_done_callback(lambda task: lane.over(not task.cancelled() and task.exception() is None))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                self._cancelled[task] = name_of(steps)
                task.add_done_callback(self._cancelled_done)
            raise

    def _cancelled_of(self, name: str | None) -> list[asyncio.Task[Any]]:
        return [task for task, about in self._cancelled.items() if about == name is not None]

    def _cancelled_done(self, task: asyncio.Task[Any]) -> None:
        self._cancelled.pop(task, None)
        if not task.cancelled():
            task.exception()  # nobody asks for it any more

    async def _send(self, steps: Steps[T], ends: float) -> T:
        access = self._open()
        left = ends - clock.now()
        if left <= 0:
            raise StoreUnavailable(f"{self._target.where}: timed out before the call was sent")
        try:
            with pymongo.timeout(left):
                return await await_steps(steps, lambda request: self._handle(request, access))
        except (PyMongoError, BSONError) as error:
            raise translate(error, self._target.where) from error

    async def _handle(self, request: Any, access: Access) -> Any:
        match request:
            case Sender():
                return self._calls.session, clock.now_us()
            case PassOn(call):
                return await await_steps(self._pass_on(call), lambda request: self._handle(request, access))
            case Sleep(seconds):
                return await asyncio.sleep(seconds)
        try:
            answer = request(access)
            return await answer if isawaitable(answer) else answer
        except RuntimeError as error:
            if "loop" not in str(error):
                raise
            raise translate(error, self._target.where) from error

    # The client.

    def connect(self) -> Access:
        access = super().connect()
        if self._is_ours:
            closing = self._keep_open(access)
            closing.send(None)  # a task that is cancelled before it begins would not even run its `finally`
            self._closer = asyncio.get_running_loop().create_task(closing, context=Context())
        return access

    async def _keep_open(self, access: Access) -> None:
        """Close a client of ours when this task is cancelled or the loop ends. The next call makes a new client.

        Who cancels every task there is cancels also those by which pymongo follows its servers. pymongo does not start
        them again, so the client would lose its servers with the next failure."""
        ended = asyncio.Event()
        life = _life_of(access.client, ended)
        await anext(life)
        try:
            await asyncio.sleep(0)  # the task begins here
            await ended.wait()
        finally:
            if self._access is access:
                self._access = None
                if self._listener is not None:
                    self._listener.cancel()  # it would go on with a client that is closed
            if not ended.is_set():
                await life.aclose()

    # Calls.

    async def listen(self, attempt: str, busy: Busy | None) -> bool:
        """Have the listener started; True once its cursor was open when this attempt last asked."""
        if self._calls.refused:
            return False
        self._calls.attempts.add(attempt)
        # A listener that is done though nobody stopped it was cancelled, with every other task there was.
        if (self._listener is None or self._listener.done()) and not self._closed:
            hear = _until_cancelled(self._hear())
            loop = asyncio.get_running_loop()
            self._listener = loop.create_task(hear, name="leasehold-mongodb", context=Context())
            # If the loop goes on, a waiter starts the next listener.
            self._listener.add_done_callback(lambda _: loop.call_later(REVIVE, self._calls.wake_all))
        return self.hears(attempt)

    async def _hear(self) -> None:
        try:
            access = self._open()
        except StoreError:
            return  # closed
        await await_steps(self._calls.hear(), lambda request: self._handle(request, access))

    # The end.

    async def close(self) -> None:
        self._closed = self._calls.stopped = True
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait({self._listener}, timeout=1.0)
        if self._cancelled:
            await asyncio.wait(self._cancelled, timeout=1.0)
        if self._closer is not None:
            self._closer.cancel()
            await asyncio.wait({self._closer})

    def new_loop(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        if self._access is not None and self._is_ours:
            _left_behind.append((self._access.client, self._closer, self._listener))
        self._reset()

    def run_at_exit(self, steps: Steps[T], limit: float) -> T:
        if not self._is_ours:
            raise StoreUnavailable(f"{self._target.where}: an AsyncMongoClient cannot be used without its event loop")
        if self._at_exit is None:
            self._at_exit = MongoThreads(self._target)
        try:
            return self._at_exit.run(steps, limit)
        except RuntimeError as error:  # no threads any more, and so no connections
            raise StoreUnavailable(f"{self._target.where}: {error}") from error

    def close_at_exit(self) -> None:
        if self._at_exit is not None:
            self._at_exit.close()


async def _take_turn(lane: Lane, limit: float) -> None:
    if not lane.turns.locked():
        await lane.turns.acquire()  # at once
        return
    try:
        async with asyncio.timeout(limit / 2):
            await lane.turns.acquire()
    except TimeoutError:
        raise lane.no_turn(limit) from None


async def _life_of(client: Any, ended: asyncio.Event) -> AsyncGenerator[None, None]:
    """Close a client in the loop that it lives in. A loop that ends closes its asynchronous generators, after its
    tasks: also of a client that was made by a task that was being cancelled."""
    try:
        yield
    finally:
        ended.set()
        with pymongo.timeout(CLOSING), suppress(PyMongoError):
            await client.close()


async def _until_cancelled(work: Coroutine[Any, Any, None]) -> None:
    """Do it in a task that is cancelled until it has ended, however often this one is: pymongo may swallow a
    cancellation while it sends, and then waits for an answer for as long as no call comes. The loop could not end
    meanwhile."""
    task, ending = asyncio.create_task(work), False
    while not task.done():
        if ending:
            task.cancel()
        try:
            await asyncio.wait({task}, timeout=0.2 if ending else None)
        except asyncio.CancelledError:
            ending = True
    if not ending:
        return task.result()
    if not task.cancelled():
        task.exception()  # nobody asks for it any more
    raise asyncio.CancelledError
