"""A client that the user has given us, for asyncio. It stays theirs: it is never closed here."""

from __future__ import annotations

import asyncio
from typing import Any

from .client_threads import get_connection, read_message
from .pool_tasks import Line, Pool
from .pool_threads import MOST


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
