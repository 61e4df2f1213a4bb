"""Sessions, and what is staked on them: the part that threads and asyncio share.

A **session** of ZooKeeper is what an ephemeral node lives by. Its length is agreed on when it begins, so there is one
for each class of ttl. A **stake** is one attempt's node. The **guard**, a thread, removes the node of a lease that was
not renewed in time (its session lives on), keeps the sessions warm, drops connections that no longer answer, watches
what is held, and retries what could not be removed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from kazoo.exceptions import NoNodeError

from ...core import clock, timing
from ...core.log import WARNING, log
from ...core.protocol import SECOND
from ...errors import StoreNotReady, StoreUnavailable
from ...runtime.thread_start import Life, start_thread
from ...runtime.wakeups import ThreadBell
from ..common.reentry import inside
from . import nodes
from .requests import children, delete, exists, sync
from .session import Session, length
from .stake import Stake
from .url import Address
from .watching import Watching

WATCH_AFTER = 0.05
"""Leases that are shorter than this are never watched: most are."""
LOOKS = 100
"""Watches that a session asks for at once: after the loss of its connection it needs one for each lease, and renewals
and signs of life would have to wait behind them."""
TOUCHES = 10
"""How often in its length a session gives a sign of life: a follower tells the leader of it, a little later."""
DEAD_AFTER = (1.0, 2.0)
"""A connection that leaves a sign of life unanswered for a fifth of the session is dropped, after so many seconds at
least and at most: what is held has to be renewed elsewhere in time."""
GRACE = 0.1
"""How much later a permit among several is removed than it ends, so that others see that it was not given back."""
PATIENCE = 1.0
"""How long an answer may take at least before its session is taken to hang."""
RETRY = 0.25
REPLACED_AFTER = 1.0
"""How old a session that is over has to be for another to take its place: a wrong password is not tried more often."""
CLOSING = 1.0
SWEEPS = (1.0, 4.0, 15.0)
"""When to look for a node whose creation was lost on the way, and may have come late."""

_left_to_the_parent: list[Any] = []


class Link:
    """All that one ``Locks`` has open: sessions by length, stakes by attempt."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.where = address.where
        self.on_ring: Callable[..., None] = lambda attempt, *news: None
        self.sessions: list[Session] = []
        self.closed = False
        self._warned: set[float] = set()
        self._reset()

    def _reset(self) -> None:
        self.mutex = threading.Lock()
        self.stakes: dict[str, Stake] = {}
        self.watching = Watching(self)
        self.doomed: dict[str, Session] = {}
        self.sweeps: list[tuple[float, Stake]] = []
        self.sample: tuple[int, float] | None = None
        self._record: nodes.Record | None = None
        self._bell = ThreadBell()
        self._next_round = 0.0
        self._next_over = float("inf")  # no stake ends before
        self._guard: Life | None = None

    # Sessions.

    def session(self, ttl: float) -> Session:
        """A session that is long enough for leases of ``ttl`` seconds, and not much longer. It may not be up yet."""
        needed = length(ttl)
        with self.mutex:
            if self.closed:
                raise StoreUnavailable(f"{self.where}: this Locks is closed")
            self._remove_over()
            for session in self.sessions:
                if needed <= session.timeout <= 1.25 * needed:
                    return session
            try:
                if self._guard is None:
                    self._guard = start_thread("leasehold-zookeeper", self._keep_guard)
                session = Session(self, needed)
            except RuntimeError as error:
                raise StoreUnavailable(f"{self.where}: no thread can be started for a session: {error}") from error
            self.sessions.append(session)
        self._bell.ring()
        return session

    def any_session(self) -> Session:
        with self.mutex:
            self._remove_over()
            best = max(self.sessions, key=lambda session: (session.up, not session.over), default=None)
        return best or self.session(timing.DEFAULT_TTL / 3)

    def _remove_over(self) -> None:
        """Make room for new sessions in the place of those that never come back. Nothing is staked on them any more."""
        for session in [session for session in self.sessions if session.over]:
            if clock.now() < session.began + REPLACED_AFTER:
                continue
            try:
                start_thread("leasehold-zookeeper-end", session.close)  # it waits for kazoo's threads
            except RuntimeError:
                continue  # no thread to be had: another time
            self.sessions.remove(session)

    def check_length(self, session: Session, ttl: float) -> None:
        """The server has a say in how long a session is: refuse what it does not honour."""
        agreed = session.agreed
        if agreed is None:
            raise StoreNotReady("this version of kazoo does not show how long a session is: install another version")
        if not session.lasts(ttl):
            raise StoreNotReady(
                f"{self.where}: a ttl of {ttl:g} s needs a session of {length(ttl):g} s, and the server allows "
                f"{agreed:g} s: use a ttl of {max(0.0, (agreed - 1.0) / 1.15):.3g} s or less, "
                "or raise its maxSessionTimeout"
            )
        if agreed > session.timeout + 0.002 and ttl not in self._warned:
            self._warned.add(ttl)
            log(
                WARNING,
                "a ttl of %g s is shorter than the sessions of %s, which last at least %g s (minSessionTimeout): a "
                "killed holder is replaced when its session ends",
                ttl,
                self.where,
                agreed,
                event="short_ttl",
            )

    # Stakes.

    def find(self, attempt: str) -> Stake | None:
        stake = self.stakes.get(attempt)
        return None if stake is None or stake.ended or stake.session.over else stake

    def add(self, stake: Stake) -> None:
        self.stakes[stake.attempt] = stake
        with self.mutex:
            self._next_over = min(self._next_over, stake.until)

    def hold(self, stake: Stake, since: float, ttl: int) -> bool:
        """The store has confirmed a term that was asked for at ``since``. False when it was too late."""
        with self.mutex:
            if stake.ended or (stake.held and stake.until <= clock.now()):
                return False
            ends = since + ttl / SECOND + (GRACE if stake.limit > 1 else 0.0)
            stake.until = max(stake.until, ends) if stake.held else ends
            self._next_over = min(self._next_over, stake.until)
            sooner = stake.until < self._next_round
            if not stake.held:
                stake.held = True
                self._slim(stake)
                sooner = self.watch_soon(stake) < self._next_round or sooner
        if sooner:
            self._bell.ring()
        return True

    def moved(self, stake: Stake) -> None:
        """Its node is another: that has to be watched."""
        with self.mutex:
            self.watch_soon(stake)
        self.wake()

    def owner(self, session_id: int) -> Session | None:
        return next((session for session in list(self.sessions) if session.id == session_id), None)

    def patience(self) -> float:
        """How long one session may be waited for while leases of another are held: these have to be renewed, too."""
        if len(self.sessions) < 2:
            return float("inf")
        shortest = min((stake.ttl for stake in list(self.stakes.values()) if stake.held), default=0)
        return max(PATIENCE, shortest / SECOND / 4)

    def _slim(self, stake: Stake) -> None:
        """Keep of a held one only what it has for itself: there may be very many."""
        if stake.record != self._record:
            self._record = stake.record
        stake.record = self._record
        stake.above = ""
        self.watching.leave(stake)
        stake.turn = None

    def drop(self, stake: Stake) -> None:
        """The node is gone, or another's."""
        stake.ended = True
        if self.stakes.get(stake.attempt) is stake:
            del self.stakes[stake.attempt]
        with self.mutex:
            self.watching.leave(stake)
        if stake.unsure or stake.may_move:
            now = clock.now()
            self.sweeps.extend((now + later, stake) for later in SWEEPS)
            self.wake()

    def back(self, session: Session) -> None:
        """The session is connected again: renewals that were due meanwhile need not wait for their next try."""
        for stake in list(self.stakes.values()):
            if stake.session is session and stake.held:
                self.on_ring(stake.attempt)

    def cut_off(self) -> None:
        """A connection is lost, and every watch with it. kazoo also says so to each watch, one by one."""
        for attempt in list(self.stakes):
            self.watching.call(attempt)

    def lost(self, session: Session) -> None:
        """The session is gone, and all that was staked on it."""
        for stake in list(self.stakes.values()):
            if stake.session is session:
                self.drop(stake)
                self.on_ring(stake.attempt)

    # The leader's clock: for people, and for what min_hold keeps taken; no lease ends by it.

    def saw(self, leader_ms: int) -> None:
        self.sample = (leader_ms, clock.now())

    def leader_ms(self) -> int:
        if self.sample is None:
            return clock.wall_us() // 1000
        leader_ms, at = self.sample
        return leader_ms + int((clock.now() - at) * 1000)

    # The guard.

    def wake(self) -> None:
        self._bell.ring()

    def _keep_guard(self) -> None:
        with inside():
            self._guard_all()

    def _guard_all(self) -> None:
        bell = self._bell
        while not self.closed:
            try:
                self._next_round = float("inf")  # whoever comes meanwhile rings
                pause = self._round(clock.now())
            except Exception as error:  # a guard that dies would leave leases to their sessions
                log(WARNING, "guard of ZooKeeper's leases failed; retrying: %s", error, exc=error)
                pause = RETRY
            self._next_round = clock.now() + pause
            bell.wait(pause)

    def _round(self, now: float) -> float:
        """Do what is due; how long until something is again."""
        due = min(now + 60.0, self._end_stakes(now))
        for session in list(self.sessions):
            due = min(due, self._touch(session, now), self._watch_due(session, now))
        for path, session in list(self.doomed.items()):
            self._remove(path, session)
            due = min(due, now + RETRY)
        for sweep in [sweep for sweep in self.sweeps if sweep[0] <= now]:
            self.sweeps.remove(sweep)
            self._sweep(sweep[1])
        return max(0.005, min([due, *(at for at, _ in self.sweeps)]) - now)

    def _end_stakes(self, now: float) -> float:
        """Have the nodes removed of what is over; when the next is. Looks at none before one can be."""
        if now < self._next_over:
            return self._next_over
        with self.mutex:
            self._next_over = float("inf")
        soonest = float("inf")
        for stake in list(self.stakes.values()):
            with self.mutex:
                over = stake.until <= now
                stake.ended = stake.ended or over
            if not over:
                soonest = min(soonest, stake.until)
                continue
            if stake.path is None:
                stake.unsure = True
            else:
                self.doomed[stake.path] = stake.session
            self.drop(stake)
            self.on_ring(stake.attempt)
        with self.mutex:  # one that has come meanwhile has said so
            self._next_over = min(self._next_over, soonest)
            return self._next_over

    def watch_soon(self, stake: Stake) -> float:
        """Have a watch set on what is held, by the guard; when it will."""
        at = clock.now() + WATCH_AFTER
        if not stake.unwatched:
            stake.unwatched = True
            stake.session.unwatched.append((at, stake))
        return at

    def _watch_due(self, session: Session, now: float) -> float:
        """Set watches on what is held, as many as may be asked for at once; when there is another to set."""
        waiting = session.unwatched
        while waiting and session.up:
            at, stake = waiting[0]
            if not stake.ended and (at > now or session.looks >= LOOKS):
                return at if session.looks < LOOKS else float("inf")  # an answer wakes the guard
            waiting.popleft()
            stake.unwatched = False
            if not stake.ended:
                self._watch_held(stake)
        return float("inf")  # with its connection its watches are gone, and when it is back the guard is woken

    def _watch_held(self, stake: Stake) -> None:
        """See that a break reaches the holder before its next renewal does."""
        path, version, session = stake.path, stake.version, stake.session
        if path is None:
            return

        def looked(result: Any) -> None:
            with self.mutex:
                session.looks -= 1
                more = session.looks == LOOKS // 2
            if not result.successful():
                self.watch_soon(stake)
            elif result.value is None or result.value.version != stake.version == version:
                self.on_ring(stake.attempt)
            if more:
                self.wake()

        stake.watched = True
        with self.mutex:
            session.looks += 1
        session.submit(exists(path, self.watching.event)).rawlink(looked)

    def _touch(self, session: Session, now: float) -> float:
        """Show the session's server that we live; drop the connection if it does not answer."""
        span = (session.agreed or session.timeout) / TOUCHES
        if not session.up and session.over:
            return float("inf")
        if not session.up:  # a server that hangs would be waited for until the session is nearly over: try the next
            trying = getattr(session.client._connection, "_socket", None)
            if trying is not session.trying:
                session.trying, session.touched = trying, now
            elif now > session.touched + _patience(span):
                session.touched = now
                session.drop_connection()
            return now + RETRY
        if session.touching:
            ends = max(session.touched, session.heard) + _patience(2 * span)
            if now < ends:
                return ends
            session.touching = False
            session.drop_connection()
            return now + RETRY
        if now < session.touched + span:
            return session.touched + span
        session.touched, session.touching = now, True

        def answered(result: Any) -> None:
            session.touching = False

        session.submit(exists("/")).rawlink(answered)
        return now + min(span, _patience(2 * span))

    def _remove(self, path: str, session: Session) -> None:
        """Delete what is over; again, until it is gone or its session is."""

        def done(result: Any) -> None:
            if result.successful() or isinstance(result.exception, NoNodeError):
                self.doomed.pop(path, None)

        if session.up:
            session.submit(delete(path)).rawlink(done)
        elif session.id is None:
            self.doomed.pop(path, None)

    def _sweep(self, stake: Stake) -> None:
        """Remove nodes of an attempt that is over, whose creation came later than anybody waited for."""
        session = self.any_session()
        anew = self.stakes.get(stake.attempt)  # the same attempt may have been asked for again: that node is its own
        if not session.up or (anew is not None and anew.path is None):
            self.sweeps.append((clock.now() + RETRY, stake))
            return

        def found(result: Any) -> None:
            now_its_own = self.stakes.get(stake.attempt)
            if isinstance(result.exception, NoNodeError):
                return
            if not result.successful() or now_its_own is not anew:
                self.sweeps.append((clock.now() + RETRY, stake))
            else:
                for node in nodes.view(result.value, 0).find(stake.attempt):
                    path = f"{stake.parent}/{node.child}"
                    if now_its_own is None or path != now_its_own.path:
                        self.doomed[path] = session
            self.wake()

        session.submit(sync(stake.parent))  # what comes late is not to be missed by a follower that lags
        session.submit(children(stake.parent)).rawlink(found)

    # The end.

    def close(self) -> None:
        with self.mutex:
            self.closed = True
            sessions, self.sessions = self.sessions, []
            guard, self._guard = self._guard, None
        self._bell.ring()
        # What was offered to another is to be there for that one, until the server ends the session by itself.
        stakes = list(self.stakes.values())
        left = {stake.session for stake in stakes if stake.offered and stake.held and not stake.ended}
        closing = []
        for session in sessions:
            close = partial(session.leave, self._not_offered(session, stakes)) if session in left else session.close
            try:
                closing.append(start_thread("leasehold-zookeeper-end", close))
            except RuntimeError:  # there is none to be had, as when the interpreter exits
                close()
        ends = clock.now() + CLOSING
        for each in closing:  # one that is about to connect to a server that hangs may take longer
            each.join(max(0.0, ends - clock.now()))
        if guard is not None:
            guard.join(1.0)

    def _not_offered(self, session: Session, stakes: list[Stake]) -> list[str]:
        """What there is of others in a session that is left open."""
        here = [stake for stake in stakes if stake.session is session and not stake.offered]
        doomed = [path for path, where in list(self.doomed.items()) if where is session]
        return [*doomed, *(stake.path for stake in here if stake.path)]

    def after_fork(self) -> None:
        """In the child: the sessions are the parent's. What is never touched again does them no harm."""
        import atexit

        for session in self.sessions:
            atexit.unregister(session.client.handler.stop)
        _left_to_the_parent.append((self.sessions, self.stakes))
        self.sessions = []
        self._reset()


def _patience(wanted: float) -> float:
    least, most = DEAD_AFTER
    return min(most, max(least, wanted))
