"""Our own connections, for asyncio: as ``pool_threads``. A call that is cancelled is read to its end all the same."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ... import clock
from .errors import is_replica
from .pool_threads import ASKING, MOST, SURPLUS
from .scripts import Call, pack


class Line:
    """One connection of redis-py, and the replies that are still to come."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.used = 0.0
        self.due = 0

    def stale(self) -> bool:
        connection = self.connection
        return not connection.is_connected or connection._reader.at_eof()

    async def talk(self, payload: bytes, count: int) -> list[Any]:
        """Send, and read so many replies; an error reply is among them as an exception."""
        self.due = count
        await self.connection.send_packed_command((payload,), check_health=False)
        return await self.read()

    async def read(self) -> list[Any]:
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
            writer.close()
        except RuntimeError:
            pass


class Lines:
    """Calls over lines that are taken and given back: our own or borrowed ones."""

    def __init__(self) -> None:
        self._finishing: set[asyncio.Task[None]] = set()

    async def send(self, calls: Sequence[Call], limit: float, replicas: int = 0, patience: float = 0.0) -> list[Any]:
        """Run the calls, in one go; with ``replicas`` the last reply is how many of those have confirmed."""
        return self.check(await self.replies(calls, limit, replicas, patience))

    async def replies(
        self, calls: Sequence[Call], limit: float, replicas: int = 0, patience: float = 0.0, asking: bool = False
    ) -> list[Any]:
        """As ``send``; an error reply is among the replies."""
        if asking:  # a slot that is on its way from one node to another
            payload = b"".join([ASKING + call.packed() for call in calls])
            return (await self._exchange(payload, 2 * len(calls), limit))[1::2]
        payload = calls[0].packed() if len(calls) == 1 else b"".join([call.packed() for call in calls])
        wait = pack((b"WAIT", b"%d" % replicas, b"%d" % max(1, int(patience * 1000)))) if replicas else b""
        count = len(calls) + (replicas > 0)
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
                raise RedisTimeoutError("listing the keys takes too long")
            cursor, some = await self.ask((b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"1000"), left)
            found += some
            if cursor == b"0":
                return found

    async def _exchange(self, payload: bytes, count: int, limit: float) -> list[Any]:
        if self._finishing:  # what was cancelled comes before what is asked now
            await asyncio.wait(self._finishing, timeout=limit)
        line: Line | None = None
        try:
            async with asyncio.timeout(limit):
                line = await self._take(limit)
                replies = await line.talk(payload, count)
        except TimeoutError:
            if line is not None:
                self._drop(line)
            raise RedisTimeoutError(f"no answer within {limit:.3g} s") from None
        except asyncio.CancelledError:
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
                async with asyncio.timeout(limit):
                    await line.read()
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

    def __init__(self, make: Callable[[float], Awaitable[Any]]) -> None:
        self._make = make
        self._idle: list[Line] = []
        self.after_fork()

    def after_fork(self) -> None:
        """Also when the event loop has been closed: nothing of it can be used any more."""
        for line in self._idle:
            line.connection._reader = line.connection._writer = None  # closing it would disturb the parent
        self._idle = []
        self._open = 0
        self._turns: deque[asyncio.Future[None]] = deque()
        self._finishing = set()
        self.closed = False

    async def ear(self, channel: str, limit: float) -> Ear:
        return await subscribe(await self._make(limit), channel, limit)

    async def _take(self, limit: float) -> Line:
        while True:
            if self.closed:
                raise RedisConnectionError("this Locks is closed")
            if self._idle:
                line = self._idle.pop()
                if not line.stale():
                    return line
                self._drop(line)
            if self._open < MOST:
                self._open += 1
                try:
                    return Line(await self._make(limit))
                except BaseException:
                    self._closed_one()
                    raise
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._turns.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done():
                    self._next()
                raise

    def _next(self) -> None:
        while self._turns:
            turn = self._turns.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _give(self, line: Line) -> None:
        if self.closed:
            self._drop(line)
            return
        line.used = now = clock.now()
        idle = self._idle
        idle.append(line)
        if self._turns:
            self._next()
        elif len(idle) > 1 and now - idle[0].used > SURPLUS:
            idle.pop(0).close()
            self._closed_one()

    def _drop(self, line: Line) -> None:
        line.close()
        self._closed_one()
        self.hang_up()  # the others are no better

    def _closed_one(self) -> None:
        self._open -= 1
        self._next()

    def hang_up(self) -> None:
        while self._idle:
            self._idle.pop().close()
            self._closed_one()

    async def close(self) -> None:
        self.closed = True
        if self._finishing:
            await asyncio.wait(self._finishing, timeout=1.0)
        self.hang_up()
        await asyncio.sleep(0)  # transports close in the loop's next round


async def subscribe(connection: Any, channel: str, limit: float) -> Ear:
    try:
        async with asyncio.timeout(limit):
            await connection.send_packed_command((pack((b"SUBSCRIBE", channel.encode())),), check_health=False)
            await connection.read_response(disable_decoding=True)
    except BaseException:
        close(connection)
        raise
    return Ear(connection)


class Ear:
    """The connection that hears our session's channel."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def read(self, seconds: float) -> bytes | None:
        """What was published; empty for a sign of life; None when there was nothing for so long."""
        message = await self._connection.read_response(
            disable_decoding=True, timeout=seconds, disconnect_on_error=False
        )
        if message is None:
            return None
        if isinstance(message, list) and message[0] == b"message":
            return bytes(message[2])
        return b""

    async def ping(self) -> None:
        await self._connection.send_packed_command((pack((b"PING",)),), check_health=False)

    async def close(self) -> None:
        close(self._connection)
