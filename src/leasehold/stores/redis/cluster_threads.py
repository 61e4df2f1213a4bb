"""A cluster, for threads: a pool for each node, calls sent to whoever has their slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import AskError, ClusterDownError, RedisError

from ... import clock
from .cluster import HOPS, SLOTS, Node, SlotMap, redirected
from .pool_threads import Ear, Pool
from .scripts import Call


class Cluster:
    def __init__(self, start: Sequence[Node], make: Callable[[Node, float], Any]) -> None:
        self._map = SlotMap(start)
        self._make = make
        self._pools: dict[Node, Pool] = {}

    def send(self, calls: Sequence[Call], limit: float, replicas: int = 0, patience: float = 0.0) -> list[Any]:
        ends = clock.now() + limit
        replies: list[Any] = [None] * len(calls)
        confirmed: list[int] = []
        places = list(range(len(calls)))
        sent_on: dict[int, tuple[Node, bool]] = {}
        for _ in range(HOPS):
            groups: dict[tuple[Node, bool], list[int]] = {}
            for place in places:
                groups.setdefault(sent_on.get(place) or (self._find(calls[place], ends), False), []).append(place)
            places, sent_on = [], {}
            for (node, asking), members in groups.items():
                some = [calls[place] for place in members]
                try:
                    answers = self._pool(node).replies(some, ends - clock.now(), replicas, patience, asking)
                except (RedisError, OSError):
                    self._map.forget()  # it may have a successor
                    raise
                if replicas and not asking:
                    confirmed.append(answers.pop())
                for place, answer in zip(members, answers, strict=True):
                    replies[place] = answer
                    target = redirected(answer)
                    if target is not None:
                        places.append(place)
                        sent_on[place] = target, isinstance(answer, AskError)
                        if not isinstance(answer, AskError):
                            self._map.forget()
            if not places:
                break
        for reply in replies:
            if isinstance(reply, Exception):
                self._map.forget()
                raise reply
        return [*replies, min(confirmed, default=0)] if replicas else replies

    def keys(self, pattern: bytes, limit: float) -> list[bytes]:
        ends = clock.now() + limit
        self._learn(ends)
        return [key for node in self._map.nodes for key in self._pool(node).keys(pattern, ends - clock.now())]

    def ear(self, channel: str, limit: float) -> Ear:
        """At any node: a cluster passes on to all what is published at one."""
        problem: Exception | None = None
        for node in self._map.nodes or self._map.start:
            try:
                return Ear(self._make(node, limit), channel)
            except (RedisError, OSError) as error:
                problem = error
        self._map.forget()
        raise problem or ClusterDownError("no node answers")

    def _find(self, call: Call, ends: float) -> Node:
        if not self._map.known:
            self._learn(ends)
        node = self._map.find(call)
        if node is None:
            self._map.forget()
            raise ClusterDownError("CLUSTERDOWN no node serves the slot")
        return node

    def _learn(self, ends: float) -> None:
        problem: Exception | None = None
        nodes = dict.fromkeys((*self._map.nodes, *self._pools, *self._map.start))
        for node in nodes:
            left = ends - clock.now()
            try:
                self._map.learn(self._pool(node).ask(SLOTS, max(0.05, min(left / 2, 1.0))), node)
                return
            except (RedisError, OSError) as error:
                problem = error
        raise problem or ClusterDownError("no node answers")

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
