"""``redlock://h1:p1,h2:p2,h3:p3``: a lease is held while a majority of independent Redis nodes hold it.

Each node stores the same records as a single Redis, and runs the same scripts. Here is what a majority means, and how
tokens keep rising. ``threads.py`` and ``tasks.py`` send each request to all nodes at once. The reasons are in
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

from ...core import clock
from ...core.protocol import (
    BROKEN,
    GONE,
    RENEWED,
    SECOND,
    Ask,
    Busy,
    Grant,
    Holding,
    Renewal,
    Reply,
    Steps,
    Store,
)
from ...errors import StoreError, StoreNotReady, StoreUnavailable
from ..redis.errors import known, unreadable
from ..redis.requests import FindKeys, ScriptCall, ScriptCalls
from ..redis.scripts import ABANDON, ACQUIRE, RAISE, RELEASE, RENEW, VOTE
from ..redis.store import RedisStore, read_holding, read_mismatch
from ..redis.url import RedisAddress, parse

Answers = Mapping[int, Any]
"""By node, its reply or its error."""

SLOWEST, QUICKEST = 0.5, 0.1
"""Bounds of the time limit for one node, in seconds. In between it is a tenth of the ttl."""
OWED = 30.0
"""Seconds for which a release is retried on a node that missed it."""
SPREAD = 0.05
"""Waiters ask again up to so many seconds after the holder's expiry, at random: at the same moment, they would split
the votes."""
SPLIT, SPLITS = 0.04, 4
"""After a split vote each waiter asks again within SPLIT seconds, at random. The bound doubles with each further split,
at most SPLITS times."""
YOUNG = 1.0
"""Seconds. A younger vote may be of an attempt that still asks the other nodes."""


class Poll(NamedTuple):
    """Ask all nodes at once. Answered when ``enough`` is true of the answers, or when all nodes answered or failed."""

    request: ScriptCall | ScriptCalls | FindKeys
    enough: Callable[[Answers], bool]
    patience: float
    """The time limit for one node, in seconds."""
    owed: float = 0.0
    """If a node fails, the request is retried there for so many seconds, before any other request. 0: never."""
    heard: dict[int, Any] | None = None
    """Receives every answer, also late ones."""


class Tell(NamedTuple):
    """Send a request to all nodes, after their earlier jobs, without waiting. A failed call is retried."""

    what: ScriptCall | Callable[[int], ScriptCalls | None]
    """Or a function that returns the request of a node, by its number, when the node reaches it."""
    until: float
    """For how many seconds. After that the lease has expired on the node."""


class Held:
    """A lease that was granted, with what a vote for it needs. Times are local."""

    __slots__ = ("ask", "number", "since", "until")

    def __init__(self, ask: Ask, number: bytes, since: float) -> None:
        self.ask = ask
        self.number = number
        """The number of the try that was granted."""
        self.since = since
        self.until = since + ask.ttl / SECOND
        """When it expires, unless it is renewed."""


class RedlockStore(Store):
    """Leases on a majority of nodes. :class:`leasehold.core.protocol.Store` says what each operation means."""

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
        self._splits: dict[str, int] = {}  # by attempt, the number of split votes in a row
        self._held: dict[str, Held] = {}  # by attempt, until its release

    def acquire(self, ask: Ask) -> Steps[Reply]:
        if ask.heir is not None:
            raise self._refused("heir")
        patience = _patience(ask.ttl)
        number = b"%d" % next(self._tries)
        call = ScriptCall(ACQUIRE, self._one.keys(ask.name), (*self._one.asked(ask._replace(queue=False)), number))
        sent = clock.now()
        answers = yield from self._insist(Poll(call, self._decided(lambda reply: reply[0] == 1), patience))
        granted = {node: reply for node, reply in answers.items() if _is(reply, 1)}
        if len(granted) >= self.quorum:
            token = max(reply[1] for reply in granted.values())
            # Written to a majority before the token is used: the next acquire reads at least one of these nodes.
            raising = ScriptCall(RAISE, call.keys, (ask.attempt.encode(), b"%d" % token, number))
            raised: Answers = yield Poll(raising, self._decided(lambda reply: reply == 1), patience)
            if sum(reply == 1 for reply in raised.values()) >= self.quorum:
                self._splits.pop(ask.attempt, None)
                self._held[ask.attempt] = Held(ask, number, sent)
                return Grant(token)
        yield Tell(ScriptCall(ABANDON, call.keys, (ask.attempt.encode(), b"", number)), ask.ttl / SECOND)
        for reply in answers.values():
            if _is(reply, -1):
                return read_mismatch(ask.name, reply[1:])
        refused = [reply for reply in answers.values() if _is(reply, 0)]
        if len(granted) + len(refused) < self.quorum:
            raise self._too_few(answers)
        return self._busy(ask, [read_holding(ask.name, reply[5:]) for reply in refused if len(reply) > 5], len(granted))

    def _busy(self, ask: Ask, seen: Sequence[Holding], free: int) -> Busy:
        """The holder, as far as the nodes reported one, and when to ask again. The name was free on ``free`` nodes."""
        if not seen:
            return Busy(None, None, None)
        silent = self.nodes - free - len(seen)
        [(_, most)] = Counter(holding.attempt for holding in seen).most_common(1)
        holder = max(seen, key=lambda holding: holding.token)._replace(waiters=None)
        if most + silent < self.quorum and any(holding.age < YOUNG for holding in seen):
            # Several attempts asked at the same time, and split the votes. They have abandoned them by now.
            splits = min(self._splits.get(ask.attempt, -1) + 1, SPLITS)
            if ask.queue:  # otherwise it does not ask again
                self._splits[ask.attempt] = splits
            return Busy(holder, None, None, look=random.uniform(0.0, SPLIT * 2**splits))
        self._splits.pop(ask.attempt, None)
        # The name can be acquired when it is free on a majority: it must expire on ``needed`` more nodes.
        needed = self.quorum - free
        over = sorted(holding.expires_in for holding in seen)
        if len(over) < needed:
            return Busy(holder, None, None)
        # Not by expires_in, at which all waiters would ask at the same moment.
        return Busy(holder, None, None, look=max(0.0, over[needed - 1]) + random.uniform(0.0, SPREAD))

    def renew(self, batch: Sequence[Renewal]) -> Steps[Sequence[str | StoreUnavailable]]:
        keys = tuple(self._one.keys(each.name)[0] for each in batch)
        args = tuple(part for each in batch for part in (each.attempt.encode(), b"%d" % each.token, b"%d" % each.ttl))
        patience = _patience(min(each.ttl for each in batch))

        def outcomes(answers: Answers) -> Iterator[str | None]:
            replies = [reply for reply in answers.values() if isinstance(reply, list)]
            return (self._renewed([reply[place] for reply in replies]) for place in range(len(batch)))

        def unknown(place: int) -> StoreError:
            """Why too few nodes know the outcome of this renewal: some may be unable to read its record."""
            for reply in answers.values():
                if isinstance(reply, list) and isinstance(reply[place], bytes):
                    return unreadable(batch[place].name, reply[place].decode(errors="replace"))
            return self._too_few(answers)

        heard: dict[int, Any] = {}
        poll = Poll(ScriptCall(RENEW, keys, args), lambda answers: None not in outcomes(answers), patience, heard=heard)
        sent = clock.now()
        answers = yield from self._insist(poll)
        found = list(outcomes(answers))
        for each, outcome in zip(batch, found, strict=True):
            if outcome == RENEWED and (held := self._held.get(each.attempt)) is not None:
                held.until = sent + each.ttl / SECOND  # changed, not stored again: another thread may have released it
            elif outcome in (GONE, BROKEN):
                self._held.pop(each.attempt, None)
        if any(answers.get(node) != [1] * len(batch) for node in range(self.nodes)):
            confirmed = {place: each for place, each in enumerate(batch) if found[place] == RENEWED}
            yield Tell(partial(self._votes, confirmed, heard), 2 * patience)
        return known([outcome or unknown(place) for place, outcome in enumerate(found)])

    def _votes(self, confirmed: Mapping[int, Renewal], heard: Answers, node: int) -> ScriptCalls | None:
        """The calls that restore the votes of a node that has no record of these leases, because it restarted, or was
        down when they were granted. A majority has just confirmed the leases.

        Called when the node reaches this job, so that leases released meanwhile are left out: their release comes to
        the node after this."""
        reply = heard.get(node)
        if not isinstance(reply, list):
            return None
        calls = []
        for place, each in confirmed.items():
            held = self._held.get(each.attempt)
            if reply[place] == 0 and held is not None:
                since = b"%d" % int((clock.now() - held.since) * SECOND)
                args = self._one.asked(held.ask._replace(ttl=each.ttl))
                calls.append(
                    ScriptCall(VOTE, self._one.keys(each.name), (*args, held.number, b"%d" % each.token, since))
                )
        return ScriptCalls(calls) if calls else None

    def _renewed(self, replies: Sequence[int | bytes]) -> str | None:
        """The outcome of a renewal by the answers so far; None if further answers can change it.

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
            yield from self._everywhere(
                ScriptCall(RELEASE, self._one.keys(name), (attempt.encode(), b"%d" % token)), OWED
            )
        )

    def abandon(self, name: str, attempt: str) -> Steps[bool]:
        self._held.pop(attempt, None)
        self._splits.pop(attempt, None)
        return (yield from self._everywhere(ScriptCall(ABANDON, self._one.keys(name), (attempt.encode(),)), OWED))

    def interrupt(self, name: str, force: bool) -> Steps[bool]:
        call: ScriptCall = next(self._one.interrupt(name, force))
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
        """Forget leases that expired without a release."""
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
        calls = ScriptCalls([next(self._one.inspect(name)) for name in names])
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
                    token = mode(each.token for each in seen)  # a node may not have the final token yet
                    left = sorted(each.expires_in for each in seen)[-self.quorum]  # until then it is held on a majority
                    found.append(seen[0]._replace(token=token, expires_in=left, waiters=None))
        return found

    def _everywhere(self, call: ScriptCall, owed: float = 0.0) -> Steps[bool]:
        """Send a call to all nodes. Returns what a majority answered, or may have; the other nodes still do it."""
        answers: Answers = yield Poll(call, self._decided(lambda reply: reply == 1), SLOWEST, owed)
        votes: list[int] = [reply for reply in answers.values() if not isinstance(reply, Exception)]
        if len(votes) < self.quorum:
            raise self._too_few(answers)
        yes, silent = sum(votes), self.nodes - len(votes)
        return yes >= self.quorum or (yes > silent and yes + silent >= self.quorum)

    def _insist(self, poll: Poll) -> Steps[Answers]:
        """Send an idempotent request, and once more if too few nodes answer: they may have had to reconnect, or this
        process may have stood still."""
        answers: Answers = yield poll
        too_few = sum(not isinstance(reply, Exception) for reply in answers.values()) < self.quorum
        if too_few and isinstance(self._too_few(answers), StoreUnavailable):
            answers = yield poll
        return answers

    def _decided(self, yes: Callable[[Any], bool]) -> Callable[[Answers], bool]:
        """A function that tells whether further answers can no longer change the result.

        A failed node is not a refusal: a majority has to answer, unless too many nodes failed."""
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
        """Why there is no majority. StoreNotReady if there cannot be one until an operator repairs the nodes."""
        errors = [reply for reply in answers.values() if isinstance(reply, Exception)]
        refusals = [error for error in errors if isinstance(error, StoreNotReady)]
        if len(refusals) > self.nodes - self.quorum:
            return refusals[0]
        why = f": {errors[0]}" if errors else ""
        error = StoreUnavailable(
            f"redlock: no majority: fewer than {self.quorum} of {self.nodes} nodes answered or agreed{why}"
        )
        error.__cause__ = (errors[0].__cause__ or errors[0]) if errors else None
        return error


def _patience(ttl: int) -> float:
    return min(SLOWEST, max(QUICKEST, ttl / SECOND / 10))


def _is(reply: Any, code: int) -> bool:
    return isinstance(reply, list) and reply[0] == code


def nodes_of(url: str) -> list[RedisAddress]:
    """The nodes that a URL names. Raises ValueError for fewer than three, or the same one twice."""
    address = parse("redis+cluster://" + url.partition("://")[2], any_db=True)
    if len(address.hosts) < 3 or len(set(address.hosts)) < len(address.hosts):
        raise ValueError("redlock:// needs three or more different nodes: redlock://h1:p1,h2:p2,h3:p3")
    if address.replicas:
        raise ValueError("redlock:// does not support the option replicas: its nodes are independent")
    return [address._replace(kind="single", hosts=(host,)) for host in address.hosts]
