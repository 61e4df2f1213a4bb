"""The driver for asyncio: carries out a store's requests, and listens in one task for all waiters."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from ...core import clock
from ...core.protocol import Busy, Steps, T
from ...errors import StoreError
from . import limits
from .errors import DRIVER_ERRORS, translate, translate_each
from .listening import SessionListener
from .requests import ScriptCalls
from .store import RedisStore
from .threads import RedisThreads
from .transport_tasks import TaskTransport


class RedisTasks:
    def __init__(
        self, store: RedisStore, transport: TaskTransport, where: str, at_exit: Callable[[], RedisThreads]
    ) -> None:
        self._store = store
        self._transport = transport
        self._where = where
        self._make_at_exit = at_exit
        self._at_exit: RedisThreads | None = None
        self._was_writable = False
        self.listener = SessionListener(store, where)
        self._reset()

    def _reset(self) -> None:
        self._store.begin(os.urandom(8).hex().encode())
        self.listener.reset()
        self._task: asyncio.Task[None] | None = None

    @property
    def on_ring(self) -> Callable[..., None]:
        return self.listener.on_ring

    @on_ring.setter
    def on_ring(self, callback: Callable[..., None]) -> None:
        self.listener.on_ring = callback

    def after_fork(self) -> None:
        self._reset()
        self._transport.after_fork()

    new_loop = after_fork

    async def run(self, steps: Steps[T], limit: float) -> T:
        ends = clock.now() + limit
        try:
            request = next(steps)
            while True:
                request = steps.send(await self._answer(request, ends))
        except StopIteration as stop:
            result: T = stop.value
            return result
        except BaseException as error:
            steps.close()
            if isinstance(error, DRIVER_ERRORS) and not isinstance(error, StoreError):
                raise translate(error, self._where, was_writable=self._was_writable) from error
            raise

    async def _answer(self, request: Any, ends: float) -> Any:
        answer = await self._transport.do(request, ends)
        if isinstance(request, ScriptCalls):
            return translate_each(answer, self._where, was_writable=self._was_writable)
        self._was_writable = True
        return answer

    def run_at_exit(self, steps: Steps[T], limit: float) -> T:
        if self._at_exit is None:
            self._at_exit = self._make_at_exit()
        return self._at_exit.run(steps, limit)

    def close_at_exit(self) -> None:
        if self._at_exit is not None:
            self._at_exit.close()
        self._transport.after_fork()

    async def listen(self, attempt: str, busy: Busy | None) -> bool:
        if attempt:
            self.listener.waiting.add(attempt)
        # Again, if somebody has cancelled every task: redis-py may swallow that, and the task ends all the same.
        over = self._task is None or (self._task.done() and self._task.cancelling() > 0)
        if over and not self.listener.closed:
            self._task = asyncio.ensure_future(self._listen())
        return self.listener.up and self._task is not None and not self._task.cancelling()

    def forget(self, attempt: str) -> None:
        self.listener.forget(attempt)

    async def _listen(self) -> None:
        while not self._is_over():
            error: Exception | None = None
            try:
                await self._hear()
            except Exception as caught:
                error = caught
            finally:
                self.listener.up = False
            if self._is_over():
                return
            self.listener.end(error)
            del error  # its traceback holds this frame
            await asyncio.sleep(self.listener.next_pause())

    async def _hear(self) -> None:
        subscription = await self._transport.subscribe(self.listener.channel, limits.CONNECT_LIMIT)
        try:
            self.listener.begin()
            while not self._is_over():
                if self.listener.hear(await subscription.read(limits.HEARTBEAT)):
                    await subscription.ping()
        finally:
            await subscription.end()

    def _is_over(self) -> bool:
        """Whether the listener is to end: redis-py may swallow that it was cancelled."""
        task = asyncio.current_task()
        return self.listener.closed or (task is not None and task.cancelling() > 0)

    async def close(self) -> None:
        self.listener.closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=1.0)
        await self._transport.close()
