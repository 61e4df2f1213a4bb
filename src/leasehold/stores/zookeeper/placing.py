"""Where the node of a stake is, and how it is removed, though a move may have taken it elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kazoo.exceptions import NoNodeError

from ...core.protocol import BROKEN, GONE, SECOND, Steps
from ...errors import StoreError, StoreUnavailable
from . import nodes
from .requests import Apart, Calls, ClientCall, Part, delete, get, multi
from .stakes import NO_DOUBT, Stake, StakePlace
from .tree import ZooKeeperTree


class Placement:
    """What all operations on a stake need whose node may not be as it was left."""

    def __init__(self, tree: ZooKeeperTree) -> None:
        self.tree, self.stakes = tree, tree.stakes

    def explain(self, stake: Stake) -> Steps[str | None]:
        """Why the node is not as we left it. None: by a write of our own, whose answer was lost; so try again."""
        place = self.stakes.place(stake)
        [found] = yield Calls(place.session, (get(place.path),))
        if isinstance(found, NoNodeError):
            elsewhere = (yield from self._find_moved(stake, place)) if stake.moves else None
            if elsewhere is None:
                self.stakes.drop(stake)
                return GONE
            place, found = elsewhere
        broken = nodes.decode(found[0], stake.name).state == nodes.BROKEN
        version = 0 if broken else found[1].version  # no check is to find a broken one well
        self.stakes.placed(stake, place._replace(version=version))
        return BROKEN if broken else None

    def _find_moved(self, stake: Stake, here: StakePlace) -> Steps[tuple[StakePlace, Any] | None]:
        """Where a move has taken the node that is no longer here; None: nowhere."""
        while True:
            look = yield from self.tree.view(here.session, stake.parent)
            sequence = nodes.sequence(here.path)
            paths = [f"{stake.parent}/{n.child}" for n in look.find(stake.attempt) if n.sequence == sequence]
            if not paths:
                return None
            [found] = yield Calls(here.session, (get(paths[0]),))
            if isinstance(found, NoNodeError):
                continue  # moved on
            session = self.tree.pool.by_id(found[1].ephemeralOwner)
            if session is None:  # one of ours that is over: its nodes are about to go
                self.stakes.doomed[paths[0]] = here.session
                return None
            return StakePlace(paths[0], found[1].version, session, nodes.mark(paths[0])), found

    def move(self, stake: Stake, ttl: int, within: float) -> Steps[str | None]:
        """Put the node into a longer session, at its place in line. None when it is in one, else why it can't be."""
        if within < float("inf") and not self.tree.pool.session(ttl / SECOND).up:
            raise StoreUnavailable(
                f"{self.tree.pool.where}: the session for a ttl of {ttl / SECOND:g} s is not connected"
            )
        session = yield from self.tree.session(ttl / SECOND)
        while True:
            here = self.stakes.place(stake)
            if here.session.lasts(ttl / SECOND):
                return None
            there = self.stakes.next_place(stake, here, session)
            record = stake.record._replace(since=stake.since, token=stake.token)
            parts = (
                Part("delete", (here.path, here.version)),
                Part("create", (there.path, record.encode()), {"ephemeral": True}),
            )
            [answers] = yield Apart([(session, multi(parts))], within)
            if isinstance(answers, StoreError):
                raise answers
            if not any(isinstance(answer, Exception) for answer in answers):
                self.stakes.placed(stake, there, record)
                return None
            outcome = yield from self.explain(stake)
            if outcome is not None:
                return outcome

    def remove(self, stake: Stake) -> Steps[bool]:
        [answer] = yield from self.end(stake, delete)
        return not isinstance(answer, Exception)

    def end(self, stake: Stake, change: Callable[[str], ClientCall]) -> Steps[Sequence[Any]]:
        """Make the change that deletes the node, wherever a move may have taken it. What a move that comes late is
        conditional on is gone then, too."""
        while True:
            place = self.stakes.place(stake)
            answer = yield Calls(place.session, (change(place.path),))
            if isinstance(answer[0], list):
                answer = answer[0]
            if not isinstance(answer[0], Exception):
                stake.doubt = NO_DOUBT
            elif isinstance(answer[0], NoNodeError) and stake.moves and (yield from self.explain(stake)) != GONE:
                continue
            self.stakes.drop(stake)
            return list(answer)
