"""What is staked on a session: one attempt's node, and where that is.

A node may be moved to another session, by two threads at once, and the answer to a move may come late or never. What
counts is the latest move that is known of, and the latest version of the node there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...core import clock, timing
from . import nodes
from .session import Session

NOBODY: frozenset[str] = frozenset()
NEAR = 3
"""So many ahead in line each watches: it notices when the last two of them do not claim what they are let in for."""
FIRST: tuple[str, ...] = ()
NONE_YET = (0, FIRST)
NO_DOUBT = (-1, -1)


class Place(NamedTuple):
    """Where a node is: in which session, and by which move it got there."""

    path: str
    version: int
    session: Session
    mark: int


class Turn:
    """What one who waits knows of those ahead of it."""

    __slots__ = ("called", "followed", "hasty", "late", "near", "next", "rung", "suspects", "watching")

    def __init__(self) -> None:
        self.watching: frozenset[str] = NOBODY
        self.near = FIRST
        """Those ahead that it follows, and who have not gone yet; the nearest is the last."""
        self.followed = NONE_YET
        """On which of its session's connections it has had which of them watched."""
        self.late: frozenset[str] = NOBODY
        """Those ahead that it has seen to wait: such a one holds only once it has claimed."""
        self.suspects: Mapping[str, float] = {}
        """Those that were let in and have not claimed, and since when that is known."""
        self.next = self.called = self.rung = False
        """Whether it is its turn when those that it watches have gone, whether they have since it last looked, and
        whether it was told to look."""
        self.hasty = False
        """Whether its node may say that it is held, though it waits."""


class Stake:
    """One attempt's node. ``until`` is when the guard removes it, on the local clock."""

    __slots__ = (
        *("above", "attempt", "ended", "held", "name", "path", "rest", "session", "since", "token", "ttl", "turn"),
        *("unsure", "until", "version", "watched", "weight", "record", "shape", "limit", "unwatched", "moves", "mark"),
        *("doubt", "offered"),
    )

    def __init__(self, ask: Any, session: Session, parent: str, record: nodes.Record) -> None:
        self.name, self.attempt, self.rest, self.ttl = ask.name, ask.attempt, ask.rest, ask.ttl
        self.shape, self.limit, self.weight = ask.shape, ask.limit, ask.weight
        self.session, self.above = session, parent
        self.record = record
        self.path: str | None = None
        self.version: int | None = None
        self.held = self.ended = self.unsure = self.unwatched = self.watched = self.offered = False
        self.moves = self.mark = 0
        """How often it was to be moved to another session, and which of these moves has put it where it is."""
        self.doubt = NO_DOUBT
        """The newest mark and version on which a move is conditional that we have asked for."""
        self.token = self.since = 0
        self.until = clock.now() + timing.WAITER_TTL
        self.turn: Turn | None = Turn()
        """None when it holds: there may be very many that do."""

    @property
    def may_move(self) -> bool:
        """Whether a move may yet arrive, or has, and nobody knows: it is conditional on where the node is now."""
        return self.doubt >= (self.mark, self.version or 0)

    @property
    def parent(self) -> str:
        return self.above or str(self.path).rpartition("/")[0]

    def place(self) -> Place:
        with self.session.link.mutex:
            assert self.path is not None
            return Place(self.path, self.version or 0, self.session, self.mark)

    def next_place(self, here: Place, session: Session) -> Place:
        """Where to move it. From now on, until it is known to be elsewhere, such a move may arrive."""
        with session.link.mutex:
            self.moves += 1
            self.doubt = max(self.doubt, (here.mark, here.version))
            return Place(nodes.moved(here.path, self.moves), 0, session, self.moves)

    def placed(self, there: Place, record: nodes.Record | None = None) -> bool:
        """The store has said that it was there. True when that is news of a move."""
        with there.session.link.mutex:
            known = (self.mark, -1 if self.version is None else self.version)
            if (there.mark, there.version) <= known:
                return False
            self.path, self.version, self.session, self.mark = there
            self.record = record or self.record
            return there.mark > known[0]
