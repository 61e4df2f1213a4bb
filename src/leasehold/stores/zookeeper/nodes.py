"""What is stored, and how it is read. Pure: no I/O, no clock.

    /leasehold/NAMESPACE                     its format; its ctime is the epoch that tokens are counted from
    /leasehold/NAMESPACE/EPOCH/BUCKET/NAME   one per name in use; removed when it has long been empty
      ATTEMPT.SHAPE.LIMIT.WEIGHT.SEQUENCE    ephemeral: one per attempt that holds or waits, in order of arrival
      ATTEMPT.SHAPE.LIMIT.WEIGHT.mN.SEQUENCE the same, after a move to another session; N is never used again
      rest.UNTIL.WEIGHT.SHAPE.LIMIT.ATTEMPT  persistent: what ``min_hold`` keeps taken after its holder's release
    /leasehold/NAMESPACE/EPOCH/nBUCKET/NAME  the note of a name, until it is deleted

The names of the children say who holds: going through them by sequence number, whoever fits into the limit before the
first one that does not. Nobody writes that down, so nobody can write it down wrong.

A node's *state* tells how far its attempt got: ``held`` as it was created, by one who expects to hold at once;
``waiting`` when it found that it does not; ``held`` again when it has claimed what it waited for; ``broken`` by an
operator.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, unquote
from zlib import crc32

from ...core import checks
from ...core.protocol import SECOND, Ask, Holding
from ...errors import StoreNotReady
from ..common.forms import LONGEST, MOST, is_data, is_number

ROOT = "leasehold"
FORMAT = 1
BUCKETS = 256
"""A listing is at most 1 MB, so that names are spread over so many nodes."""

MOST_MS = 10**14
"""Of the leader's clock: beyond it there is no calendar."""
HELD, WAITING, BROKEN = "held", "waiting", "broken"

# Of numbers no more digits than leasehold and the server write, and nothing that weighs less than 1: what else is there
# is not ours, and is passed over.
_COUNT = "([1-9][0-9]{0,8})"
_NODE = re.compile(rf"([^.]+)\.([^.]+)\.{_COUNT}\.{_COUNT}\.(?:m[0-9]{{1,9}}\.)?(-?[0-9]{{1,10}})")
_MARK = re.compile(r"\.m([0-9]{1,9})\.-?[0-9]+\Z")
_REST = re.compile(rf"rest\.([0-9]{{1,14}})\.{_COUNT}\.([^.]+)\.{_COUNT}\.[^.]+")


def component(text: str) -> str:
    """Any text as one component of a path; empty text too."""
    return quote(text, safe=" :@+=,;!$&'()*").replace(".", "%2E") or "%"


def plain(component: str) -> str:
    return "" if component == "%" else unquote(component)


def own_name(component_: str) -> str | None:
    """The name whose node this is; None if it is no node of leasehold's."""
    try:
        name = checks.name(plain(component_))
    except ValueError:
        return None
    return name if component(name) == component_ else None


def bucket(name: str) -> str:
    return f"{crc32(name.encode()) % BUCKETS:02x}"


def prefix(ask: Ask) -> str:
    """What the server appends the sequence number to."""
    return f"{component(ask.attempt)}.{component(ask.shape)}.{ask.limit}.{ask.weight}."


def attempt_of(path: str) -> str:
    """Whose node this is, if it is one of an attempt's."""
    return unquote(path.rpartition("/")[2].partition(".")[0])


def moved(path: str, number: int) -> str:
    """Where a node is put when it is moved. No two moves have the same number, so that a path, once left, is never one
    of a node again: a move that comes late finds nothing there."""
    start, _, last = path.rpartition(".")
    found = _MARK.search(path)
    return f"{path[: found.start()] if found else start}.m{number}.{last}"


def mark(path: str) -> int:
    """Which move has put it there; 0: none."""
    found = _MARK.search(path)
    return int(found[1]) if found else 0


def sequence(path: str) -> int:
    return int(path.rpartition(".")[2])


class AttemptNode(NamedTuple):
    """One attempt that holds or waits."""

    child: str
    attempt: str
    shape: str
    limit: int
    weight: int
    sequence: int


class Rest(NamedTuple):
    """What stays taken until ``until`` (ms of the leader's clock) though nobody holds it."""

    child: str
    until: int
    weight: int
    shape: str
    limit: int


class View(NamedTuple):
    """How a name stands according to a listing."""

    shape: str
    limit: int
    holders: list[AttemptNode]
    waiting: list[AttemptNode]
    strays: list[AttemptNode]
    """Of another shape than the one in use: they are about to remove themselves."""
    resting: list[Rest]
    over: list[Rest]

    def find(self, attempt: str) -> list[AttemptNode]:
        return [node for node in (*self.holders, *self.waiting, *self.strays) if node.attempt == attempt]

    def others_behind(self, mine: AttemptNode) -> bool:
        """Whether nodes of another shape came after this one."""
        return any(0 < (node.sequence - mine.sequence) % 2**32 < 2**31 for node in self.strays)

    def taken(self) -> list[AttemptNode | Rest]:
        """What takes up the limit."""
        return [*self.resting, *self.holders]


@lru_cache(maxsize=4096)  # a long line is listed again and again, almost the same
def _read(child: str) -> AttemptNode | Rest | None:
    if match := _NODE.fullmatch(child):
        attempt, shape, limit, weight, sequence = match.groups()
        return AttemptNode(child, unquote(attempt), unquote(shape), int(limit), int(weight), int(sequence))
    if match := _REST.fullmatch(child):
        until, weight, shape, limit = match.groups()
        return Rest(child, int(until), int(weight), unquote(shape), int(limit))
    return None


def view(children: Iterable[str], now: int) -> View:
    """``now`` is in ms of the leader's clock, and matters to what rests only."""
    read = [_read(child) for child in children]
    nodes = [each for each in read if isinstance(each, AttemptNode)]
    rests = [each for each in read if isinstance(each, Rest)]
    numbers = [node.sequence for node in nodes] or [0]
    turn = 2**32 if max(numbers) - min(numbers) > 2**31 else 0  # the server's counter goes round at 2³¹
    nodes.sort(key=lambda node: node.sequence + turn if node.sequence < 0 else node.sequence)
    resting = [rest for rest in rests if rest.until > now]
    first = resting[0] if resting else nodes[0] if nodes else None
    found = View(first.shape if first else "lock", first.limit if first else 1, [], [], [], resting, [])
    found.over.extend(rest for rest in rests if rest.until <= now)
    free = found.limit - sum(rest.weight for rest in resting)
    for node in nodes:
        if (node.shape, node.limit) != (found.shape, found.limit):
            found.strays.append(node)
        elif not found.waiting and node.weight <= free:
            free -= node.weight
            found.holders.append(node)
        else:
            found.waiting.append(node)
    return found


class Record(NamedTuple):
    """What a node carries: for people, for listings, and (``state``) for a holder that is told to go."""

    state: str
    owner: str
    kind: str
    data: str | None
    ttl: int
    since: int = 0
    """When it was granted, in ms of the leader's clock; 0 when that is the node's mtime."""
    token: int = 0
    """0 when it follows from the node's mzxid."""
    rest: int = 0
    """Its ``min_hold`` in µs, for an heir."""
    kept: bool = False
    """Whether it is renewed for as long as it is held. A lock's renewal writes nothing, so that only this tells."""

    def encode(self) -> bytes:
        return json.dumps({"format": FORMAT, **self._asdict()}, separators=(",", ":")).encode()

    def unclaimed(self, new: bool) -> bool:
        """Whether its attempt was let in after it had to wait, and has not said that it holds. ``new``: it has said
        nothing since it was created, when it could not hold (one that was moved since has a token)."""
        return self.state == WAITING or (new and not self.token)

    def seen(self, name: str, attempt: str, token: int, since: int, now: int, waiters: int) -> Holding:
        """With its whole ttl left: how much of that is over, ``Reading`` says."""
        age = max(0, now - since) / 1000
        return Holding(name, attempt, self.owner, self.kind, self.data, token, age, self.ttl / SECOND, waiters)


def decode(data: bytes, name: str = "") -> Record:
    """What a node of ``name`` carries. Raises StoreNotReady about that name for what leasehold does not write."""
    of = f" of {name!r}" if name else ""
    try:
        fields: dict[str, Any] = json.loads(data)
        if fields.pop("format") > FORMAT:
            raise StoreNotReady(f"a node{of} was written by a newer leasehold: upgrade leasehold")
        record = Record(**fields)
        if not _is_ours(record):
            raise ValueError("values")
        return record
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreNotReady(
            f"a node{of} below /{ROOT} is damaged, or of another program ({type(error).__name__}): delete it when "
            "nobody holds the name, or use another chroot"
        ) from error


def _is_ours(record: Record) -> bool:
    return (
        record.state in (HELD, WAITING, BROKEN)
        and isinstance(record.owner, str)
        and isinstance(record.kind, str)
        and is_data(record.data)
        and is_number(record.ttl, LONGEST)
        and is_number(record.since, MOST_MS)
        and is_number(record.token, MOST - 1)
        and is_number(record.rest, LONGEST)
        and isinstance(record.kept, bool)
    )


def rest_child(until: int, shape: str, limit: int, weight: int, attempt: str) -> str:
    return f"rest.{until}.{weight}.{component(shape)}.{limit}.{component(attempt)}"


def record(ask: Ask, state: str) -> Record:
    return Record(state, ask.owner, ask.kind, ask.data, ask.ttl, rest=ask.rest, kept=ask.kept)
