"""A cluster, for threads: a pool for each node, calls sent to whoever has their slot. ``cluster.py`` knows the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from redis.exceptions import ClusterDownError, RedisError

from ...core import clock
from ...core.protocol import run_steps
from ...runtime.thread_start import start_thread
from .cluster import SLOTS, Node, Parcel, Pause, Question, SlotMap, attend, deliver, learn
from .pool_threads import Ear, Pool
from .scripts import Call


class Cluster:
    def __init__(self, start: Sequence[Node], make: Callable[[Node, float], Any]) -> None:
        self._map = SlotMap(start)
        self._make = make
        self._pools: dict[Node, Pool] = {}

    def call(self, call: Call, limit: float) -> Any:
        return self.send((call,), limit)[0]

    def send(self, calls: Sequence[Call], limit: float, replicas: int = 0, patience: float = 0.0) -> list[Any]:
        replies = self.each(calls, limit, replicas, patience)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return [*replies, replicas] if replicas else replies  # what has too few is an error

    def each(self, calls: Sequence[Call], limit: float, replicas: int = 0, patience: float = 0.0) -> list[Any]:
        """As ``send``, without a count; an error is the reply of those calls that it concerns."""
        return run_steps(
            deliver(self._map, calls, limit, replicas, patience), lambda request: self._do(request, replicas)
        )

    def _do(self, request: Question | Pause | Sequence[Parcel], replicas: int = 0) -> Any:
        match request:
            case Question(node, limit):
                return self._pool(node).ask(SLOTS, limit, first=True)
            case Pause(seconds):
                return time.sleep(seconds)
        return at_once([partial(self._hand_over, parcel, replicas) for parcel in request])

    def _hand_over(self, parcel: Parcel, replicas: int) -> Any:
        try:
            pool = self._pool(parcel.node)
            return pool.replies(parcel.calls, parcel.limit, replicas, parcel.patience, parcel.asking)
        except (RedisError, OSError) as error:
            return error

    def masters(self, limit: float) -> list[Node]:
        run_steps(learn(self._map, clock.now() + limit), self._do)
        return self._map.masters

    def keys(self, pattern: bytes, limit: float) -> list[bytes]:
        ends = clock.now() + limit
        masters = self.masters(limit)
        return [key for node in masters for key in self._pool(node).keys(pattern, ends - clock.now())]

    def ear(self, channel: str, limit: float) -> Ear:
        """At any node: a cluster passes on to all what is published at one."""
        problem: Exception | None = None
        for node in self._map.masters or self.masters(limit):
            try:
                return NodeEar(self._make(node, limit), channel, partial(self._attend, node))
            except (RedisError, OSError) as error:
                self._map.failed(node)
                problem = error
        self._map.forget()
        raise problem or ClusterDownError("CLUSTERDOWN no node answers")

    def _attend(self, node: Node, sign: int) -> None:
        run_steps(attend(self._map, node, sign), self._do)

    def _pool(self, node: Node) -> Pool:
        pool = self._pools.get(node)
        if pool is None:
            pool = self._pools.setdefault(node, Pool(lambda limit: self._make(node, limit)))
        return pool

    def close(self) -> None:
        for pool in list(self._pools.values()):
            pool.close()

    def after_fork(self) -> None:
        for pool in self._pools.values():
            pool.after_fork()


class NodeEar(Ear):
    """At a node that ``attend`` says is still one of the cluster's, or raises."""

    def __init__(self, connection: Any, channel: str, attend: Callable[[int], None]) -> None:
        super().__init__(connection, channel)
        self._attend = attend
        self._signs = 0

    def ping(self) -> None:
        self._signs += 1
        self._attend(self._signs)
        super().ping()


def at_once(jobs: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each gives: the first is done here, the others each in a thread of its own: none waits for another."""
    results: list[Any] = [None] * len(jobs)

    def do(number: int) -> None:
        try:
            results[number] = jobs[number]()
        except Exception as error:
            results[number] = error

    threads = []
    for number in range(1, len(jobs)):
        try:
            threads.append(start_thread("leasehold-redis-node", do, number))
        except RuntimeError:  # too many, or the interpreter is about to end
            do(number)
    for number in range(min(1, len(jobs))):
        do(number)
    for thread in threads:
        thread.join()
    return results
