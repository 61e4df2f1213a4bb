"""Which connection a call takes: written once, for threads and for tasks.

Its steps yield whatever waits as a function of no arguments: a thread calls it, a task awaits what it returns. A
connection has one call at a time. So there is nothing to put in order when one ends half-way, because it was cancelled,
or by an exception out of a signal handler: its connection is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from ...core import clock
from ...core.protocol import Steps
from .endpoints import Endpoints
from .errors import GrpcError
from .http2 import BrokenHttp2, Http2
from .wire import WATCH, EtcdCall

AT_ONCE = 32
"""Calls of new acquires that are under way at once, and of claims, releases and the rest. More than that take turns."""
IDLE = 10.0
"""After so many seconds without a call a connection is closed."""


class EtcdConnection(Protocol):
    """A connection of one of the two worlds."""

    host: tuple[str, int]
    http: Http2
    idle_since: float

    def exchange(self, out: bytes, seconds: float) -> Any:
        """Send, then return what has come, or comes within so many seconds: None when nothing does, and no bytes when
        it was woken. Under asyncio to be awaited. Raises OSError."""

    def wake(self) -> None:
        """End the wait. For others than the one that waits."""

    def close(self) -> None: ...

    def forget(self) -> None:
        """It is the parent's, or its loop is gone: leave it as it is."""


class WatchStream:
    """A connection with one watch stream."""

    def __init__(self, connection: EtcdConnection, endpoints: Endpoints, run: Callable[[Steps[Any]], Any]) -> None:
        self.token = endpoints.token
        self.wake, self.close, self.forget = connection.wake, connection.close, connection.forget
        self._connection, self._http, self._endpoints, self._run = connection, connection.http, endpoints, run
        self._http.call(endpoints.headers(WATCH), (), end=False)

    def send(self, messages: list[bytes]) -> None:
        """With the next read."""
        self._http.send(messages)

    def read(self, seconds: float) -> Any:
        """What was told, as soon as there is something; None when nothing came for so long. Nothing when woken."""
        return self._run(self._read(seconds))

    def _read(self, seconds: float) -> Steps[list[bytes] | None]:
        data = yield partial(self._connection.exchange, self._http.to_send(), seconds)
        if data is None:
            return None
        messages = self._http.receive(data)
        if self._http.over:
            raise BrokenHttp2("the server has ended the watch")
        return messages

    def failed(self, error: Exception) -> None:
        """The next one is to another member, and with another token if that was it."""
        self._endpoints.blame(self._connection.host)
        if isinstance(error, GrpcError) and error.token_is_old:
            self._endpoints.logged_out(self.token)


class EtcdTransport:
    """Sends calls. Renewals wait for no other call, and have an idle connection of their own."""

    def __init__(
        self,
        endpoints: Endpoints,
        connect: Callable[[Endpoints, float], Any],
        run: Callable[[Steps[Any]], Any],
        turns: Callable[[int], Any],
    ) -> None:
        self._endpoints = endpoints
        self._connect_to, self._run, self._make_turns = connect, run, turns
        self._idle: list[EtcdConnection] = []
        self._for_renewals: list[EtcdConnection] = []
        self._stream: WatchStream | None = None
        self.after_fork()

    def after_fork(self) -> None:
        """In the child, or for a new loop: drop what there was."""
        for each in (*self._idle, *self._for_renewals):
            each.forget()
        if self._stream is not None:
            self._stream.forget()
        self._idle.clear()
        self._for_renewals.clear()
        self._stream = None
        self._turns, self._new = self._make_turns(AT_ONCE), self._make_turns(AT_ONCE)
        """For claims and releases, and for new acquires: neither takes a connection of the other."""
        self._closed = False

    def send(self, call: EtcdCall, limit: float) -> Any:
        """The messages that the server answers. Raises GrpcError, OSError."""
        return self._run(self._send(call, clock.now() + limit))

    def watch(self, limit: float) -> Any:
        """A WatchStream."""
        return self._run(self._watch(clock.now() + limit))

    def close(self) -> Any:
        self._closed = True
        for idle in (self._idle, self._for_renewals):
            while idle:
                idle.pop().close()

    def _send(self, call: EtcdCall, ends: float) -> Steps[list[bytes]]:
        if call.urgent:
            return (yield from self._logged_in(call, ends))
        turns = self._new if call.patient else self._turns
        turn = yield partial(turns.take, ends - clock.now())
        try:
            return (yield from self._logged_in(call, ends))
        finally:
            turns.over(turn)

    def _logged_in(self, call: EtcdCall, ends: float) -> Steps[list[bytes]]:
        for last in (False, True):
            token = self._endpoints.token
            try:
                yield from self._log_in(ends)
                return (yield from self._call(call, ends))
            except GrpcError as error:
                if last or not error.token_is_old:
                    raise
                self._endpoints.logged_out(token)
        raise AssertionError

    def _log_in(self, ends: float) -> Steps[None]:
        if self._endpoints.needs_login:
            self._endpoints.logged_in((yield from self._call(self._endpoints.login(), ends)))

    def _call(self, call: EtcdCall, ends: float) -> Steps[list[bytes]]:
        idle = self._for_renewals if call.urgent else self._idle
        connection = yield from self._take(idle, ends)
        kept = False
        try:
            answer = yield from self._answer(connection, call, ends)
            kept = True
            return answer
        except (GrpcError, OSError) as error:
            kept = isinstance(error, GrpcError)
            self._endpoints.blame_for(error, connection.host)
            raise
        finally:
            if kept and not self._closed:
                self._put_back(connection, idle)
            else:
                connection.close()

    def _put_back(self, connection: EtcdConnection, idle: list[EtcdConnection]) -> None:
        connection.idle_since = now = clock.now()
        idle.append(connection)
        with suppress(IndexError):  # another thread was faster
            while idle[0].idle_since < now - IDLE:
                idle.pop(0).close()

    def _answer(self, connection: EtcdConnection, call: EtcdCall, ends: float) -> Steps[list[bytes]]:
        began, http = clock.now(), connection.http
        http.call(self._endpoints.headers(call.method), call.messages)
        messages: list[bytes] = []
        while not http.over:
            left = ends - clock.now()  # a server that says something all the time does not lengthen it
            data = (yield partial(connection.exchange, http.to_send(), left)) if left > 0 else None
            if data is None:
                raise TimeoutError(f"no answer within {ends - began:.3g} s")
            messages += http.receive(data)
        return messages

    def _take(self, idle: list[EtcdConnection], ends: float) -> Steps[EtcdConnection]:
        while idle:
            try:
                connection = idle.pop()
            except IndexError:  # another thread was faster
                break
            if connection.host == self._endpoints.current and (yield from self._is_usable(connection)):
                return connection
            connection.close()
        return (yield from self._connect(ends))

    def _is_usable(self, connection: EtcdConnection) -> Steps[bool]:
        """Whether the server has not closed the connection meanwhile. Reads what it has said."""
        try:
            while (data := (yield partial(connection.exchange, b"", 0.0))) is not None:
                connection.http.receive(data)
        except (GrpcError, OSError):
            return False
        return not connection.http.exhausted

    def _connect(self, ends: float) -> Steps[EtcdConnection]:
        """To the first member that accepts."""
        tries = len(self._endpoints.address.hosts)
        while True:
            tries -= 1
            host = self._endpoints.current
            try:
                connection: EtcdConnection = yield partial(self._connect_to, self._endpoints, ends - clock.now())
                return connection
            except OSError:
                self._endpoints.blame(host)
                if not tries or clock.now() >= ends:
                    raise

    def _watch(self, ends: float) -> Steps[WatchStream]:
        yield from self._log_in(ends)
        self._stream = WatchStream((yield from self._connect(ends)), self._endpoints, self._run)
        return self._stream
