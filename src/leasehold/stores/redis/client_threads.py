"""A client that the user has given us, for threads. It stays theirs: it is never closed here."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ...core.log import WARNING, log
from ...runtime.thread_start import start_thread
from ..common.sockets import hang_up
from .pool_threads import MOST, RESERVED, Line, Pool

GIVING_BACK = 1.0
"""How long a close waits until the client's pool has its connections again: its caller may be inside that pool."""


class Loan:
    """A connection of a client's pool. It goes back with the last who knows of it.

    But not at once: the collector, or a signal handler, may come here while its thread is inside that very pool, whose
    mutex is a plain one. So it is only put aside for a thread of ours."""

    def __init__(self, connection: Any, returned: deque[Any]) -> None:
        self.connection = connection
        self._returned = returned

    def give_back(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            self._returned.append(connection)

    __del__ = give_back


class BorrowedLine(Line):
    _loan: Loan | None = None

    def make(self, limit: float) -> None:
        self._loan = self._make(limit)
        self.connection = self._loan.connection

    def close(self) -> None:
        if self._loan is not None:
            self._loan.give_back()


class Slot(SimpleQueue["Loan | Exception"]):
    """Where one borrower waits for its own loan."""

    over = False
    """Whether it waits no more. What comes then goes back at once: an error's traceback may keep this object alive."""

    def clear(self) -> None:
        with suppress(Empty):
            late = self.get_nowait()
            if isinstance(late, Loan):
                late.give_back()


class Borrowed(Pool):
    """Connections of the pool of a ``redis.Redis``: with their settings, but our limits, and without its retries.

    One or two stay with us while we are in use: to take one and give it back costs as much as a call. The pool is
    used by threads of ours alone, one at a time: it may wait longer than our limits, or for a server that hangs.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._pool = client.connection_pool
        most = min(MOST + RESERVED, max(1, self._pool.max_connections - 2))
        super().__init__(self._borrow, most, BorrowedLine)

    def after_fork(self) -> None:
        self._wanted: deque[Slot] = deque()
        self._returned: deque[Any] = deque()
        self._at_it = threading.Lock()
        super().after_fork()

    def _borrow(self, limit: float) -> Loan:
        slot = Slot()
        self._wanted.append(slot)
        try:
            if not self._see_to_it():
                return Loan(get_connection(self._pool), self._returned)
            loan = slot.get(timeout=limit)
        except Empty:
            raise RedisTimeoutError("timed out waiting for a connection of the client's pool") from None
        finally:
            slot.over = True
            with suppress(ValueError):
                self._wanted.remove(slot)
            slot.clear()
        if isinstance(loan, Exception):
            raise loan
        return loan

    def _see_to_it(self, done: SimpleQueue[None] | None = None) -> bool:
        """Have a thread lend and take back. False: there is none to be had, as when the interpreter exits."""
        try:
            start_thread("leasehold-redis-loan", self._lend, done)
        except RuntimeError:
            return False
        return True

    def _lend(self, done: SimpleQueue[None] | None) -> None:
        if done is not None:
            with self._at_it:
                self._take_back()
            done.put(None)
        # Whoever holds the lock looks again after releasing it: nobody's wish is left behind.
        while (self._wanted or self._returned) and self._at_it.acquire(blocking=False):
            try:
                self._lend_one()
            finally:
                self._at_it.release()

    def _lend_one(self) -> None:
        self._take_back()
        with suppress(IndexError):
            slot = self._wanted.popleft()
            try:
                slot.put(Loan(get_connection(self._pool), self._returned))
            except Exception as error:
                slot.put(error)
            if slot.over:
                slot.clear()

    def _take_back(self) -> None:
        with suppress(IndexError):
            while True:
                connection = self._returned.popleft()
                try:
                    connection.disconnect()
                    self._pool.release(connection)
                except Exception as error:
                    log(WARNING, "cannot return a connection to the client's pool: %s", error, exc=error)

    def _take(self, ends: float, first: bool) -> Line:
        if self._returned:
            self._see_to_it()
        return super()._take(ends, first)

    def hang_up(self) -> None:
        super().hang_up()
        if self.closed and self._returned:  # no later call will see to it
            self._see_to_it()

    def close(self) -> None:
        super().close()
        done: SimpleQueue[None] = SimpleQueue()
        if self._see_to_it(done):
            with suppress(Empty):
                done.get(timeout=GIVING_BACK)
        else:
            self._take_back()

    def ear(self, channel: str, limit: float) -> Any:
        return ClientEar(self._client, channel, limit)


class ClientEar:
    """The client's own pub/sub."""

    def __init__(self, client: Any, channel: str, limit: float) -> None:
        self._pubsub = client.pubsub()
        try:
            self._pubsub.subscribe(channel)
            if self._pubsub.get_message(timeout=limit) is None:
                raise RedisTimeoutError("timed out waiting for the answer to SUBSCRIBE")
        except BaseException:
            self.close()
            raise

    def read(self, seconds: float) -> bytes | None:
        return read_message(self._pubsub.get_message(timeout=seconds))

    def ping(self) -> None:
        self._pubsub.ping()

    def wake(self) -> None:
        connection = self._pubsub.connection
        hang_up(connection and connection._sock)

    def close(self) -> None:
        self._pubsub.close()


def read_message(message: Any) -> bytes | None:
    """What was published; empty for a sign of life; None for nothing."""
    if message is None:
        return None
    if message["type"] == "subscribe":  # again: redis-py has connected anew, and we may have missed something
        raise RedisConnectionError("the connection was lost and opened again")
    return as_bytes(message["data"]) if message["type"] == "message" else b""


def as_bytes(value: bytes | str) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def get_connection(pool: Any) -> Any:
    try:
        return pool.get_connection()
    except TypeError:  # before redis-py 5.3
        return pool.get_connection("EVALSHA")
