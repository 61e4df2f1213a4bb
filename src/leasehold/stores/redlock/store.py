"""``redlock://h1:p1,h2:p2,h3:p3``: a lease is held when a majority of independent Redis nodes say so.

Each node stores what a single Redis does, and runs the same scripts. What a majority means, and how the token stays
monotonic, is here; ``threads.py`` and ``tasks.py`` ask the nodes, all at once. The reasons are in
``docs/design/04-redlock.md``.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from statistics import mode
from typing import Any, NamedTuple

from ... import clock
from ...errors import StoreError, StoreNotReady, StoreUnavailable
from ...protocol import (
    BROKEN,
    GONE,
    RENEWED,
    SECOND,
    Ask,
    Busy,
    Grant,
    Holding,
    Opened,
    Renewal,
    Reply,
    Steps,
)
from ..redis.errors import known, unreadable
from ..redis.scripts import ABANDON, ACQUIRE, RAISE, RELEASE, RENEW, VOTE, Call
from ..redis.store import Keys, Many, RedisStore, read_holding, read_mismatch
from ..redis.url import Address, parse

Answers = Mapping[int, Any]
"""By node: its reply, or the error that came in place of one."""

SLOWEST, QUICKEST = 0.5, 0.1
"""Bounds, in seconds, of what one node may take: a tenth of the ttl in between."""
OWED = 30.0
"""How long a release that a node did not take is tried again."""
SPREAD = 0.05
"""Waiters look so much after the holder's expiry, at most, each at a time of its own: else they split the votes."""
SPLIT, SPLITS = 0.04, 4
"""When they did, each asks again within so many seconds, and with each further time within twice as many; so often."""
YOUNG = 1.0
"""A vote that is no older may be of somebody who is still asking the other nodes."""


class Poll(NamedTuple):
    """Ask all nodes at once. Answered as soon as ``enough`` says so, or when the last node has answered or failed."""

    request: Call | Many | Keys
    enough: Callable[[Answers], bool]
    patience: float
    """Seconds that one node may take."""
    owed: float = 0.0
    """A node that fails is asked again, for so many seconds, before anything else that it is asked."""
    heard: dict[int, Any] | None = None
    """Takes in every answer, also those that come when it is decided."""


class Tell(NamedTuple):
    """Have all nodes do it, after what they were asked before; nobody waits. A call is tried again where it fails."""

    what: Call | Callable[[int], Many | None]
    """Or what tells a node, by its number, when it has come to it."""
    until: float
    """For so many seconds; then the node has forgotten the lease by itself."""


class Held:
    """A lease that was granted: what its votes are made of. Times are local ones."""

    __slots__ = ("ask", "number", "since", "until")

    def __init__(self, ask: Ask, number: bytes, since: float) -> None:
        self.ask = ask
        self.number = number
        """Of the try that was granted."""
        self.since = since
        self.until = since + ask.ttl / SECOND
        """When it is over unless it is renewed."""


class RedlockStore:
    """See :class:`leasehold.protocol.Store`, which says what each operation means."""

    scheme = "redlock"
    fair = False
    lacks: Mapping[str, str] = {
        "semaphore": "each node grants up to limit permits, and overlapping majorities add up to more than limit",
        "rwlock": "there is no queue, so readers would starve a waiting writer",
        "heir": "a hand-over that reaches only some nodes would end the lease for both sides",
        "note": "a node that was down keeps an old record, and nothing tells which record is the newest",
    }

    def __init__(self, namespace: str, nodes: int) -> None:
        self.nodes = nodes
        self.quorum = nodes // 2 + 1
        self._one = RedisStore("redlock", namespace, quorum=True)
        self._tries = count(1)
        self._splits: dict[str, int] = {}  # by attempt, how often in a row nobody got a majority
        self._held: dict[str, Held] = {}  # by attempt, until it is given back

    def acquire(self, ask: Ask) -> Steps[Reply]:
        if ask.heir is not None:
            raise self._refused("heir")
        patience = _patience(ask.ttl)
        number = b"%d" % next(self._tries)
        call = Call(ACQUIRE, self._one.keys(ask.name), (*self._one.asked(ask._replace(queue=False)), number))
        call = call._replace(ready=call.packed())  # once for all nodes
        sent = clock.now()
        answers = yield from self._insist(Poll(call, self._decided(lambda reply: reply[0] == 1), patience))
        granted = {node: reply for node, reply in answers.items() if _is(reply, 1)}
        if len(granted) >= self.quorum:
            token = max(reply[1] for reply in granted.values())
            # Written to a majority before anybody hears of it: whoever comes next meets one of these nodes.
            raising = Call(RAISE, call.keys, (ask.attempt.encode(), b"%d" % token, number))
            raised: Answers = yield Poll(raising, self._decided(lambda reply: reply == 1), patience)
            if sum(reply == 1 for reply in raised.values()) >= self.quorum:
                self._splits.pop(ask.attempt, None)
                self._held[ask.attempt] = Held(ask, number, sent)
                return Grant(token)
        yield Tell(Call(ABANDON, call.keys, (ask.attempt.encode(), b"", number)), ask.ttl / SECOND)
        for reply in answers.values():
            if _is(reply, -1):
                return read_mismatch(ask.name, reply[1:])
        refused = [reply for reply in answers.values() if _is(reply, 0)]
        if len(granted) + len(refused) < self.quorum:
            raise self._too_few(answers)
        return self._busy(ask, [read_holding(ask.name, reply[5:]) for reply in refused if len(reply) > 5], len(granted))

    def _busy(self, ask: Ask, seen: Sequence[Holding], free: int) -> Busy:
        """Who has it, as far as the nodes have said, of which so many were free; and when to look again."""
        if not seen:
            return Busy(None, None, None)
        silent = self.nodes - free - len(seen)
        [(_, most)] = Counter(holding.attempt for holding in seen).most_common(1)
        holder = max(seen, key=lambda holding: holding.token)._replace(waiters=None)
        if most + silent < self.quorum and any(holding.age < YOUNG for holding in seen):
            # Several ask at the same time, and each has some of the votes: they are given back by now.
            splits = min(self._splits.get(ask.attempt, -1) + 1, SPLITS)
            if ask.queue:  # else it does not ask again
                self._splits[ask.attempt] = splits
            return Busy(holder, None, None, look=random.uniform(0.0, SPLIT * 2**splits))
        self._splits.pop(ask.attempt, None)
        # It can be had when a majority is free: of those that hold it, so many have to let it go.
        needed = self.quorum - free
        over = sorted(holding.expires_in for holding in seen)
        if len(over) < needed:
            return Busy(holder, None, None)
        # Not by expires_in, at which everybody looks at the same moment.
        return Busy(holder, None, None, look=max(0.0, over[needed - 1]) + random.uniform(0.0, SPREAD))

    def renew(self, batch: Sequence[Renewal]) -> Steps[Sequence[str | StoreUnavailable]]:
        keys = tuple(self._one.keys(each.name)[0] for each in batch)
        args = tuple(part for each in batch for part in (each.attempt.encode(), b"%d" % each.token, b"%d" % each.ttl))
        patience = _patience(min(each.ttl for each in batch))

        def outcomes(answers: Answers) -> Iterator[str | None]:
            replies = [reply for reply in answers.values() if isinstance(reply, list)]
            return (self._renewed([reply[place] for reply in replies]) for place in range(len(batch)))

        def unknown(place: int) -> StoreError:
            """Why, of one that too few nodes can tell of: some may not be able to read its record."""
            for reply in answers.values():
                if isinstance(reply, list) and isinstance(reply[place], bytes):
                    return unreadable(batch[place].name, reply[place].decode(errors="replace"))
            return self._too_few(answers)

        heard: dict[int, Any] = {}
        poll = Poll(Call(RENEW, keys, args), lambda answers: None not in outcomes(answers), patience, heard=heard)
        sent = clock.now()
        answers = yield from self._insist(poll)
        found = list(outcomes(answers))
        for each, outcome in zip(batch, found, strict=True):
            if outcome == RENEWED and (held := self._held.get(each.attempt)) is not None:
                held.until = sent + each.ttl / SECOND  # not put back: another thread may just have released it
            elif outcome in (GONE, BROKEN):
                self._held.pop(each.attempt, None)
        if any(answers.get(node) != [1] * len(batch) for node in range(self.nodes)):
            confirmed = {place: each for place, each in enumerate(batch) if found[place] == RENEWED}
            yield Tell(partial(self._votes, confirmed, heard), 2 * patience)
        return known([outcome or unknown(place) for place, outcome in enumerate(found)])

    def _votes(self, confirmed: Mapping[int, Renewal], heard: Answers, node: int) -> Many | None:
        """What gives these leases, of which a majority has just said that they stand, the votes of a node that has
        said that it knows nothing of them: it has restarted, or was away when they were granted.

        Asked when the node has come to it: one that is given back meanwhile is not among them, since the release comes
        behind this."""
        reply = heard.get(node)
        if not isinstance(reply, list):
            return None
        calls = []
        for place, each in confirmed.items():
            held = self._held.get(each.attempt)
            if reply[place] == 0 and held is not None:
                since = b"%d" % int((clock.now() - held.since) * SECOND)
                args = self._one.asked(held.ask._replace(ttl=each.ttl))
                calls.append(Call(VOTE, self._one.keys(each.name), (*args, held.number, b"%d" % each.token, since)))
        return Many(calls) if calls else None

    def _renewed(self, replies: Sequence[int | bytes]) -> str | None:
        """What the nodes that have answered so far say of a lease; None when the others may change it.

        A node that cannot read the record has no vote."""
        votes = [reply for reply in replies if isinstance(reply, int)]
        if votes.count(1) >= self.quorum:
            return RENEWED
        if self.nodes - len(votes) + votes.count(1) >= self.quorum:
            return None
        return BROKEN if -1 in votes else GONE

    def release(self, name: str, attempt: str, token: int, hint: Any) -> Steps[bool]:
        self._held.pop(attempt, None)  # before any node is asked: see _votes
        return (
            yield from self._everywhere(Call(RELEASE, self._one.keys(name), (attempt.encode(), b"%d" % token)), OWED)
        )

    def abandon(self, name: str, attempt: str) -> Steps[bool]:
        self._held.pop(attempt, None)
        self._splits.pop(attempt, None)
        return (yield from self._everywhere(Call(ABANDON, self._one.keys(name), (attempt.encode(),)), OWED))

    def interrupt(self, name: str, force: bool) -> Steps[bool]:
        call: Call = next(self._one.interrupt(name, force))
        return (yield from self._everywhere(call))

    def scan(self, prefix: str, after: str, count: int) -> Steps[tuple[Sequence[Holding], str | None]]:
        answers: Answers = yield Poll(self._one.listing(prefix), self._all, SLOWEST)
        lists = [reply for reply in answers.values() if isinstance(reply, list)]
        if len(lists) < self.quorum:
            raise self._too_few(answers)
        names = [name for name in sorted({self._one.name(key) for keys in lists for key in keys}) if name > after]
        page = names[:count]
        found = yield from self._look(page)
        return found, page[-1] if len(names) > count else None

    def inspect(self, name: str) -> Steps[Sequence[Holding]]:
        found = yield from self._look([name])
        return [holding for holding in found if holding.expires_in > 0]

    def read_note(self, name: str) -> Steps[str | None]:
        raise self._refused("note")
        yield

    def write_note(self, name: str, attempt: str, token: int, text: str | None) -> Steps[bool]:
        raise self._refused("note")
        yield

    def tidy(self) -> Steps[None]:
        """Forget leases that ended without being given back."""
        now = clock.now()
        for attempt, held in list(self._held.items()):
            if held.until < now:
                self._held.pop(attempt, None)
        yield from ()

    def _refused(self, what: str) -> ValueError:
        return ValueError(f"redlock does not support {what}: {self.lacks[what]}")

    def _look(self, names: Sequence[str]) -> Steps[list[Holding]]:
        """Who holds these names on a majority of the nodes."""
        if not names:
            return []
        calls = Many([next(self._one.inspect(name)) for name in names])
        answers: Answers = yield Poll(calls, self._all, SLOWEST)
        replies = [reply for reply in answers.values() if isinstance(reply, list)]
        if len(replies) < self.quorum:
            raise self._too_few(answers)
        found = []
        for place, name in enumerate(names):
            by_attempt: dict[str, list[Holding]] = {}
            for reply in replies:
                for fields in reply[place]:
                    holding = read_holding(name, fields)
                    by_attempt.setdefault(holding.attempt, []).append(holding)
            for seen in by_attempt.values():
                if len(seen) >= self.quorum:
                    token = mode(each.token for each in seen)  # one may not have heard of the final one yet
                    left = sorted(each.expires_in for each in seen)[-self.quorum]  # until then a majority has it
                    found.append(seen[0]._replace(token=token, expires_in=left, waiters=None))
        return found

    def _everywhere(self, call: Call, owed: float = 0.0) -> Steps[bool]:
        """Have all do it. The answer is what a majority has answered, or may have; the rest still do it."""
        answers: Answers = yield Poll(call, self._decided(lambda reply: reply == 1), SLOWEST, owed)
        votes: list[int] = [reply for reply in answers.values() if not isinstance(reply, Exception)]
        if len(votes) < self.quorum:
            raise self._too_few(answers)
        yes, silent = sum(votes), self.nodes - len(votes)
        return yes >= self.quorum or (yes > silent and yes + silent >= self.quorum)

    def _insist(self, poll: Poll) -> Steps[Answers]:
        """Ask what can be asked twice. If too few answer they are asked once more: they may have had to connect anew,
        or this process stood still."""
        answers: Answers = yield poll
        too_few = sum(not isinstance(reply, Exception) for reply in answers.values()) < self.quorum
        if too_few and isinstance(self._too_few(answers), StoreUnavailable):
            answers = yield poll
        return answers

    def _decided(self, yes: Callable[[Any], bool]) -> Callable[[Answers], bool]:
        """Whether the nodes that have not answered yet can still change anything: a majority for it, or against.

        A node that fails is not one that refuses: a majority has to answer, unless it can't any more."""
        minority = self.nodes - self.quorum

        def enough(answers: Answers) -> bool:
            votes = [yes(reply) for reply in answers.values() if not isinstance(reply, Exception)]
            if sum(votes) >= self.quorum or len(answers) - len(votes) > minority:
                return True
            return len(votes) >= self.quorum and len(answers) - sum(votes) > minority

        return enough

    def _all(self, answers: Answers) -> bool:
        return len(answers) == self.nodes

    def _too_few(self, answers: Answers) -> StoreError:
        """Why there is no majority; StoreNotReady when there can't be one before somebody mends the nodes."""
        errors = [reply for reply in answers.values() if isinstance(reply, Exception)]
        refusals = [error for error in errors if isinstance(error, StoreNotReady)]
        if len(refusals) > self.nodes - self.quorum:
            return refusals[0]
        why = f": {errors[0]}" if errors else ""
        error = StoreUnavailable(
            f"redlock: no majority: fewer than {self.quorum} of {self.nodes} nodes answered or agreed{why}"
        )
        error.__cause__ = errors[0] if errors else None
        return error


def _patience(ttl: int) -> float:
    return min(SLOWEST, max(QUICKEST, ttl / SECOND / 10))


def _is(reply: Any, code: int) -> bool:
    return isinstance(reply, list) and reply[0] == code


def open_url(url: str, namespace: str) -> Opened:
    from ..redis import check_options
    from .tasks import RedlockTasks
    from .threads import RedlockThreads

    nodes = nodes_of(url)
    check_options(nodes[0])
    store = RedlockStore(namespace, len(nodes))
    return Opened(store, lambda: RedlockThreads(nodes), lambda: RedlockTasks(nodes))


def nodes_of(url: str) -> list[Address]:
    """The nodes that a URL names."""
    address = parse("redis+cluster://" + url.partition("://")[2], any_db=True)
    if len(address.hosts) < 3 or len(set(address.hosts)) < len(address.hosts):
        raise ValueError("redlock:// needs three or more different nodes: redlock://h1:p1,h2:p2,h3:p3")
    if address.replicas:
        raise ValueError("redlock:// does not support the option replicas: its nodes are independent")
    return [address._replace(kind="single", hosts=(host,)) for host in address.hosts]
