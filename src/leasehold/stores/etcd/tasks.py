"""The driver for asyncio: calls over a transport, and one listener task for all waiters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from ...core import clock
from ...core.log import WARNING, log
from ...core.protocol import Busy, Steps, T, await_steps
from ...errors import StoreError, StoreUnavailable
from .errors import DRIVER_ERRORS, GrpcError, translate
from .store import EtcdStore
from .subscriptions import Subscriptions, WakeUp
from .threads import CONNECT_LIMIT, FAREWELL, HEARTBEAT, PAUSES, EtcdThreads, next_pause
from .wire import EtcdCall


class EtcdTaskTransport(Protocol):
    """Where calls go: our own connections, or a channel that the user has given us."""

    async def send(self, call: EtcdCall, limit: float) -> list[bytes]: ...

    async def watch(self, limit: float) -> Any: ...

    def blame(self, host: Any) -> None: ...

    def logged_out(self, token: bytes) -> None: ...

    async def close(self) -> None: ...

    def after_fork(self) -> None: ...


class EtcdTasks:
    def __init__(
        self, store: EtcdStore, transport: EtcdTaskTransport, where: str, at_exit: Callable[[], EtcdThreads]
    ) -> None:
        self.on_ring: Callable[..., None] = lambda attempt, news=None: None
        self._store = store
        self._transport = transport
        self._where = where
        self._make_at_exit = at_exit
        self._at_exit: EtcdThreads | None = None
        self.new_loop()

    def new_loop(self) -> None:
        self._transport.after_fork()
        self._listener: asyncio.Task[None] | None = None
        self._stream: Any = None
        self._subscriptions = Subscriptions(self._store)
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
            return await self._transport.send(request, left)

        try:
            result = await await_steps(steps, send)
            if self._store.session.rests:
                self._end_rests()
            return result
        except StoreError:
            raise
        except DRIVER_ERRORS as error:
            raise translate(error, self._where) from error

    def _end_rests(self) -> None:
        self._resting = {each for each in self._resting if not each.done()}
        while rests := self._store.session.rests:
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
        self._transport.after_fork()

    # Listening.

    async def listen(self, attempt: str, busy: Busy | None) -> bool:
        if attempt:
            self._waiting.add(attempt)
        if (self._listener is None or self._listener.cancelled()) and not self._closed:
            self._listener = asyncio.ensure_future(self._listen())  # again, if somebody has cancelled every task
        if self._stream is None or self._listener is None or self._listener.cancelling():
            return False
        if busy is None:
            return True
        wake_ups, messages = self._subscriptions.add(attempt, busy.watch)
        self._ring(wake_ups)
        try:
            if messages:
                self._stream.send(messages)
        except DRIVER_ERRORS:
            return False  # the listener will notice
        return True

    def forget(self, attempt: str) -> None:
        self._waiting.discard(attempt)
        self._subscriptions.drop(attempt)  # the server is told with what is sent next

    async def _listen(self) -> None:
        pause = PAUSES[0]
        while not self._closed:
            began = clock.now()
            try:
                stream = await self._transport.watch(CONNECT_LIMIT)
                try:
                    await self._begin(stream)
                    await self._hear(stream)
                except (StoreUnavailable, *DRIVER_ERRORS) as error:
                    self._transport.blame(stream.host)
                    if isinstance(error, GrpcError) and error.token_is_old:
                        self._transport.logged_out(stream.token)
                    raise
                finally:
                    self._stream = None
                    await stream.close()
            except (StoreUnavailable, *DRIVER_ERRORS) as error:
                log(WARNING, "%s: listener failed, waiters poll until it is back: %s", self._where, error)
            except Exception as error:
                log(WARNING, "%s: listener failed unexpectedly; retrying: %s", self._where, error, exc=error)
            if not self._closed:
                self._ring_all()  # from now on they have to poll
            await asyncio.sleep(pause)
            pause = next_pause(pause, began)

    async def _begin(self, stream: Any) -> None:
        stream.send([self._subscriptions.begin()])
        while not self._subscriptions.listening:
            if messages := self._subscriptions.heard(await stream.read(CONNECT_LIMIT), asked=True)[1]:
                stream.send(messages)
        self._stream = stream
        self._ring_all()  # what happened before we listened

    async def _hear(self, stream: Any) -> None:
        asked = False
        while not self._closed:
            told = await stream.read(HEARTBEAT)
            wake_ups, messages = self._subscriptions.heard(told, asked)
            if messages:
                stream.send(messages)
            self._ring(wake_ups)
            asked = told is None

    def _ring(self, wake_ups: list[WakeUp]) -> None:
        for ring in wake_ups:
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
        await self._transport.close()
