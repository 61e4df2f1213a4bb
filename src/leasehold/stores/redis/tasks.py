"""The driver for asyncio: calls over a link, and one listener task for all waiters."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ...core.log import WARNING, log
from ...core.protocol import Busy, Steps, T
from ...errors import StoreError, StoreUnavailable
from ..common.waiting import Wake
from .errors import DRIVER_ERRORS, translate, translate_each
from .scripts import Call
from .store import CHANNEL, Confirmed, Each, Keys, Many, RedisStore, read_ring
from .threads import CONNECT_LIMIT, HEARTBEAT, RedisThreads, confirmed
from .waiter import call_waiter


class Link(Protocol):
    """Where calls go: our own connections, or a client that the user has given us."""

    async def call(self, call: Call, limit: float) -> Any: ...

    async def send(
        self, calls: Sequence[Call], limit: float, replicas: int = 0, patience: float = 0.0
    ) -> list[Any]: ...

    async def each(
        self, calls: Sequence[Call], limit: float, replicas: int = 0, patience: float = 0.0
    ) -> list[Any]: ...

    async def keys(self, pattern: bytes, limit: float) -> list[bytes]: ...

    async def ear(self, channel: str, limit: float) -> Any: ...

    async def close(self) -> None: ...

    def after_fork(self) -> None: ...


class RedisTasks:
    def __init__(
        self, store: RedisStore, link: Link, where: str, at_exit: Callable[[], RedisThreads], replicas: int = 0
    ) -> None:
        self.on_ring: Callable[..., None] = lambda attempt, news=None: None
        self._store = store
        self._link = link
        self._where = where
        self._make_at_exit = at_exit
        self._at_exit: RedisThreads | None = None
        self._replicas = replicas
        self._was_writable = False
        self._reset()

    def _reset(self) -> None:
        self._store.begin(os.urandom(8).hex().encode())
        self._listener: asyncio.Task[None] | None = None
        self._up = False
        self._waiting: set[str] = set()
        self._closed = False

    def after_fork(self) -> None:
        self._reset()
        self._link.after_fork()

    new_loop = after_fork

    async def run(self, steps: Steps[T], limit: float) -> T:
        try:
            request = next(steps)
            while True:
                if type(request) is Call:
                    reply = await self._link.call(request, limit)
                    self._was_writable = True
                else:
                    reply = await self._answer(request, limit)
                request = steps.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except BaseException as error:
            steps.close()  # now: a look that has failed is over, however long its error is kept
            if isinstance(error, DRIVER_ERRORS) and not isinstance(error, StoreError):
                raise translate(error, self._where, was_writable=self._was_writable) from error
            raise

    async def _answer(self, request: Any, limit: float) -> Any:
        match request:
            case Many(calls):
                return await self._link.send(calls, limit) if calls else []
            case Confirmed(calls):
                replies = await self._link.send(calls, limit, self._replicas, limit / 2)
                return confirmed(replies, self._replicas)
            case Each(calls, confirm):
                replies = await self._link.each(calls, limit, self._replicas if confirm else 0, limit / 2)
                return translate_each(replies, self._where, was_writable=self._was_writable)
            case Keys(pattern):
                return await self._link.keys(pattern, limit)
            case Wake(attempt):
                return self.on_ring(attempt)
        raise TypeError(request)

    def run_at_exit(self, steps: Steps[T], limit: float) -> T:
        if self._at_exit is None:
            self._at_exit = self._make_at_exit()
        return self._at_exit.run(steps, limit)

    def close_at_exit(self) -> None:
        if self._at_exit is not None:
            self._at_exit.close()
        self._link.after_fork()

    # Listening.

    async def listen(self, attempt: str, busy: Busy | None) -> bool:
        if attempt:
            self._waiting.add(attempt)
        # Again, if somebody has cancelled every task: a user's client may swallow that, and the task ends all the same.
        over = self._listener is None or (self._listener.done() and self._listener.cancelling() > 0)
        if over and not self._closed:
            self._listener = asyncio.ensure_future(self._listen())
        return self._up and self._listener is not None and not self._listener.cancelling()

    def forget(self, attempt: str) -> None:
        self._waiting.discard(attempt)
        self._store.waiters.pop(attempt, None)

    async def _listen(self) -> None:
        pause, away = 0.05, False
        channel = CHANNEL + self._store.session.decode()
        while not self._over():
            try:
                ear = await self._link.ear(channel, CONNECT_LIMIT)
                try:
                    self._up, pause, away = True, 0.05, False
                    self._ring_all()  # what was published before we listened
                    await self._hear(ear)
                finally:
                    self._up = False
                    await ear.close()
            except (TimeoutError, *DRIVER_ERRORS) as error:
                if not away:
                    away = True  # said once, however long it takes
                    log(WARNING, "%s: listener failed, waiters poll until it is back: %s", self._where, error)
            except Exception as error:
                log(WARNING, "%s: listener failed unexpectedly; retrying: %s", self._where, error, exc=error)
            if self._over():
                return
            self._ring_all()  # from now on they have to poll
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)

    async def _hear(self, ear: Any) -> None:
        asked = False
        while not self._over():
            payload = await ear.read(HEARTBEAT)
            if payload:
                self._ring(*read_ring(payload))
            elif payload is None and asked:
                raise StoreUnavailable("the server does not answer")
            elif payload is None:
                await ear.ping()
            asked = payload is None

    def _over(self) -> bool:
        """Whether the listener is to end. A client of the user's may swallow that it was cancelled."""
        task = asyncio.current_task()
        return self._closed or (task is not None and task.cancelling() > 0)

    def _ring_all(self) -> None:
        """Whoever waits is to ask again, and what is held is to be looked at."""
        for attempt in (*self._waiting, ""):
            self._ring(attempt)

    def _ring(self, attempt: str | None, leads: bool = False) -> None:
        """As in ``threads``."""
        if attempt is not None:
            call_waiter(self._store.waiters, attempt, leads)
            self.on_ring(attempt)

    async def close(self) -> None:
        self._closed = True
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait({self._listener}, timeout=1.0)
        await self._link.close()
