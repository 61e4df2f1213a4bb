"""Our own connections, for asyncio: as ``pool_threads``. A call that is cancelled is read to its end all the same."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ...core import clock
from .errors import is_replica
from .linger import AWAKE, Linger, a_turn
from .pool_threads import ASKING, CHUNK, MOST, PLAIN, SURPLUS, answers_plainly, unasked
from .scripts import Call, pack
from .wire import Inbox, Incomplete, parse, parse_usual

_inherited: list[Any] = []
"""The parent's, in a forked child."""


async def connect(connection: Any) -> Any:
    """As in ``pool_threads``; gives the connection."""
    try:
        await connection.connect()
    except BaseException as error:
        close(connection)
        hung = isinstance(error, RedisTimeoutError) and hasattr(connection, "cert_reqs")
        if hung and await asyncio.to_thread(answers_plainly, connection.host, connection.port):
            raise RedisConnectionError(PLAIN) from None
        raise
    return connection


class Inflow(asyncio.Protocol):
    """What comes over a connection. In place of asyncio's streams and timeouts, which take longer than the rest of a
    call: one alarm serves all of its calls, put off when it goes early."""

    def __init__(self) -> None:
        self.data = b""
        self.ended = False
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._ends = 0.0
        self._alarm: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        self.data = self.data + data if self.data else bytes(data)
        self._wake()

    def eof_received(self) -> None:
        self.connection_lost(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = True
        self._wake()
        if self._alarm is not None:
            self._alarm.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def more(self, ends: float) -> asyncio.Future[None]:
        """To be awaited until more has come; has a TimeoutError at ``ends``, which is by the loop's clock."""
        if self.ended:
            raise RedisConnectionError("the server has closed the connection")
        self._ends = ends
        if self._alarm is None or ends < self._alarm.when():
            self._put_off()
        self._waiter = waiter = self._loop.create_future()
        return waiter

    def _put_off(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._loop.call_at(self._ends, self._look)

    def _look(self) -> None:
        self._alarm = None
        if self._waiter is not None and not self._waiter.done():
            if self._loop.time() < self._ends:
                self._put_off()
            else:
                self._waiter.set_exception(TimeoutError())


class Line:
    """One connection of redis-py, and the replies that are still to come."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.used = clock.now()
        """When it was last taken."""
        self.linger = Linger()
        self.due = 0
        self._inflow: Inflow | None = None
        if str(connection.protocol) != "3":
            self._inflow = Inflow()
            self._transport = connection._writer.transport
            self._transport.set_protocol(self._inflow)

    def stale(self) -> bool:
        """Whether the server has hung up, or has said something that nobody asked for."""
        connection, inflow = self.connection, self._inflow
        if not connection.is_connected:
            return True
        return bool(connection._reader.at_eof()) if inflow is None else inflow.ended or inflow.data != b""

    def ask(self, payload: bytes, ends: float) -> asyncio.Future[None] | None:
        """Send what has one reply. To be awaited until something of it has come; None: to be read by ``talk``."""
        inflow = self._inflow
        if inflow is None:
            return None
        self.due = 1
        self._transport.write(payload)
        return inflow.more(ends)

    def usual(self) -> Any:
        """The reply, if it has come as a whole and is one of those that most calls get. Else None."""
        inflow = self._inflow
        usual = None if inflow is None else parse_usual(inflow.data)
        if inflow is not None and usual is not None:
            self.due, inflow.data = 0, b""
        return usual

    async def talk(self, payload: bytes, count: int, ends: float) -> list[Any]:
        """Send, and read so many replies; an error reply is among them as an exception."""
        self.due = count
        if self._inflow is not None:
            self._transport.write(payload)
            return await self.read(ends)
        async with asyncio.timeout_at(ends):
            await self._write(payload)
            return await self._read_resp3()

    async def read(self, ends: float) -> list[Any]:
        """What is due. Cancelled in the middle, it can be called again for the rest."""
        if self._inflow is None:
            async with asyncio.timeout_at(ends):
                return await self._read_resp3()
        replies: list[Any] = []
        inflow, at = self._inflow, 0
        while self.due:
            try:
                reply, at = parse(inflow.data, at)
                replies.append(reply)
                self.due -= 1
            except Incomplete:
                inflow.data, at = inflow.data[at:], 0
                await inflow.more(ends)
        inflow.data = inflow.data[at:]
        return replies

    async def _write(self, payload: bytes) -> None:
        """Not by redis-py, which uses ``asyncio.wait_for``: in Python 3.11 that forgets that it was cancelled if that
        comes in the moment in which it is done."""
        writer = self.connection._writer
        if writer is None:
            raise RedisConnectionError("the connection is closed")
        writer.write(payload)
        await writer.drain()

    async def _read_resp3(self) -> list[Any]:
        """By redis-py's parser, which also takes in what the server pushes."""
        replies: list[Any] = []
        while self.due:
            try:
                reply = await self.connection.read_response(disable_decoding=True, disconnect_on_error=False)
            except ResponseError as error:
                reply = error
            replies.append(reply)
            self.due -= 1
        return replies

    def close(self) -> None:
        close(self.connection)


def close(connection: Any) -> None:
    """At once, without waiting for the other side; also when the loop that it belonged to is closed."""
    writer = connection._writer
    connection._reader = connection._writer = None
    if writer is not None:
        try:
            if writer.get_extra_info("ssl_object") is None:
                writer.close()
            else:
                writer.transport.abort()  # TLS would say goodbye, and wait for an answer
        except RuntimeError:
            pass


class Lines:
    """Calls over lines that are taken and given back: our own or borrowed ones."""

    def __init__(self) -> None:
        self._finishing: set[asyncio.Task[None]] = set()

    async def call(self, call: Call, limit: float) -> Any:
        """Run one call: what nearly all of them are."""
        reply = (await self._exchange(call.packed(), 1, limit))[0]
        if isinstance(reply, Exception):
            if isinstance(reply, NoScriptError):
                return (await self.send((call,), limit))[0]
            self.check([reply])
        return reply

    async def send(self, calls: Sequence[Call], limit: float, replicas: int = 0, patience: float = 0.0) -> list[Any]:
        """Run the calls, in one go; with ``replicas`` the last reply is how many of those have confirmed."""
        return self.check(await self.replies(calls, limit, replicas, patience))

    async def each(self, calls: Sequence[Call], limit: float, replicas: int = 0, patience: float = 0.0) -> list[Any]:
        """As ``send``, without a count; an error is the reply of the call that it concerns."""
        return await self.replies(calls, limit)

    async def replies(
        self, calls: Sequence[Call], limit: float, replicas: int = 0, patience: float = 0.0, asking: bool = False
    ) -> list[Any]:
        """As ``send``; an error reply is among the replies."""
        wait = pack((b"WAIT", b"%d" % replicas, b"%d" % max(1, int(patience * 1000)))) if replicas else b""
        count = len(calls) + (replicas > 0)
        if asking:  # a slot that is on its way to a node that may not know the scripts yet
            payload = b"".join([ASKING + pack(call.whole()) for call in calls]) + wait
            replies = await self._exchange(payload, len(calls) + count, limit)
            return unasked(replies, len(calls))
        payload = calls[0].packed() if len(calls) == 1 else b"".join([call.packed() for call in calls])
        replies = await self._exchange(payload + wait, count, limit)
        unknown = [place for place, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            again = b"".join([pack(calls[place].whole()) for place in unknown])
            if replicas:
                unknown.append(count - 1)
            known = await self._exchange(again + wait, len(unknown), limit)
            for place, reply in zip(unknown, known, strict=True):
                replies[place] = reply
        return replies

    async def ask(self, command: Sequence[bytes], limit: float) -> Any:
        """One plain command."""
        return self.check(await self._exchange(pack(command), 1, limit))[0]

    async def keys(self, pattern: bytes, limit: float) -> list[bytes]:
        ends = clock.now() + limit
        found: list[bytes] = []
        cursor = b"0"
        while True:
            left = ends - clock.now()
            if left <= 0:
                raise RedisTimeoutError("timed out listing the keys")
            cursor, some = await self.ask((b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"1000"), left)
            found += some
            if cursor == b"0":
                return found

    async def _exchange(self, payload: bytes, count: int, limit: float) -> list[Any]:
        if self._finishing:  # what was cancelled comes before what is asked now
            await asyncio.wait(self._finishing, timeout=limit)
        ends = asyncio.get_running_loop().time() + limit
        line = self._take_idle()
        coming: asyncio.Future[None] | None = None
        try:
            if line is None:
                async with asyncio.timeout_at(ends):
                    line = await self._take(limit)
            coming = line.ask(payload, ends) if count == 1 else None
            if coming is None:
                replies = await line.talk(payload, count, ends)
            else:
                # All here: each coroutine in between would take time, of which a call has little.
                if line.linger.worth_it():
                    awake = clock.now() + AWAKE
                    while not coming.done() and clock.now() < awake:
                        await a_turn()
                    line.linger.went(coming.done())
                await coming
                usual = line.usual()
                replies = [usual] if usual is not None else await line.read(ends)
        except TimeoutError:
            if line is not None:
                self._drop(line)
            raise RedisTimeoutError(f"no answer within {limit:.3g} s") from None
        except asyncio.CancelledError:
            if coming is not None and not coming.cancel() and not coming.cancelled():
                coming.exception()  # seen: while it stayed awake nobody had waited for it
            if line is not None:
                self._finish(line, limit)
            raise
        except BaseException:
            if line is not None:
                self._drop(line)
            raise
        self._give(line)
        return replies

    def _finish(self, line: Line, limit: float) -> None:
        """The call may have happened: wait for its answer before anything else is asked."""

        async def finish() -> None:
            try:
                await line.read(asyncio.get_running_loop().time() + limit)
            except BaseException:
                self._drop(line)
                return
            self._give(line)

        if not line.connection.is_connected:
            self._drop(line)
            return
        task = asyncio.ensure_future(finish())
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)

    def check(self, replies: list[Any]) -> list[Any]:
        for reply in replies:
            if isinstance(reply, Exception):
                if is_replica(reply):
                    self.hang_up()  # it was the primary
                raise reply
        return replies

    def _take_idle(self) -> Line | None:
        """A line that can be used at once, if there is one."""
        raise NotImplementedError

    async def _take(self, limit: float) -> Line:
        raise NotImplementedError

    def _give(self, line: Line) -> None:
        raise NotImplementedError

    def _drop(self, line: Line) -> None:
        """It can't be used any more: the server hung up, or a reply was not awaited."""
        raise NotImplementedError

    def hang_up(self) -> None:
        """Close what is idle: the next call connects anew, to whatever is the primary then."""
        raise NotImplementedError


class Pool(Lines):
    """Connections of our own, which ``await make(limit)`` makes, connected."""

    def __init__(self, make: Callable[[float], Awaitable[Any]], most: int = MOST) -> None:
        self._make = make
        self._most = most
        self._lines: set[Line] = set()
        self._process = os.getpid()
        self.after_fork()

    def after_fork(self) -> None:
        """Also when the event loop has been closed: nothing of it can be used any more."""
        if os.getpid() != self._process:
            # To close it, or to have it collected, would take it from the parent too: they share the loop's epoll.
            _inherited.extend(line.connection._writer for line in self._lines)
        for line in self._lines:
            line.connection._reader = line.connection._writer = None
        self._process = os.getpid()
        self._lines.clear()
        self._idle: list[Line] = []
        self._open = 0
        self._turns: deque[asyncio.Future[Line | None]] = deque()
        """Who waits for a line, in order: gets one that is given back, or None when another can be opened."""
        self._finishing = set()
        self.closed = False

    async def ear(self, channel: str, limit: float) -> Ear:
        return await subscribe(await self._make(limit), channel, limit)

    def _take_idle(self) -> Line | None:
        if self._idle and not self.closed:
            line = self._idle.pop()
            if not line.stale():
                line.used = clock.now()
                return line
            self._drop(line)
        return None

    async def _take(self, limit: float) -> Line:
        while True:
            if self.closed:
                raise RedisConnectionError("this Locks is closed")
            line = self._take_idle()
            if line is not None:
                return line
            if self._open < self._most:
                self._open += 1
                before = _cancellations()
                try:
                    line = Line(await self._make(limit))
                except BaseException:
                    self._closed_one()
                    raise
                self._lines.add(line)
                if _cancellations() > before:  # and redis-py has swallowed it: see Line._write
                    self._give(line)
                    raise asyncio.CancelledError
                return line
            turn: asyncio.Future[Line | None] = asyncio.get_running_loop().create_future()
            self._turns.append(turn)
            try:
                line = await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():  # both at once: what it was given is the next one's
                    given = turn.result()
                    if given is None:
                        self._next(None)
                    else:
                        self._give(given)
                raise
            if line is not None:
                if not line.stale():
                    line.used = clock.now()
                    return line
                self._drop(line)

    def _next(self, line: Line | None) -> bool:
        """Give it to who has waited longest: who has just come must not be faster. False when nobody waits."""
        while self._turns:
            turn = self._turns.popleft()
            if not turn.done():
                turn.set_result(line)
                return True
        return False

    def _give(self, line: Line) -> None:
        if self.closed:
            self._drop(line)
            return
        if self._turns and self._next(line):
            return
        idle = self._idle
        idle.append(line)
        if len(idle) > 1 and line.used - idle[0].used > SURPLUS:
            self._close(idle.pop(0))

    def _drop(self, line: Line) -> None:
        self._close(line)
        self.hang_up()  # the others are no better

    def _close(self, line: Line) -> None:
        self._lines.discard(line)
        line.close()
        self._closed_one()

    def _closed_one(self) -> None:
        self._open -= 1
        self._next(None)

    def hang_up(self) -> None:
        while self._idle:
            self._close(self._idle.pop())

    async def close(self) -> None:
        self.closed = True
        if self._finishing:
            await asyncio.wait(self._finishing, timeout=1.0)
        self.hang_up()
        await asyncio.sleep(0)  # transports close in the loop's next round


def _cancellations() -> int:
    """How often this task has been told to end."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


async def subscribe(connection: Any, channel: str, limit: float, kind: Callable[[Any, str], Ear] | None = None) -> Ear:
    ear = (kind or Ear)(connection, channel)
    try:
        await connection.send_packed_command((pack((b"SUBSCRIBE", channel.encode())),), check_health=False)
        if await ear.read(limit) is None:
            raise RedisTimeoutError("timed out waiting for the answer to SUBSCRIBE")
    except BaseException:
        close(connection)
        raise
    return ear


class Ear:
    """The connection that hears our session's channel."""

    def __init__(self, connection: Any, channel: str) -> None:
        self._connection = connection
        self._inbox = Inbox(channel.encode())

    async def read(self, seconds: float) -> bytes | None:
        """What was published; empty for a sign of life; None when there was nothing for so long."""
        while (payload := self._inbox.take()) is None:
            try:
                async with asyncio.timeout(seconds):
                    self._inbox.add(await self._connection._reader.read(CHUNK))
            except TimeoutError:
                return None
        return payload

    async def ping(self) -> None:
        await self._connection.send_packed_command((pack((b"PING",)),), check_health=False)

    async def close(self) -> None:
        close(self._connection)
