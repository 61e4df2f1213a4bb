"""``redlock://h1:p1,h2:p2,h3:p3``: a lease is held when a majority of independent Redis nodes say so.

Each node stores what a single Redis does, and runs the same scripts. What a majority means, and how the token stays
monotonic, is here; ``redlock_threads`` asks the nodes, all at once. ``docs/design/04-redlock.md`` has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import mode
from typing import Any, NamedTuple

from ..errors import StoreUnavailable
from ..protocol import BROKEN, GONE, RENEWED, SECOND, Ask, Busy, Grant, Holding, Mismatch, Opened, Renewal, Reply, Steps
from .redis.scripts import ABANDON, RAISE, RELEASE, RENEW, Call
from .redis.store import Keys, Many, RedisStore, read_holding
from .redis.url import parse

Answers = Mapping[int, Any]
"""By node: its reply, or the error that came in place of one."""

SLOWEST, QUICKEST = 0.5, 0.05
"""Bounds, in seconds, of what one node may take: a twentieth of the ttl in between."""


class Poll(NamedTuple):
    """Ask all nodes at once. Answered as soon as ``enough`` says so, or when the last node has answered or failed."""

    request: Call | Many | Keys
    enough: Callable[[Answers], bool]
    patience: float
    """Seconds that one node may take."""


class Tell(NamedTuple):
    """Have all nodes do it, after what they were asked before; nobody waits. Late and failed ones are tried again."""

    call: Call
    until: float
    """For so many seconds; then the node has forgotten the lease by itself."""


class RedlockStore:
    """See :class:`leasehold.protocol.Store`, which says what each operation means."""

    scheme = "redlock"
    fair = False

    def __init__(self, namespace: str, nodes: int) -> None:
        self.nodes = nodes
        self.quorum = nodes // 2 + 1
        self._one = RedisStore("redlock", namespace, quorum=True)
        self._one.session = b""  # nobody is rung

    def acquire(self, ask: Ask) -> Steps[Reply]:
        patience = min(SLOWEST, max(QUICKEST, ask.ttl / SECOND / 20))
        steps = self._one.acquire(ask._replace(queue=False))
        call: Call = next(steps)
        steps.close()
        answers: Answers = yield Poll(call, self._decided(lambda reply: reply[0] == 1), patience)
        granted = {node: reply for node, reply in answers.items() if _is(reply, 1)}
        if len(granted) >= self.quorum:
            token = max(reply[1] for reply in granted.values())
            # Written to a majority before anybody hears of it: whoever comes next meets one of these nodes.
            raising = Call(RAISE, call.keys, (ask.attempt.encode(), b"%d" % token))
            raised: Answers = yield Poll(raising, self._decided(lambda reply: reply == 1), patience)
            if sum(reply == 1 for reply in raised.values()) >= self.quorum:
                return Grant(token)
        yield Tell(Call(ABANDON, call.keys, (ask.attempt.encode(),)), ask.ttl / SECOND)
        for reply in answers.values():
            if _is(reply, -1):
                shape, _, limit = reply[1].decode().rpartition(" ")
                return Mismatch(shape, int(limit))
        refused = [reply for reply in answers.values() if _is(reply, 0)]
        if len(granted) + len(refused) < self.quorum:
            raise self._too_few(answers)
        seen = [read_holding(ask.name, reply[3:]) for reply in refused if len(reply) > 3]
        if not seen:
            return Busy(None, None, None)
        holder = max(seen, key=lambda holding: holding.token)
        return Busy(holder._replace(waiters=None), None, max(holding.expires_in for holding in seen))

    def renew(self, batch: Sequence[Renewal]) -> Steps[Sequence[str]]:
        keys = tuple(self._one.keys(each.name)[0] for each in batch)
        args = tuple(part for each in batch for part in (each.attempt.encode(), b"%d" % each.token, b"%d" % each.ttl))
        ttl = min(each.ttl for each in batch) / SECOND
        patience = min(SLOWEST, max(QUICKEST, ttl / 20))
        wanted = [1] * len(batch)
        answers: Answers = yield Poll(Call(RENEW, keys, args), self._decided(lambda reply: reply == wanted), patience)
        replies = [reply for reply in answers.values() if isinstance(reply, list)]
        outcomes = []
        for place in range(len(batch)):
            votes = [reply[place] for reply in replies]
            if votes.count(1) >= self.quorum:
                outcomes.append(RENEWED)
            elif -1 in votes:
                outcomes.append(BROKEN)
            elif votes.count(0) > self.nodes - self.quorum:
                outcomes.append(GONE)
            else:
                raise self._too_few(answers)
        return outcomes

    def release(self, name: str, attempt: str, token: int, hint: Any) -> Steps[bool]:
        return (yield from self._everywhere(Call(RELEASE, self._one.keys(name), (attempt.encode(), b"%d" % token))))

    def abandon(self, name: str, attempt: str) -> Steps[bool]:
        return (yield from self._everywhere(Call(ABANDON, self._one.keys(name), (attempt.encode(),))))

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

    def tidy(self) -> Steps[None]:
        yield from ()

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
                    left = min(each.expires_in for each in seen)
                    found.append(seen[0]._replace(token=token, expires_in=left, waiters=None))
        return found

    def _everywhere(self, call: Call) -> Steps[bool]:
        """Have all do it. The answer is what a majority has answered; the rest still do it."""
        answers: Answers = yield Poll(call, self._decided(lambda reply: reply == 1), SLOWEST)
        votes = [reply for reply in answers.values() if not isinstance(reply, Exception)]
        if len(votes) < self.quorum:
            raise self._too_few(answers)
        return sum(votes) >= self.quorum or (1 in votes and sum(votes) > self.nodes - len(votes))

    def _decided(self, yes: Callable[[Any], bool]) -> Callable[[Answers], bool]:
        """Whether the nodes that have not answered yet can still change anything: a majority for it, or against."""

        def enough(answers: Answers) -> bool:
            votes = sum(1 for reply in answers.values() if not isinstance(reply, Exception) and yes(reply))
            return votes >= self.quorum or len(answers) - votes > self.nodes - self.quorum

        return enough

    def _all(self, answers: Answers) -> bool:
        return len(answers) == self.nodes

    def _too_few(self, answers: Answers) -> StoreUnavailable:
        errors = [reply for reply in answers.values() if isinstance(reply, Exception)]
        why = f": {errors[0]}" if errors else ""
        error = StoreUnavailable(f"redlock: fewer than {self.quorum} of {self.nodes} nodes agree or answer{why}")
        error.__cause__ = errors[0] if errors else None
        return error


def _is(reply: Any, code: int) -> bool:
    return isinstance(reply, list) and reply[0] == code


def open_url(url: str, namespace: str) -> Opened:
    from .redlock_threads import RedlockTasks, RedlockThreads

    address = parse("redis+cluster://" + url.partition("://")[2], any_db=True)
    if len(address.hosts) < 3 or len(set(address.hosts)) < len(address.hosts):
        raise ValueError("redlock:// needs three or more different nodes: redlock://h1:p1,h2:p2,h3:p3")
    if address.replicas:
        raise ValueError("redlock:// has no replicas: its nodes are independent")
    nodes = [address._replace(kind="single", hosts=(host,)) for host in address.hosts]
    store = RedlockStore(namespace, len(nodes))
    return Opened(store, lambda: RedlockThreads(nodes), lambda: RedlockTasks(nodes))
