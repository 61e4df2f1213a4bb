"""Our own connection, for asyncio: one for all calls, which go on at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ...core import clock
from .endpoints import Endpoints, is_members_fault
from .errors import Refused
from .http2 import Broken, Ended, Http2, Message
from .wire import WATCH, Call


class TaskLine(asyncio.Protocol):
    """One connection. ``streams``: what to call with each event of a stream, or with the error that ended it."""

    def __init__(self, host: tuple[str, int]) -> None:
        self.host = host
        self._http = Http2()
        self._streams: dict[int, Callable[[Message | Ended | Exception], None]] = {}
        self._transport: asyncio.Transport | None = None
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._flush()

    def data_received(self, data: bytes) -> None:
        for event in self._http.receive(data):
            tell = self._streams.get(event.stream)
            if isinstance(event, Ended):
                self._streams.pop(event.stream, None)
            if tell is not None:
                tell(event)
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        streams, self._streams = self._streams, {}
        for tell in streams.values():
            tell(error or Broken("the server has closed the connection"))

    @property
    def usable(self) -> bool:
        return not (
            self.closed.done() or self._http.exhausted or self._transport is None or self._transport.is_closing()
        )

    def begin(
        self,
        block: bytes,
        messages: tuple[bytes, ...],
        tell: Callable[[Message | Ended | Exception], None],
        *,
        end: bool,
    ) -> int:
        if self.closed.done():
            raise Broken("the server has closed the connection")
        stream = self._http.call(block, messages, end=end)
        self._streams[stream] = tell
        self._flush()
        return stream

    def send(self, stream: int, messages: tuple[bytes, ...]) -> None:
        if stream not in self._streams:
            raise Broken("the stream is over")
        self._http.send(stream, messages)
        self._flush()

    def give_up(self, stream: int) -> None:
        if self._streams.pop(stream, None) is not None:
            self._http.cancel(stream)
            self._flush()

    def _flush(self) -> None:
        if self._transport is not None and not self._transport.is_closing() and (out := self._http.to_send()):
            self._transport.write(out)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class TaskEar:
    """A connection with one watch stream."""

    def __init__(self, line: TaskLine, endpoints: Endpoints) -> None:
        self._line = line
        self.host = line.host
        self._told: asyncio.Queue[Message | Ended | Exception] = asyncio.Queue()
        self.token = endpoints.token
        self._stream = line.begin(endpoints.block(WATCH), (), self._told.put_nowait, end=False)

    def send(self, messages: list[bytes]) -> None:
        self._line.send(self._stream, tuple(messages))

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
            if isinstance(event, Ended):
                raise event.refused or Broken("the server has ended the watch")
            found.append(event.body)
        return found

    async def close(self) -> None:
        self._line.close()
        await asyncio.wait({self._line.closed}, timeout=1.0)


class TaskPool:
    """Where calls go."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self.after_fork()

    def after_fork(self) -> None:
        """Forget the connection without using it: it is the parent's, or its loop is gone."""
        self._line: TaskLine | None = None
        self._connecting: asyncio.Task[TaskLine] | None = None
        self._old: set[TaskLine] = set()

    async def send(self, call: Call, limit: float) -> list[bytes]:
        """The messages that the server answers. Raises Refused, OSError."""
        ends = clock.now() + limit
        for last in (False, True):
            token = self._endpoints.token
            try:
                if self._endpoints.needs_login:
                    self._endpoints.logged_in(await self._call(self._endpoints.login(), ends))
                return await self._call(call, ends)
            except Refused as error:
                if last or not error.token_is_old:
                    raise
                self._endpoints.logged_out(token)
        raise AssertionError

    async def _call(self, call: Call, ends: float) -> list[bytes]:
        limit = ends - clock.now()
        line = await self._ready(limit)
        messages: list[bytes] = []
        done: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()

        def tell(event: Message | Ended | Exception) -> None:
            if done.done():
                return
            if isinstance(event, Message):
                messages.append(event.body)
            elif isinstance(event, Exception):
                done.set_exception(event)
            elif event.refused is not None:
                done.set_exception(event.refused)
            else:
                done.set_result(messages)

        stream = line.begin(self._endpoints.block(call.method), call.messages, tell, end=True)
        try:
            async with asyncio.timeout(ends - clock.now()):
                return await done
        except (Refused, OSError) as error:
            if is_members_fault(error):
                self._endpoints.blame(line.host)
            if isinstance(error, TimeoutError):
                line.give_up(stream)
                self._retire(line)  # it may hang for ever
                raise TimeoutError(f"no answer within {limit:.3g} s") from None
            raise
        finally:
            line.give_up(stream)

    async def _ready(self, limit: float) -> TaskLine:
        """The connection, made by whoever comes first; the others wait for it."""
        line = self._line
        if line is not None and line.usable and line.host == self._endpoints.current:
            return line
        if self._connecting is None or self._connecting.done():
            if line is not None:
                self._retire(line)
            self._connecting = asyncio.ensure_future(self._reconnect(limit))
            self._connecting.add_done_callback(_seen)
        try:
            async with asyncio.timeout(limit):
                return await asyncio.shield(self._connecting)
        except TimeoutError:
            raise TimeoutError(f"no connection within {limit:.3g} s") from None

    async def _reconnect(self, limit: float) -> TaskLine:
        self._line = await self._connect(limit)
        return self._line

    def _retire(self, line: TaskLine) -> None:
        """Calls that are under way on it may finish."""
        if self._line is line:
            self._line = None
        self._old = {each for each in self._old if not each.closed.done()} | {line}
        for each in self._old:
            if not each._streams:
                each.close()

    async def _connect(self, limit: float) -> TaskLine:
        """To the first member that accepts."""
        ends = clock.now() + limit
        loop = asyncio.get_running_loop()
        tries = len(self._endpoints.address.hosts)
        while True:
            tries -= 1
            host = self._endpoints.current
            context = self._endpoints.context
            name = (self._endpoints.address.server_name or host[0]) if context is not None else None
            line = TaskLine(host)
            try:
                async with asyncio.timeout(self._endpoints.patience(max(0.001, ends - clock.now()))):
                    await loop.create_connection(lambda: line, *host, ssl=context, server_hostname=name)  # noqa: B023
                return line
            except asyncio.CancelledError:
                line.close()  # it may be connected by now: asyncio would wait for the server's farewell
                raise
            except OSError as error:
                line.close()
                self._endpoints.blame(host)
                if not tries or clock.now() >= ends:
                    if isinstance(error, TimeoutError):
                        raise TimeoutError("{}:{} does not accept a connection".format(*host)) from None
                    raise

    async def ear(self, limit: float) -> TaskEar:
        ends = clock.now() + limit
        if self._endpoints.needs_login:
            self._endpoints.logged_in(await self._call(self._endpoints.login(), ends))
        return TaskEar(await self._connect(ends - clock.now()), self._endpoints)

    def blame(self, host: tuple[str, int]) -> None:
        self._endpoints.blame(host)

    def logged_out(self, token: bytes) -> None:
        self._endpoints.logged_out(token)

    async def close(self) -> None:
        if self._connecting is not None and not self._connecting.done():
            self._connecting.cancel()
            await asyncio.wait({self._connecting}, timeout=1.0)
        lines = [*self._old] if self._line is None else [*self._old, self._line]
        for line in lines:
            line.close()
        if lines:
            await asyncio.wait({line.closed for line in lines}, timeout=1.0)


def _seen(task: asyncio.Task[Any]) -> None:
    """Nobody may be left to hear of it."""
    if not task.cancelled():
        task.exception()
