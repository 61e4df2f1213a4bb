"""A client that the user has given us, for asyncio. It stays theirs: it is never closed here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.exceptions import NoScriptError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ... import clock
from ...errors import StoreNotReady
from .client_threads import RAW, as_bytes, get_connection, read_message
from .pool_tasks import Line, Pool
from .pool_threads import MOST
from .scripts import Call


class Borrowed(Pool):
    """Connections of the pool of a ``redis.asyncio.Redis``. As in ``client_threads``, one or two stay with us."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._pool = pool = client.connection_pool
        self._giving: set[asyncio.Task[Any]] = set()
        self._stranded: list[Any] = []
        super().__init__(self._borrow, min(MOST, max(1, pool.max_connections - 2)))

    def after_fork(self) -> None:
        self._stranded += [line.connection for line in self._lines]  # to give them back takes a loop that runs
        self._giving = set()
        super().after_fork()

    async def _borrow(self, limit: float) -> Any:
        while self._stranded:
            await self._pool.release(self._stranded.pop())
        return await get_connection(self._pool)

    def _close(self, line: Line) -> None:
        super()._close(line)
        task = asyncio.ensure_future(self._pool.release(line.connection))  # also if our caller is cancelled
        self._giving.add(task)
        task.add_done_callback(self._giving.discard)

    async def ear(self, channel: str, limit: float) -> Any:
        return await listen(self._client, channel, limit)

    async def close(self) -> None:
        """The client is not ours to close; only what we have taken from it goes back."""
        await super().close()
        if self._giving:
            await asyncio.wait(self._giving, timeout=1.0)


class BorrowedCluster:
    """A ``redis.asyncio.RedisCluster``, through its own commands."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._unfinished: set[asyncio.Task[Any]] = set()

    async def call(self, call: Call, limit: float) -> Any:
        return (await self.send((call,), limit))[0]

    async def send(self, calls: Sequence[Call], limit: float, replicas: int = 0, patience: float = 0.0) -> list[Any]:
        replies = await self.each(calls, limit)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    async def each(self, calls: Sequence[Call], limit: float, replicas: int = 0, patience: float = 0.0) -> list[Any]:
        """As ``send``; an error reply is among the replies."""
        ends = clock.now() + limit
        if self._unfinished:  # what was cancelled comes before what is asked now
            await asyncio.wait(self._unfinished, timeout=limit)
        task = asyncio.ensure_future(self._send(calls))
        self._unfinished.add(task)
        task.add_done_callback(self._done)
        try:
            async with asyncio.timeout(max(0.0, ends - clock.now())):
                return await asyncio.shield(task)
        except TimeoutError:
            raise RedisTimeoutError(f"no answer within {limit:.3g} s") from None

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._unfinished.discard(task)
        if not task.cancelled():
            task.exception()  # seen: whoever still waits for it gets it too

    async def _send(self, calls: Sequence[Call]) -> list[Any]:
        if len(calls) == 1:
            return [await self._call(calls[0])]
        await self._client.initialize()
        pipeline = self._client.pipeline()
        for call in calls:
            pipeline.execute_command("EVALSHA", *call.short()[1:])
        replies = list(await pipeline.execute(raise_on_error=False))
        for place, reply in enumerate(replies):
            if isinstance(reply, NoScriptError):
                replies[place] = await self._call(calls[place])
        return replies

    async def _call(self, call: Call) -> Any:
        try:
            return await self._client.execute_command("EVALSHA", *call.short()[1:], **RAW)
        except NoScriptError:
            return await self._client.execute_command("EVAL", *call.whole()[1:], **RAW)

    async def keys(self, pattern: bytes, limit: float) -> list[bytes]:
        return [as_bytes(key) async for key in self._client.scan_iter(match=pattern, count=1000)]

    async def ear(self, channel: str, limit: float) -> ClientEar:
        if not hasattr(self._client, "pubsub"):
            raise StoreNotReady("this redis-py has no pub/sub for a cluster under asyncio: upgrade it for wake-ups")
        await self._client.initialize()
        return await listen(self._client, channel, limit)

    async def close(self) -> None:
        if self._unfinished:
            await asyncio.wait(self._unfinished, timeout=1.0)

    def after_fork(self) -> None:
        self._unfinished = set()


async def listen(client: Any, channel: str, limit: float) -> ClientEar:
    pubsub = client.pubsub()
    try:
        async with asyncio.timeout(limit):
            await pubsub.subscribe(channel)
            while await pubsub.get_message(timeout=limit) is None:
                pass
    except BaseException:
        await pubsub.aclose()
        raise
    return ClientEar(pubsub)


class ClientEar:
    """The client's own pub/sub."""

    def __init__(self, pubsub: Any) -> None:
        self._pubsub = pubsub

    async def read(self, seconds: float) -> bytes | None:
        return read_message(await self._pubsub.get_message(timeout=seconds))

    async def ping(self) -> None:
        await self._pubsub.ping()

    async def close(self) -> None:
        await self._pubsub.aclose()
