"""The MongoDB store's driver for threads: pymongo's MongoClient, and a thread that listens for calls."""

from __future__ import annotations

import threading
from contextvars import Context
from typing import Any

import pymongo
from bson.errors import BSONError
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from ...core import clock
from ...core.protocol import Busy, Steps, T, run_steps
from ...errors import StoreUnavailable
from ..common.main_thread import MainThread
from ..common.reentry import inside
from .access import CLOSING
from .driver import MongoDriver
from .errors import translate
from .requests import PassOn, Sender, Sleep

_inherited: list[Any] = []
"""Clients of a parent process: neither used nor closed nor collected here."""


class MongoThreads(MongoDriver):
    client = MongoClient
    semaphore = threading.Semaphore

    def _reset(self) -> None:
        super()._reset()
        self._main = MainThread(self._target.where)
        self._listener: threading.Thread | None = None
        self._stop = threading.Event()

    def run(self, steps: Steps[T], limit: float) -> T:
        # Of pymongo, an exception out of a signal handler leaves a pool's lock owned, or a connection counted twice.
        return self._main.run(self._in_own_context, steps, limit)

    def _in_own_context(self, steps: Steps[T], limit: float) -> T:
        # A pymongo.timeout() around the caller's code is not about our calls.
        return Context().run(self._run, steps, limit)

    def _run(self, steps: Steps[T], limit: float) -> T:
        ends = clock.now() + limit
        try:
            lane = self._lane(steps)
        except StopIteration as done:  # nothing is asked
            result: T = done.value
            return result
        if lane is None:
            return self._send(steps, ends)
        if not lane.turns.acquire(timeout=limit / 2):
            raise lane.no_turn(limit)
        with lane:
            return self._send(steps, ends)

    def _send(self, steps: Steps[T], ends: float) -> T:
        left = ends - clock.now()
        if left <= 0:
            raise StoreUnavailable(f"{self._target.where}: timed out before the call was sent")
        try:
            with pymongo.timeout(left):
                return run_steps(steps, self._handle)
        except (PyMongoError, BSONError) as error:
            raise translate(error, self._target.where) from error

    def _handle(self, request: Any) -> Any:
        match request:
            case Sender():
                return self._calls.session, clock.now_us()
            case PassOn(call):
                return run_steps(self._pass_on(call), self._handle)
            case Sleep(seconds):
                return self._stop.wait(seconds)
        return request(self._open())

    # Calls.

    def listen(self, attempt: str, busy: Busy | None) -> bool:
        """Have the listener started; True once its cursor was open when this attempt last asked."""
        if self._calls.refused:
            return False
        self._calls.attempts.add(attempt)
        if self._listener is None:
            self._main.soon(self._start_listening)
        return self.hears(attempt)

    def _start_listening(self) -> None:
        with self._mutex:
            if self._listener is None and not self._closed:
                # Known before it runs: whoever sees that it is up may look for it.
                self._listener = threading.Thread(target=self._hear, name="leasehold-mongodb", daemon=True)
                try:
                    self._listener.start()
                except RuntimeError:  # no thread can be started: tried again at the next wait
                    self._listener = None

    def _hear(self) -> None:
        with inside():
            run_steps(self._calls.hear(), self._handle)

    # The end.

    def close(self) -> None:
        self._closed = self._calls.stopped = True
        self._main.do(self._close)
        self._main.end()

    def _close(self) -> None:
        self._stop.set()
        with self._mutex:
            listener, self._listener = self._listener, None
        if listener is not None and listener is not threading.current_thread():
            Context().run(self._end_listening)
            listener.join(1.0)
        if self._access is not None and self._is_ours:  # the listener may have made it just now
            with pymongo.timeout(CLOSING):
                self._access.client.close()

    def _end_listening(self) -> None:
        try:
            with pymongo.timeout(1.0):
                run_steps(self._calls.interrupt(), self._handle)
        except PyMongoError:
            pass

    def after_fork(self) -> None:
        if self._access is not None and self._is_ours:
            _inherited.append(self._access.client)
        self._reset()
