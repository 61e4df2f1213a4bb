"""The driver for asyncio: connections of the loop, and one listener task for all waiters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ...core.protocol import Busy, Steps, T, await_steps
from ...errors import StoreError
from .driver import EtcdCarrier, EtcdDriver
from .endpoints import Endpoints
from .http2 import BrokenHttp2, Http2
from .store import EtcdStore
from .threads import FAREWELL, EtcdThreads
from .transport import EtcdTransport


async def await_calls(steps: Steps[T]) -> T:
    """Run steps that yield functions whose results are to be awaited."""
    return await await_steps(steps, lambda call: call())


class TaskConnection(asyncio.Protocol):
    """See :class:`leasehold.stores.etcd.transport.EtcdConnection`."""

    def __init__(self, host: tuple[str, int]) -> None:
        self.host = host
        self.http, self.idle_since = Http2(), 0.0
        self._carrier: Any = None
        self._arrived = bytearray()
        self._lost: Exception | None = None
        self._told = asyncio.Event()

    def connection_made(self, carrier: Any) -> None:
        self._carrier = carrier

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        self._told.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = error or BrokenHttp2("the server has closed the connection")
        self._told.set()

    async def exchange(self, out: bytes, seconds: float) -> bytes | None:
        if out:
            self._carrier.write(out)
        if not self._told.is_set():
            if seconds <= 0:
                return None
            try:
                async with asyncio.timeout(seconds):
                    await self._told.wait()
            except TimeoutError:
                return None
        data = bytes(self._arrived)
        self._arrived.clear()
        if self._lost is None:
            self._told.clear()
        elif not data:
            raise self._lost
        return data

    def wake(self) -> None:
        self._told.set()

    def close(self) -> None:
        if self._carrier is not None:
            self._carrier.abort()

    def forget(self) -> None:
        """Neither of the two may be used."""


async def connected(endpoints: Endpoints, limit: float) -> TaskConnection:
    host, context = endpoints.current, endpoints.context
    name = endpoints.server_name if context is not None else None
    connection = TaskConnection(host)
    try:
        async with asyncio.timeout(endpoints.connect_limit(limit)):
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: connection, *host, ssl=context, server_hostname=name)
        return connection
    except BaseException as error:
        connection.close()  # it may be connected by now: asyncio would wait for the server's farewell
        if isinstance(error, TimeoutError):
            raise TimeoutError("{}:{} does not accept a connection".format(*host)) from None
        raise


class TaskTurns:
    """At most ``size`` tasks at once. See :class:`leasehold.stores.common.turns.Turns`."""

    def __init__(self, size: int) -> None:
        self._room = asyncio.Semaphore(size)

    async def take(self, limit: float) -> None:
        try:
            async with asyncio.timeout(limit):
                await self._room.acquire()
        except TimeoutError:
            raise TimeoutError(f"no connection was free within {limit:.3g} s") from None

    def over(self, turn: None) -> None:
        self._room.release()


class TaskTransport(EtcdTransport):
    """For tasks."""

    def __init__(self, endpoints: Endpoints) -> None:
        super().__init__(endpoints, connected, await_calls, TaskTurns)

    async def close(self) -> None:
        super().close()
        await asyncio.sleep(0)  # for the loop, which does it


class EtcdTasks(EtcdDriver):
    _sleep = staticmethod(asyncio.sleep)

    def __init__(
        self, store: EtcdStore, transport: EtcdCarrier, where: str, at_exit: Callable[[], EtcdThreads]
    ) -> None:
        super().__init__(store, transport, where)
        self._make_at_exit = at_exit
        self._at_exit: EtcdThreads | None = None

    def _begin(self) -> None:
        super()._begin()
        self._listener: asyncio.Task[None] | None = None

    async def run(self, steps: Steps[T], limit: float) -> T:
        return await await_calls(self._running(steps, limit))

    def run_at_exit(self, steps: Steps[T], limit: float) -> T:
        if self._at_exit is None:
            self._at_exit = self._make_at_exit()
        return self._at_exit.run(steps, limit)

    def close_at_exit(self) -> None:
        if self._at_exit is not None:
            self._at_exit.close()
        self._transport.after_fork()

    async def listen(self, attempt: str, busy: Busy | None) -> bool:
        if (self._listener is None or self._listener.cancelled()) and not self._closed:
            # Also when somebody has cancelled every task.
            self._listener = asyncio.ensure_future(await_calls(self._listening()))
        ending = self._listener is None or self._listener.cancelling()
        return self._wants(attempt, busy) and not ending

    async def close(self) -> None:
        self._closed = True
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait({self._listener}, timeout=1.0)
        try:
            await self.run(self._store.farewell(), FAREWELL)
        except StoreError:
            pass  # what is left goes when its lease runs out
        await self._transport.close()
