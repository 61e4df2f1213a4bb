"""Our own connections, for threads: few, reused last in first out, each call with its own limit."""

from __future__ import annotations

import socket
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ...core import clock
from ...runtime.wakeups import ThreadBell
from ..common.sockets import hang_up
from .errors import is_replica
from .linger import AWAKE, Linger
from .scripts import Call, pack
from .wire import Inbox, Incomplete, parse, parse_usual

MOST = 4
"""Connections for calls. More threads than that take turns: a call takes well under a millisecond."""
RESERVED = 1
"""One more, for renewals, releases and claims alone: acquires never keep these waiting."""
SLICE = 0.05
"""How often who waits for a connection looks whether one was dropped without a word."""
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


class Line:
    """One connection of redis-py, which ``make(limit)`` makes. An interrupted caller drops it: it is then collected."""

    def __init__(self, make: Callable[[float], Any]) -> None:
        self._make = make
        self.connection: Any = None
        self.used = clock.now()
        """When it was last taken."""

    def make(self, limit: float) -> None:
        self.connection = self._make(limit)

    def connect(self, limit: float) -> None:
        self.make(limit)
        connect(self.connection)
        self._sock = self.connection._sock
        self._resp3 = str(self.connection.protocol) == "3"
        # With TLS there is no way to ask for what has come already.
        self._linger = Linger() if type(self._sock) is socket.socket and not self._resp3 else None

    def ask(self, payload: bytes, ends: float, alone: bool) -> Any:
        """Send one command. Its reply, of which an error is given as an exception. Who is not ``alone`` with its call
        sleeps until it comes: awake it would keep other threads from running."""
        if self._resp3:
            return self._talk_resp3(payload, 1, ends)[0]
        try:
            self._send(payload, ends)
            data = None
            if alone and self._linger is not None and self._linger.worth_it():
                data = self._stay_awake()
            if data is None:
                data = self._receive(USUAL, ends)
        except OSError as error:
            raise self._failed(error) from error
        usual = parse_usual(data)
        return self._read(data, 1, ends)[0] if usual is None else usual

    def _stay_awake(self) -> bytes | None:
        """What comes in the next moment. None: nothing has."""
        assert self._linger is not None
        receive, data = self._sock.recv, None
        self._sock.settimeout(0.0)
        awake = clock.now() + AWAKE
        while data is None:
            try:
                data = receive(USUAL)
            except BlockingIOError:
                if clock.now() >= awake:
                    break
        self._linger.went(data is not None)
        return data

    def talk(self, payload: bytes, count: int, ends: float) -> list[Any]:
        """Send, and read so many replies; an error reply is among them as an exception."""
        if self._resp3:
            return self._talk_resp3(payload, count, ends)
        try:
            self._send(payload, ends)
            data = self._receive(CHUNK, ends)
        except OSError as error:
            raise self._failed(error) from error
        return self._read(data, count, ends)

    def _read(self, data: bytes, count: int, ends: float) -> list[Any]:
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
                    more = self._receive(CHUNK, ends)
                    data = data + more if more else b""
        except OSError as error:
            raise self._failed(error) from error

    def _send(self, payload: bytes, ends: float) -> None:
        self._wait_until(ends)
        self._sock.sendall(payload)

    def _receive(self, size: int, ends: float) -> bytes:
        self._wait_until(ends)
        received: bytes = self._sock.recv(size)
        return received

    def _wait_until(self, ends: float) -> None:
        """Python's limit, unlike the kernel's SO_RCVTIMEO, does not start anew when a signal arrives."""
        left = ends - clock.now()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)

    def _failed(self, error: OSError) -> Exception:
        if isinstance(error, (TimeoutError, BlockingIOError)):
            return RedisTimeoutError("timed out waiting for the server")
        return RedisConnectionError(f"{type(error).__name__}: {error}")

    def _talk_resp3(self, payload: bytes, count: int, ends: float) -> list[Any]:
        """By redis-py's parser, which also takes in what the server pushes."""
        connection = self.connection
        replies: list[Any] = []
        try:
            self._wait_until(ends)
            connection.send_packed_command((payload,), check_health=False)
            for _ in range(count):
                self._wait_until(ends)
                try:
                    replies.append(connection.read_response(disable_decoding=True))
                except ResponseError as error:
                    replies.append(error)
        except OSError as error:
            raise self._failed(error) from error
        return replies

    @property
    def stale(self) -> bool:
        """Whether the server has hung up, or has said something that nobody asked for."""
        try:
            return self.connection._sock is None or bool(self.connection.can_read(0))
        except (RedisError, OSError):
            return True

    def close(self) -> None:
        if self.connection is not None:
            self.connection.disconnect()


def unasked(replies: list[Any], calls: int) -> list[Any]:
    """The replies of so many calls that each followed an ASKING, and what came after them."""
    pairs = zip(replies[: 2 * calls : 2], replies[1 : 2 * calls : 2], strict=True)
    return [asking if isinstance(asking, Exception) else reply for asking, reply in pairs] + replies[2 * calls :]


class Turn:
    """One who waits for a line."""

    __slots__ = ("bell", "line")

    def __init__(self) -> None:
        self.bell = ThreadBell()
        self.line: Line | None = None


class Pool:
    """Connections of our own, which ``make(limit)`` makes, unconnected, and the calls over them.

    An exception out of a signal handler may end any thread's call between any two instructions, and a handler may make
    a call of its own there. So there is no mutex, and no count that must be put back: lines are counted by those that
    exist, and one that an interrupted call drops is collected, and closed by that.
    """

    def __init__(self, make: Callable[[float], Any], most: int = MOST + RESERVED, line: type[Line] = Line) -> None:
        self._make = make
        self._most = most
        self._line = line
        self.after_fork()

    def after_fork(self) -> None:
        self._idle: list[Line] = []
        self._alive: set[weakref.ref[Line]] = set()
        self._first: deque[Turn] = deque()
        """Who waits for a line to renew, release or claim a lease with: served before all others."""
        self._others: deque[Turn] = deque()
        self.closed = False

    def ear(self, channel: str, limit: float) -> Any:
        return Ear(self._make(limit), channel)

    # Calls.

    def call(self, call: Call, limit: float) -> Any:
        """Run one call: what nearly all of them are."""
        ends = clock.now() + limit
        line = self._take(ends, call.comes_first)
        try:
            reply = line.ask(call.ready or call.packed(), ends, self._busy() == 1)
        except BaseException as error:
            self._drop(line, error)
            raise
        self._give(line)
        if isinstance(reply, Exception):
            if isinstance(reply, NoScriptError):
                return self.send((call,), max(0.001, ends - clock.now()))[0]
            self.check([reply])
        return reply

    def send(self, calls: Sequence[Call], limit: float, replicas: int = 0, patience: float = 0.0) -> list[Any]:
        """Run the calls, in one go; with ``replicas`` the last reply is how many of those have confirmed."""
        return self.check(self.replies(calls, limit, replicas, patience))

    def each(self, calls: Sequence[Call], limit: float, replicas: int = 0, patience: float = 0.0) -> list[Any]:
        """As ``send``, without a count; an error is the reply of the call that it concerns."""
        return self.replies(calls, limit)

    def replies(
        self, calls: Sequence[Call], limit: float, replicas: int = 0, patience: float = 0.0, asking: bool = False
    ) -> list[Any]:
        """As ``send``; an error reply is among the replies."""
        ends = clock.now() + limit
        first = all(call.comes_first for call in calls)
        wait = pack((b"WAIT", b"%d" % replicas, b"%d" % max(1, int(patience * 1000)))) if replicas else b""
        count = len(calls) + (replicas > 0)
        if asking:  # a slot that is on its way to a node that may not know the scripts yet
            payload = b"".join([ASKING + pack(call.whole()) for call in calls]) + wait
            return unasked(self._exchange(payload, len(calls) + count, ends, first), len(calls))
        payload = b"".join([call.packed() for call in calls]) + wait
        line = self._take(ends, first)
        try:
            replies = line.talk(payload, count, ends)
            unknown = [place for place, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
            if unknown:
                again = [pack(calls[place].whole()) for place in unknown]
                if replicas:
                    again.append(wait)
                    unknown.append(count - 1)
                known = line.talk(b"".join(again), len(again), ends + patience)  # the first WAIT has used it up
                for place, reply in zip(unknown, known, strict=True):
                    replies[place] = reply
        except BaseException as error:
            self._drop(line, error)
            raise
        self._give(line)
        return replies

    def ask(self, command: Iterable[bytes], limit: float, first: bool = False) -> Any:
        """One plain command."""
        return self.check(self._exchange(pack(tuple(command)), 1, clock.now() + limit, first))[0]

    def _exchange(self, payload: bytes, count: int, ends: float, first: bool) -> list[Any]:
        line = self._take(ends, first)
        try:
            replies = line.talk(payload, count, ends)
        except BaseException as error:
            self._drop(line, error)
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
                raise RedisTimeoutError("timed out listing the keys")
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

    # Lines.

    def _busy(self) -> int:
        return len(self._alive) - len(self._idle)

    def _room(self, first: bool) -> int:
        """How many lines may be in use by such calls. The last is kept for those that come first."""
        return self._most if first else max(1, self._most - RESERVED)

    def _take(self, ends: float, first: bool) -> Line:
        """A connected line, which is the caller's alone until it is given back or dropped."""
        line = self._take_idle(first) or self._take_new(ends, first)
        return line or self._wait(ends, first)

    def _take_idle(self, first: bool) -> Line | None:
        while self._busy() < self._room(first):
            try:
                line = self._idle.pop()
            except IndexError:
                return None
            now = clock.now()
            if now - line.used <= FRESH or not line.stale:
                line.used = now
                return line
            self._drop(line, None)
        return None

    def _take_new(self, ends: float, first: bool) -> Line | None:
        if self.closed:
            raise RedisConnectionError("this Locks is closed")
        if self._busy() >= self._room(first):
            return None
        line = self._line(self._make)
        try:
            self._alive.add(weakref.ref(line, self._alive.discard))
            if self._busy() > self._room(first):  # another thread was faster
                self._close(line)
                return None
            line.connect(max(0.001, ends - clock.now()))
        except BaseException:
            self._close(line)  # redis-py tidies up after its own errors alone
            raise
        return line

    def _wait(self, ends: float, first: bool) -> Line:
        """Until another gives a line back. Nobody may tell that one was collected: so look every now and then."""
        turn, queue = Turn(), self._first if first else self._others
        queue.append(turn)
        try:
            while True:
                line = turn.line or self._take_idle(first) or self._take_new(ends, first)
                if line is not None:
                    turn.line = None if line is turn.line else turn.line
                    line.used = clock.now()
                    return line
                left = ends - clock.now()
                if left <= 0:
                    raise RedisTimeoutError(f"timed out waiting for one of {self._room(first)} connections")
                turn.bell.wait(min(left, SLICE))
        finally:
            with suppress(ValueError, IndexError):
                queue.remove(turn)
            if turn.line is not None:
                self._give(turn.line)

    def _give(self, line: Line) -> None:
        self._idle.append(line)
        if self._first or self._others:
            self._hand_over()
        elif self.closed:
            self.hang_up()
        elif len(self._idle) > 1 and line.used - self._idle[0].used > SURPLUS:
            self._trim()

    def _hand_over(self) -> None:
        """Give what is free to those who have waited longest: who has just come must not be faster."""
        for queue in self._first, self._others:
            while queue and self._busy() < self._room(queue is self._first):
                try:
                    turn = queue.popleft()
                except IndexError:
                    break
                try:
                    turn.line = self._idle.pop()
                except IndexError:
                    queue.appendleft(turn)  # it may make one
                turn.bell.ring()
                if turn.line is None:
                    return

    def _drop(self, line: Line, error: BaseException | None) -> None:
        """It can't be used any more: the server hung up, or a reply was not awaited."""
        self._close(line)
        if error is None or isinstance(error, (RedisError, OSError)):
            self.hang_up()  # the others are no better

    def _close(self, line: Line) -> None:
        self._alive.discard(weakref.ref(line))
        line.close()
        if self._first or self._others:
            self._hand_over()

    def _trim(self) -> None:
        try:
            line = self._idle.pop(0)
        except IndexError:
            return  # another thread was faster
        self._close(line)

    def hang_up(self) -> None:
        """Close what is idle: the next call connects anew, to whatever is the primary then."""
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
            connection.send_packed_command((pack((b"SUBSCRIBE", channel.encode())),), check_health=False)
            if self.read(connection.socket_timeout) is None:
                raise RedisTimeoutError("timed out waiting for the answer to SUBSCRIBE")
        except BaseException:
            connection.disconnect()
            raise

    def read(self, seconds: float) -> bytes | None:
        """What was published; empty for a sign of life; None when there was nothing for so long."""
        sock, ends = self._connection._sock, clock.now() + seconds
        while (payload := self._inbox.take()) is None:
            try:
                sock.settimeout(max(0.001, ends - clock.now()))
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
