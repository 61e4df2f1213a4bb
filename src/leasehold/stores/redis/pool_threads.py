"""Our own connections, for threads: few, reused last in first out, each call with its own limit."""

from __future__ import annotations

import select
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ... import clock
from ..sockets import hang_up
from .errors import is_replica
from .linger import AWAKE, Linger
from .scripts import Call, pack
from .wire import Inbox, Incomplete, parse, parse_usual

MOST = 4
"""Connections for calls. More threads than that take turns: a call takes well under a millisecond."""
ASKING = pack((b"ASKING",))
PLAIN = "SSL: the server answers without TLS"
_PROBE = 0.3
FRESH = 0.01
"""A connection that was used so recently is not looked at before it is used again: a look costs a system call."""
CHUNK = 65536
USUAL = 4096
"""What the reply of one call fits into: to make room for more takes time."""
SURPLUS = 5.0
"""A connection beyond the first that has not been needed for so long is closed."""


def connect(connection: Any) -> None:
    """Connect; say so when the other side does not speak TLS: a plain Redis just waits for more."""
    try:
        connection.connect()
    except RedisTimeoutError:
        if hasattr(connection, "cert_reqs") and answers_plainly(connection.host, connection.port):
            raise RedisConnectionError(PLAIN) from None
        raise


def answers_plainly(host: str, port: int) -> bool:
    """Whether there is a server that answers without TLS."""
    try:
        with socket.create_connection((host, port), _PROBE) as sock:
            sock.settimeout(_PROBE)
            sock.sendall(b"PING\r\n")
            return sock.recv(1) in (b"+", b"-")
    except OSError:
        return False


class Limit:
    """How long a connected socket waits. The kernel's own limit saves a poll before each send and receive."""

    def __init__(self, sock: Any, by_kernel: bool = True) -> None:
        self.seconds = -1.0
        self._sock = sock
        self.by_kernel = by_kernel and type(sock) is socket.socket and sys.platform == "linux"  # TLS needs Python's
        if self.by_kernel:
            sock.settimeout(None)

    def set(self, seconds: float) -> None:
        if seconds == self.seconds:
            return
        self.seconds = seconds
        seconds = max(0.001, seconds)
        if self.by_kernel:
            value = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
        else:
            self._sock.settimeout(seconds)


class Line:
    """One connection of redis-py."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.used = clock.now()
        """When it was last taken."""
        self._resp3 = str(connection.protocol) == "3"

    def connect(self) -> None:
        connect(self.connection)
        sock = self.connection._sock
        self._send, self._receive = sock.sendall, sock.recv
        self._limit = Limit(sock, by_kernel=not self._resp3)
        self._linger = Linger() if self._limit.by_kernel else None  # to look costs no more than to receive
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        self._poll = poll.poll

    def ask(self, payload: bytes, limit: float, alone: bool) -> Any:
        """Send one command. Its reply, of which an error is given as an exception. Who is not ``alone`` with its call
        sleeps until it comes: awake it would keep other threads from running."""
        if limit != self._limit.seconds:
            self._limit.set(limit)
        if self._resp3:
            return self._talk_resp3(payload, 1)[0]
        try:
            self._send(payload)
            data = None
            if alone and self._linger is not None and self._linger.worth_it():
                data = self._stay_awake()
            if data is None:
                data = self._receive(USUAL)
        except OSError as error:
            raise self._failed(error, limit) from error
        usual = parse_usual(data)
        return self._read(data, 1, limit)[0] if usual is None else usual

    def _stay_awake(self) -> bytes | None:
        """What comes in the next moment. None: nothing has."""
        assert self._linger is not None
        awake, data = 0.0, None
        while data is None:
            try:
                data = self._receive(USUAL, socket.MSG_DONTWAIT)
            except BlockingIOError:
                awake = awake or clock.now() + AWAKE
                if clock.now() >= awake:
                    break
        self._linger.went(data is not None)
        return data

    def talk(self, payload: bytes, count: int, limit: float) -> list[Any]:
        """Send, and read so many replies; an error reply is among them as an exception."""
        if limit != self._limit.seconds:
            self._limit.set(limit)
        if self._resp3:
            return self._talk_resp3(payload, count)
        try:
            self._send(payload)
            data = self._receive(CHUNK)
        except OSError as error:
            raise self._failed(error, limit) from error
        return self._read(data, count, limit)

    def _read(self, data: bytes, count: int, limit: float) -> list[Any]:
        """So many replies, of which ``data`` is the beginning."""
        replies: list[Any] = []
        at = 0
        try:
            while True:
                if not data:
                    raise RedisConnectionError("the server has closed the connection")
                try:
                    while len(replies) < count:
                        reply, at = parse(data, at)
                        replies.append(reply)
                    return replies
                except Incomplete:
                    more = self._receive(CHUNK)
                    data = data + more if more else b""
        except OSError as error:
            raise self._failed(error, limit) from error

    def _failed(self, error: OSError, limit: float) -> Exception:
        if isinstance(error, (TimeoutError, BlockingIOError)):
            return RedisTimeoutError(f"no answer within {limit:.3g} s")
        return RedisConnectionError(f"{type(error).__name__}: {error}")

    def _talk_resp3(self, payload: bytes, count: int) -> list[Any]:
        """By redis-py's parser, which also takes in what the server pushes."""
        connection = self.connection
        connection.send_packed_command((payload,), check_health=False)
        replies: list[Any] = []
        for _ in range(count):
            try:
                replies.append(connection.read_response(disable_decoding=True))
            except ResponseError as error:
                replies.append(error)
        return replies

    @property
    def stale(self) -> bool:
        """Whether the server has hung up, or has said something that nobody asked for."""
        return self.connection._sock is None or bool(self._poll(0))

    def close(self) -> None:
        self.connection.disconnect()


def unasked(replies: list[Any], calls: int) -> list[Any]:
    """The replies of so many calls that each followed an ASKING, and what came after them."""
    pairs = zip(replies[: 2 * calls : 2], replies[1 : 2 * calls : 2], strict=True)
    return [asking if isinstance(asking, Exception) else reply for asking, reply in pairs] + replies[2 * calls :]


class Lines:
    """Calls over lines that are taken and given back: our own or borrowed ones."""

    def send(self, calls: Sequence[Call], limit: float, replicas: int = 0, patience: float = 0.0) -> list[Any]:
        """Run the calls, in one go; with ``replicas`` the last reply is how many of those have confirmed."""
        return self.check(self.replies(calls, limit, replicas, patience))

    def replies(
        self, calls: Sequence[Call], limit: float, replicas: int = 0, patience: float = 0.0, asking: bool = False
    ) -> list[Any]:
        """As ``send``; an error reply is among the replies."""
        wait = pack((b"WAIT", b"%d" % replicas, b"%d" % max(1, int(patience * 1000)))) if replicas else b""
        count = len(calls) + (replicas > 0)
        if asking:  # a slot that is on its way to a node that may not know the scripts yet
            payload = b"".join([ASKING + pack(call.whole()) for call in calls]) + wait
            replies = self._exchange(payload, len(calls) + count, limit)
            return unasked(replies, len(calls))
        payload = calls[0].packed() if len(calls) == 1 else b"".join([call.packed() for call in calls])
        payload += wait
        line, ends = self._take(limit)
        try:
            replies = line.talk(payload, count, limit if ends is None else ends - clock.now())
            unknown = [place for place, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
            if unknown:
                again = [pack(calls[place].whole()) for place in unknown]
                if replicas:
                    again.append(wait)
                    unknown.append(count - 1)
                known = line.talk(b"".join(again), len(again), limit)
                for place, reply in zip(unknown, known, strict=True):
                    replies[place] = reply
        except BaseException:
            self._drop(line)
            raise
        self._give(line)
        return replies

    def ask(self, command: Iterable[bytes], limit: float) -> Any:
        """One plain command."""
        return self.check(self._exchange(pack(tuple(command)), 1, limit))[0]

    def _exchange(self, payload: bytes, count: int, limit: float) -> list[Any]:
        line, ends = self._take(limit)
        try:
            replies = line.talk(payload, count, limit if ends is None else ends - clock.now())
        except BaseException:
            self._drop(line)
            raise
        self._give(line)
        return replies

    def keys(self, pattern: bytes, limit: float) -> list[bytes]:
        ends = clock.now() + limit
        found: list[bytes] = []
        cursor = b"0"
        while True:
            left = ends - clock.now()
            if left <= 0:
                raise RedisTimeoutError("listing the keys takes too long")
            cursor, some = self.ask((b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"1000"), left)
            found += some
            if cursor == b"0":
                return found

    def check(self, replies: list[Any]) -> list[Any]:
        for reply in replies:
            if isinstance(reply, Exception):
                if is_replica(reply):
                    self.hang_up()  # it was the primary
                raise reply
        return replies

    def _take(self, limit: float) -> tuple[Line, float | None]:
        """A connected line, and when the limit ends if time has passed meanwhile."""
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
    """Connections of our own, which ``make(limit)`` makes, unconnected."""

    def __init__(self, make: Callable[[float], Any], most: int = MOST, line: type[Line] = Line) -> None:
        self._make = make
        self._most = most
        self._line = line
        self.after_fork()

    def after_fork(self) -> None:
        self._idle: list[Line] = []
        self._open = 0
        self._queued = 0
        self._turn = threading.Condition()
        self.closed = False

    def ear(self, channel: str, limit: float) -> Any:
        return Ear(self._make(limit), channel)

    def call(self, call: Call, limit: float) -> Any:
        """Run one call, over a line that was in use a moment ago: what nearly all are. Nothing is done here that such
        a one does not need."""
        try:
            line = self._idle.pop()
        except IndexError:
            return self.send((call,), limit)[0]
        now = clock.now()
        if now - line.used > FRESH:
            self._give(line)
            return self.send((call,), limit)[0]
        line.used = now
        try:
            reply = line.ask(call.ready or call.packed(), limit, len(self._idle) == self._open - 1)
        except BaseException:
            self._drop(line)
            raise
        self._give(line)
        if isinstance(reply, Exception):
            if isinstance(reply, NoScriptError):
                return self.send((call,), limit)[0]
            self.check([reply])
        return reply

    def _take(self, limit: float) -> tuple[Line, float | None]:
        try:
            line = self._idle.pop()
        except IndexError:
            return self._wait(limit)
        now = clock.now()
        if now - line.used > FRESH and line.stale:
            self._drop(line)
            return self._wait(limit)
        line.used = now
        return line, None

    def _wait(self, limit: float) -> tuple[Line, float]:
        ends = clock.now() + limit
        with self._turn:
            self._queued += 1
            try:
                while not self._idle and self._open >= self._most:
                    if not self._turn.wait(max(0.0, ends - clock.now())):
                        raise RedisTimeoutError(f"all {self._most} connections have been busy for too long")
                if self.closed:
                    raise RedisConnectionError("this Locks is closed")
                if self._idle:
                    return self._idle.pop(), ends
                self._open += 1
            finally:
                self._queued -= 1
        try:
            line = self._line(self._make(max(0.001, ends - clock.now())))
            try:
                line.connect()
            except BaseException:  # redis-py tidies up after its own errors alone
                line.close()
                raise
        except BaseException:
            self._closed_one()
            raise
        return line, ends

    def _give(self, line: Line) -> None:
        idle = self._idle
        idle.append(line)
        if self._queued or self.closed or len(idle) > 1:
            self._given(line)

    def _given(self, line: Line) -> None:
        """Whoever waits for a line is woken; what nobody needs is closed."""
        idle = self._idle
        if self._queued:
            with self._turn:
                self._turn.notify()
        elif len(idle) > 1 and line.used - idle[0].used > SURPLUS:
            self._trim()
        if self.closed:
            self.hang_up()

    def _drop(self, line: Line) -> None:
        line.close()
        self._closed_one()
        self.hang_up()  # the others are no better

    def _trim(self) -> None:
        try:
            line = self._idle.pop(0)
        except IndexError:
            return  # another thread was faster
        line.close()
        self._closed_one()

    def _closed_one(self) -> None:
        with self._turn:
            self._open -= 1
            self._turn.notify()

    def hang_up(self) -> None:
        while self._idle:
            self._trim()

    def close(self) -> None:
        self.closed = True
        self.hang_up()


class Ear:
    """The connection that hears our session's channel."""

    def __init__(self, connection: Any, channel: str) -> None:
        self._connection = connection
        self._inbox = Inbox(channel.encode())
        try:
            connect(connection)
            self._limit = Limit(connection._sock)
            connection.send_packed_command((pack((b"SUBSCRIBE", channel.encode())),), check_health=False)
            if self.read(connection.socket_timeout) is None:
                raise RedisTimeoutError("no answer to SUBSCRIBE")
        except BaseException:
            connection.disconnect()
            raise

    def read(self, seconds: float) -> bytes | None:
        """What was published; empty for a sign of life; None when there was nothing for so long."""
        self._limit.set(seconds)
        sock = self._connection._sock
        while (payload := self._inbox.take()) is None:
            try:
                self._inbox.add(sock.recv(CHUNK))
            except (TimeoutError, BlockingIOError):
                return None
        return payload

    def ping(self) -> None:
        self._connection.send_packed_command((pack((b"PING",)),), check_health=False)

    def wake(self) -> None:
        """Have a ``read`` in another thread end."""
        hang_up(self._connection._sock)

    def close(self) -> None:
        self._connection.disconnect()
