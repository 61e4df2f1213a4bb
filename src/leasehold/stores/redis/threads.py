"""The driver for threads: calls over a link, and one listener thread for all waiters."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from redis.exceptions import ConnectionError as RedisConnectionError

from ... import clock
from ...bells import ThreadBell
from ...errors import StoreError, StoreUnavailable
from ...log import WARNING, log
from ...protocol import Busy, Grant, Steps, T
from ..listening import start_thread
from ..waiting import Wake
from .errors import DRIVER_ERRORS, translate, translate_each
from .scripts import Call
from .store import CHANNEL, Confirmed, Each, Keys, Many, RedisStore, read_ring

HEARTBEAT = 2.5
"""A listener that has heard nothing for so long asks whether the server is still there."""
CONNECT_LIMIT = 2.0
OWN_EAR = 0.1
"""How long a waiter listens by itself at a time. What else may ring its bell is noticed after that."""
GIVE_WAY = 0.05
"""For so long after news the listener leaves the ear to whoever waits next. So much later a break may be heard."""


class Link(Protocol):
    """Where calls go: our own connections, or a client that the user has given us."""

    def call(self, call: Call, limit: float) -> Any: ...

    def send(self, calls: Sequence[Call], limit: float, replicas: int = 0, patience: float = 0.0) -> list[Any]: ...

    def keys(self, pattern: bytes, limit: float) -> list[bytes]: ...

    def ear(self, channel: str, limit: float) -> Any: ...

    def close(self) -> None: ...

    def after_fork(self) -> None: ...


class RedisThreads:
    def __init__(self, store: RedisStore, link: Link, where: str, replicas: int = 0) -> None:
        self.on_ring: Callable[..., None] = lambda attempt, news=None: None
        self._store = store
        self._link = link
        self._where = where
        self._replicas = replicas
        self._was_writable = False
        self._reset()

    def _reset(self) -> None:
        self._store.begin(os.urandom(8).hex().encode())
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ear: Any = None
        self._up = False
        self._waiting: set[str] = set()
        # Who waits listens by itself, if nobody else does: then no other thread has to be woken first, which takes
        # longer than all the rest. The listener does it for those who sleep on their bells, and when nobody waits.
        self._listening = threading.Lock()
        self._asleep: set[ThreadBell] = set()
        self._turn = ThreadBell()
        self._heard = 0.0
        self._deaf = False
        self._closed = threading.Event()

    def after_fork(self) -> None:
        self._reset()
        self._link.after_fork()

    def run(self, steps: Steps[T], limit: float) -> T:
        try:
            request = next(steps)
            while True:
                if type(request) is Call:
                    reply = self._link.call(request, limit)
                    self._was_writable = True
                else:
                    reply = self._answer(request, limit)
                request = steps.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except BaseException as error:
            steps.close()  # now: a look that has failed is over, however long its error is kept
            if isinstance(error, DRIVER_ERRORS) and not isinstance(error, StoreError):
                raise translate(error, self._where, was_writable=self._was_writable) from error
            raise

    def _answer(self, request: Any, limit: float) -> Any:
        match request:
            case Many(calls):
                return self._link.send(calls, limit) if calls else []
            case Confirmed(calls):
                return confirmed(self._link.send(calls, limit, self._replicas, limit / 2), self._replicas)
            case Each(calls):
                replies = self._link.each(calls, limit, self._replicas, limit / 2)  # type: ignore[attr-defined]
                return translate_each(replies, self._where, was_writable=self._was_writable)
            case Keys(pattern):
                return self._link.keys(pattern, limit)
            case Wake(attempt):
                return self.on_ring(attempt)
        raise TypeError(request)

    # Listening.

    def listen(self, attempt: str, busy: Busy | None) -> bool:
        if attempt:
            self._waiting.add(attempt)
        if self._thread is None:
            with self._mutex:
                if self._thread is None and not self._closed.is_set():
                    self._thread = start_thread(self._listen, "leasehold-redis")
        return self._up

    def forget(self, attempt: str) -> None:
        self._waiting.discard(attempt)
        self._store.waiters.pop(attempt, None)

    def _listen(self) -> None:
        closed, pause, away = self._closed, 0.05, False
        channel = CHANNEL + self._store.session.decode()
        while not closed.is_set():
            try:
                self._ear = ear = self._link.ear(channel, CONNECT_LIMIT)
                try:
                    self._up, self._deaf, pause, away = True, False, 0.05, False
                    self._ring_all()  # what was published before we listened
                    self._hear(ear)
                finally:
                    self._up, self._ear = False, None
                    with self._listening:
                        ear.close()
            except DRIVER_ERRORS as error:
                if not closed.is_set() and not away:
                    away = True  # said once, however long it takes
                    log(WARNING, "%s: not listening for wake-ups, polling instead: %s", self._where, error)
            except Exception as error:
                log(WARNING, "%s: the listener stumbled and goes on: %s", self._where, error, exc=error)
            if not closed.is_set():
                self._ring_all()  # from now on they have to poll
            closed.wait(pause)
            pause = min(pause * 2, 1.0)

    def _hear(self, ear: Any) -> None:
        asked = float("inf")
        while not self._closed.is_set():
            if self._gives_way():
                self._turn.wait(GIVE_WAY)
                continue
            with self._listening:
                if self._deaf:
                    raise RedisConnectionError("it was lost, or left in the middle of a message")
                if self._gives_way():
                    continue
                heard = self._take_in(ear, HEARTBEAT)
            if heard or self._heard > asked:
                asked = float("inf")
            elif asked != float("inf"):
                raise StoreUnavailable("the server does not answer")
            else:
                asked = clock.now()
                ear.ping()

    def _gives_way(self) -> bool:
        if self._deaf or clock.now() - self._heard >= GIVE_WAY:
            return False
        return not any(bell.silent for bell in tuple(self._asleep))

    def _take_in(self, ear: Any, seconds: float) -> bool:
        """Hear what is pushed, and ring for it. False when there was nothing for so long."""
        payload = ear.read(seconds)
        if payload is None:
            return False
        self._heard = clock.now()
        if payload:
            self._ring(*read_ring(payload))
        return True

    def await_push(self, bell: ThreadBell, seconds: float | None) -> bool:
        """Sleep until the bell rings, as its ``wait`` does."""
        if (seconds is None or seconds > OWN_EAR) and self._listening.acquire(blocking=False):
            began = clock.now()
            try:
                if self._hear_alone(bell, began + OWN_EAR):
                    return True
            finally:
                self._listening.release()
            if seconds is not None:
                seconds -= clock.now() - began
        self._asleep.add(bell)
        self._turn.ring()
        try:
            return bell.wait(seconds)
        finally:
            self._asleep.discard(bell)

    def _hear_alone(self, bell: ThreadBell, ends: float) -> bool:
        """Listen until the bell rings; False when it has not, and others are to listen."""
        ear = self._ear
        if ear is None or self._deaf:
            return False
        try:
            while not bell.rang():
                if not self._take_in(ear, OWN_EAR) or self._heard >= ends:
                    return bell.rang()
            return True
        except BaseException as error:  # it is lost; or a KeyboardInterrupt, say, and part of a message may be
            self._deaf = True
            self._turn.ring()  # the listener sees to it
            if isinstance(error, DRIVER_ERRORS):
                return False
            raise

    def _ring_all(self) -> None:
        """Whoever waits is to ask again, and what is held is to be looked at."""
        for attempt in (*self._waiting, ""):
            self._ring(attempt)

    def _ring(self, attempt: str, news: Grant | Busy | None = None) -> None:
        self._store.waiters.ring(attempt)
        self.on_ring(attempt, news)

    def close(self) -> None:
        self._closed.set()
        with self._mutex:
            thread, ear = self._thread, self._ear
        self._turn.ring()
        if ear is not None:
            ear.wake()
        self._link.close()
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)


def confirmed(replies: list[Any], replicas: int) -> list[Any]:
    """The replies of the scripts, if enough replicas have confirmed what they wrote."""
    *scripts, count = replies
    if count < replicas:
        raise StoreUnavailable(f"only {count} of {replicas} replicas have confirmed")
    return scripts
