"""Where the node of a stake is, and how it is removed, though a move may have taken it elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kazoo.exceptions import NoNodeError

from ...core.protocol import BROKEN, GONE, Steps
from . import nodes
from .reading import Reading
from .requests import Call, Calls, Multi, delete, get
from .stake import NO_DOUBT, Place, Stake


class Placing(Reading):
    """What all operations on a stake need whose node may not be as it was left."""

    def _explain(self, stake: Stake) -> Steps[str | None]:
        """Why the node is not as we left it. None: by a write of our own, whose answer was lost; so try again."""
        place = stake.place()
        [found] = yield Calls(place.session, (get(place.path),))
        if isinstance(found, NoNodeError):
            elsewhere = (yield from self._find_moved(stake, place)) if stake.moves else None
            if elsewhere is None:
                self.link.drop(stake)
                return GONE
            place, found = elsewhere
        broken = nodes.decode(found[0], stake.name).state == nodes.BROKEN
        if stake.placed(place._replace(version=0 if broken else found[1].version)):  # no check is to find it well
            self.link.moved(stake)
        return BROKEN if broken else None

    def _find_moved(self, stake: Stake, here: Place) -> Steps[tuple[Place, Any] | None]:
        """Where a move has taken the node that is no longer here; None: nowhere."""
        while True:
            look = yield from self._view(here.session, stake.parent)
            sequence = nodes.sequence(here.path)
            paths = [f"{stake.parent}/{n.child}" for n in look.find(stake.attempt) if n.sequence == sequence]
            if not paths:
                return None
            [found] = yield Calls(here.session, (get(paths[0]),))
            if isinstance(found, NoNodeError):
                continue  # moved on
            session = self.link.owner(found[1].ephemeralOwner)
            if session is None:  # one of ours that is over: its nodes are about to go
                self.link.doomed[paths[0]] = here.session
                return None
            return Place(paths[0], found[1].version, session, nodes.mark(paths[0])), found

    def _remove(self, stake: Stake) -> Steps[bool]:
        [answer] = yield from self._end(stake, delete)
        return not isinstance(answer, Exception)

    def _end(self, stake: Stake, change: Callable[[str], Call | Multi]) -> Steps[Sequence[Any]]:
        """Make the change that deletes the node, wherever a move may have taken it. What a move that comes late is
        conditional on is gone then, too."""
        while True:
            place = stake.place()
            answer = yield Calls(place.session, (change(place.path),))
            first = answer[0][0] if isinstance(answer[0], list) else answer[0]
            if not isinstance(first, Exception):
                stake.doubt = NO_DOUBT
            elif isinstance(first, NoNodeError) and stake.moves and (yield from self._explain(stake)) != GONE:
                continue
            self.link.drop(stake)
            return answer if not isinstance(answer[0], list) else answer[0]
