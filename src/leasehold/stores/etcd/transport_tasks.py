"""Our own connection, for asyncio: one for all calls, which go on at the same time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from ...core import clock
from .endpoints import Endpoints
from .errors import GrpcError
from .http2 import BrokenHttp2, GrpcEnd, GrpcEvent, GrpcMessage, Headers, Http2
from .wire import WATCH, EtcdCall


class TaskConnection(asyncio.Protocol):
    """One connection. ``streams``: what to call with each event of a stream, or with the error that ended it."""

    def __init__(self, host: tuple[str, int]) -> None:
        self.host = host
        self._http = Http2()
        self._streams: dict[int, Callable[[GrpcEvent | Exception], None]] = {}
        self._queues: tuple[deque[asyncio.Future[None]], ...] = (deque(), deque(), deque())
        """Who waits until the server allows another call: renewals, then claims and releases, then new acquires."""
        self._called = 0
        """How many wait no more, and are about to begin their call."""
        self._leaving = False
        self._transport: asyncio.Transport | None = None
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._flush()

    def data_received(self, data: bytes) -> None:
        for event in self._http.receive(data):  # an error here ends the connection: asyncio closes it
            tell = self._streams.get(event.stream)
            if isinstance(event, GrpcEnd):
                self._streams.pop(event.stream, None)
            if tell is not None:
                tell(event)
        self._flush()
        self._call_next()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        streams, self._streams = self._streams, {}
        for tell in streams.values():
            tell(error or BrokenHttp2("the server has closed the connection"))
        self._call_next()

    async def wait_for_room(self, call: EtcdCall) -> None:
        """Wait until the server allows another call, which is to begin at once then; or there is to be none here."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues[0 if call.urgent else 2 if call.patient else 1].append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was called, and does not come
                self._called -= 1
                self._call_next()
            raise
        self._called -= 1

    def leave(self) -> None:
        """It takes no new calls: who waits for room goes elsewhere. Those under way may finish."""
        self._leaving = True
        self._call_next()

    def has_room(self) -> bool:
        return not self.usable or self._http.room > self._called

    def _call_next(self) -> None:
        for queue in self._queues:
            while queue and self.has_room():
                turn = queue.popleft()
                if not turn.done():
                    turn.set_result(None)
                    self._called += 1

    @property
    def usable(self) -> bool:
        gone = self.closed.done() or self._transport is None or self._transport.is_closing()
        return not (gone or self._leaving or self._http.exhausted)

    def begin(
        self,
        headers: Headers,
        messages: tuple[bytes, ...],
        tell: Callable[[GrpcEvent | Exception], None],
        *,
        end: bool,
    ) -> int:
        if self.closed.done():
            raise BrokenHttp2("the server has closed the connection")
        stream = self._http.call(headers, messages, end=end)
        self._streams[stream] = tell
        self._flush()
        return stream

    def send(self, stream: int, messages: tuple[bytes, ...]) -> None:
        if stream not in self._streams:
            raise BrokenHttp2("the stream is over")
        self._http.send(stream, messages)
        self._flush()

    def give_up(self, stream: int) -> None:
        if self._streams.pop(stream, None) is not None:
            self._http.cancel(stream)
            self._flush()
            self._call_next()

    def _flush(self) -> None:
        if self._transport is not None and not self._transport.is_closing() and (out := self._http.to_send()):
            self._transport.write(out)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class TaskWatchStream:
    """A connection with one watch stream."""

    def __init__(self, connection: TaskConnection, endpoints: Endpoints) -> None:
        self._connection = connection
        self.host = connection.host
        self._told: asyncio.Queue[GrpcEvent | Exception] = asyncio.Queue()
        self.token = endpoints.token
        self._stream = connection.begin(endpoints.headers(WATCH), (), self._told.put_nowait, end=False)

    def send(self, messages: list[bytes]) -> None:
        self._connection.send(self._stream, tuple(messages))

    async def read(self, seconds: float) -> list[bytes] | None:
        try:
            async with asyncio.timeout(seconds):
                events = [await self._told.get()]
        except TimeoutError:
            return None
        while not self._told.empty():
            events.append(self._told.get_nowait())
        found = []
        for event in events:
            if isinstance(event, Exception):
                raise event
            if isinstance(event, GrpcEnd):
                raise event.error or BrokenHttp2("the server has ended the watch")
            found.append(event.body)
        return found

    async def close(self) -> None:
        self._connection.close()
        await asyncio.wait({self._connection.closed}, timeout=1.0)


class TaskTransport:
    """Sends calls."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self.after_fork()

    def after_fork(self) -> None:
        """Forget the connection without using it: it is the parent's, or its loop is gone."""
        self._connection: TaskConnection | None = None
        self._connecting: asyncio.Task[TaskConnection] | None = None
        self._old: set[TaskConnection] = set()

    async def send(self, call: EtcdCall, limit: float) -> list[bytes]:
        """The messages that the server answers. Raises GrpcError, OSError."""
        ends = clock.now() + limit
        for last in (False, True):
            token = self._endpoints.token
            try:
                await self._log_in(ends)
                return await self._call(call, ends)
            except GrpcError as error:
                if last or not error.token_is_old:
                    raise
                self._endpoints.logged_out(token)
        raise AssertionError

    async def _log_in(self, ends: float) -> None:
        if self._endpoints.needs_login:
            self._endpoints.logged_in(await self._call(self._endpoints.login()._replace(urgent=True), ends))

    async def _call(self, call: EtcdCall, ends: float) -> list[bytes]:
        limit = ends - clock.now()
        connection = await self._with_room(call, ends)
        messages: list[bytes] = []
        done: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()

        def tell(event: GrpcEvent | Exception) -> None:
            if done.done():
                return
            if isinstance(event, GrpcMessage):
                messages.append(event.body)
            elif isinstance(event, Exception):
                done.set_exception(event)
            elif event.error is not None:
                done.set_exception(event.error)
            else:
                done.set_result(messages)

        stream = connection.begin(self._endpoints.headers(call.method), call.messages, tell, end=True)
        try:
            async with asyncio.timeout(ends - clock.now()):
                return await done
        except (GrpcError, OSError) as error:
            self._endpoints.blame_for(error, connection.host)
            if isinstance(error, TimeoutError):
                connection.give_up(stream)
                self._retire(connection)  # it may hang for ever
                raise TimeoutError(f"no answer within {limit:.3g} s") from None
            raise
        finally:
            connection.give_up(stream)

    async def _with_room(self, call: EtcdCall, ends: float) -> TaskConnection:
        limit = ends - clock.now()
        connection = await self._ready(limit)
        while not connection.has_room():
            try:
                async with asyncio.timeout(ends - clock.now()):
                    await connection.wait_for_room(call)
            except TimeoutError:
                raise TimeoutError(f"the server allowed no more calls within {limit:.3g} s") from None
            if connection.usable:
                break
            connection = await self._ready(ends - clock.now())
        return connection

    async def _ready(self, limit: float) -> TaskConnection:
        """The connection, made by whoever comes first; the others wait for it."""
        connection = self._connection
        if connection is not None and connection.usable and connection.host == self._endpoints.current:
            return connection
        if self._connecting is None or self._connecting.done():
            if connection is not None:
                self._retire(connection)
            self._connecting = asyncio.ensure_future(self._reconnect(limit))
            self._connecting.add_done_callback(_ignore)
        try:
            async with asyncio.timeout(limit):
                return await asyncio.shield(self._connecting)
        except TimeoutError:
            raise TimeoutError(f"no connection within {limit:.3g} s") from None

    async def _reconnect(self, limit: float) -> TaskConnection:
        self._connection = await self._connect(limit)
        return self._connection

    def _retire(self, connection: TaskConnection) -> None:
        """Calls that are under way on it may finish."""
        if self._connection is connection:
            self._connection = None
        connection.leave()
        self._old = {each for each in self._old if not each.closed.done()} | {connection}
        for each in self._old:
            if not each._streams:
                each.close()

    async def _connect(self, limit: float) -> TaskConnection:
        """To the first member that accepts."""
        ends = clock.now() + limit
        loop = asyncio.get_running_loop()
        tries = len(self._endpoints.address.hosts)
        while True:
            tries -= 1
            host = self._endpoints.current
            context = self._endpoints.context
            name = self._endpoints.server_name if context is not None else None
            connection = TaskConnection(host)
            try:
                async with asyncio.timeout(self._endpoints.connect_limit(ends - clock.now())):
                    await loop.create_connection(lambda: connection, *host, ssl=context, server_hostname=name)  # noqa: B023
                return connection
            except asyncio.CancelledError:
                connection.close()  # it may be connected by now: asyncio would wait for the server's farewell
                raise
            except OSError as error:
                connection.close()
                self._endpoints.blame(host)
                if not tries or clock.now() >= ends:
                    if isinstance(error, TimeoutError):
                        raise TimeoutError("{}:{} does not accept a connection".format(*host)) from None
                    raise

    async def watch(self, limit: float) -> TaskWatchStream:
        ends = clock.now() + limit
        await self._log_in(ends)
        return TaskWatchStream(await self._connect(ends - clock.now()), self._endpoints)

    def blame(self, host: tuple[str, int]) -> None:
        self._endpoints.blame(host)

    def logged_out(self, token: bytes) -> None:
        self._endpoints.logged_out(token)

    async def close(self) -> None:
        if self._connecting is not None and not self._connecting.done():
            self._connecting.cancel()
            await asyncio.wait({self._connecting}, timeout=1.0)
        connections = [*self._old] if self._connection is None else [*self._old, self._connection]
        for connection in connections:
            connection.close()
        if connections:
            await asyncio.wait({connection.closed for connection in connections}, timeout=1.0)


def _ignore(task: asyncio.Task[Any]) -> None:
    """Nobody may be left to read its error."""
    if not task.cancelled():
        task.exception()
