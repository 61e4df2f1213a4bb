"""Connections for threads: redis-py's own, few, the one used last first. Each round trip has a deadline.

An exception from a signal handler may end any thread's call between any two instructions, and a handler may make a call
there. So there is no mutex and no counter to restore: whoever has a ``Turn`` may use a connection, and a connection
that an interrupted call drops is closed when it is collected (``stores/common/turns.py``).
"""

from __future__ import annotations

import inspect
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from redis.connection import Connection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ...core import clock
from ...core.protocol import run_steps
from ...runtime.thread_start import start_thread
from ..common.turns import Turns
from . import limits
from .cluster import Cluster, RetryPause
from .errors import is_replica
from .requests import NodeAddress, OneServer, RoundTrip

PLAIN = "SSL: the server answers without TLS"
LIMITS_READ = "timeout" in inspect.signature(Connection.read_response).parameters
"""Whether this redis-py limits the time to read a reply. Earlier ones limit the wait for its beginning."""
Make = Callable[[NodeAddress | None, float], Any]
"""Makes a connection of redis-py to a node within so many seconds. It may be connected already."""


def connect(connection: Any) -> Any:
    """Connect; return the connection. Say so if the other side does not speak TLS: a plain Redis waits for more."""
    try:
        connection.connect()
        return connection
    except BaseException as error:
        connection.disconnect()  # redis-py tidies up after its own errors alone
        hung = isinstance(error, RedisTimeoutError) and hasattr(connection, "cert_reqs")
        if hung and answers_plainly(connection.host, connection.port):
            raise RedisConnectionError(PLAIN) from None
        raise


def answers_plainly(host: str, port: int) -> bool:
    """Whether there is a server that answers without TLS."""
    try:
        with socket.create_connection((host, port), limits.PLAIN_LIMIT) as sock:
            sock.settimeout(limits.PLAIN_LIMIT)
            sock.sendall(b"PING\r\n")
            return sock.recv(1) in (b"+", b"-")
    except OSError:
        return False


def packed(connection: Any, commands: Sequence[tuple[bytes, ...]]) -> Any:
    """The commands in Redis's protocol. Nearly always there is one, and ``pack_commands`` copies it once more."""
    if len(commands) == 1:
        return connection.pack_command(*commands[0])
    return connection.pack_commands(commands)


def exchange(connection: Any, trip: RoundTrip) -> list[Any]:
    """Send the commands and read their replies. Raises an error after which the connection is of no use."""
    connection.send_packed_command(packed(connection, trip.commands), check_health=False)
    replies: list[Any] = []
    for _ in trip.commands:
        left = max(0.001, trip.ends - clock.now())
        if not LIMITS_READ and not connection.can_read(left):
            raise RedisTimeoutError("timed out waiting for the server")
        limit = {"timeout": left} if LIMITS_READ else {}
        try:
            replies.append(connection.read_response(disable_decoding=True, **limit))
        except ResponseError as error:
            replies.append(error)
    return replies


class ServerConnections:
    """The connections to one server."""

    def __init__(self, make: Callable[[float], Any], most: int) -> None:
        self._make = make
        self._most = most
        self.after_fork()

    def after_fork(self) -> None:
        self._idle: list[tuple[float, Any]] = []
        """Since when each connection is idle, and the connection."""
        reserved, others = shares(self._most)
        self._first = Turns(reserved)
        self._acquires = Turns(others) if others else self._first
        self._closed = False

    def carry_out(self, trip: RoundTrip) -> list[Any]:
        turns, turn = self._acquires, self._acquires.try_take()
        if turn is None:
            turns = self._first if trip.first else self._acquires
            turn = turns.take(trip.ends - clock.now())
        try:
            connection = self._take(trip.ends)
            try:
                replies = exchange(connection, trip)
            except BaseException as error:
                connection.disconnect()
                if isinstance(error, (RedisError, OSError)):
                    self.hang_up()  # the other connections are no better
                raise
            self._give(connection)
        finally:
            turns.over(turn)
        for reply in replies:
            if isinstance(reply, Exception) and is_replica(reply):
                self.hang_up()  # it was the primary: the next call looks for the new one
        return replies

    def _take(self, ends: float) -> Any:
        """A connected connection, the caller's alone until it is given back or ended."""
        while self._idle:
            try:
                since, connection = self._idle.pop()
            except IndexError:
                break  # another thread was faster
            if clock.now() - since <= limits.FRESH or is_alive(connection):
                return connection
            connection.disconnect()
            self.hang_up()
        if self._closed:
            raise RedisConnectionError("this Locks is closed")
        return connect(self._make(max(0.001, ends - clock.now())))

    def _give(self, connection: Any) -> None:
        now = clock.now()
        self._idle.append((now, connection))
        oldest = next(iter(self._idle), None)  # another thread may have taken it
        if self._closed:
            self.hang_up()
        elif oldest is not None and now - oldest[0] > limits.SURPLUS and len(self._idle) > 1:
            self._end_one()

    def _end_one(self) -> None:
        try:
            _, connection = self._idle.pop(0)
        except IndexError:
            return  # another thread was faster
        connection.disconnect()

    def hang_up(self) -> None:
        """Close what is idle: the next call connects anew, to whatever is the primary then."""
        while self._idle:
            self._end_one()

    def close(self) -> None:
        self._closed = True
        self.hang_up()


def shares(most: int) -> tuple[int, int]:
    """Of so many connections, how many are reserved, and how many acquires may use. With one, they share it."""
    reserved = max(1, min(limits.RESERVED, most // 2))
    return reserved, most - reserved


def is_alive(connection: Any) -> bool:
    """Whether the server has neither hung up nor said something that nobody asked for."""
    try:
        return not connection.can_read(0)
    except (RedisError, OSError):
        return False


class ThreadTransport:
    """Carries out a store's requests for threads. ``topology`` says which round trips each request takes."""

    def __init__(self, topology: OneServer | Cluster, make: Make, most: int = limits.MOST) -> None:
        self.topology = topology
        self.make = make
        self._most = most
        self._servers: dict[NodeAddress | None, ServerConnections] = {}
        self._closed = False

    def do(self, request: Any, ends: float) -> Any:
        """The answer to a request of ``requests.py``. Raises the errors of redis-py."""
        return run_steps(self.topology.answer(request, ends), self.carry_out)

    def carry_out(self, step: RoundTrip | RetryPause | Sequence[RoundTrip]) -> Any:
        match step:
            case RoundTrip():
                return self._server(step.node).carry_out(step)
            case RetryPause(seconds):
                return time.sleep(seconds)
        return at_once([partial(self._server(trip.node).carry_out, trip) for trip in step])

    def _server(self, node: NodeAddress | None) -> ServerConnections:
        server = self._servers.get(node)
        if server is None:
            new = ServerConnections(lambda limit: self.make(node, limit), self._most)
            server = self._servers.setdefault(node, new)
        if self._closed:  # looked at last: a close may have missed a new one
            server.close()
        return server

    def subscribe(self, channel: str, limit: float) -> ThreadSubscription:
        """Listen at the first node that answers."""
        if self._closed:
            raise RedisConnectionError("this Locks is closed")
        problem: Exception | None = None
        for node in run_steps(self.topology.nodes_to_hear(clock.now() + limit), self.carry_out):
            try:
                return ThreadSubscription(self, node, channel, limit)
            except (RedisError, OSError) as error:
                self.topology.unheard(node)
                problem = error
        raise problem or RedisConnectionError("no node answers")

    def close(self) -> None:
        self._closed = True
        for server in list(self._servers.values()):
            server.close()

    def after_fork(self) -> None:
        self._closed = False
        for server in self._servers.values():
            server.after_fork()


class ThreadSubscription:
    """The connection that hears our session's channel."""

    def __init__(self, transport: ThreadTransport, node: NodeAddress | None, channel: str, limit: float) -> None:
        self._transport = transport
        self._node = node
        self._channel = channel.encode()
        self._signs = 0
        self._connection = connect(transport.make(node, limit))
        try:
            self._connection.send_command("SUBSCRIBE", channel, check_health=False)
            if self.read(limit) is None:
                raise RedisTimeoutError("timed out waiting for the answer to SUBSCRIBE")
        except BaseException:
            self.close()
            raise

    def read(self, seconds: float) -> bytes | None:
        """What was published; empty for a sign of life; None if nothing came for so long."""
        if not self._connection.can_read(seconds):
            return None
        return published(self._connection.read_response(disable_decoding=True, push_request=True), self._channel)

    def ping(self) -> None:
        self._signs += 1
        run_steps(self._transport.topology.check_heard(self._node, self._signs), self._transport.carry_out)
        self._connection.send_command("PING", check_health=False)

    def close(self) -> None:
        """Also ends a ``read`` in another thread, with an error."""
        self._connection.disconnect()


def published(message: Any, channel: bytes) -> bytes:
    """What a message on the channel brings; empty for any other message."""
    if isinstance(message, list) and len(message) == 3 and as_bytes(message[0]) == b"message":
        return as_bytes(message[2]) if as_bytes(message[1]) == channel else b""
    return b""


def as_bytes(value: bytes | str) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def at_once(jobs: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each job returns, or its error. Each but the first has a thread of its own: none waits for another."""
    results: list[Any] = [None] * len(jobs)

    def do(number: int) -> None:
        try:
            results[number] = jobs[number]()
        except Exception as error:
            results[number] = error

    threads = []
    for number in range(1, len(jobs)):
        try:
            threads.append(start_thread("leasehold-redis-node", do, number))
        except RuntimeError:  # too many, or the interpreter is about to end
            do(number)
    if jobs:
        do(0)
    for thread in threads:
        thread.join()
    return results
