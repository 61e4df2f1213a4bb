"""The MongoDB store's driver for threads: pymongo's MongoClient, and a thread that waits for calls."""

from __future__ import annotations

import threading
import time
from contextvars import Context
from typing import Any

import pymongo
from bson.errors import BSONError
from pymongo import MongoClient
from pymongo.errors import BulkWriteError, DuplicateKeyError, PyMongoError

from ...core import clock
from ...core.protocol import Busy, Steps, T, run_steps
from ...errors import StoreUnavailable
from ..common.main_thread import MainThread
from ..common.reentry import inside
from ..common.waiting import Wake
from .calls import MAKE_WAY, Listener, MakeWay, Pause
from .link import CLOSING, changed_of_some, is_race, translate
from .requests import Change, ChangeMany, Find, FindPage, Ring, Sender, Tidy

_inherited: list[Any] = []
"""Clients of a parent process: neither used nor closed nor collected here."""


class MongoThreads(Listener):
    client = MongoClient
    semaphore = threading.Semaphore

    def _reset(self) -> None:
        super()._reset()
        self._main = MainThread(self._link.where)
        self._listener: threading.Thread | None = None
        self._stop = threading.Event()

    def run(self, steps: Steps[T], limit: float) -> T:
        # Of pymongo, an exception out of a signal handler leaves a pool's lock owned, or a connection counted twice.
        return self._main.run(self._in_turn, steps, limit)

    def _in_turn(self, steps: Steps[T], limit: float) -> T:
        # In a context of its own: a pymongo.timeout() around the caller's code is not about our calls.
        return Context().run(self._run, steps, limit)

    def _run(self, steps: Steps[T], limit: float) -> T:
        ends = clock.now() + limit
        lane = self._lane(steps)
        if lane is None:
            return self._send(steps, ends)
        if not lane.turns.acquire(timeout=lane.patience(limit)):
            raise lane.no_turn(limit)
        answered = False
        try:
            result = self._send(steps, ends)
            answered = True
        finally:
            lane.done(answered)
        return result

    def _send(self, steps: Steps[T], ends: float) -> T:
        left = ends - clock.now()
        if left <= 0:
            raise StoreUnavailable(f"{self._link.where}: timed out before the call was sent")
        try:
            with pymongo.timeout(left):
                return run_steps(steps, self._handle)
        except (PyMongoError, BSONError) as error:
            raise translate(error, self._link.where) from error

    def _handle(self, request: Any) -> Any:
        access = self._open()
        match request:
            case Sender():
                return self.session, clock.now_us()
            case Change(name, stages, upsert, where, waiter):
                try:
                    return access.change(name, stages, upsert, where, waiter)
                except DuplicateKeyError as error:
                    if is_race(error):
                        return None
                    raise
            case ChangeMany(changes):
                try:
                    return access.change_many(changes).modified_count
                except BulkWriteError as error:
                    return changed_of_some(error, len(changes))
            case Find(names, settled):
                return access.find(names, settled)
            case FindPage(prefix, after, most):
                return access.find_page(prefix, after, most)
            case Wake(attempt):
                return self.on_ring(attempt)
            case Ring(call):
                return run_steps(self._pass_on(call), self._act)
            case Tidy():
                return run_steps(self._tidy(), self._act)
        raise TypeError(request)

    def _act(self, request: Any) -> Any:
        match request:
            case Pause(seconds):
                return self._stop.wait(seconds)
            case MakeWay():
                return time.sleep(MAKE_WAY)
        return request(self._open())

    # Calls.

    def listen(self, attempt: str, busy: Busy | None) -> bool:
        """Have the listener started; True once its cursor was open when this attempt last asked."""
        if self._refused:
            return False
        self._listening.add(attempt)
        if self._listener is None:
            self._main.soon(self._start_listening)
        return self._hears(attempt)

    def _start_listening(self) -> None:
        with self._mutex:
            if self._listener is None and not self._stopped:
                # Known before it runs: whoever sees that it is up may look for it.
                self._listener = threading.Thread(target=self._hear_calls, name="leasehold-mongodb", daemon=True)
                try:
                    self._listener.start()
                except RuntimeError:  # no threads are to be had: another time
                    self._listener = None

    def _hear_calls(self) -> None:
        with inside():
            run_steps(self._hear(), self._act)

    # The end.

    def close(self) -> None:
        self._stopped = True
        self._main.do(self._close)
        self._main.end()

    def _close(self) -> None:
        self._stop.set()
        with self._mutex:
            listener, self._listener = self._listener, None
        if listener is not None and listener is not threading.current_thread():
            Context().run(self._end_listening)
            listener.join(1.0)
        if self._access is not None and self._link.client is None:  # the listener may just have made it
            with pymongo.timeout(CLOSING):
                self._access.client.close()

    def _end_listening(self) -> None:
        try:
            with pymongo.timeout(1.0):
                run_steps(self._interrupt(), self._act)
        except PyMongoError:
            pass

    def after_fork(self) -> None:
        if self._access is not None and self._link.client is None:
            _inherited.append(self._access.client)
        self._reset()
