"""What the MongoDB drivers for threads and for asyncio share: the client, the order of calls, who is notified."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from pymongo.errors import PyMongoError

from ...core import clock
from ...core.log import INFO, log
from ...core.protocol import Busy, Grant, Steps
from ...errors import StoreUnavailable
from .access import OUR_CLIENT, Access
from .calls import MARK, callees, make_calls
from .errors import refuses_push, translate
from .listening import CallListener
from .requests import Urgency
from .url import Target
from .waiters import WaitingAttempts


class Lane:
    """Calls of one urgency: some are under way at a time, the others wait for a turn, in order.

    A crowd would fight for the connections in the client's pool, each call with its limit running, and releases could
    not get through. A call waits for its turn for half of its limit at most; the rest is for the call itself. In a
    ``with`` block, a lane ends the turn that was taken before."""

    def __init__(self, turns: Any) -> None:
        self.turns = turns
        """A semaphore, of threads or of asyncio."""
        self._answered = 0.0

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, *_: object) -> None:
        self.over(kind is None)

    def over(self, answered: bool) -> None:
        if answered:
            self._answered = clock.now()
        self.turns.release()

    def no_turn(self, limit: float) -> StoreUnavailable:
        """The error of a call that got no turn. If others were answered meanwhile, it is no failure of the store."""
        error = StoreUnavailable(f"too many concurrent calls in this process: waited {limit / 2:.2g} s for a turn")
        error.queued = clock.now() - self._answered < limit
        return error


class MongoDriver:
    client: type[Any]
    semaphore: type[Any]

    def __init__(self, target: Target, waiters: WaitingAttempts | None = None) -> None:
        self.on_ring: Callable[..., None] = lambda attempt, news=None: None
        self._target = target
        self._waiters: WaitingAttempts = {} if waiters is None else waiters
        self._reset()

    def _reset(self) -> None:
        """Forget all that was bound to the process, or to the event loop."""
        self._waiters.clear()
        self._mutex = threading.Lock()
        self._access: Access | None = None
        self._lanes: dict[Urgency, Lane] = {}
        self._calls = CallListener(os.urandom(8).hex(), self._target.where, self._ring)
        self._made_calls = self._mute = False
        self._closed = False

    def _open(self) -> Access:
        access = self._access
        if access is None:
            with self._mutex:
                access = self._access
                if access is None:
                    access = self._access = self.connect()
        return access

    def connect(self) -> Access:
        where = self._target.where
        if self._closed:  # nobody would close it
            raise StoreUnavailable(f"{where}: this Locks is closed")
        try:
            access = Access(self._target, self._target.client or self.client(self._target.url, **OUR_CLIENT))
        except PyMongoError as error:
            raise translate(error, where) from error
        lanes = (Urgency.SETTLE, Urgency.ACQUIRE)
        self._lanes = {urgency: Lane(self.semaphore(access.most_calls)) for urgency in lanes}
        return access

    def _lane(self, steps: Steps[Any]) -> Lane | None:
        """Where an operation waits for its turn: as it says itself. None: it waits for nobody."""
        self._open()
        return self._lanes.get(next(steps))

    @property
    def _is_ours(self) -> bool:
        """Whether the client was made here, and is to be closed here."""
        return self._target.client is None

    # Calls.

    def hears(self, attempt: str) -> bool:
        """Whether every call since the last answer to this attempt is received. An answer from before the cursor was
        opened may be out of date: then the attempt asks again."""
        waiter = self._waiters.get(attempt)
        return self._calls.up and (waiter is None or waiter.asked >= self._calls.since)

    def forget(self, attempt: str) -> None:
        self._calls.attempts.discard(attempt)
        self._waiters.pop(attempt, None)

    def _ring(self, attempt: str, news: Grant | Busy | None) -> None:
        waiter = self._waiters.get(attempt)
        if waiter is not None:
            waiter.called = True
            if isinstance(news, Busy) and not waiter.alone:
                news = None  # another holder may expire sooner than the one that the call is about
        self.on_ring(attempt, news)

    def _pass_on(self, call: str) -> Steps[None]:
        """Notify the waiters of a call: those of this process at once, others by the collection of calls."""
        to = []
        for session, attempt, news in callees(call):
            if session.endswith(self._calls.own):
                if not self._calls.by_stream:
                    self._ring(attempt, news)
            elif not session.startswith(MARK):
                to.append(session)
        if not to or self._mute:
            return
        try:
            if not self._made_calls:
                self._made_calls = yield from make_calls()
            if self._made_calls:
                yield lambda access: access.calls.insert_one({"to": to, "call": call})
        except PyMongoError as error:  # the waiters check by themselves every few seconds
            if refuses_push(error):
                self._mute = True
                reason = str(translate(error, self._target.where))
                log(INFO, "releases do not wake waiters of other processes: %s", reason, event="mute", reason=reason)
