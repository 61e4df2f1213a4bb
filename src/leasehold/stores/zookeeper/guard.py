"""The guard, a thread of each ``Locks``: it removes the node of a lease that was not renewed in time (its session lives
on), keeps sessions warm, hangs up connections that no longer answer, watches what is held, and retries what could not
be removed."""

from __future__ import annotations

from typing import Any

from kazoo.exceptions import NoNodeError

from ...core import clock
from ...core.log import WARNING, log
from ...runtime.thread_start import Life, start_thread
from ...runtime.wakeups import ThreadBell
from ..common.reentry import inside
from . import nodes
from .requests import children, delete, exists, sync
from .sessions import SessionPool, ZooKeeperSession
from .stakes import Stake, Stakes

LOOKS = 100
"""Watches that a session asks for at once: after the loss of its connection it needs one for each lease, and renewals
and signs of life would have to wait behind them."""
TOUCHES = 10
"""How often in its length a session gives a sign of life: a follower tells the leader of it, a little later."""
DEAD_AFTER = (1.0, 2.0)
"""A connection that leaves a sign of life unanswered for a fifth of the session is dropped, after so many seconds at
least and at most: what is held has to be renewed elsewhere in time."""
RETRY = 0.25


class Pulse:
    """What the guard knows of one session: when it last gave a sign of life, and whether that is unanswered."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self.session = session
        self.touched, self.connections = clock.now(), 0
        self.unanswered = False
        self.connection: Any = None
        self.looks = 0
        """Watches that were asked for, and not answered yet."""

    def beat(self, now: float) -> float:
        """Show the session's server that we live; hang up if it does not answer. When to look again."""
        session = self.session
        span = (session.agreed or session.timeout) / TOUCHES
        if session.over:
            return float("inf")
        if not session.up:  # a server that hangs would be waited for until the session is nearly over: try the next
            if session.handler.connection is not self.connection:
                self.connection, self.touched = session.handler.connection, now
            elif now > self.touched + _patience(span):
                self.touched = now
                session.handler.hang_up()
            return now + RETRY
        if session.connections != self.connections:  # a new one, which has just answered
            self.connections, self.touched, self.unanswered, self.looks = session.connections, now, False, 0
        if self.unanswered:
            ends = max(self.touched, session.handler.heard) + _patience(2 * span)
            if now < ends:
                return ends
            self.unanswered = False
            session.handler.hang_up()
            return now + RETRY
        if now < self.touched + span:
            return self.touched + span
        self.touched, self.unanswered = now, True
        exists("/")(session.client).rawlink(self._answered)
        return now + min(span, _patience(2 * span))

    def _answered(self, result: Any) -> None:
        self.unanswered = False


def _patience(wanted: float) -> float:
    least, most = DEAD_AFTER
    return min(most, max(least, wanted))


class Guard:
    def __init__(self, pool: SessionPool, stakes: Stakes) -> None:
        self._pool, self._stakes = pool, stakes
        pool.before_first = self.start
        stakes.wake_guard = self.wake
        self.reset()

    def reset(self) -> None:
        self._bell = ThreadBell()
        self._pulses: dict[ZooKeeperSession, Pulse] = {}
        self._thread: Life | None = None

    def start(self) -> None:
        """Raises RuntimeError when no thread is to be had."""
        if self._thread is None:
            self._thread = start_thread("leasehold-zookeeper", self._keep_guard)
        self.wake()

    def wake(self) -> None:
        self._bell.ring()

    def end(self) -> None:
        """Once the pool is closed."""
        self.wake()
        if self._thread is not None:
            self._thread.join(1.0)

    def _keep_guard(self) -> None:
        bell = self._bell
        with inside():
            while not self._pool.closed:
                bell.wait(self.make_round())

    def make_round(self) -> float:
        """Do what is due; how long until something is again."""
        self._stakes.next_round = float("inf")  # whoever comes meanwhile wakes it
        try:
            pause = self._round(clock.now())
        except Exception as error:  # a guard that dies would leave leases to their sessions
            log(WARNING, "guard of ZooKeeper's leases failed; retrying: %s", error, exc=error)
            pause = RETRY
        self._stakes.next_round = clock.now() + pause
        return pause

    def _round(self, now: float) -> float:
        stakes = self._stakes
        due = min(now + 60.0, self._end_stakes(now), stakes.call_due(now))
        sessions = list(self._pool.sessions)
        self._pulses = {session: self._pulses.get(session) or Pulse(session) for session in sessions}
        for pulse in self._pulses.values():
            due = min(due, pulse.beat(now))
            due = min(due, self._watch_due(pulse, now))
        for path, session in list(stakes.doomed.items()):
            self._remove(path, session)
            due = min(due, now + RETRY)
        for sweep in [sweep for sweep in stakes.sweeps if sweep[0] <= now]:
            stakes.sweeps.remove(sweep)
            self._sweep(sweep[1])
        return max(0.005, min([due, *(at for at, _ in stakes.sweeps)]) - now)

    def _end_stakes(self, now: float) -> float:
        """Have the nodes removed of what is over; when the next is. Looks at none before one can be."""
        stakes = self._stakes
        if now < stakes.next_over:
            return stakes.next_over
        with stakes.mutex:
            stakes.next_over = float("inf")
        soonest = float("inf")
        for stake in list(stakes.by_attempt.values()):
            with stakes.mutex:
                over = stake.until <= now
                stake.ended = stake.ended or over
            if over:
                stakes.doom(stake)
            else:
                soonest = min(soonest, stake.until)
        with stakes.mutex:  # one that has come meanwhile has said so
            stakes.next_over = min(stakes.next_over, soonest)
            return stakes.next_over

    def _watch_due(self, pulse: Pulse, now: float) -> float:
        """Set watches on what is held, as many as may be asked for at once; when there is another to set."""
        waiting = pulse.session.to_watch
        while waiting:
            at, stake = waiting[0]
            if not stake.ended and pulse.session.up and (at > now or pulse.looks >= LOOKS):
                return at if pulse.looks < LOOKS else float("inf")  # an answer wakes the guard
            waiting.popleft()
            stake.unwatched = False
            if stake.session is not pulse.session:  # it has been moved since
                self._stakes.watch_soon(stake)
            elif not stake.ended and pulse.session.up:  # else it is to be watched when the connection is back
                self._watch(pulse, stake)
        return float("inf")

    def _watch(self, pulse: Pulse, stake: Stake) -> None:
        """See that a break reaches the holder before its next renewal does."""
        stakes, version = self._stakes, stake.version
        if stake.path is None:
            return

        def looked(result: Any) -> None:
            pulse.looks -= 1
            if pulse.looks == LOOKS // 2:
                self.wake()
            if not result.successful():
                if pulse.session.up:
                    stakes.watch_soon(stake)
            elif result.value is None or result.value.version != stake.version == version:
                stakes.on_ring(stake.attempt)

        pulse.looks += 1
        exists(stake.path, stakes.event)(pulse.session.client).rawlink(looked)

    def _remove(self, path: str, session: ZooKeeperSession) -> None:
        """Delete what is over; again, until it is gone or its session is."""
        doomed = self._stakes.doomed

        def done(result: Any) -> None:
            if result.successful() or isinstance(result.exception, NoNodeError):
                doomed.pop(path, None)

        if session.up:
            delete(path)(session.client).rawlink(done)
        elif session.id is None or session.over:  # the server ends what is left of it
            doomed.pop(path, None)

    def _sweep(self, stake: Stake) -> None:
        """Remove nodes of an attempt that is over, whose creation came later than anybody waited for."""
        stakes, session = self._stakes, self._pool.any_session()
        anew = stakes.by_attempt.get(stake.attempt)  # it may have been asked for again: that node is its own
        later = (clock.now() + RETRY, stake)
        if not session.up or (anew is not None and anew.path is None):
            stakes.sweeps.append(later)
            return

        def found(result: Any) -> None:
            now_its_own = stakes.by_attempt.get(stake.attempt)
            if isinstance(result.exception, NoNodeError):
                return
            if not result.successful() or now_its_own is not anew:
                stakes.sweeps.append(later)
            else:
                for node in nodes.view(result.value, 0).find(stake.attempt):
                    path = f"{stake.parent}/{node.child}"
                    if now_its_own is None or path != now_its_own.path:
                        stakes.doomed[path] = session
            self.wake()

        sync(stake.parent)(session.client)  # what comes late is not to be missed by a follower that lags
        children(stake.parent)(session.client).rawlink(found)
