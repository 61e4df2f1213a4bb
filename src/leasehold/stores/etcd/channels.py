"""Calls over a channel of grpcio that the user has made, or that a client of theirs has: theirs, never closed by us."""

from __future__ import annotations

import asyncio
import inspect
import queue
from collections.abc import AsyncIterator
from typing import Any

import grpc

from ...core import clock
from ...runtime.thread_start import start_thread
from .errors import GrpcError
from .wire import KEEP_ALIVE, WATCH, EtcdCall

Metadata = tuple[tuple[str, str], ...]
_METADATA: Metadata = (("hasleader", "true"),)
ACCEPTED = "a grpc.Channel, a grpc.aio.Channel, or a client that has one as its .channel (such as aetcd.Client)"


def is_asynchronous(given: Any) -> bool:
    """Whether it is for asyncio. Raises TypeError for what has no channel, nor would have one when connected."""
    for each in (given, getattr(given, "channel", None)):
        if isinstance(each, grpc.aio.Channel):
            return True
        if isinstance(each, grpc.Channel):
            return False
    if hasattr(given, "channel") and connects(given):
        return True  # aetcd's has none before it is first used, or entered
    raise TypeError(f"connect() takes {ACCEPTED}, not {type(given).__name__}")


def connects(given: Any) -> bool:
    return inspect.iscoroutinefunction(getattr(given, "connect", None))


def translated(error: grpc.RpcError) -> Exception:
    code, said = error.code(), error.details() or ""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return TimeoutError("timed out waiting for the server")
    return GrpcError(code.value[0], said)


class _Borrowed:
    """What both kinds of channel have in common: whom to talk to and as whom is the user's affair."""

    def __init__(self, given: Any) -> None:
        self._given = given
        self._is_client = not isinstance(given, (grpc.Channel, grpc.aio.Channel))

    def _carrier(self) -> tuple[Any, Metadata]:
        """What carries a call now, and what goes with it: a client that has logged in has a token there."""
        if not self._is_client:
            return self._given, _METADATA
        if self._given.channel is None:
            raise ConnectionError("the client was closed")
        return self._given.channel, (*_METADATA, *(getattr(self._given, "metadata", None) or ()))

    def after_fork(self) -> None:
        pass


class ThreadChannel(_Borrowed):
    def send(self, call: EtcdCall, limit: float) -> list[bytes]:
        method = call.method.decode()
        channel, metadata = self._carrier()
        try:
            if call.method == KEEP_ALIVE:
                ask = channel.stream_stream(method)
                return list(ask(iter(call.messages), timeout=limit, metadata=metadata))
            return [channel.unary_unary(method)(call.messages[0], timeout=limit, metadata=metadata)]
        except grpc.RpcError as error:
            raise translated(error) from error

    def watch(self, limit: float) -> ChannelThreadStream:
        return ChannelThreadStream(*self._carrier())

    def close(self) -> None:
        pass


class _ChannelStream:
    """A watch stream: what is to be sent, and what was told, in queues of the one or the other world."""

    def __init__(self, asked: Any, told: Any) -> None:
        self._asked, self._told = asked, told

    def send(self, messages: list[bytes]) -> None:
        for message in messages:
            self._asked.put_nowait(message)

    def wake(self) -> None:
        self._told.put_nowait(None)

    def failed(self, error: Exception) -> None:
        """Which member is asked, and as whom, is the user's affair."""


def _messages(told: bytes | Exception | None) -> list[bytes]:
    if isinstance(told, Exception):
        raise told
    return [] if told is None else [told]


class ChannelThreadStream(_ChannelStream):
    """grpcio's iterator cannot be waited for with a limit, so a thread reads it."""

    def __init__(self, channel: Any, metadata: Metadata) -> None:
        super().__init__(queue.SimpleQueue(), queue.SimpleQueue())
        self._call = channel.stream_stream(WATCH.decode())(iter(self._asked.get, None), metadata=metadata)
        self._thread = start_thread("leasehold-etcd-watch", self._read)

    def _read(self) -> None:
        try:
            for message in self._call:
                self._told.put(message)
            self._told.put(ConnectionError("the server has ended the watch"))
        except grpc.RpcError as error:
            self._told.put(translated(error))

    def read(self, seconds: float) -> list[bytes] | None:
        try:
            return _messages(self._told.get(timeout=seconds))
        except queue.Empty:
            return None

    def close(self) -> None:
        self._asked.put(None)
        self._call.cancel()
        self._thread.join(1.0)


class TaskChannel(_Borrowed):
    _was_connected = False

    async def _connected(self, limit: float) -> tuple[Any, Metadata]:
        """A client connects when it is first used, as it does for its own calls. One that was closed is not reopened:
        nobody would close it again."""
        if not self._was_connected and self._is_client and connects(self._given):
            try:
                async with asyncio.timeout(limit):
                    await self._given.connect()
            except OSError:
                raise
            except Exception as error:  # the client's own
                if isinstance(error.__cause__, grpc.RpcError):
                    raise translated(error.__cause__) from error
                raise ConnectionError(f"the client failed to connect: {error}") from error
            self._was_connected = True
        return self._carrier()

    async def send(self, call: EtcdCall, limit: float) -> list[bytes]:
        method = call.method.decode()
        ends = clock.now() + limit
        channel, metadata = await self._connected(limit)
        left = max(0.001, ends - clock.now())
        try:
            if call.method == KEEP_ALIVE:
                ask = channel.stream_stream(method)
                return [each async for each in ask(iter(call.messages), timeout=left, metadata=metadata)]
            return [await channel.unary_unary(method)(call.messages[0], timeout=left, metadata=metadata)]
        except grpc.RpcError as error:
            raise translated(error) from error

    async def watch(self, limit: float) -> ChannelTaskStream:
        return ChannelTaskStream(*await self._connected(limit))

    async def close(self) -> None:
        await asyncio.sleep(0)  # for a stream that was closed just now


class ChannelTaskStream(_ChannelStream):
    """Its iterator is read by a task: giving up a read would end the stream."""

    def __init__(self, channel: Any, metadata: Metadata) -> None:
        super().__init__(asyncio.Queue(), asyncio.Queue())
        self._call = channel.stream_stream(WATCH.decode())(self._unsent(), metadata=metadata)
        self._reader = asyncio.ensure_future(self._read())

    async def _unsent(self) -> AsyncIterator[bytes]:
        while True:
            yield await self._asked.get()

    async def _read(self) -> None:
        try:
            async for message in self._call:
                self._told.put_nowait(message)
            self._told.put_nowait(ConnectionError("the server has ended the watch"))
        except grpc.RpcError as error:
            self._told.put_nowait(translated(error))

    async def read(self, seconds: float) -> list[bytes] | None:
        try:
            async with asyncio.timeout(seconds):
                return _messages(await self._told.get())
        except TimeoutError:
            return None

    def close(self) -> None:
        self._call.cancel()
        self._reader.cancel()


class ClosedLoop(ThreadChannel):
    """At the exit, when the loop of an asyncio channel is gone: what is held goes when its lease runs out."""

    def __init__(self) -> None:
        super().__init__(None)

    def _carrier(self) -> tuple[Any, Metadata]:
        raise ConnectionError("the event loop of this channel is closed")
