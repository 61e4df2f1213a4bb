"""How a lease is taken, waited for and taken over."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from kazoo.exceptions import NoNodeError

from ...core import clock, timing
from ...core.protocol import BROKEN, SECOND, Ask, Busy, Grant, Mismatch, Missing, Reply, Steps
from . import nodes, watching
from .nodes import Node, View, view
from .placing import Placing
from .requests import Call, Calls, Multi, children, create, delete, get, listing, put, watch_all
from .session import Session
from .stake import FIRST, NEAR, Stake, Turn

LOOKED_AT = 16
"""Of so many holders the next in line looks whether they have claimed what they were let in for."""


class Asking(Placing):
    """All that ``acquire`` does."""

    def acquire(self, ask: Ask) -> Steps[Reply]:
        started = clock.now()
        reply: Reply | None = None
        while reply is None:
            stake = self.link.find(ask.attempt)
            if stake is None and ask.heir is not None:
                reply = yield from self._inherit(ask, ask.heir, started)
            elif stake is None:
                reply = yield from self._ask_first(ask, started)
            else:
                reply = yield from self._ask_again(ask, stake, started)
        return reply

    def _ask_first(self, ask: Ask, started: float) -> Steps[Reply | None]:
        """Create a node and look who else is there: one round trip, and that is all when nobody is."""
        session = yield from self._session(ask.ttl / SECOND)
        parent = self._parent(session, ask.name)
        record = nodes.record(ask, nodes.HELD)
        stake = Stake(ask, session, parent, record)
        self.link.add(stake)
        path = f"{parent}/{nodes.prefix(ask)}"
        born, listed = yield Calls(session, (create(path, record.encode(), mine=True), listing(parent)))
        if isinstance(born, NoNodeError):
            self.link.drop(stake)
            yield from self._make(session, parent)
            return None
        stake.path, stat = born
        stake.version = 0
        self._saw(stake, stat)
        if isinstance(listed, NoNodeError):
            self.link.drop(stake)  # the whole tree was removed in this moment
            return None
        there, name = listed
        # A server may list late: whoever was ahead has held and gone since, with a token above that of our create.
        fresh = name.pzxid == stat.czxid
        return (yield from self._decide(ask, stake, view(there, self.link.leader_ms()), started, fresh=fresh))

    def _ask_again(self, ask: Ask, stake: Stake, started: float) -> Steps[Reply | None]:
        """Find what was given, or keep the place. None: there is nothing any more, so start over."""
        yield from self._up(stake.session)
        yield from self._clock(stake.session)
        calls = [children(stake.parent)]
        turn = stake.turn
        if turn and turn.next and turn.called and stake.path and stake.version and not stake.held:
            turn.hasty = True  # it seems to be our turn: claim it along with the look, which costs a round trip less
            calls.append(put(stake.path, nodes.record(ask, nodes.HELD).encode(), stake.version))
        if turn:
            turn.next = turn.called = turn.rung = False
        there, *said = yield Calls(stake.session, calls)
        look = self._standing([] if isinstance(there, NoNodeError) else there)
        mine = look.find(stake.attempt)
        if stake.path is None:  # the answer was lost: is it there?
            stake.unsure = True
            if mine:
                stake.path = f"{stake.parent}/{mine[0].child}"
        elif not any(stake.path.endswith(node.child) for node in mine):
            mine = []
        if not mine or stake.path is None:
            self.link.drop(stake)
            return None
        if stake.version is None:
            [found] = yield Calls(stake.session, (get(stake.path),))
            if isinstance(found, NoNodeError):
                self.link.drop(stake)
                return None
            stake.version = found[1].version
            self._saw(stake, found[1])
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
            self.link.drop(stake)
            return None
        if mine in look.strays:
            yield from self._remove(stake)
            return Mismatch(look.shape, look.limit)
        if not (fresh or stake.version or stake.held) and look.others_behind(mine):
            # The first look comes late: the name may have been in use otherwise when our node was created, and those
            # behind us may hold by that. They do not see us, so look again from behind them.
            yield from self._remove(stake)
            return None
        if mine in look.holders:
            if not (fresh or (yield from self._claim(ask, stake, said))):
                return None
            return Grant(stake.token) if self.link.hold(stake, started, ask.ttl) else None
        for answer in said:  # it was too early: somebody else is let in first
            if isinstance(answer, Exception):
                stake.version = None
                return None
            stake.version = answer.version
        if ask.queue:
            return (yield from self._wait(ask, stake, look, mine))
        busy = yield from self._busy(stake.session, ask.name, look, None, (delete(stake.path),))
        self.link.drop(stake)
        return busy

    def _claim(self, ask: Ask, stake: Stake, said: Sequence[Any]) -> Steps[bool]:
        """Write that it is ours: by this others see that we live, and we that our session does. Mints the token."""
        assert stake.path is not None
        record = nodes.record(ask, nodes.HELD)
        if stake.held:  # its answer got lost: it is ours already
            record = record._replace(since=stake.since, token=stake.token)
        [stat] = said or (yield Calls(stake.session, (put(stake.path, record.encode(), stake.version or 0),)))
        if isinstance(stat, Exception):
            if (yield from self._explain(stake)) == BROKEN:
                yield from self._remove(stake)
            return False
        stake.version, stake.record = stat.version, record
        if not stake.held:
            self._saw(stake, stat)
        return True

    def _inherit(self, ask: Ask, heir: tuple[str, int], started: float) -> Steps[Reply | None]:
        """Put a node of our own in the place of another's: the same sequence number, in one transaction."""
        session = yield from self._session(ask.ttl / SECOND)
        parent = self._parent(session, ask.name)
        look = yield from self._view(session, parent)
        attempt, token = heir
        old = next((node for node in look.holders if node.attempt == attempt and node.weight >= ask.weight), None)
        if old is None:
            return Missing()
        [found] = yield Calls(session, (get(f"{parent}/{old.child}"),))
        if isinstance(found, NoNodeError):
            return None
        was, stat = nodes.decode(found[0], ask.name), found[1]
        if was.state != nodes.HELD or self._token(session, was, stat) != token:
            return Missing()
        left = (was.since or stat.mtime) * 1000 + was.rest - self.link.leader_ms() * 1000
        ask = ask._replace(shape=look.shape, limit=look.limit, rest=max(ask.rest, left))
        stake = Stake(ask, session, parent, nodes.record(ask, nodes.HELD))
        stake.path = f"{parent}/{nodes.prefix(ask)}{old.child.rpartition('.')[2]}"
        stake.unsure = True  # until the answer is there
        self.link.add(stake)
        parts = (
            Call("delete", (f"{parent}/{old.child}", stat.version)),
            Call("create", (stake.path, stake.record.encode()), {"ephemeral": True}),
        )
        answers, born = yield Calls(session, (Multi(parts), get(stake.path)))
        stake.unsure = False
        if isinstance(born, NoNodeError) or any(isinstance(answer, Exception) for answer in answers):
            self.link.drop(stake)
            return None
        stake.version = 0
        self._saw(stake, born[1])
        return Grant(stake.token) if self.link.hold(stake, started, ask.ttl) else None

    def _wait(self, ask: Ask, stake: Stake, look: View, mine: Node) -> Steps[Reply | None]:
        """Say that we wait, and have ourselves called when it is worth another look.

        Of a lock the first in line watches the holder. Whoever is behind it follows the three before it: when the
        nearest has gone, it asks; when another has, it hears whether the next claims, see ``Watching``. Of what several
        may hold, everybody watches who is right before it, and the first two in line all that come and go.
        """
        assert stake.path is not None
        stake.turn = turn = stake.turn or Turn()
        watch = partial(self.link.watching.watch, stake, turn)
        stake.until = clock.now() + timing.WAITER_TTL
        place = look.waiting.index(mine)
        ahead = [f"{stake.parent}/{node.child}" for node in look.holders[-LOOKED_AT:]]
        queue = [f"{stake.parent}/{node.child}" for node in look.waiting[:place]]
        waiting = [] if look.resting else queue
        turn.late = frozenset((*waiting, *turn.late.intersection(ahead)))  # whether a rest is over, not all see alike
        alone = look.limit == 1 and not look.resting
        crowd = len(look.holders) > 1
        near = (*ahead, *queue)[-NEAR:] if alone and place else FIRST
        before = [] if alone else queue[-1:]
        watched = before if crowd or place > 1 or near else [*before, *ahead]
        just_come, told = stake.version == 0, stake.version and not turn.hasty
        say = [] if told else [put(stake.path, nodes.record(ask, nodes.WAITING).encode(), stake.version or 0)]
        listing = [children(stake.parent, watch(stake.parent))] if crowd and place < 2 else []
        read = [] if just_come and near else [*before, *ahead]
        self.link.watching.follow(stake, turn, near)
        follows = (stake.session.connections, near)
        calls = [
            *say,
            *(get(path, watch(path) if path in watched else None) for path in read),
            *([watch_all(near)] if near and turn.followed != follows else []),
            *listing,
        ]
        if read or not near:
            busy, answers = yield from self._look(stake.session, ask.name, look, place, calls)
        else:  # how the holder stands is for those in between to see; unless they are few, and may all be dead
            answers = yield Calls(stake.session, calls)
            busy = Busy(None, place, None, look=watching.SOON if place < NEAR else None)
        if say:
            said = answers.pop(0)
            if isinstance(said, NoNodeError):
                self.link.drop(stake)
            stake.version = None if isinstance(said, Exception) else said.version
            if stake.version is None:
                return None  # it is gone, or this was said before and the answer was lost
            turn.hasty = False
        there = answers.pop() if listing else ()
        if not near and any(isinstance(answer, NoNodeError) for answer in (*answers, there)):
            return None  # somebody has gone meanwhile, of whom we would not hear
        if listing and not {node.child for node in look.holders} <= set(there):
            return None
        # Those that it follows are all that are ahead, if it is not further back than that.
        turn.next, turn.followed = place < NEAR if alone else place == 0, follows
        found = {
            path: answer
            for path, answer in zip(read, answers, strict=False)
            if path in ahead and not isinstance(answer, NoNodeError)
        }
        return (yield from self._suspect(stake, turn, found, busy))

    def _suspect(self, stake: Stake, turn: Turn, found: dict[str, Any], busy: Busy) -> Steps[Reply | None]:
        """Who was let in and does not claim within a first term is dead: it is removed, unless it claims first."""
        now, term = clock.now(), timing.FIRST_TERM  # those further back wait a little longer before they look
        unclaimed = {
            path: stat.version
            for path, (data, stat) in found.items()
            if nodes.decode(data, stake.name).unclaimed(new=path in turn.late and not stat.version)
        }
        turn.suspects = {path: turn.suspects.get(path, now) for path in unclaimed}
        dead = [path for path, since in turn.suspects.items() if now - since >= term]
        if dead:
            yield Calls(stake.session, [delete(path, unclaimed[path]) for path in dead])
            return None
        if turn.suspects:
            left = min(turn.suspects.values()) + term - now
            busy = busy._replace(expires_in=left if busy.expires_in is None else min(left, busy.expires_in))
        return busy

    def _busy(self, session: Session, name: str, look: View, place: int | None, more: Sequence[Call]) -> Steps[Busy]:
        busy, _ = yield from self._look(session, name, look, place, more)
        return busy

    def _look(
        self, session: Session, name: str, look: View, place: int | None, calls: Sequence[Call]
    ) -> Steps[tuple[Busy, list[Any]]]:
        """Make the calls, and see who is in the way."""
        parent = self._parent(session, name)
        first = look.taken()[:1]
        paths = [f"{parent}/{node.child}" for node in first]
        asked = [number for number, call in enumerate(calls) if call.method == "get_async" and call.args[0] in paths]
        answers = yield Calls(session, (*calls, *(() if asked else map(get, paths))))
        holder, left = None, None
        if first:
            found = answers[asked[0]] if asked else answers.pop()
            if not isinstance(found, Exception):
                holder = self._seen(session, name, first[0], found, len(look.waiting))
        if look.resting:
            left = max(0.001, (min(rest.until for rest in look.resting) - self.link.leader_ms()) / 1000)
        return Busy(holder, place, left), answers
