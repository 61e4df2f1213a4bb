"""The driver for asyncio: calls over a link, and one listener task for all waiters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from ...core import clock
from ...core.log import WARNING, log
from ...core.protocol import Busy, Steps, T, await_steps
from ...errors import StoreError, StoreUnavailable
from .errors import DRIVER_ERRORS, Refused, translate
from .store import EtcdStore
from .threads import CONNECT_LIMIT, FAREWELL, HEARTBEAT, PAUSES, EtcdThreads, next_pause
from .watches import Ring, Watches
from .wire import Call


class Link(Protocol):
    """Where calls go: our own connections, or a channel that the user has given us."""

    async def send(self, call: Call, limit: float) -> list[bytes]: ...

    async def ear(self, limit: float) -> Any: ...

    def blame(self, host: Any) -> None: ...

    def logged_out(self, token: bytes) -> None: ...

    async def close(self) -> None: ...

    def after_fork(self) -> None: ...


class EtcdTasks:
    def __init__(self, store: EtcdStore, link: Link, where: str, at_exit: Callable[[], EtcdThreads]) -> None:
        self.on_ring: Callable[..., None] = lambda attempt, news=None: None
        self._store = store
        self._link = link
        self._where = where
        self._make_at_exit = at_exit
        self._at_exit: EtcdThreads | None = None
        self.new_loop()

    def new_loop(self) -> None:
        self._link.after_fork()
        self._listener: asyncio.Task[None] | None = None
        self._ear: Any = None
        self._watches = Watches(self._store)
        self._waiting: set[str] = set()
        self._resting: set[asyncio.Task[None]] = set()
        self._closed = False

    def after_fork(self) -> None:
        self._store.reset()
        self.new_loop()

    async def run(self, steps: Steps[T], limit: float) -> T:
        ends = clock.now() + limit

        async def send(request: Any) -> Any:
            left = ends - clock.now()
            if left <= 0:
                raise TimeoutError(f"timed out after {limit:.3g} s")
            return await self._link.send(request, left * request.share)

        try:
            result = await await_steps(steps, send)
            if self._store.sessions.rests:
                self._end_rests()
            return result
        except StoreError:
            raise
        except DRIVER_ERRORS as error:
            raise translate(error, self._where) from error

    def _end_rests(self) -> None:
        self._resting = {each for each in self._resting if not each.done()}
        while rests := self._store.sessions.rests:
            self._resting.add(asyncio.ensure_future(self._end_rest(*rests.pop())))

    async def _end_rest(self, ends: float, lease: int) -> None:
        await asyncio.sleep(max(0.0, ends - clock.now()))
        try:
            await self.run(self._store.end_rest(lease), CONNECT_LIMIT)
        except StoreError:
            pass  # it runs out

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
        if (self._listener is None or self._listener.cancelled()) and not self._closed:
            self._listener = asyncio.ensure_future(self._listen())  # again, if somebody has cancelled every task
        if self._ear is None or self._listener is None or self._listener.cancelling():
            return False
        if busy is None:
            return True
        rings, messages = self._watches.add(attempt, busy.watch)
        self._ring(rings)
        try:
            if messages:
                self._ear.send(messages)
        except DRIVER_ERRORS:
            return False  # the listener will notice
        return True

    def forget(self, attempt: str) -> None:
        self._waiting.discard(attempt)
        self._watches.drop(attempt)  # the server is told with what is sent next

    async def _listen(self) -> None:
        pause = PAUSES[0]
        while not self._closed:
            began = clock.now()
            try:
                ear = await self._link.ear(CONNECT_LIMIT)
                try:
                    await self._begin(ear)
                    await self._hear(ear)
                except (StoreUnavailable, *DRIVER_ERRORS) as error:
                    self._link.blame(ear.host)
                    if isinstance(error, Refused) and error.token_is_old:
                        self._link.logged_out(ear.token)
                    raise
                finally:
                    self._ear = None
                    await ear.close()
            except (StoreUnavailable, *DRIVER_ERRORS) as error:
                log(WARNING, "%s: listener failed, waiters poll until it is back: %s", self._where, error)
            except Exception as error:
                log(WARNING, "%s: listener failed unexpectedly; retrying: %s", self._where, error, exc=error)
            if not self._closed:
                self._ring_all()  # from now on they have to poll
            await asyncio.sleep(pause)
            pause = next_pause(pause, began)

    async def _begin(self, ear: Any) -> None:
        ear.send([self._watches.begin()])
        while not self._watches.listening:
            if messages := self._watches.heard(await ear.read(CONNECT_LIMIT), asked=True)[1]:
                ear.send(messages)
        self._ear = ear
        self._ring_all()  # what happened before we listened

    async def _hear(self, ear: Any) -> None:
        asked = False
        while not self._closed:
            told = await ear.read(HEARTBEAT)
            rings, messages = self._watches.heard(told, asked)
            if messages:
                ear.send(messages)
            self._ring(rings)
            asked = told is None

    def _ring(self, rings: list[Ring]) -> None:
        for ring in rings:
            self.on_ring(*ring)

    def _ring_all(self) -> None:
        """Whoever waits is to ask again, and what is held is to be looked at."""
        for attempt in (*self._waiting, ""):
            self.on_ring(attempt)

    async def close(self) -> None:
        self._closed = True
        ending = {each for each in (self._listener, *self._resting) if each is not None}
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending, timeout=1.0)
        try:
            await self.run(self._store.farewell(), FAREWELL)
        except StoreError:
            pass  # what is left goes when its lease runs out
        await self._link.close()
