"""How calls find their way in a cluster: which node has which slot, and what its answers mean. Without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, NoScriptError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError

from ...core import clock
from ...core.protocol import Steps
from .errors import text_of
from .requests import (
    FindKeys,
    NodeAddress,
    RoundTrip,
    ScriptCall,
    ScriptCalls,
    find_keys,
    only,
    read_replies,
    round_trip,
)

HOPS = 5
"""How often a call is redirected before it counts as failed: a slot moves once, and ASK may follow."""
RETRY_AFTER = 0.05
"""Seconds before a call is sent again while only some of its keys have moved to another node: few keys take less."""
SHARE = 0.5
"""Share of the limit for calls to several nodes: the rest is for redirections, when one of the nodes hangs."""
MAP_LIMIT = 1.0
"""Seconds that one node may take to return the slot map: others know it too."""
MAP_EVERY = 4
"""Every fourth sign of life of a listener (10 s) also checks that its node still belongs to the cluster."""
_ELSEWHERE = ("CLUSTERDOWN", "READONLY", "LOADING", "MASTERDOWN")
"""Error replies of a node that may have a successor."""


class RetryPause(NamedTuple):
    seconds: float


class Target(NamedTuple):
    """Where a call goes: to a node that it was redirected to, else to the node that has its slot."""

    node: NodeAddress | None = None
    asking: bool = False
    """The slot is on its way to the node."""
    whole: bool = False
    """The node does not know the script."""


class SlotMap:
    """Which node serves a slot, as far as it is known; the nodes of the URL until the cluster was asked."""

    def __init__(self, start: Iterable[NodeAddress]) -> None:
        self._start = list(start)
        self._ranges: list[tuple[int, int, NodeAddress]] = []
        self._named: list[NodeAddress] = []
        """The node that a MOVED named: it knows best."""
        self._silent: set[NodeAddress] = set()
        """Nodes that did not answer when last asked."""
        self._unsure: set[NodeAddress] = set()
        """Nodes whose slots may be another's by now."""
        self.members: frozenset[NodeAddress] = frozenset()
        """All masters and replicas, when the cluster was last asked."""

    def learn(self, reply: Sequence[Any], asked: NodeAddress) -> bool:
        """Take in the answer to CLUSTER SLOTS. False when it is empty, as that of a node which has left."""
        if not reply:
            return False
        ranges = [(first, last, [_address(each, asked) for each in nodes]) for first, last, *nodes in reply]
        self._ranges = [(first, last, nodes[0]) for first, last, nodes in ranges]
        self.members = frozenset(node for _, _, nodes in ranges for node in nodes)
        self._named, self._unsure = [], set()
        self.answered(asked)
        return True

    def forget(self) -> None:
        self._ranges = []

    def moved(self, to: NodeAddress) -> None:
        """A slot has another master than was known."""
        self.forget()
        self._named = [to]

    def unsure(self, node: NodeAddress) -> None:
        self._unsure.add(node)

    def failed(self, node: NodeAddress) -> None:
        """The node does not answer."""
        self._silent.add(node)
        self._unsure.add(node)

    def answered(self, node: NodeAddress) -> None:
        self._silent.discard(node)

    @property
    def masters(self) -> list[NodeAddress]:
        """The known masters; those that did not answer come last."""
        return self._in_order(node for _, _, node in self._ranges)

    def to_ask(self, last: NodeAddress | None = None) -> list[NodeAddress]:
        """All nodes that may know the slot map, ``last`` as the last of them."""
        nodes = self._in_order((*self._named, *self.masters, *sorted(self.members), *self._start))
        return sorted(nodes, key=lambda node: node == last)

    def _in_order(self, nodes: Iterable[NodeAddress]) -> list[NodeAddress]:
        return sorted(dict.fromkeys(nodes), key=lambda node: node in self._silent)

    def find(self, call: ScriptCall) -> NodeAddress | None:
        slot = int(key_slot(call.keys[0]))
        return next((node for first, last, node in self._ranges if first <= slot <= last), None)

    def knows(self, call: ScriptCall) -> bool:
        """Whether what ``find`` returns can be relied on."""
        node = self.find(call)
        return node is not None and node not in self._unsure


class Cluster:
    """Answers the requests of a store by round trips to the nodes that have the slots."""

    def __init__(self, start: Iterable[NodeAddress], replicas: int = 0) -> None:
        self.slots = SlotMap(start)
        self.replicas = replicas

    def answer(self, request: Any, ends: float) -> Steps[Any]:
        match request:
            case ScriptCall():
                return only(*(yield from deliver(self.slots, (request,), ends, self.replicas)))
            case ScriptCalls(calls):
                return (yield from deliver(self.slots, calls, ends, self.replicas))
            case FindKeys(pattern):
                found: list[bytes] = []
                for node in (yield from self.masters(ends)):
                    found += yield from find_keys(pattern, ends, node)
                return found
        raise TypeError(request)

    def masters(self, ends: float) -> Steps[Sequence[NodeAddress]]:
        yield from learn(self.slots, ends)
        return self.slots.masters

    def nodes_to_hear(self, ends: float) -> Steps[Sequence[NodeAddress | None]]:
        """Any node will do: a cluster passes on to all nodes what is published at one."""
        return self.slots.masters or (yield from self.masters(ends))

    def unheard(self, node: NodeAddress | None) -> None:
        if node is not None:
            self.slots.failed(node)
        self.slots.forget()

    def check_heard(self, node: NodeAddress | None, sign: int) -> Steps[None]:
        """Called with each sign of life of a listener, which ``sign`` counts. Raises when its node has left the
        cluster: such a node goes on answering, but no longer hears what is published at the others."""
        if sign % MAP_EVERY == 0 or node not in self.slots.members:  # as after a failover, when not all was known yet
            with suppress(RedisError, OSError):
                yield from learn(self.slots, clock.now() + MAP_LIMIT, last=node)
        if self.slots.members and node not in self.slots.members:
            raise RedisConnectionError("the node of this subscription has left the cluster")


def learn(slots: SlotMap, ends: float, last: NodeAddress | None = None) -> Steps[None]:
    """Get the slot map from the first node that returns one. Raises what the last node failed with."""
    problem: Exception | None = None
    for node in slots.to_ask(last):
        now = clock.now()
        limit = max(0.05, min((ends - now) / 2, MAP_LIMIT))
        try:
            reply = only(*(yield RoundTrip(((b"CLUSTER", b"SLOTS"),), now + limit, node=node)))
        except (RedisError, OSError) as error:
            slots.failed(node)
            problem = error
        else:
            if slots.learn(reply, node):
                return
    raise problem or ClusterDownError("CLUSTERDOWN no node returns the slot map")


def deliver(slots: SlotMap, calls: Sequence[ScriptCall], ends: float, replicas: int = 0) -> Steps[list[Any]]:
    """Have each call done by the node that has its slot. Returns the reply of each, or why there is none: a node that
    fails fails its own calls alone."""
    replies: list[Any] = [None] * len(calls)
    todo = dict.fromkeys(range(len(calls)), Target())
    hops, until = 0, None
    while todo:
        problem = None
        if not all(target.node or slots.knows(calls[place]) for place, target in todo.items()):
            problem = yield from _try_to_learn(slots, ends)
        groups: dict[Target, list[int]] = {}
        for place, target in todo.items():
            node = target.node or slots.find(calls[place])
            if node is None:
                replies[place] = problem or ClusterDownError("CLUSTERDOWN no node serves the slot")
            else:
                groups.setdefault(target._replace(node=node), []).append(place)
        if until is None and len(groups) > 1:
            until = clock.now() + (ends - clock.now()) * SHARE
        trips = {
            target: round_trip([calls[place] for place in places], until or ends, replicas, **target._asdict())
            for target, places in groups.items()
        }
        answers = yield list(trips.values())
        until, todo, early = ends, {}, False
        for (target, places), answer in zip(groups.items(), answers, strict=True):
            for place, reply in _read(slots, target, places, calls, answer, replicas):
                replies[place] = reply
                again = _again(slots, target, reply) if not isinstance(answer, Exception) else None
                if again is not None and (again.node or clock.now() + 2 * RETRY_AFTER < ends):
                    todo[place] = again
                    early = early or again.node is None
        hops += 1
        if early:
            hops = 0
            yield RetryPause(RETRY_AFTER)
        elif todo and hops >= HOPS:
            for place in todo:
                replies[place] = RedisConnectionError(f"redirected too often: {replies[place]}")
            break
    return replies


def _try_to_learn(slots: SlotMap, ends: float) -> Steps[Exception | None]:
    try:
        yield from learn(slots, ends)
    except (RedisError, OSError) as error:
        return error
    return None


def _read(
    slots: SlotMap, target: Target, places: Sequence[int], calls: Sequence[ScriptCall], answer: Any, replicas: int
) -> Iterable[tuple[int, Any]]:
    """The replies of one node, by the place of their calls; its error for each of them if it does not answer."""
    assert target.node is not None
    if isinstance(answer, Exception):
        slots.failed(target.node)
        return [(place, answer) for place in places]
    slots.answered(target.node)
    return zip(places, read_replies([calls[place] for place in places], answer, replicas, target.asking), strict=True)


def _again(slots: SlotMap, target: Target, reply: Any) -> Target | None:
    """Where a call goes next that was answered so; None when this is its answer."""
    assert target.node is not None
    if isinstance(reply, NoScriptError):
        return target._replace(whole=True)
    if isinstance(reply, AskError):  # redis-py's MovedError is one, too
        to, moved = (reply.host or target.node[0], int(reply.port)), isinstance(reply, MovedError)
        if moved:
            slots.moved(to)
        return Target(to, not moved, not moved)  # a node that the slot is on its way to may not know the scripts yet
    if isinstance(reply, Exception):
        text = text_of(reply)
        if text.startswith("TRYAGAIN"):
            return Target()
        if any(sign in text for sign in _ELSEWHERE):
            slots.unsure(target.node)
    return None


def _address(node: Sequence[Any], asked: NodeAddress) -> NodeAddress:
    """A node that does not know its own address leaves the host out."""
    host = node[0]
    return ((host if isinstance(host, str) else host.decode()) if host else asked[0], int(node[1]))
