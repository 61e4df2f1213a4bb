"""Connections for asyncio, as in ``transport_threads``. A call that is cancelled is read to its end all the same."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ...core import clock
from ...core.protocol import await_steps
from . import limits
from .cluster import Cluster, RetryPause
from .errors import is_replica
from .requests import NodeAddress, OneServer, RoundTrip
from .transport_threads import PLAIN, answers_plainly, packed, published, shares

_inherited: list[Any] = []
"""The parent's connections, in a forked child: closing one would take it from the parent, whose epoll they share."""

Make = Callable[[NodeAddress | None, float], Awaitable[Any]]
"""Makes a connection of ``redis.asyncio`` to a node within so many seconds, connected."""


async def connect(connection: Any) -> Any:
    """Connect; return the connection."""
    try:
        await connection.connect()
    except BaseException as error:
        hang_up(connection)
        hung = isinstance(error, RedisTimeoutError) and hasattr(connection, "cert_reqs")
        if hung and await asyncio.to_thread(answers_plainly, connection.host, connection.port):
            raise RedisConnectionError(PLAIN) from None
        raise
    return connection


def hang_up(connection: Any) -> None:
    """Close the connection at once, also when its loop is closed: with ``nowait`` nothing is waited for."""
    closing = connection.disconnect(nowait=True)
    try:
        closing.send(None)
    except (StopIteration, RuntimeError, OSError):
        pass
    finally:
        closing.close()


async def end(connection: Any) -> None:
    """Close the connection, and wait until it is closed: TLS says goodbye first. Else its loop may end before it."""
    with suppress(RedisError, OSError, TimeoutError):
        async with asyncio.timeout(limits.GOODBYE):
            await connection.disconnect()


async def read(connection: Any, missing: list[None], replies: list[Any]) -> None:
    """Read the missing replies. Cancelled in the middle, it can be called again for the rest."""
    while missing:
        try:
            reply = await connection.read_response(disable_decoding=True, disconnect_on_error=False)
        except ResponseError as error:
            reply = error
        missing.pop()
        replies.append(reply)


async def is_alive(connection: Any) -> bool:
    """Whether the server has neither hung up nor said something that nobody asked for."""
    can_read = getattr(connection, "can_read", None) or connection.can_read_destructive  # before redis-py 8
    try:
        return connection.is_connected and not await can_read()
    except (RedisError, OSError):
        return False


def cancellations() -> int:
    """How often this task was told to end. redis-py may swallow that: ``asyncio.wait_for`` of Python 3.11 does."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


class TaskServerConnections:
    """The connections to one server. ``give_back`` is called with each that is closed."""

    def __init__(self, make: Callable[[float], Awaitable[Any]], most: int, give_back: Callable[[Any], object]) -> None:
        self._make = make
        self._most = most
        self._give_back = give_back
        self._all: set[Any] = set()
        self._process = os.getpid()
        self.after_fork()

    def after_fork(self) -> None:
        """Also when the event loop has been closed: nothing that belonged to it can be used any more."""
        if os.getpid() != self._process:
            _inherited.extend(self._all)
        else:
            for connection in self._all:
                hang_up(connection)
                self._give_back(connection)
        self._process = os.getpid()
        self._all.clear()
        self._idle: list[tuple[float, Any]] = []
        self._finishing: set[asyncio.Task[None]] = set()
        reserved, others = shares(self._most)
        self._first = asyncio.Semaphore(reserved)
        self._acquires = asyncio.Semaphore(others) if others else self._first
        self._closed = False

    async def carry_out(self, trip: RoundTrip) -> list[Any]:
        limit, before = trip.ends - clock.now(), cancellations()
        try:
            async with asyncio.timeout(limit):
                if self._finishing and trip.abandons:  # the acquire may be among them
                    await asyncio.wait(self._finishing)
                turns = self._first if trip.first and self._acquires.locked() else self._acquires
                async with turns:
                    replies = await self._exchange(trip)
        except TimeoutError:
            raise RedisTimeoutError(f"no answer within {limit:.3g} s") from None
        if cancellations() > before:
            raise asyncio.CancelledError
        for reply in replies:
            if isinstance(reply, Exception) and is_replica(reply):
                self.hang_up()  # it was the primary: the next call looks for the new one
        return replies

    async def _exchange(self, trip: RoundTrip) -> list[Any]:
        connection = await self._take(trip.ends)
        missing: list[None] = [None] * len(trip.commands)
        replies: list[Any] = []
        try:
            await connection.send_packed_command(packed(connection, trip.commands), check_health=False)
            await read(connection, missing, replies)
        except asyncio.CancelledError:
            self._finish(connection, missing, trip.ends)
            raise
        except BaseException:
            self._drop(connection)
            raise
        self._give(connection)
        return replies

    def _finish(self, connection: Any, missing: list[None], ends: float) -> None:
        """The call may have happened: read its answer before anything else is sent. After its limit that is in vain."""
        if not connection.is_connected or ends <= clock.now():
            self._drop(connection)
            return

        async def finish() -> None:
            try:
                async with asyncio.timeout(ends - clock.now()):
                    await read(connection, missing, [])
            except BaseException:
                self._drop(connection)
                return
            self._give(connection)

        task = asyncio.ensure_future(finish())
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)

    async def _take(self, ends: float) -> Any:
        while self._idle and not self._closed:
            since, connection = self._idle.pop()
            try:
                if clock.now() - since <= limits.FRESH or await is_alive(connection):
                    return connection
            except BaseException:  # cancelled: some parsers of redis-py wait there
                self._end(connection)
                raise
            self._drop(connection)
        if self._closed:
            raise RedisConnectionError("this Locks is closed")
        connection = await self._make(max(0.001, ends - clock.now()))
        self._all.add(connection)
        return connection

    def _give(self, connection: Any) -> None:
        if self._closed:
            self._end(connection)
            return
        now = clock.now()
        self._idle.append((now, connection))
        if now - self._idle[0][0] > limits.SURPLUS and len(self._idle) > 1:
            self._end(self._idle.pop(0)[1])

    def _drop(self, connection: Any) -> None:
        """It can't be used any more: the server hung up, or a reply was not awaited."""
        self._end(connection)
        self.hang_up()  # the other connections are no better

    def _end(self, connection: Any) -> None:
        self._all.discard(connection)
        hang_up(connection)
        self._give_back(connection)

    def hang_up(self) -> None:
        """Close what is idle: the next call connects anew, to whatever is the primary then."""
        while self._idle:
            self._end(self._idle.pop()[1])

    async def close(self) -> None:
        self._closed = True
        if self._finishing:
            await asyncio.wait(self._finishing, timeout=1.0)
        if self._finishing:
            for task in self._finishing:
                task.cancel()
            await asyncio.wait(self._finishing)
        await asyncio.gather(*(end(connection) for _, connection in self._idle))
        self.hang_up()
        await asyncio.sleep(0)  # transports close in the loop's next round


class TaskTransport:
    """Carries out a store's requests for tasks. ``topology`` says which round trips each request takes."""

    def __init__(self, topology: OneServer | Cluster, make: Make, most: int = limits.MOST) -> None:
        self.topology = topology
        self.make = make
        self._most = most
        self._servers: dict[NodeAddress | None, TaskServerConnections] = {}
        self._closed = False

    async def do(self, request: Any, ends: float) -> Any:
        """The answer to a request of ``requests.py``. Raises the errors of redis-py."""
        return await await_steps(self.topology.answer(request, ends), self.carry_out)

    async def carry_out(self, step: RoundTrip | RetryPause | Sequence[RoundTrip]) -> Any:
        match step:
            case RoundTrip():
                return await self._server(step.node).carry_out(step)
            case RetryPause(seconds):
                return await asyncio.sleep(seconds)
        return await asyncio.gather(*(self._server(trip.node).carry_out(trip) for trip in step), return_exceptions=True)

    def _server(self, node: NodeAddress | None) -> TaskServerConnections:
        if self._closed:
            raise RedisConnectionError("this Locks is closed")
        server = self._servers.get(node)
        if server is None:
            server = self._servers[node] = TaskServerConnections(
                lambda limit: self.make(node, limit), self._most, self.give_back
            )
        return server

    def give_back(self, connection: Any) -> None:
        """The connection was closed."""

    async def subscribe(self, channel: str, limit: float) -> TaskSubscription:
        """Listen at the first node that answers."""
        if self._closed:
            raise RedisConnectionError("this Locks is closed")
        problem: Exception | None = None
        for node in await await_steps(self.topology.nodes_to_hear(clock.now() + limit), self.carry_out):
            try:
                async with asyncio.timeout(limit):
                    return await TaskSubscription(self, node, channel).begin(limit)
            except (RedisError, OSError) as error:
                self.topology.unheard(node)
                problem = error
        raise problem or RedisConnectionError("no node answers")

    async def close(self) -> None:
        self._closed = True
        for server in list(self._servers.values()):
            await server.close()

    def after_fork(self) -> None:
        self._closed = False
        for server in self._servers.values():
            server.after_fork()


class TaskSubscription:
    """The connection that hears our session's channel."""

    def __init__(self, transport: TaskTransport, node: NodeAddress | None, channel: str) -> None:
        self._transport = transport
        self._node = node
        self._channel = channel.encode()
        self._signs = 0

    async def begin(self, limit: float) -> TaskSubscription:
        self._connection = await self._transport.make(self._node, limit)
        try:
            await self._connection.send_command("SUBSCRIBE", self._channel, check_health=False)
            if await self.read(limit) is None:
                raise RedisTimeoutError("timed out waiting for the answer to SUBSCRIBE")
        except BaseException:
            self.close()
            raise
        return self

    async def read(self, seconds: float) -> bytes | None:
        """What was published; empty for a sign of life; None if nothing came for so long."""
        try:
            async with asyncio.timeout(seconds):
                message = await self._connection.read_response(
                    disable_decoding=True, disconnect_on_error=False, push_request=True
                )
        except TimeoutError:
            return None
        return published(message, self._channel)

    async def ping(self) -> None:
        self._signs += 1
        await await_steps(self._transport.topology.check_heard(self._node, self._signs), self._transport.carry_out)
        await self._connection.send_command("PING", check_health=False)

    def close(self) -> None:
        hang_up(self._connection)
        self._transport.give_back(self._connection)

    async def end(self) -> None:
        try:
            await end(self._connection)
        finally:
            self.close()
