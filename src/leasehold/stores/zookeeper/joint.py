"""How several names are taken in one step.

A name that nobody holds or waits for is a node without children, and only such a node can be deleted. So one
transaction deletes the node of every name and makes it anew, with a child of ours as its first: all of them, or none
if anybody is there at one of them. Nobody sees a name missing or taken in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kazoo.exceptions import NoNodeError

from ...core import clock
from ...core.protocol import SECOND, Ask, Grant, Mismatch, Refusal, Steps, Together
from . import nodes
from .placing import Placement
from .requests import LARGEST, Calls, Part, create, delete, get, multi
from .sessions import ZooKeeperSession
from .stakes import Stake
from .tree import ZooKeeperTree

TRIES = 5
"""While whoever was in the way is gone at the next look. Then names are taken in order, which ends such a race."""


class SeveralNames:
    """``acquire_all``: see :class:`leasehold.core.protocol.Store`."""

    def __init__(self, tree: ZooKeeperTree, placement: Placement) -> None:
        self.tree, self.stakes, self.placement = tree, tree.stakes, placement

    def acquire_all(self, asks: Sequence[Ask]) -> Steps[Together]:
        started = clock.now()
        for _ in range(TRIES):
            session = yield from self.tree.session(max(ask.ttl for ask in asks) / SECOND)
            stakes = [self._first(ask, session) for ask in asks]
            if sum(200 + 3 * len(stake.path or "") + len(stake.record.encode()) for stake in stakes) > LARGEST:
                return None
            for stake in stakes:
                self.stakes.add(stake)
            changes = [change for stake in stakes for change in _anew(stake)]
            answers, *born = yield Calls(session, (multi(changes), *(get(str(stake.path)) for stake in stakes)))
            for stake in stakes:
                stake.unsure = False
            if not isinstance(answers[0], Exception):  # all or none
                return (yield from self._all(stakes, born, started))
            for stake in stakes:
                self.stakes.drop(stake)
            if any(isinstance(answer, NoNodeError) for answer in answers):
                yield from self._make_all(session, [stake.parent for stake in stakes])
            elif (refusal := (yield from self._refuse(session, asks))) is not None:
                return refusal
        return None

    def _first(self, ask: Ask, session: ZooKeeperSession) -> Stake:
        """What is to be the first node of a name. Its number is known: those of a new node start at 0."""
        stake = Stake(ask, session, self.tree.parent(session, ask.name), nodes.record(ask, nodes.HELD))
        stake.path = f"{stake.parent}/{nodes.prefix(ask)}{0:010d}"
        stake.unsure = True  # until the answer is there
        return stake

    def _make_all(self, session: ZooKeeperSession, paths: Sequence[str]) -> Steps[None]:
        made = yield Calls(session, [create(path, b"") for path in paths])
        for path, answer in zip(paths, made, strict=True):
            if isinstance(answer, NoNodeError) and not (yield from self.tree.make(session, path)):
                return

    def _all(self, stakes: Sequence[Stake], born: Sequence[Any], started: float) -> Steps[Together]:
        if not any(isinstance(found, Exception) for found in born):
            for stake, (_, stat) in zip(stakes, born, strict=True):
                stake.version = 0
                self.tree.saw(stake, stat)
            if all(self.stakes.hold(stake, started, stake.ttl) for stake in stakes):
                return [Grant(stake.token) for stake in stakes]
        for stake in stakes:  # one was removed by force in this moment, or it has taken too long
            yield from self.placement.remove(stake)
        return None

    def _refuse(self, session: ZooKeeperSession, asks: Sequence[Ask]) -> Steps[Refusal | None]:
        """Who is in the way; None when that is nobody any more."""
        looks = yield from self.tree.views(session, [ask.name for ask in asks])
        for place, (ask, look) in enumerate(zip(asks, looks, strict=True)):
            parent = self.tree.parent(session, ask.name)
            if look.over:
                yield Calls(session, [delete(f"{parent}/{rest.child}") for rest in look.over])
            if look.taken():
                if (look.shape, look.limit) != (ask.shape, ask.limit):
                    return Refusal(place, Mismatch(look.shape, look.limit))
                busy, _ = yield from self.tree.busy(session, ask.name, look, None)
                return Refusal(place, busy)
        return None


def _anew(stake: Stake) -> Iterator[Part]:
    yield Part("delete", (stake.parent,))
    yield Part("create", (stake.parent,))
    yield Part("create", (stake.path, stake.record.encode()), {"ephemeral": True})
