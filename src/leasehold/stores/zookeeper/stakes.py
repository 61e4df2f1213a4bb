"""What is staked on sessions: each attempt's node, where it is, and who hears what becomes of whose.

A node may be moved to another session, by two threads at once, and the answer to a move may come late or never. What
counts is the latest move that is known of, and the latest version of the node there.

Wake-ups are hints: a watch that fires twice, or late, does no harm.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from kazoo.protocol.states import EventType

from ...core import clock, timing
from ...core.protocol import SECOND, Ask
from . import nodes
from .sessions import SessionPool, ZooKeeperSession

NEAR = 2
"""So many ahead in line each waiter hears of: the second is the one who removes a head that has died."""
SOON = 0.2
"""When the second ahead has gone, whoever is let in by that has claimed by then: if not, the one behind it looks."""
GRACE = 0.1
"""How much later a permit among several is removed than it ends, so that others see that it was not given back."""
PATIENCE = 1.0
"""How long an answer may take at least before its session is taken to hang."""
WATCH_AFTER = 0.05
"""Leases that are shorter than this are never watched: most are."""
SWEEPS = (1.0, 4.0, 15.0)
"""When to look for a node whose creation was lost on the way, and may have come late."""
NO_DOUBT = (-1, -1)


class StakePlace(NamedTuple):
    """Where a node is: in which session, and by which move it got there."""

    path: str
    version: int
    session: ZooKeeperSession
    mark: int


class Waiting:
    """What one that waits knows of those ahead of it."""

    __slots__ = ("follows", "hasty", "is_next", "late", "look_at", "near", "suspects", "watched")

    def __init__(self) -> None:
        self.near: tuple[str, ...] = ()
        """Those ahead that it hears of, and who have not gone yet; the nearest is the last."""
        self.follows: tuple[str, ...] = ()
        """Whatever it hears of."""
        self.watched: tuple[int, frozenset[str]] = (0, frozenset())
        """On which of its session's connections it has whose end watched."""
        self.late: frozenset[str] = frozenset()
        """Those ahead that it has seen to wait: such a one holds only once it has claimed."""
        self.suspects: dict[str, float] = {}
        """Those that were let in and have not claimed, and since when that is known."""
        self.is_next = False
        """Whether all of them have gone since it last looked, so that it seems to be its turn."""
        self.look_at = 0.0
        """When it is to look, unless the nearest has gone before."""
        self.hasty = False
        """Whether its node may say that it is held, though it waits."""


class Stake:
    """One attempt's node. ``until`` is when the guard removes it, on the local clock."""

    __slots__ = (
        *("above", "attempt", "ended", "held", "name", "path", "rest", "session", "since", "token", "ttl", "wait"),
        *("unsure", "until", "version", "weight", "record", "shape", "limit", "unwatched", "moves", "mark"),
        *("doubt", "offered"),
    )

    def __init__(self, ask: Ask, session: ZooKeeperSession, parent: str, record: nodes.Record) -> None:
        self.name, self.attempt, self.rest, self.ttl = ask.name, ask.attempt, ask.rest, ask.ttl
        self.shape, self.limit, self.weight = ask.shape, ask.limit, ask.weight
        self.session, self.above, self.record = session, parent, record
        self.path: str | None = None
        self.version: int | None = None
        self.held = self.ended = self.unsure = self.unwatched = self.offered = False
        self.moves = self.mark = 0
        """How often it was to be moved to another session, and which of these moves has put it where it is."""
        self.doubt = NO_DOUBT
        """The newest mark and version on which a move is conditional that we have asked for."""
        self.token = self.since = 0
        self.until = clock.now() + timing.WAITER_TTL
        self.wait: Waiting | None = Waiting()
        """None when it holds: there may be very many that do."""

    @property
    def may_move(self) -> bool:
        """Whether a move may yet arrive, or has, and nobody knows: it is conditional on where the node is now."""
        return self.doubt >= (self.mark, self.version or 0)

    @property
    def parent(self) -> str:
        return self.above or str(self.path).rpartition("/")[0]


class Stakes:
    """All that one ``Locks`` has at stake, by attempt. It observes the sessions."""

    def __init__(self, pool: SessionPool) -> None:
        self.pool = pool
        pool.observer = self
        self.on_ring: Callable[..., None] = lambda attempt, *news: None
        self.wake_guard: Callable[[], None] = lambda: None
        self.reset()

    def reset(self) -> None:
        self.mutex = threading.Lock()
        self.by_attempt: dict[str, Stake] = {}
        self.doomed: dict[str, ZooKeeperSession] = {}
        """Nodes to be deleted, and in which session."""
        self.sweeps: list[tuple[float, Stake]] = []
        self.next_over = float("inf")
        """No stake ends before."""
        self.next_round = 0.0
        """When the guard wakes by itself."""
        self.clock_sample: tuple[int, float] | None = None
        self._followers: dict[str, dict[str, None]] = {}
        """By path: the attempts that wait, and hear what becomes of it."""
        self.looks: deque[tuple[float, Stake]] = deque()
        """Those that are to look, and when."""
        self._record: nodes.Record | None = None

    # Who has what at stake.

    def find(self, attempt: str) -> Stake | None:
        stake = self.by_attempt.get(attempt)
        return None if stake is None or stake.ended or stake.session.over else stake

    def add(self, stake: Stake) -> None:
        self.by_attempt[stake.attempt] = stake
        with self.mutex:
            self.next_over = min(self.next_over, stake.until)

    def hold(self, stake: Stake, since: float, ttl: int) -> bool:
        """The store has confirmed a term that was asked for at ``since``. False when it was too late."""
        with self.mutex:
            if stake.ended or (stake.held and stake.until <= clock.now()):
                return False
            ends = since + ttl / SECOND + (GRACE if stake.limit > 1 else 0.0)
            stake.until = max(stake.until, ends) if stake.held else ends
            self.next_over = min(self.next_over, stake.until)
            due = stake.until
            if not stake.held:
                stake.held = True
                self._slim(stake)
                due = min(due, self._watch_soon(stake))
        if due < self.next_round:
            self.wake_guard()
        return True

    def _watch_soon(self, stake: Stake) -> float:
        """Have what is held watched, by the guard; when it will. To be called with the mutex."""
        at = clock.now() + WATCH_AFTER
        if not stake.unwatched:
            stake.unwatched = True
            stake.session.to_watch.append((at, stake))
        return at

    def watch_soon(self, stake: Stake) -> None:
        with self.mutex:
            at = self._watch_soon(stake)
        if at < self.next_round:
            self.wake_guard()

    def _slim(self, stake: Stake) -> None:
        """Keep of a held one only what it has for itself: there may be very many."""
        if stake.record != self._record:
            self._record = stake.record
        stake.record, stake.above = self._record, ""
        self._stop_waiting(stake)
        stake.wait = None

    def drop(self, stake: Stake) -> None:
        """The node is gone, or another's."""
        stake.ended = True
        if self.by_attempt.get(stake.attempt) is stake:
            del self.by_attempt[stake.attempt]
        with self.mutex:
            self._stop_waiting(stake)
        if stake.unsure or stake.may_move:
            now = clock.now()
            self.sweeps.extend((now + later, stake) for later in SWEEPS)
            self.wake_guard()

    def doom(self, stake: Stake) -> None:
        """It is over, and its node is to be removed."""
        if stake.path is None:
            stake.unsure = True
        else:
            self.doomed[stake.path] = stake.session
        self.drop(stake)
        self.on_ring(stake.attempt)

    def patience(self) -> float:
        """How long one session may be waited for while leases of another are held: these have to be renewed, too."""
        if len(self.pool.sessions) < 2:
            return float("inf")
        shortest = min((stake.ttl for stake in list(self.by_attempt.values()) if stake.held), default=0)
        return max(PATIENCE, shortest / SECOND / 4)

    # Where a node is.

    def place(self, stake: Stake) -> StakePlace:
        with self.mutex:
            assert stake.path is not None
            return StakePlace(stake.path, stake.version or 0, stake.session, stake.mark)

    def next_place(self, stake: Stake, here: StakePlace, session: ZooKeeperSession) -> StakePlace:
        """Where to move it. From now on, until it is known to be elsewhere, such a move may arrive."""
        with self.mutex:
            stake.moves += 1
            stake.doubt = max(stake.doubt, (here.mark, here.version))
            return StakePlace(nodes.moved(here.path, stake.moves), 0, session, stake.moves)

    def placed(self, stake: Stake, there: StakePlace, record: nodes.Record | None = None) -> None:
        """The store has said that it was there. A move is news: the node is another, and has to be watched."""
        with self.mutex:
            known = (stake.mark, -1 if stake.version is None else stake.version)
            if (there.mark, there.version) <= known:
                return
            stake.path, stake.version, stake.session, stake.mark = there
            stake.record = record or stake.record
        if there.mark > known[0]:
            self.watch_soon(stake)

    # The leader's clock: for people, and for what min_hold keeps taken; no lease ends by it.

    def saw(self, leader_ms: int) -> None:
        self.clock_sample = (leader_ms, clock.now())

    def leader_ms(self) -> int:
        if self.clock_sample is None:
            return clock.wall_us() // 1000
        leader_ms, at = self.clock_sample
        return leader_ms + int((clock.now() - at) * 1000)

    # Who hears of what.

    def follow(self, stake: Stake, paths: tuple[str, ...], near: tuple[str, ...]) -> None:
        """From now on a waiter hears of these, of which it is right behind ``near``: to be said before they are
        watched."""
        with self.mutex:
            self._stop_waiting(stake)
            if stake.wait is not None and not stake.ended:
                stake.wait.near, stake.wait.follows, stake.wait.is_next = near, paths, False
                for path in paths:
                    self._followers.setdefault(path, {})[stake.attempt] = None

    def forget(self, attempt: str) -> None:
        if (stake := self.by_attempt.get(attempt)) is not None:
            with self.mutex:
                self._stop_waiting(stake)

    def _stop_waiting(self, stake: Stake) -> None:
        """To be called with the mutex."""
        if (wait := stake.wait) is None:
            return
        follows, wait.near, wait.follows = wait.follows, (), ()
        for path in follows:
            if (there := self._followers.get(path)) is not None:
                there.pop(stake.attempt, None)
                if not there:
                    del self._followers[path]

    def event(self, event: Any) -> None:
        """Every watch of ours: what becomes of a node. Called by kazoo's connection thread. One without a path is about
        the connection, which ``cut_off`` hears of once, and not once for each watch."""
        if event.path is None:
            return
        gone = event.type == EventType.DELETED
        with self.mutex:
            there = self._followers.get(event.path, {})
            followers = list(there)
            if gone:
                self._followers.pop(event.path, None)
        mine = self.by_attempt.get(nodes.attempt_of(event.path))
        if mine is not None and mine.held and mine.path == event.path:
            self.watch_soon(mine)  # it may be a write of our own: look, in a moment, when that is known
        for attempt in followers:
            stake = self.by_attempt.get(attempt)
            if stake is not None and (wait := stake.wait) is not None:
                self._happened(stake, wait, event.path, gone)

    def _happened(self, stake: Stake, wait: Waiting, path: str, gone: bool) -> None:
        nearest = wait.near[-1:] == (path,)
        with self.mutex:
            wait.near = tuple(each for each in wait.near if not (gone and each == path))
            wait.is_next = gone and not wait.near
            if nearest or not gone:
                wait.look_at = 0.0
            else:  # somebody further ahead: whoever is let in by that claims, soon
                wait.look_at = clock.now() + SOON
                self.looks.append((wait.look_at, stake))
        if not wait.look_at:
            self.on_ring(stake.attempt)
        elif wait.look_at < self.next_round:
            self.wake_guard()

    def call_due(self, now: float) -> float:
        """Have those look ahead of whom somebody has gone; when it is the next one's time. Called by the guard."""
        while self.looks:
            at, stake = self.looks[0]
            if at > now:
                return at
            self.looks.popleft()
            if stake.wait is not None and stake.wait.look_at == at:
                self.on_ring(stake.attempt)
        return float("inf")

    # What becomes of sessions.

    def back(self, session: ZooKeeperSession) -> None:
        """Renewals that were due meanwhile need not wait for their next try; watches are to be set anew."""
        for stake in self._of(session):
            if stake.held:
                self.watch_soon(stake)
                self.on_ring(stake.attempt)
        self.wake_guard()

    def cut_off(self, session: ZooKeeperSession) -> None:
        for stake in self._of(session):
            if not stake.held:
                self.on_ring(stake.attempt)

    def lost(self, session: ZooKeeperSession) -> None:
        for stake in self._of(session):
            if stake.path is None:
                stake.unsure = True  # it may yet be created, in the session that comes next
            self.drop(stake)
            self.on_ring(stake.attempt)

    def _of(self, session: ZooKeeperSession) -> list[Stake]:
        return [stake for stake in list(self.by_attempt.values()) if stake.session is session]
