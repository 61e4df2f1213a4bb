"""The driver for asyncio: calls over a transport, and one listener task for all waiters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ...core import clock
from ...core.protocol import Busy, Steps, T, await_steps
from ...errors import StoreError
from .errors import DRIVER_ERRORS, translate
from .listening import EtcdCarrier, EtcdListener
from .store import EtcdStore
from .threads import FAREWELL, EtcdThreads
from .transport_tasks import await_calls


class EtcdTasks:
    def __init__(
        self, store: EtcdStore, transport: EtcdCarrier, where: str, at_exit: Callable[[], EtcdThreads]
    ) -> None:
        self._store = store
        self._transport = transport
        self._where = where
        self.listener = EtcdListener(store, transport, where)
        self._listening: asyncio.Task[None] | None = None
        self._make_at_exit = at_exit
        self._at_exit: EtcdThreads | None = None

    @property
    def on_ring(self) -> Callable[..., None]:
        return self.listener.on_ring

    @on_ring.setter
    def on_ring(self, function: Callable[..., None]) -> None:
        self.listener.on_ring = function

    def new_loop(self) -> None:
        self._transport.after_fork()
        self.listener.begin()
        self._listening = None

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
                self.listener.wake()
            return result
        except StoreError:
            raise
        except DRIVER_ERRORS as error:
            raise translate(error, self._where) from error

    def run_at_exit(self, steps: Steps[T], limit: float) -> T:
        if self._at_exit is None:
            self._at_exit = self._make_at_exit()
        return self._at_exit.run(steps, limit)

    def close_at_exit(self) -> None:
        if self._at_exit is not None:
            self._at_exit.close()
        self._transport.after_fork()

    async def listen(self, attempt: str, busy: Busy | None) -> bool:
        if (self._listening is None or self._listening.cancelled()) and not self.listener.closed:
            steps = self.listener.listen(self.run, asyncio.sleep)
            self._listening = asyncio.ensure_future(await_calls(steps))  # again, if somebody has cancelled every task
        ending = self._listening is None or self._listening.cancelling()
        return self.listener.wants(attempt, busy) and not ending

    def forget(self, attempt: str) -> None:
        self.listener.forget(attempt)

    async def close(self) -> None:
        self.listener.closed = True
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait({self._listening}, timeout=1.0)
        try:
            await self.run(self._store.farewell(), FAREWELL)
        except StoreError:
            pass  # what is left goes when its lease runs out
        await self._transport.close()
