"""What the store asks of Redis, and the round trips which that takes on one server. Without I/O.

A transport carries the round trips out; where they go in a cluster is in ``cluster.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from redis.exceptions import NoScriptError

from ...core import clock
from ...core.protocol import Steps
from ...errors import StoreUnavailable
from .scripts import ABANDON, ACQUIRE, ACQUIRE_ALL, LOOK_FOR, RELEASE, RENEW, WRITE_NOTE, Script

FIRST = frozenset((RENEW, RELEASE, ABANDON))
CONFIRMED = frozenset((ACQUIRE, ACQUIRE_ALL, LOOK_FOR, RENEW, WRITE_NOTE))
"""Scripts whose effect the chosen number of replicas has to confirm."""
PAGE = b"1000"
"""How many keys one step of a listing covers: the server serves nobody else meanwhile, for less than a millisecond."""

NodeAddress = tuple[str, int]


class ScriptCall(NamedTuple):
    """One run of a script. Answered with the script's reply."""

    script: Script
    keys: tuple[bytes, ...]
    args: tuple[bytes, ...]
    claims: bool = False
    """Whether a waiter asks, who may have been granted the lease."""

    @property
    def comes_first(self) -> bool:
        """Whether the call keeps, ends or claims a lease: it never waits for a connection behind new acquires."""
        return self.claims or self.script in FIRST

    def command(self, whole: bool = False) -> tuple[bytes, ...]:
        """``whole``: with the script's text, for a server that has not seen it, or has forgotten it."""
        start = (b"EVAL", self.script.text) if whole else (b"EVALSHA", self.script.sha)
        return (*start, b"%d" % len(self.keys), *self.keys, *self.args)


class ScriptCalls(NamedTuple):
    """Several calls, sent together. Each is answered with its reply, or with the error that came in place of it."""

    calls: Sequence[ScriptCall]


class FindKeys(NamedTuple):
    """Answered with all keys that match the pattern, on all masters of a cluster."""

    pattern: bytes


class PlainCommand(NamedTuple):
    """Any other command. Answered with its reply."""

    words: tuple[bytes, ...]


class RoundTrip(NamedTuple):
    """Commands to send in one go over one connection, until ``ends`` on the local clock. Answered with their replies,
    an error reply as an exception."""

    commands: Sequence[tuple[bytes, ...]]
    ends: float
    first: bool = True
    """Whether they go before the acquires that wait for a connection."""
    node: NodeAddress | None = None
    abandons: bool = False
    """Whether they end an attempt: after the end of a call that was cancelled, which may be its acquire."""


class OneServer:
    """Answers the requests of a store by round trips to the only server."""

    def __init__(self, replicas: int = 0) -> None:
        self.replicas = replicas

    def answer(self, request: Any, ends: float) -> Steps[Any]:
        match request:
            case ScriptCall():
                return only(*(yield from self._run((request,), ends)))
            case ScriptCalls(calls):
                return (yield from self._run(calls, ends)) if calls else []
            case FindKeys(pattern):
                return (yield from find_keys(pattern, ends))
            case PlainCommand(words):
                return only(*(yield RoundTrip((words,), ends)))
        raise TypeError(request)

    def _run(self, calls: Sequence[ScriptCall], ends: float, whole: bool = False) -> Steps[list[Any]]:
        trip = round_trip(calls, ends, self.replicas, whole=whole)
        replies = read_replies(calls, (yield trip), self.replicas)
        unknown = [place for place, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            again = yield from self._run([calls[place] for place in unknown], ends, whole=True)
            for place, reply in zip(unknown, again, strict=True):
                replies[place] = reply
        return replies

    def nodes_to_hear(self, ends: float) -> Steps[Sequence[NodeAddress | None]]:
        """Where a listener may subscribe."""
        yield from ()
        return (None,)

    def unheard(self, node: NodeAddress | None) -> None:
        """No listener could subscribe there."""

    def check_heard(self, node: NodeAddress | None, sign: int) -> Steps[None]:
        """Called with each sign of life of a listener."""
        yield from ()


def round_trip(
    calls: Sequence[ScriptCall],
    ends: float,
    replicas: int,
    node: NodeAddress | None = None,
    whole: bool = False,
    asking: bool = False,
) -> RoundTrip:
    """``asking``: the slot is on its way to this node. Replicas have half of the time that is left."""
    commands: list[tuple[bytes, ...]] = []
    first, abandons = True, False
    for call in calls:
        commands += [(b"ASKING",), call.command(whole)] if asking else [call.command(whole)]
        first = first and call.comes_first
        abandons = abandons or call.script is ABANDON
    if _confirms(calls, replicas):
        patience = max(1, int((ends - clock.now()) * 500))
        commands.append((b"WAIT", b"%d" % replicas, b"%d" % patience))
    return RoundTrip(commands, ends, first, node, abandons)


def read_replies(calls: Sequence[ScriptCall], replies: list[Any], replicas: int, asking: bool = False) -> list[Any]:
    """The reply of each call, or its error: also if too few replicas have confirmed it."""
    count = replies.pop() if _confirms(calls, replicas) else None
    if asking:
        pairs = zip(replies[::2], replies[1::2], strict=True)
        replies = [first if isinstance(first, Exception) else reply for first, reply in pairs]
    if isinstance(count, int) and count < replicas:
        count = StoreUnavailable(f"only {count} of {replicas} replicas confirmed the write")
    if isinstance(count, Exception):
        return [reply if isinstance(reply, Exception) else count for reply in replies]
    return replies


def _confirms(calls: Collection[ScriptCall], replicas: int) -> bool:
    return bool(replicas) and any(call.script in CONFIRMED for call in calls)


def find_keys(pattern: bytes, ends: float, node: NodeAddress | None = None) -> Steps[list[bytes]]:
    found: list[bytes] = []
    cursor = b"0"
    while True:
        trip = RoundTrip(((b"SCAN", cursor, b"MATCH", pattern, b"COUNT", PAGE),), ends, first=False, node=node)
        cursor, some = only(*(yield trip))
        found += some
        if cursor == b"0":
            return found


def only(reply: Any) -> Any:
    """The only reply. Raises it if it is an error."""
    if isinstance(reply, Exception):
        raise reply
    return reply


def all_well(replies: Sequence[Any]) -> Sequence[Any]:
    """The replies of several calls. Raises the first error among them."""
    for reply in replies:
        only(reply)
    return replies
