"""The driver for threads: carries out a store's requests, and listens in one thread for all waiters."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ...core import clock
from ...core.protocol import Busy, Steps, T
from ...errors import StoreError
from ...runtime.thread_start import Life, start_thread
from ...runtime.wakeups import ThreadBell
from . import limits
from .errors import DRIVER_ERRORS, translate, translate_each
from .listening import SessionListener
from .requests import ScriptCalls
from .store import RedisStore
from .transport_threads import ThreadSubscription, ThreadTransport


class RedisThreads:
    def __init__(self, store: RedisStore, transport: ThreadTransport, where: str) -> None:
        self._store = store
        self._transport = transport
        self._where = where
        self._was_writable = False
        self.listener = SessionListener(store, where)
        self._reset()

    def _reset(self) -> None:
        self._store.begin(os.urandom(8).hex().encode())
        self.listener.reset()
        self._mutex = threading.RLock()  # a signal handler may acquire where it has interrupted an acquire
        self._life: Life | None = None
        self._subscription: ThreadSubscription | None = None
        self._over = ThreadBell()

    @property
    def on_ring(self) -> Callable[..., None]:
        return self.listener.on_ring

    @on_ring.setter
    def on_ring(self, callback: Callable[..., None]) -> None:
        self.listener.on_ring = callback

    def after_fork(self) -> None:
        self._reset()
        self._transport.after_fork()

    def run(self, steps: Steps[T], limit: float) -> T:
        ends = clock.now() + limit
        try:
            request = next(steps)
            while True:
                request = steps.send(self._answer(request, ends))
        except StopIteration as stop:
            result: T = stop.value
            return result
        except BaseException as error:
            steps.close()
            if isinstance(error, DRIVER_ERRORS) and not isinstance(error, StoreError):
                raise translate(error, self._where, was_writable=self._was_writable) from error
            raise

    def _answer(self, request: Any, ends: float) -> Any:
        answer = self._transport.do(request, ends)
        if isinstance(request, ScriptCalls):
            return translate_each(answer, self._where, was_writable=self._was_writable)
        self._was_writable = True
        return answer

    def listen(self, attempt: str, busy: Busy | None) -> bool:
        if attempt:
            self.listener.waiting.add(attempt)
        if self._life is None and not self.listener.closed:
            with suppress(RuntimeError):  # no thread to be had: the waiter polls, and the next one tries again
                start_thread("leasehold-redis", self._listen)
        return self.listener.up

    def forget(self, attempt: str) -> None:
        self.listener.forget(attempt)

    def _listen(self) -> None:
        with Life() as life:
            with self._mutex:
                if self._life is not None or self.listener.closed:
                    return  # two have been started
                self._life = life
            while not self.listener.closed:
                error: Exception | None = None
                try:
                    self._hear()
                except Exception as caught:
                    error = caught
                self.listener.end(error)
                del error  # its traceback holds this frame
                self._over.wait(self.listener.next_pause())

    def _hear(self) -> None:
        self._subscription = subscription = self._transport.subscribe(self.listener.channel, limits.CONNECT_LIMIT)
        try:
            self.listener.begin()
            while not self.listener.closed:
                if self.listener.hear(subscription.read(limits.HEARTBEAT)):
                    subscription.ping()
        finally:
            self._subscription = None
            subscription.close()

    def close(self) -> None:
        self.listener.closed = True
        with self._mutex:  # a thread that has just been started either is known here, or sees that all is over
            life, subscription = self._life, self._subscription
        self._over.ring()
        if subscription is not None:
            subscription.close()
        self._transport.close()
        if life is not None:
            life.join(1.0)
