"""Connections of the pool of a ``redis.Redis`` that the user made. The client stays theirs: it is never closed here."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from redis.exceptions import TimeoutError as RedisTimeoutError

from ...core.log import WARNING, log
from ...core.timing import CALL_LIMIT
from ...runtime.thread_start import start_thread
from .limits import MOST, RETURN_LIMIT
from .requests import NodeAddress, OneServer
from .transport_threads import ThreadTransport


class Loan:
    """A connection of the client's pool, as the transport uses one. It returns when it is disconnected or collected."""

    def __init__(self, connection: Any, pool: ClientPool) -> None:
        self._connection = connection
        self._pool = pool
        self.pack_command = connection.pack_command
        self.pack_commands = connection.pack_commands
        self.send_packed_command = connection.send_packed_command
        self.send_command = connection.send_command
        self.can_read = connection.can_read
        self.read_response = connection.read_response

    def connect(self) -> None:
        """It is connected."""

    def disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.give_back(connection)

    __del__ = disconnect


class Borrower(SimpleQueue["Loan | Exception"]):
    """Where one thread waits for its loan."""

    over = False
    """Whether it waits no more. A late loan then returns at once: an error's traceback may keep this object alive."""

    def clear(self) -> None:
        with suppress(Empty):
            late = self.get_nowait()
            if isinstance(late, Loan):
                late.disconnect()


class ClientPool:
    """Takes connections from the client's pool, and returns them, in threads of ours, one at a time.

    The pool may keep its caller waiting longer than our limits, or for a server that hangs; and the collector or a
    signal handler may end a loan while its thread is inside that pool, whose mutex is a plain one."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.after_fork()

    def after_fork(self) -> None:
        self._wanted: deque[Borrower] = deque()
        self._returned: deque[Any] = deque()
        self._at_it = threading.Lock()
        self._returning = threading.Lock()
        self._given: dict[int, tuple[Any, Any]] = {}
        """The client's own time limits of the connections for which ours were set."""

    def borrow(self, node: NodeAddress | None, limit: float) -> Loan:
        borrower = Borrower()
        self._wanted.append(borrower)
        try:
            if not self._start():
                return self._lend()
            loan = borrower.get(timeout=limit)
        except Empty:
            raise RedisTimeoutError("timed out waiting for a connection of the client's pool") from None
        finally:
            borrower.over = True
            with suppress(ValueError):
                self._wanted.remove(borrower)
            borrower.clear()
        if isinstance(loan, Exception):
            raise loan
        return loan

    def give_back(self, connection: Any) -> None:
        """May be called by a destructor."""
        self._returned.append(connection)
        self._start()

    def close(self) -> None:
        done: SimpleQueue[None] = SimpleQueue()
        if self._start(done):
            with suppress(Empty):
                done.get(timeout=RETURN_LIMIT)
        else:
            self._take_back()

    def _start(self, done: SimpleQueue[None] | None = None) -> bool:
        """Have a thread lend and take back. False if there is none to be had, as when the interpreter exits."""
        try:
            start_thread("leasehold-redis-loan", self._work, done)
        except RuntimeError:
            return False
        return True

    def _work(self, done: SimpleQueue[None] | None) -> None:
        if done is not None:
            with self._returning:
                self._take_back()
            done.put(None)
        # Whoever holds the lock looks again after releasing it: no borrower is left behind.
        # Two locks: a pool that has nothing to lend keeps its caller waiting until something is returned.
        while self._returned and self._returning.acquire(blocking=False):
            try:
                self._take_back()
            finally:
                self._returning.release()
        while self._wanted and self._at_it.acquire(blocking=False):
            try:
                self._serve()
            finally:
                self._at_it.release()

    def _serve(self) -> None:
        with suppress(IndexError):
            borrower = self._wanted.popleft()
            try:
                borrower.put(self._lend())
            except Exception as error:
                borrower.put(error)
            if borrower.over:
                borrower.clear()

    def _lend(self) -> Loan:
        connection = self._pool.get_connection()
        theirs = connection.socket_timeout
        if theirs is None or theirs > CALL_LIMIT:  # then a reply that stops halfway would be waited for too long
            self._given[id(connection)] = theirs, connection.socket_connect_timeout
            try:
                connection.disconnect()
                connection.socket_timeout = connection.socket_connect_timeout = CALL_LIMIT
                connection.connect()
            except BaseException:
                self.give_back(connection)
                raise
        return Loan(connection, self)

    def _take_back(self) -> None:
        with suppress(IndexError):
            while True:
                connection = self._returned.popleft()
                try:
                    connection.disconnect()
                    if (given := self._given.pop(id(connection), None)) is not None:
                        connection.socket_timeout, connection.socket_connect_timeout = given
                    self._pool.release(connection)
                except Exception as error:
                    log(WARNING, "cannot return a connection to the client's pool: %s", error, exc=error)


class ClientTransport(ThreadTransport):
    """Uses the client's connections and their settings, with our limits, and without the client's retries.

    Some stay with us while we are in use: to take one and return it costs as much as a call."""

    def __init__(self, client: Any) -> None:
        pool = client.connection_pool
        self._pool = ClientPool(pool)
        super().__init__(OneServer(), self._pool.borrow, min(MOST, max(1, pool.max_connections - 2)))

    def close(self) -> None:
        super().close()
        self._pool.close()

    def after_fork(self) -> None:
        super().after_fork()
        self._pool.after_fork()
