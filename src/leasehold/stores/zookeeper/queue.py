"""How a lease is taken, waited for and taken over.

A plain queue: an attempt creates its node, and holds if that is first in line. Otherwise it says that it waits, and
watches the two ahead of it. When the nearest has gone, it claims by writing its node. The second in line sees to it
that a first one who has died, and does not claim what it is let in for, is removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kazoo.exceptions import NoNodeError

from ...core import clock, timing
from ...core.protocol import BROKEN, SECOND, Ask, Busy, Grant, Mismatch, Missing, Reply, Steps
from . import nodes
from .nodes import AttemptNode, View, view
from .placing import Placement
from .requests import Calls, Part, children, create, delete, get, listing, multi, put
from .stakes import NEAR, Stake, Waiting
from .tree import ZooKeeperTree, token_of, up

LOOKED_AT = 16
"""Of so many holders the next in line looks whether they have claimed what they were let in for."""


class ZooKeeperQueue:
    """All that ``acquire`` does."""

    def __init__(self, tree: ZooKeeperTree, placement: Placement) -> None:
        self.tree, self.stakes, self.placement = tree, tree.stakes, placement

    def acquire(self, ask: Ask) -> Steps[Reply]:
        started = clock.now()
        reply: Reply | None = None
        while reply is None:
            stake = self.stakes.find(ask.attempt)
            if stake is not None:
                reply = yield from self._ask_again(ask, stake, started)
            elif ask.heir is not None:
                reply = yield from self._inherit(ask, ask.heir, started)
            else:
                reply = yield from self._ask_first(ask, started)
        return reply

    def _ask_first(self, ask: Ask, started: float) -> Steps[Reply | None]:
        """Create a node and look who else is there: one round trip, and that is all when nobody is."""
        session = yield from self.tree.session(ask.ttl / SECOND)
        parent = self.tree.parent(session, ask.name)
        record = nodes.record(ask, nodes.HELD)
        stake = Stake(ask, session, parent, record)
        self.stakes.add(stake)
        path = f"{parent}/{nodes.prefix(ask)}"
        born, listed = yield Calls(session, (create(path, record.encode(), mine=True), listing(parent)))
        if isinstance(born, NoNodeError):
            self.stakes.drop(stake)
            yield from self.tree.make(session, parent)
            return None
        stake.path, stat = born
        stake.version = 0
        self.tree.saw(stake, stat)
        if isinstance(listed, NoNodeError):
            self.stakes.drop(stake)  # the whole tree was removed in this moment
            return None
        there, name = listed
        # A server may list late: whoever was ahead has held and gone since, with a token above that of our create.
        fresh = name.pzxid == stat.czxid
        return (yield from self._decide(ask, stake, view(there, self.stakes.leader_ms()), started, fresh=fresh))

    def _ask_again(self, ask: Ask, stake: Stake, started: float) -> Steps[Reply | None]:
        """Find what was given, or keep the place. None: there is nothing any more, so start over."""
        yield from up(stake.session)
        yield from self.tree.clock(stake.session)
        calls = [children(stake.parent)]
        if (wait := stake.wait) is not None:
            if wait.is_next and stake.path and stake.version and not stake.held:
                wait.hasty = True  # it seems to be our turn: claim it along with the look, which saves a round trip
                calls.append(put(stake.path, nodes.record(ask, nodes.HELD).encode(), stake.version))
            wait.is_next, wait.look_at = False, 0.0
        there, *said = yield Calls(stake.session, calls)
        look = self.tree.standing(there)
        mine = look.find(stake.attempt)
        if stake.path is None:  # the answer was lost: is it there?
            stake.unsure = True
            if mine:
                stake.path = f"{stake.parent}/{mine[0].child}"
        elif not any(stake.path.endswith(node.child) for node in mine):
            mine = []
        if not mine or stake.path is None:
            self.stakes.drop(stake)
            return None
        if stake.version is None:
            [found] = yield Calls(stake.session, (get(stake.path),))
            if isinstance(found, NoNodeError):
                self.stakes.drop(stake)
                return None
            stake.version = found[1].version
            self.tree.saw(stake, found[1])
        return (yield from self._decide(ask, stake, look, started, said=said))

    def _decide(
        self, ask: Ask, stake: Stake, look: View, started: float, fresh: bool = False, said: Sequence[Any] = ()
    ) -> Steps[Reply | None]:
        """``said`` is the answer to a claim that was sent along with the look."""
        assert stake.path is not None
        if look.over:
            yield Calls(stake.session, [delete(f"{stake.parent}/{rest.child}") for rest in look.over])
        mine = next((node for node in look.find(stake.attempt) if stake.path.endswith(node.child)), None)
        if mine is None:
            self.stakes.drop(stake)
            return None
        if mine in look.strays:
            yield from self.placement.remove(stake)
            return Mismatch(look.shape, look.limit)
        if not (fresh or stake.version or stake.held) and look.others_behind(mine):
            # The first look comes late: the name may have been in use otherwise when our node was created, and those
            # behind us may hold by that. They do not see us, so look again from behind them.
            yield from self.placement.remove(stake)
            return None
        if mine in look.holders:
            if not (fresh or (yield from self._claim(ask, stake, said))):
                return None
            return Grant(stake.token) if self.stakes.hold(stake, started, ask.ttl) else None
        for answer in said:  # it was too early: somebody else is let in first
            stake.version = None if isinstance(answer, Exception) else answer.version
        if stake.version is None:
            return None
        if ask.queue:
            return (yield from self._wait(ask, stake, look, mine))
        busy, _ = yield from self.tree.busy(stake.session, ask.name, look, None, (delete(stake.path),))
        self.stakes.drop(stake)
        return busy

    def _claim(self, ask: Ask, stake: Stake, said: Sequence[Any]) -> Steps[bool]:
        """Write that it is ours: by this others see that we live, and we that our session does. Mints the token."""
        assert stake.path is not None
        record = nodes.record(ask, nodes.HELD)
        if stake.held:  # its answer got lost: it is ours already
            record = record._replace(since=stake.since, token=stake.token)
        [stat] = said or (yield Calls(stake.session, (put(stake.path, record.encode(), stake.version or 0),)))
        if isinstance(stat, Exception):
            if (yield from self.placement.explain(stake)) == BROKEN:
                yield from self.placement.remove(stake)
            return False
        stake.version, stake.record = stat.version, record
        if not stake.held:
            self.tree.saw(stake, stat)
        return True

    # Waiting.

    def _wait(self, ask: Ask, stake: Stake, look: View, mine: AttemptNode) -> Steps[Reply | None]:
        """Say that we wait, and hear of the end of the two ahead: a listing of their children tells of nothing else,
        since they have none, and no write uses the watch up.

        Of what several may hold, all in line hear of all that come and go; of what rests, the first two."""
        if (wait := stake.wait) is None or stake.path is None:
            return None
        stake.until = clock.now() + timing.WAITER_TTL
        place = look.waiting.index(mine)
        ahead = [f"{stake.parent}/{node.child}" for node in (*look.holders, *look.waiting[:place])]
        waiting = set() if look.resting else set(ahead[len(look.holders) :])  # not all see alike whether a rest is over
        wait.late = frozenset(waiting | wait.late.intersection(ahead))
        # Of several that may hold, more than two can be let in at once, and no node ahead goes by that.
        crowd = look.limit > 1 or (place < NEAR and bool(look.resting))
        near = tuple(ahead[-NEAR:])
        if not wait.hasty and stake.version:
            say = []
        else:
            say = [put(stake.path, nodes.record(ask, nodes.WAITING).encode(), stake.version or 0)]
        reading = [f"{stake.parent}/{node.child}" for node in look.taken()]
        reading = reading[:1] + reading[1:][-LOOKED_AT:]
        if place >= NEAR or (place and stake.version == 0):  # how the holder stands is for those in between to see
            reading = []
        connections = stake.session.connections
        watched = wait.watched[1] if wait.watched[0] == connections else ()
        self.stakes.follow(stake, (*near, *([stake.parent] if crowd else ())), near)
        event = self.stakes.event
        calls = [
            *say,
            *map(get, reading),
            *(children(path, event) for path in near if path not in watched),
            *([children(stake.parent, event)] if crowd else ()),
        ]
        answers = yield Calls(stake.session, calls)
        if say:
            said = answers.pop(0)
            if isinstance(said, NoNodeError):
                self.stakes.drop(stake)
            stake.version = None if isinstance(said, Exception) else said.version
            if stake.version is None:
                return None  # it is gone, or this was said before and the answer was lost
            wait.hasty = False
        wait.watched = connections, frozenset(near)
        if any(isinstance(answer, NoNodeError) for answer in answers):
            return None  # somebody has gone meanwhile, of whom we would not hear
        if crowd and not {path.rpartition("/")[2] for path in ahead} <= set(answers[-1]):
            return None
        found = dict(zip(reading, answers, strict=False))
        return (yield from self._look_at(stake, wait, look, place, found))

    def _look_at(
        self, stake: Stake, wait: Waiting, look: View, place: int, found: dict[str, tuple[bytes, Any]]
    ) -> Steps[Reply | None]:
        """How those stand that were read. Who was let in and does not claim within a first term is dead: it is removed,
        unless it claims first."""
        now = clock.now()
        taken = {f"{stake.parent}/{node.child}": node for node in look.taken()}
        unclaimed = {
            path: stat.version
            for path, (data, stat) in found.items()
            if nodes.decode(data, stake.name).unclaimed(new=path in wait.late and not stat.version)
        }
        wait.suspects = {path: wait.suspects.get(path, now) for path in unclaimed}
        dead = [path for path, since in wait.suspects.items() if now - since >= timing.FIRST_TERM]
        if dead:
            yield Calls(stake.session, [delete(path, unclaimed[path]) for path in dead])
            return None
        holder = None
        for path in list(found)[:1]:
            holder = self.tree.seen(stake.session, stake.name, taken[path], found[path], len(look.waiting))
        left = self.tree.rests_for(look)
        if wait.suspects:
            soonest = min(wait.suspects.values()) + timing.FIRST_TERM - now
            left = soonest if left is None else min(left, soonest)
        return Busy(holder, place, left)

    # Heirs.

    def _inherit(self, ask: Ask, heir: tuple[str, int], started: float) -> Steps[Reply | None]:
        """Put a node of our own in the place of another's: the same sequence number, in one transaction."""
        session = yield from self.tree.session(ask.ttl / SECOND)
        parent = self.tree.parent(session, ask.name)
        look = yield from self.tree.view(session, parent)
        attempt, token = heir
        old = next((node for node in look.holders if node.attempt == attempt and node.weight >= ask.weight), None)
        if old is None:
            return Missing()
        [found] = yield Calls(session, (get(f"{parent}/{old.child}"),))
        if isinstance(found, NoNodeError):
            return None
        was, stat = nodes.decode(found[0], ask.name), found[1]
        if was.state != nodes.HELD or token_of(session, was, stat) != token:
            return Missing()
        left = (was.since or stat.mtime) * 1000 + was.rest - self.stakes.leader_ms() * 1000
        ask = ask._replace(shape=look.shape, limit=look.limit, rest=max(ask.rest, left))
        stake = Stake(ask, session, parent, nodes.record(ask, nodes.HELD))
        stake.path = f"{parent}/{nodes.prefix(ask)}{old.child.rpartition('.')[2]}"
        stake.unsure = True  # until the answer is there
        self.stakes.add(stake)
        parts = (
            Part("delete", (f"{parent}/{old.child}", stat.version)),
            Part("create", (stake.path, stake.record.encode()), {"ephemeral": True}),
        )
        answers, born = yield Calls(session, (multi(parts), get(stake.path)))
        stake.unsure = False
        if isinstance(born, NoNodeError) or any(isinstance(answer, Exception) for answer in answers):
            self.stakes.drop(stake)
            return None
        stake.version = 0
        self.tree.saw(stake, born[1])
        return Grant(stake.token) if self.stakes.hold(stake, started, ask.ttl) else None
