"""How calls find their way in a cluster: which node has which slot, and what its answers mean.

Without I/O, written once; ``cluster_threads`` and ``cluster_tasks`` ask the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError

from ...core import clock
from ...core.protocol import Steps
from ...errors import StoreUnavailable
from .scripts import Call

SLOTS = (b"CLUSTER", b"SLOTS")
HOPS = 5
"""How often a call is sent on before it counts as failed."""
PAUSE = 0.05
"""Before a call is sent again of whose keys only some have moved to another node, or none is there yet."""
SHARE = 0.5
"""Of the limit, for calls to several nodes: time must be left for what the others say when one of them hangs."""
LOOK_EVERY = 4
"""In so many signs of life of a listener one is that its node still belongs to the cluster."""
_ELSEWHERE = ("CLUSTERDOWN", "READONLY", "LOADING", "MASTERDOWN")
"""Error replies of a node that may have a successor."""

Node = tuple[str, int]


class Parcel(NamedTuple):
    """Calls for one node, sent in one go. Answered with what ``Lines.replies`` gives, or the error in place of it."""

    node: Node
    asking: bool
    """Its slots are on their way to this node."""
    calls: Sequence[Call]
    limit: float
    patience: float


class Question(NamedTuple):
    """Ask a node who has which slot; answered with its reply to ``SLOTS``."""

    node: Node
    limit: float


class Pause(NamedTuple):
    seconds: float


class SlotMap:
    """Who serves a slot, as far as we know; the nodes of the URL until we have asked."""

    def __init__(self, start: Iterable[Node]) -> None:
        self._start = list(start)
        self._ranges: list[tuple[int, int, Node]] = []
        self._told: list[Node] = []
        """Who has a slot that another no longer has: it knows best."""
        self._away: set[Node] = set()
        """Those that did not answer when last asked."""
        self._unsure: set[Node] = set()
        """Those whose slots may be another's by now."""
        self.members: frozenset[Node] = frozenset()
        """All nodes that have slots, or follow one that has, when we last asked."""

    def learn(self, reply: Sequence[Any], asked: Node) -> bool:
        """Take in the answer to CLUSTER SLOTS; False when it says nothing, as that of a node does which has left."""
        if not reply:
            return False
        ranges = [(first, last, [_address(each, asked) for each in nodes]) for first, last, *nodes in reply]
        self._ranges = [(first, last, nodes[0]) for first, last, nodes in ranges]
        self.members = frozenset(node for _, _, nodes in ranges for node in nodes)
        self._told, self._unsure = [], set()
        self.answered(asked)
        return True

    def forget(self) -> None:
        """What is known is out of date."""
        self._ranges = []

    def moved(self, to: Node) -> None:
        """A slot has another master than we knew."""
        self.forget()
        self._told = [to]

    def unsure(self, node: Node) -> None:
        """It may have a successor."""
        self._unsure.add(node)

    def failed(self, node: Node) -> None:
        """It does not answer."""
        self._away.add(node)
        self._unsure.add(node)

    def answered(self, node: Node) -> None:
        self._away.discard(node)

    @property
    def masters(self) -> list[Node]:
        """Those that we know, the ones that did not answer last."""
        return self._in_order(node for _, _, node in self._ranges)

    def to_ask(self, last: Node | None = None) -> list[Node]:
        """All that may know who has which slot, ``last`` as the last of them."""
        nodes = self._in_order((*self._told, *self.masters, *sorted(self.members), *self._start))
        return sorted(nodes, key=lambda node: node == last)

    def _in_order(self, nodes: Iterable[Node]) -> list[Node]:
        return sorted(dict.fromkeys(nodes), key=lambda node: node in self._away)

    def find(self, call: Call) -> Node | None:
        slot = int(key_slot(call.keys[0]))
        for first, last, node in self._ranges:
            if first <= slot <= last:
                return node
        return None

    def knows(self, call: Call) -> bool:
        """Whether what ``find`` gives can be relied on."""
        node = self.find(call)
        return node is not None and node not in self._unsure


def learn(slots: SlotMap, ends: float, last: Node | None = None) -> Steps[None]:
    """Find out who has which slot, from the first node that says so. Raises what the last one failed with."""
    problem: Exception | None = None
    for node in slots.to_ask(last):
        left = ends - clock.now()
        try:
            reply = yield Question(node, max(0.05, min(left / 2, 1.0)))
        except (RedisError, OSError) as error:
            slots.failed(node)
            problem = error
        else:
            if slots.learn(reply, node):
                return
    raise problem or ClusterDownError("CLUSTERDOWN no node returns the slot map")


def deliver(
    slots: SlotMap, calls: Sequence[Call], limit: float, replicas: int = 0, patience: float = 0.0
) -> Steps[list[Any]]:
    """Have each call done by whoever has its slot. Gives the reply to each, or why there is none: a node that fails
    fails for its own calls alone.

    With ``replicas`` a call has failed that not so many have confirmed; ``patience`` is how long they may take.
    """
    ends = clock.now() + limit
    replies: list[Any] = [None] * len(calls)
    todo: dict[int, tuple[Node, bool] | None] = dict.fromkeys(range(len(calls)))  # where each was sent on to, and how
    hops, first = 0, True
    while todo:
        problem: Exception | None = None
        if not all(target or slots.knows(calls[place]) for place, target in todo.items()):
            try:
                yield from learn(slots, ends)
            except (RedisError, OSError) as error:
                problem = error
        groups: dict[tuple[Node, bool], list[int]] = {}
        for place, target in todo.items():
            node = slots.find(calls[place])
            if target is None and node is None:
                replies[place] = problem or ClusterDownError("CLUSTERDOWN no node serves the slot")
            else:
                groups.setdefault(target or (node, False), []).append(place)  # type: ignore[arg-type]
        if first and len(groups) > 1:
            ends -= limit * (1 - SHARE)
        left = max(0.001, ends - clock.now())
        answers = yield [
            Parcel(node, asking, [calls[place] for place in places], left, min(patience, left / 2))
            for (node, asking), places in groups.items()
        ]
        first, todo, early = False, {}, False
        for ((node, _), places), answer in zip(groups.items(), answers, strict=True):
            if isinstance(answer, Exception):
                slots.failed(node)
                for place in places:
                    replies[place] = answer
                continue
            slots.answered(node)
            count = answer.pop() if replicas else 0
            for place, reply in zip(places, answer, strict=True):
                replies[place] = reply
                if isinstance(reply, AskError):  # redis-py's MovedError is one, too
                    to, moved = (reply.host or node[0], int(reply.port)), isinstance(reply, MovedError)
                    if moved:
                        slots.moved(to)
                    todo[place] = to, not moved
                elif isinstance(reply, Exception):
                    if str(reply).startswith("TRYAGAIN") and clock.now() + 2 * PAUSE < ends:
                        todo[place], early = None, True
                    elif any(sign in str(reply) for sign in _ELSEWHERE):
                        slots.unsure(node)
                elif replicas:
                    replies[place] = _confirmed(reply, count, replicas)
        if early:
            hops = 0
            yield Pause(PAUSE)
        elif todo and (hops := hops + 1) >= HOPS:
            for place in todo:
                replies[place] = RedisConnectionError(f"redirected too often: {replies[place]}")
            break
    return replies


def _confirmed(reply: Any, count: Any, replicas: int) -> Any:
    """The reply of a call, if enough replicas of the node that has done it have confirmed it."""
    if isinstance(count, Exception):
        return count
    return reply if count >= replicas else StoreUnavailable(f"only {count} of {replicas} replicas confirmed the write")


def attend(slots: SlotMap, node: Node, sign: int) -> Steps[None]:
    """With each sign of life of a listener (``sign`` counts them): raises when its node has left the cluster. That
    goes on answering, but no longer hears what is published at the others."""
    if sign % LOOK_EVERY == 0 or node not in slots.members:  # as after a failover, when not all was known yet
        with suppress(RedisError, OSError):
            yield from learn(slots, clock.now() + 1.0, last=node)
    if slots.members and node not in slots.members:
        raise RedisConnectionError("the node of this subscription has left the cluster")


def _address(node: Sequence[Any], asked: Node) -> Node:
    """A node that does not know its own address leaves the host out."""
    host = node[0]
    return ((host if isinstance(host, str) else host.decode()) if host else asked[0], int(node[1]))
