"""Who is told when a node comes, changes or goes: those who wait for it, those behind it in line, and who holds it.

Rings are hints: a watch that fires twice, or late, does no harm.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import EventType

from ...core.protocol import Busy
from ..common.reentry import inside
from . import nodes
from .requests import get
from .stake import FIRST, NOBODY, Stake, Turn

if TYPE_CHECKING:
    from .link import Link

SOON = 0.2
"""When one further ahead in line has gone, whoever is let in by that has claimed by then: if not, those behind it look.
One that is dead has its first term from then on, which is less than a second together."""


class Watching:
    """By path: who is to look, whatever happens to it, and who is behind it in line."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._watchers: dict[str, set[str]] = {}
        self._followers: dict[str, set[str]] = {}
        self._ringing = threading.Lock()  # so that who is told to look is not told after that that it need not
        self.event = self._event  # one object, for ten thousand watches

    def watch(self, stake: Stake, turn: Turn, path: str) -> Callable[..., None]:
        with self._link.mutex:
            if stake.turn is turn and not stake.ended:
                self._watchers.setdefault(path, set()).add(stake.attempt)
                turn.watching |= {path}
        return self.event

    def follow(self, stake: Stake, turn: Turn, paths: tuple[str, ...]) -> None:
        """From now on the stake is behind these, and no others: to be said before they are watched."""
        with self._link.mutex:
            _leave(self._followers, turn.near, stake.attempt)
            turn.near = paths if stake.turn is turn and not stake.ended else FIRST
            for path in turn.near:
                self._followers.setdefault(path, set()).add(stake.attempt)

    def leave(self, stake: Stake) -> None:
        """It no longer waits. To be called with the mutex."""
        if (turn := stake.turn) is not None:
            _leave(self._watchers, turn.watching, stake.attempt)
            _leave(self._followers, turn.near, stake.attempt)
            turn.watching, turn.near = NOBODY, FIRST

    def forget(self, attempt: str) -> None:
        if (stake := self._link.stakes.get(attempt)) is not None:
            with self._link.mutex:
                self.leave(stake)

    def call(self, attempt: str, gone: bool = False) -> None:
        """Have it look. ``gone``: because one that it watched has."""
        stake = self._link.stakes.get(attempt)
        if stake is not None and stake.held:  # it may be a write of its own: look, in a moment, when that is known
            self._link.watch_soon(stake)
            self._link.wake()
            return
        with self._ringing:
            if stake is not None and (turn := stake.turn) is not None:
                turn.called, turn.rung = gone and not turn.near, True
            self._link.on_ring(attempt)

    def _event(self, event: Any) -> None:
        """From kazoo's callback thread. One without a path is about the connection, see ``Link.cut_off``."""
        if event.path is not None:
            with inside():
                self._happened(event)

    def _happened(self, event: Any) -> None:
        gone = event.type == EventType.DELETED
        with self._link.mutex:
            called = self._watchers.pop(event.path, set())
            heard = self._followers
            behind = heard.pop(event.path, set()) if gone else heard.get(event.path, set()) - called
        mine = self._link.stakes.get(nodes.attempt_of(event.path))
        if mine is not None and mine.watched and mine.path == event.path:
            called.add(mine.attempt)
        for attempt in behind:
            stake = self._link.stakes.get(attempt)
            if stake is not None and (turn := stake.turn) is not None:
                (self._went if gone else self._wrote)(stake, turn, event.path)
        for attempt in called - behind:
            self.call(attempt, gone)

    def _went(self, stake: Stake, turn: Turn, path: str) -> None:
        """One of those ahead has gone. If it was the last, the stake looks. Else it waits whether who was right behind
        that one claims: that may not be let in by this, but only a look shows."""
        with self._link.mutex:
            at = turn.near.index(path) if path in turn.near else len(turn.near)
            between = turn.near[at + 1 :]
            turn.near = near = turn.near[:at] + between
            _leave(self._followers, (path,), stake.attempt)  # again, if it has come to follow since
        if not between or not self._told(stake, turn, near, Busy(None, len(between) - 1, SOON)):
            self.call(stake.attempt, gone=True)

    def _wrote(self, stake: Stake, turn: Turn, path: str) -> None:
        """The node of one ahead has changed. If those before it have gone, that is its claim, and there is nothing to
        look for. Whoever is right behind it makes sure, and watches on: it may have said that it waits, or claimed too
        early."""
        near = turn.near
        if turn.rung or turn.suspects or near[:1] != (path,) or not stake.session.up:
            return  # it is to look, or will
        if len(near) > 1:
            self._told(stake, turn, near, Busy(None, len(near) - 1, None))
            return

        def found(result: Any) -> None:
            if result.successful() and nodes.is_claimed(result.value[0]):
                if self._told(stake, turn, near, Busy(None, 0, None)):
                    turn.next = True  # when that one has gone
            elif not isinstance(result.exception, NoNodeError):  # of its going the stake hears
                self.call(stake.attempt)

        stake.session.submit(get(path, self.watch(stake, turn, path))).rawlink(found)

    def _told(self, stake: Stake, turn: Turn, near: tuple[str, ...], news: Busy) -> bool:
        """Tell one who waits behind those how it stands. False: it has looked since, or is to."""
        with self._ringing:
            if turn.rung or turn.near != near:
                return False
            self._link.on_ring(stake.attempt, news)
            return True


def _leave(heard: dict[str, set[str]], paths: Iterable[str], attempt: str) -> None:
    for path in paths:
        if (there := heard.get(path)) is not None:
            there.discard(attempt)
            if not there:
                del heard[path]
