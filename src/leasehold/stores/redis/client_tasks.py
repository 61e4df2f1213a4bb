"""Connections of the pool of a ``redis.asyncio.Redis`` that the user made, as in ``client_threads``."""

from __future__ import annotations

import asyncio
from typing import Any

from .limits import MOST, RETURN_LIMIT
from .requests import NodeAddress, OneServer
from .transport_tasks import TaskTransport


class ClientTaskTransport(TaskTransport):
    def __init__(self, client: Any) -> None:
        self._pool = pool = client.connection_pool
        self._returning: set[asyncio.Task[Any]] = set()
        self._given: dict[int, Any] = {}
        """The client's own time limits."""
        self._stranded: list[Any] = []
        """Connections that were closed without a running loop: to return one takes a loop."""
        super().__init__(OneServer(), self._borrow, min(MOST, max(1, pool.max_connections - 2)))

    async def _borrow(self, node: NodeAddress | None, limit: float) -> Any:
        while self._stranded:
            await self._pool.release(self._stranded.pop())
        connection = await self._pool.get_connection()
        self._given[id(connection)] = connection.socket_timeout
        connection.socket_timeout = None  # each call has a limit of its own
        return connection

    def give_back(self, connection: Any) -> None:
        connection.socket_timeout = self._given.pop(id(connection), connection.socket_timeout)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._stranded.append(connection)
            return
        task = loop.create_task(self._pool.release(connection))  # returned also if our caller is cancelled
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    def after_fork(self) -> None:
        self._returning = set()
        super().after_fork()

    async def close(self) -> None:
        """The client is not ours to close; only what was taken from it returns."""
        await super().close()
        if self._returning:
            await asyncio.wait(self._returning, timeout=RETURN_LIMIT)
