"""A cluster, for asyncio: a pool for each node, calls sent to whoever has their slot. ``cluster.py`` knows the way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from redis.exceptions import ClusterDownError, RedisError

from ...core import clock
from ...core.protocol import await_steps
from .cluster import SLOTS, Node, Parcel, Pause, Question, SlotMap, attend, deliver, learn
from .pool_tasks import Ear, Pool, subscribe
from .scripts import Call


class Cluster:
    def __init__(self, start: Sequence[Node], make: Callable[[Node, float], Awaitable[Any]]) -> None:
        self._map = SlotMap(start)
        self._make = make
        self._pools: dict[Node, Pool] = {}

    async def call(self, call: Call, limit: float) -> Any:
        return (await self.send((call,), limit))[0]

    async def send(self, calls: Sequence[Call], limit: float, replicas: int = 0, patience: float = 0.0) -> list[Any]:
        replies = await self.each(calls, limit, replicas, patience)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return [*replies, replicas] if replicas else replies  # what has too few is an error

    async def each(self, calls: Sequence[Call], limit: float, replicas: int = 0, patience: float = 0.0) -> list[Any]:
        """As ``send``, without a count; an error is the reply of those calls that it concerns."""
        steps = deliver(self._map, calls, limit, replicas, patience)
        return await await_steps(steps, lambda request: self._do(request, replicas))

    async def _do(self, request: Question | Pause | Sequence[Parcel], replicas: int = 0) -> Any:
        match request:
            case Question(node, limit):
                return await self._pool(node).ask(SLOTS, limit)
            case Pause(seconds):
                return await asyncio.sleep(seconds)
        if len(request) == 1:
            return [await self._hand_over(request[0], replicas)]
        return await asyncio.gather(*(self._hand_over(parcel, replicas) for parcel in request))

    async def _hand_over(self, parcel: Parcel, replicas: int) -> Any:
        try:
            pool = self._pool(parcel.node)
            return await pool.replies(parcel.calls, parcel.limit, replicas, parcel.patience, parcel.asking)
        except (RedisError, OSError) as error:
            return error

    async def _masters(self, limit: float) -> list[Node]:
        await await_steps(learn(self._map, clock.now() + limit), self._do)
        return self._map.masters

    async def keys(self, pattern: bytes, limit: float) -> list[bytes]:
        ends = clock.now() + limit
        masters = await self._masters(limit)
        return [key for node in masters for key in await self._pool(node).keys(pattern, ends - clock.now())]

    async def ear(self, channel: str, limit: float) -> Ear:
        """At any node: a cluster passes on to all what is published at one."""
        problem: Exception | None = None
        for node in self._map.masters or await self._masters(limit):
            try:
                connection = await self._make(node, limit)
                return await subscribe(connection, channel, limit, partial(NodeEar, attend=partial(self._attend, node)))
            except (RedisError, OSError) as error:
                self._map.failed(node)
                problem = error
        self._map.forget()
        raise problem or ClusterDownError("CLUSTERDOWN no node answers")

    async def _attend(self, node: Node, sign: int) -> None:
        await await_steps(attend(self._map, node, sign), self._do)

    def _pool(self, node: Node) -> Pool:
        pool = self._pools.get(node)
        if pool is None:
            pool = self._pools.setdefault(node, Pool(lambda limit: self._make(node, limit)))
        return pool

    async def close(self) -> None:
        for pool in list(self._pools.values()):
            await pool.close()

    def after_fork(self) -> None:
        for pool in self._pools.values():
            pool.after_fork()


class NodeEar(Ear):
    """At a node that ``attend`` says is still one of the cluster's, or raises."""

    def __init__(self, connection: Any, channel: str, attend: Callable[[int], Awaitable[None]]) -> None:
        super().__init__(connection, channel)
        self._attend = attend
        self._signs = 0

    async def ping(self) -> None:
        self._signs += 1
        await self._attend(self._signs)
        await super().ping()
