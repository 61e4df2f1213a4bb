"""The driver for threads: calls over a link, and one listener thread for all waiters."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from ...core.log import WARNING, log
from ...core.protocol import Busy, Steps, T
from ...errors import StoreError, StoreUnavailable
from ...runtime.thread_start import Life, start_thread
from ...runtime.wakeups import ThreadBell
from ..common.waiting import Wake
from .errors import DRIVER_ERRORS, translate, translate_each
from .scripts import Call
from .store import CHANNEL, Confirmed, Each, Keys, Many, RedisStore, read_ring
from .waiter import call_waiter

HEARTBEAT = 2.5
"""A listener that has heard nothing for so long asks whether the server is still there."""
CONNECT_LIMIT = 2.0


class Link(Protocol):
    """Where calls go: our own connections, or a client that the user has given us."""

    def call(self, call: Call, limit: float) -> Any: ...

    def send(self, calls: Sequence[Call], limit: float, replicas: int = 0, patience: float = 0.0) -> list[Any]: ...

    def each(self, calls: Sequence[Call], limit: float, replicas: int = 0, patience: float = 0.0) -> list[Any]: ...

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
        self._mutex = threading.RLock()  # a signal handler may acquire where it has interrupted an acquire
        self._life: Life | None = None
        self._ear: Any = None
        self._up = False
        self._waiting: set[str] = set()
        self._closed = False
        self._over = ThreadBell()

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
            case Each(calls, confirm):
                replies = self._link.each(calls, limit, self._replicas if confirm else 0, limit / 2)
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
        if self._life is None and not self._closed:
            with suppress(RuntimeError):  # no thread to be had: the waiter polls, and the next one tries again
                start_thread("leasehold-redis", self._listen)
        return self._up

    def forget(self, attempt: str) -> None:
        self._waiting.discard(attempt)
        self._store.waiters.pop(attempt, None)

    def _listen(self) -> None:
        with Life() as life:
            with self._mutex:
                if self._life is not None or self._closed:
                    return  # two have been started
                self._life = life
            self._keep_listening()

    def _keep_listening(self) -> None:
        pause, away = 0.05, False
        channel = CHANNEL + self._store.session.decode()
        while not self._closed:
            try:
                self._ear = ear = self._link.ear(channel, CONNECT_LIMIT)
                try:
                    self._ring_all()  # what was published before we listened
                    self._up, pause, away = True, 0.05, False
                    self._hear(ear)
                finally:
                    self._up, self._ear = False, None
                    ear.close()
            except DRIVER_ERRORS as error:
                if not self._closed and not away:
                    away = True  # said once, however long it takes
                    log(WARNING, "%s: listener failed, waiters poll until it is back: %s", self._where, error)
            except Exception as error:
                log(WARNING, "%s: listener failed unexpectedly; retrying: %s", self._where, error, exc=error)
            if not self._closed:
                self._ring_all()  # from now on they have to poll
            self._over.wait(pause)
            pause = min(pause * 2, 1.0)

    def _hear(self, ear: Any) -> None:
        asked = False
        while not self._closed:
            payload = ear.read(HEARTBEAT)
            if payload:
                self._ring(*read_ring(payload))
            elif payload is None and asked:
                raise StoreUnavailable("the server does not answer")
            elif payload is None:
                ear.ping()
            asked = payload is None

    def _ring_all(self) -> None:
        """Whoever waits is to ask again, and what is held is to be looked at."""
        for attempt in (*self._waiting, ""):
            self._ring(attempt)

    def _ring(self, attempt: str | None, leads: bool = False) -> None:
        """Whoever is called asks the store: anybody may publish on our channel, so nothing that it says is believed."""
        if attempt is not None:
            call_waiter(self._store.waiters, attempt, leads)
            self.on_ring(attempt)

    def close(self) -> None:
        self._closed = True
        with self._mutex:  # a thread that has just been started either is known here, or sees that all is over
            life, ear = self._life, self._ear
        self._over.ring()
        if ear is not None:
            ear.wake()
        self._link.close()
        if life is not None:
            life.join(1.0)


def confirmed(replies: list[Any], replicas: int) -> list[Any]:
    """The replies of the scripts, if enough replicas have confirmed what they wrote."""
    *scripts, count = replies
    if count < replicas:
        raise StoreUnavailable(f"only {count} of {replicas} replicas confirmed the write")
    return scripts
