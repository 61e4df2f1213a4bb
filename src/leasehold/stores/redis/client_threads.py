"""A client that the user has given us, for threads. It stays theirs: it is never closed here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ... import clock
from ...starting import Life, start_thread
from ..sockets import hang_up
from .pool_threads import MOST, RESERVED, SLICE, Line, Pool
from .scripts import Call

RAW = {"NEVER_DECODE": True}
"""redis-py is to leave the bytes of a reply alone, whatever the client was made with."""


class Loan:
    """A connection of a client's pool. It goes back to the pool with the last who knows of it."""

    def __init__(self, pool: Any, connection: Any) -> None:
        self._pool = pool
        self._process = os.getpid()
        self.connection = connection

    def give_back(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None and os.getpid() == self._process:
            connection.disconnect()
            self._pool.release(connection)

    __del__ = give_back


class BorrowedLine(Line):
    _loan: Loan | None = None

    def make(self, limit: float) -> None:
        self._loan = self._make(limit)
        self.connection = self._loan.connection

    def close(self) -> None:
        if self._loan is not None:
            self._loan.give_back()


class Borrowed(Pool):
    """Connections of the pool of a ``redis.Redis``: with their settings, but our limits, and without its retries.

    One or two stay with us while we are in use: to take one and give it back costs as much as a call.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._pool = client.connection_pool
        most = min(MOST + RESERVED, max(1, self._pool.max_connections - 2))
        super().__init__(self._borrow, most, BorrowedLine)

    def after_fork(self) -> None:
        self._loans: SimpleQueue[Loan | Exception] = SimpleQueue()
        self._lender: Life | None = None
        super().after_fork()

    def _borrow(self, limit: float) -> Loan:
        """Within our limit: the pool may have a longer one of its own, or wait for a server that hangs."""
        ends = clock.now() + limit
        while True:
            if self._loans.empty() and (self._lender is None or self._lender.ended):
                try:
                    self._lender = start_thread("leasehold-redis-loan", self._lend)
                except RuntimeError:  # as when the interpreter exits
                    self._lend()
            try:
                loan = self._loans.get(timeout=max(0.0, min(SLICE, ends - clock.now())))
            except Empty:
                if clock.now() >= ends:
                    raise RedisTimeoutError("the client's pool has not given a connection in time") from None
                continue
            if isinstance(loan, Exception):
                raise loan
            return loan

    def _lend(self) -> None:
        try:
            self._loans.put(Loan(self._pool, get_connection(self._pool)))
        except Exception as error:
            self._loans.put(error)

    def hang_up(self) -> None:
        super().hang_up()
        with suppress(Empty):
            while True:
                self._loans.get_nowait()  # what came too late goes back

    def ear(self, channel: str, limit: float) -> Any:
        return ClientEar(self._client, channel, limit)


class BorrowedCluster:
    """A ``redis.RedisCluster``, through its own commands: it knows the way to the nodes, and its limits hold."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def send(self, calls: Sequence[Call], limit: float, replicas: int = 0, patience: float = 0.0) -> list[Any]:
        if len(calls) == 1:
            return [self.call(calls[0], limit)]
        replies = self.each(calls, limit)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def each(self, calls: Sequence[Call], limit: float, replicas: int = 0, patience: float = 0.0) -> list[Any]:
        """As ``send``; an error reply is among the replies."""
        with self._client.pipeline() as pipeline:
            for call in calls:
                pipeline.execute_command("EVALSHA", *call.short()[1:])
            replies = pipeline.execute(raise_on_error=False)
        for place, reply in enumerate(replies):
            if isinstance(reply, NoScriptError):
                replies[place] = self.call(calls[place], limit)
        return list(replies)

    def call(self, call: Call, limit: float) -> Any:
        try:
            return self._client.execute_command("EVALSHA", *call.short()[1:], **RAW)
        except NoScriptError:
            return self._client.execute_command("EVAL", *call.whole()[1:], **RAW)

    def keys(self, pattern: bytes, limit: float) -> list[bytes]:
        return [as_bytes(key) for key in self._client.scan_iter(match=pattern, count=1000)]

    def ear(self, channel: str, limit: float) -> ClientEar:
        return ClientEar(self._client, channel, limit)

    def close(self) -> None:
        """It is not ours to close."""

    def after_fork(self) -> None:
        """redis-py looks after its connections by itself."""


class ClientEar:
    """The client's own pub/sub."""

    def __init__(self, client: Any, channel: str, limit: float) -> None:
        self._pubsub = client.pubsub()
        try:
            self._pubsub.subscribe(channel)
            if self._pubsub.get_message(timeout=limit) is None:
                raise RedisTimeoutError("no answer to SUBSCRIBE")
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
        raise RedisConnectionError("the connection was lost and made anew")
    return as_bytes(message["data"]) if message["type"] == "message" else b""


def as_bytes(value: bytes | str) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def get_connection(pool: Any) -> Any:
    try:
        return pool.get_connection()
    except TypeError:  # before redis-py 5.3
        return pool.get_connection("EVALSHA")
