"""What is asked of Redis, and how its answers are read. Written once; the drivers do the I/O.

Stored shape: a hash per name, and a sorted set while somebody waits. ``entry.lua`` says what is in them. Their keys
share the hash tag ``{namespace:name}``, so that a cluster keeps them in one slot.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...protocol import (
    BROKEN,
    GONE,
    RENEWED,
    SECOND,
    Ask,
    Busy,
    Grant,
    Holding,
    Mismatch,
    Renewal,
    Reply,
    Steps,
)
from .scripts import ABANDON, ACQUIRE, INTERRUPT, LOOK, RELEASE, RENEW, Call

PREFIX = b"leasehold:{"
CHANNEL = "leasehold:session:"
_OUTCOMES = {1: RENEWED, 0: GONE, -1: BROKEN}
_LISTINGS = 4
"""How many listings can be under way at once without starting over."""


class Confirmed(NamedTuple):
    """Calls whose effect the chosen number of replicas has to confirm. Answered with the scripts' replies."""

    calls: Sequence[Call]


class Many(NamedTuple):
    """Several calls, sent together. Answered with their replies."""

    calls: Sequence[Call]


class Keys(NamedTuple):
    """Answered with all keys that match the pattern, on all masters of a cluster."""

    pattern: bytes


class RedisStore:
    """See :class:`leasehold.protocol.Store`, which says what each operation means."""

    fair = True

    def __init__(
        self, scheme: str, namespace: str, replicas: int = 0, clustered: bool = False, quorum: bool = False
    ) -> None:
        self.scheme = scheme
        self.session = b""
        """Where rings for us go: set by the driver."""
        space = namespace.replace("%", "%25").replace(":", "%3A").replace("}", "%7D")
        self._start = PREFIX + space.encode() + b":"
        self._replicas = replicas
        self._clustered = clustered
        self._listings: dict[tuple[str, str], list[str]] = {}
        self._push = b"2" if quorum else b"0" if replicas else b"1"

    def keys(self, name: str) -> tuple[bytes, bytes]:
        """The hash of a name and its queue."""
        key = self._start + name.encode() + b"}"
        return key, key + b":queue"

    def name(self, key: bytes) -> str:
        """The name that a hash is of."""
        return key[len(self._start) : -1].decode()

    def listing(self, prefix: str) -> Keys:
        """Asks for the hashes of all names that start with the prefix."""
        return Keys(_escape(self._start + prefix.encode()) + b"*}")

    def acquire(self, ask: Ask) -> Steps[Reply]:
        call = Call(
            ACQUIRE,
            self.keys(ask.name),
            (
                ask.attempt.encode(),
                ask.owner.encode(),
                ask.kind.encode(),
                b"" if ask.data is None else ask.data.encode(),
                self.session,
                b"%d" % ask.weight,
                b"%d" % ask.ttl,
                b"%d" % ask.rest,
                f"{ask.shape} {ask.limit}".encode(),
                b"1" if ask.fair else b"0",
                b"1" if ask.queue else b"0",
                self._push,
            ),
        )
        reply = (yield Confirmed((call,)))[0] if self._replicas else (yield call)
        match reply[0]:
            case 1:
                gone = read_holding(ask.name, reply[3:]) if len(reply) > 3 else None
                return Grant(reply[1], None, gone)
            case 0:
                holder = read_holding(ask.name, reply[3:]) if len(reply) > 3 else None
                place = None if reply[1] < 0 else reply[1]
                return Busy(holder, place, holder.expires_in if holder else None, (), reply[2])
            case _:
                shape, _, limit = _text(reply[1]).rpartition(" ")
                return Mismatch(shape, int(limit))

    def renew(self, batch: Sequence[Renewal]) -> Steps[Sequence[str]]:
        groups: dict[int, list[int]] = {}
        for place, each in enumerate(batch):
            groups.setdefault(self._slot(each.name), []).append(place)
        calls = []
        for places in groups.values():
            keys = tuple(self.keys(batch[place].name)[0] for place in places)
            args = []
            for place in places:
                each = batch[place]
                args += [each.attempt.encode(), b"%d" % each.token, b"%d" % each.ttl]
            calls.append(Call(RENEW, keys, tuple(args)))
        replies = yield (Confirmed(calls) if self._replicas else Many(calls))
        outcomes = [GONE] * len(batch)
        for places, reply in zip(groups.values(), replies, strict=True):
            for place, outcome in zip(places, reply, strict=True):
                outcomes[place] = _OUTCOMES[outcome]
        return outcomes

    def release(self, name: str, attempt: str, token: int, hint: Any) -> Steps[bool]:
        return bool((yield Call(RELEASE, self.keys(name), (attempt.encode(), b"%d" % token))))

    def abandon(self, name: str, attempt: str) -> Steps[bool]:
        return bool((yield Call(ABANDON, self.keys(name), (attempt.encode(),))))

    def interrupt(self, name: str, force: bool) -> Steps[bool]:
        return bool((yield Call(INTERRUPT, self.keys(name), (b"1" if force else b"0",))))

    def scan(self, prefix: str, after: str, count: int) -> Steps[tuple[Sequence[Holding], str | None]]:
        """Redis lists keys in no order, so the names of a whole listing are kept from page to page."""
        names = self._listings.pop((prefix, after), None)
        if names is None:
            names = sorted({self.name(key) for key in (yield self.listing(prefix))})
            names = names[bisect.bisect_right(names, after) :]
        page, rest = names[:count], names[count:]
        replies = yield Many([Call(LOOK, self.keys(name), ()) for name in page])
        found = [read_holding(name, each) for name, reply in zip(page, replies, strict=True) for each in reply]
        if not rest:
            return found, None
        while len(self._listings) >= _LISTINGS:  # nobody came back for it
            self._listings.pop(next(iter(self._listings)), None)
        self._listings[prefix, page[-1]] = rest
        return found, page[-1]

    def inspect(self, name: str) -> Steps[Sequence[Holding]]:
        reply = yield Call(LOOK, self.keys(name), ())
        return [seen for seen in (read_holding(name, each) for each in reply) if seen.expires_in > 0]

    def tidy(self) -> Steps[None]:
        """Nothing to do: the keys expire by themselves, a day after their last use."""
        yield from ()

    def _slot(self, name: str) -> int:
        if not self._clustered:
            return 0
        from redis.crc import key_slot

        return int(key_slot(self.keys(name)[0]))


def read_ring(payload: bytes) -> tuple[str, Grant | Busy | None]:
    """What a push says: which attempt it is for, and what it brings."""
    words = payload.split()
    attempt = words[0].decode()
    if len(words) == 4 and words[1] == b"granted":
        return attempt, Grant(int(words[2]), at=int(words[3]))
    if len(words) == 3 and words[1] == b"next":
        return attempt, Busy(None, 0, int(words[2]) / SECOND)
    return attempt, None


def read_holding(name: str, fields: Sequence[Any]) -> Holding:
    attempt, owner, kind, data, token, age, left, waiters = fields
    return Holding(
        name,
        _text(attempt),
        _text(owner),
        _text(kind),
        _text(data) or None,
        token,
        age / SECOND,
        left / SECOND,
        waiters,
    )


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()


def _escape(pattern: bytes) -> bytes:
    """The text as a pattern that matches nothing else."""
    for special in (b"\\", b"*", b"?", b"[", b"]"):
        pattern = pattern.replace(special, b"\\" + special)
    return pattern
