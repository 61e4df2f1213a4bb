"""Our own connections, for threads: few, reused last in first out, one call at a time on each.

Any method may be interrupted between any two lines: there is nothing that has to be put back. A connection that was
interrupted is not used again, and closes when it is dropped.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress

from ...core import clock
from ...runtime.ready import readable
from ..common.turns import Turns
from .endpoints import Endpoints
from .errors import GrpcError
from .http2 import GrpcEnd, GrpcMessage, Http2
from .wire import WATCH, EtcdCall

AT_ONCE = 32
"""Connections that are in use at once, beside those of renewals. More threads than that take turns."""
IDLE = 4
"""Connections that are kept when nobody needs them, beside the one of renewals."""
_CHUNK = 65536


class EtcdConnection:
    """One connection."""

    def __init__(self, endpoints: Endpoints, limit: float) -> None:
        self._endpoints = endpoints
        self.host = host = endpoints.current
        self.http = Http2()
        self.sock: socket.socket = socket.create_connection(host, timeout=endpoints.connect_limit(limit))
        try:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if endpoints.context is not None:
                self.sock = endpoints.context.wrap_socket(self.sock, server_hostname=endpoints.server_name)
        except BaseException:
            self.sock.close()
            raise

    def usable(self) -> bool:
        """Whether the server has not closed the connection meanwhile. Reads what it has said."""
        try:
            while readable(self.sock, within=0):
                self.sock.settimeout(0.5)
                self.http.receive(self.sock.recv(_CHUNK))
            return not self.http.exhausted
        except OSError:
            return False

    def call(self, call: EtcdCall, limit: float) -> list[bytes]:
        ends = clock.now() + limit
        http, sock = self.http, self.sock
        stream = http.call(self._endpoints.headers(call.method), call.messages)
        messages: list[bytes] = []
        while (left := ends - clock.now()) > 0:  # a server that says something all the time does not lengthen it
            sock.settimeout(left)
            try:
                if out := http.to_send():
                    sock.sendall(out)
                data = sock.recv(_CHUNK)
            except TimeoutError:
                break
            for event in http.receive(data):
                if event.stream != stream:
                    continue
                if isinstance(event, GrpcMessage):
                    messages.append(event.body)
                elif event.error is not None:
                    raise event.error
                else:
                    return messages
        raise TimeoutError(f"no answer within {limit:.3g} s")

    def close(self) -> None:
        self.sock.close()

    def __del__(self) -> None:
        """An interrupt came before the connection could be put back or closed."""
        if hasattr(self, "sock"):
            self.sock.close()


class ThreadWatchStream:
    """A connection with one watch stream, for one thread. Others may wake that thread."""

    def __init__(self, connection: EtcdConnection, endpoints: Endpoints) -> None:
        self._connection = connection
        self._http, self._sock = connection.http, connection.sock
        self.host = connection.host
        self.token = endpoints.token
        self._stream = self._http.call(endpoints.headers(WATCH), (), end=False)
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)

    def send(self, messages: list[bytes]) -> None:
        self._http.send(self._stream, messages)
        self._flush()

    def read(self, seconds: float) -> list[bytes] | None:
        """What was told, as soon as there is something; None when nothing came for so long. Nothing when woken."""
        buffered = isinstance(self._sock, ssl.SSLSocket) and self._sock.pending()
        if not buffered and not readable(self._sock, self._woken, within=seconds):
            return None
        with suppress(BlockingIOError):
            self._woken.recv(_CHUNK)
        if not buffered and not readable(self._sock, within=0):
            return []
        events = self._http.receive(self._sock.recv(_CHUNK))
        self._flush()
        for event in events:
            if isinstance(event, GrpcEnd):
                raise event.error or ConnectionError("the server has ended the watch")
        return [event.body for event in events if isinstance(event, GrpcMessage)]

    def _flush(self) -> None:
        if out := self._http.to_send():
            self._sock.sendall(out)

    def wake(self) -> None:
        """Have the thread that reads return."""
        try:
            self._wake.send(b"\0")
        except OSError:
            pass  # it is woken already, or closed

    def close(self) -> None:
        self._connection.close()
        self._woken.close()
        self._wake.close()


class ThreadTransport:
    """Sends calls. Renewals wait for no other call, and have an idle connection of their own."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._idle: list[EtcdConnection] = []
        self._for_renewals: list[EtcdConnection] = []
        self._stream: ThreadWatchStream | None = None
        self.after_fork()

    def after_fork(self) -> None:
        """In the child: drop what is the parent's. That closes our copies; the parent's connections stay."""
        self._close_idle()
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._turns, self._new = Turns(AT_ONCE), Turns(AT_ONCE)
        """For claims and releases, and for new acquires: neither takes a connection of the other."""
        self._closed = False

    def send(self, call: EtcdCall, limit: float) -> list[bytes]:
        """The messages that the server answers. Raises GrpcError, OSError."""
        ends = clock.now() + limit
        if call.urgent:
            return self._send(call, ends)
        turns = self._new if call.patient else self._turns
        turn = turns.take(limit)
        try:
            return self._send(call, ends)
        finally:
            turns.over(turn)

    def _send(self, call: EtcdCall, ends: float) -> list[bytes]:
        for last in (False, True):
            token = self._endpoints.token
            try:
                self._log_in(ends)
                return self._call(call, ends)
            except GrpcError as error:
                if last or not error.token_is_old:
                    raise
                self._endpoints.logged_out(token)
        raise AssertionError

    def _log_in(self, ends: float) -> None:
        if self._endpoints.needs_login:
            self._endpoints.logged_in(self._call(self._endpoints.login(), ends))

    def _call(self, call: EtcdCall, ends: float) -> list[bytes]:
        idle, most = (self._for_renewals, 1) if call.urgent else (self._idle, IDLE)
        connection = self._take(idle, ends)
        kept = False
        try:
            answer = connection.call(call, ends - clock.now())
            kept = True
            return answer
        except (GrpcError, OSError) as error:
            kept = isinstance(error, GrpcError)
            self._endpoints.blame_for(error, connection.host)
            raise
        finally:  # also when interrupted: whatever is on its way on the connection is of no use any more
            if kept and not self._closed and len(idle) < most:
                idle.append(connection)
            else:
                connection.close()

    def _take(self, idle: list[EtcdConnection], ends: float) -> EtcdConnection:
        while idle:
            try:
                connection = idle.pop()
            except IndexError:
                break
            if connection.host == self._endpoints.current and connection.usable():
                return connection
            connection.close()
        return self._connect(ends)

    def _connect(self, ends: float) -> EtcdConnection:
        """To the first member that accepts."""
        tries = len(self._endpoints.address.hosts)
        while True:
            tries -= 1
            host = self._endpoints.current
            try:
                return EtcdConnection(self._endpoints, ends - clock.now())
            except OSError:
                self._endpoints.blame(host)
                if not tries or clock.now() >= ends:
                    raise

    def watch(self, limit: float) -> ThreadWatchStream:
        ends = clock.now() + limit
        self._log_in(ends)
        self._stream = ThreadWatchStream(self._connect(ends), self._endpoints)
        return self._stream

    def blame(self, host: tuple[str, int]) -> None:
        self._endpoints.blame(host)

    def logged_out(self, token: bytes) -> None:
        self._endpoints.logged_out(token)

    def close(self) -> None:
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        for idle in (self._idle, self._for_renewals):
            while idle:
                idle.pop().close()
