"""Our own connections, for threads: few, reused last in first out, one call at a time on each."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress

from ...core import clock
from ...runtime.ready import readable
from ..common.turns import Turns
from .endpoints import Endpoints, is_members_fault
from .errors import Refused
from .http2 import Ended, Http2, Message
from .wire import WATCH, Call, Haste

ASKING, GIVING, KEEPING = 32, 32, 32
"""Connections for new acquires, for what is given back or claimed, and for renewals: none of these takes another's.
More threads than that take turns. One is enough for the keeper; holders may renew by hand beside it."""
IDLE = 4
"""Connections that are kept when nobody needs them, beside the keeper's one."""
_CHUNK = 65536


class Line:
    """One connection."""

    def __init__(self, endpoints: Endpoints, limit: float) -> None:
        self._endpoints = endpoints
        self.host = host = endpoints.current
        self._http = Http2()
        self._sock: socket.socket = socket.create_connection(host, timeout=max(0.001, endpoints.patience(limit)))
        try:
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if endpoints.context is not None:
                name = endpoints.address.server_name or host[0]
                self._sock = endpoints.context.wrap_socket(self._sock, server_hostname=name)
        except BaseException:
            self._sock.close()
            raise

    def usable(self) -> bool:
        """Whether the server has not hung up meanwhile. Takes in what it has said."""
        try:
            while readable(self._sock, within=0):
                self._sock.settimeout(0.5)
                self._http.receive(self._sock.recv(_CHUNK))
            return not self._http.exhausted
        except OSError:
            return False

    def call(self, call: Call, limit: float) -> list[bytes]:
        ends = clock.now() + limit
        http, sock = self._http, self._sock
        stream = http.call(self._endpoints.block(call.method), call.messages)
        messages: list[bytes] = []
        left = limit
        while True:
            sock.settimeout(max(0.001, left))
            try:
                if out := http.to_send():
                    sock.sendall(out)
                data = sock.recv(_CHUNK)
            except TimeoutError:
                raise TimeoutError(f"no answer within {limit:.3g} s") from None
            for event in http.receive(data):
                if event.stream != stream:
                    continue
                if isinstance(event, Message):
                    messages.append(event.body)
                elif event.refused is not None:
                    raise event.refused
                else:
                    return messages
            left = ends - clock.now()
            if left <= 0:  # a server that says something all the time does not lengthen it
                raise TimeoutError(f"no answer within {limit:.3g} s")

    def close(self) -> None:
        self._sock.close()

    def __del__(self) -> None:
        """An interrupt came before whoever had it could put it back or close it."""
        if hasattr(self, "_sock"):
            self._sock.close()


class Ear:
    """A connection with one watch stream, for one thread. Others may wake it."""

    def __init__(self, line: Line, endpoints: Endpoints) -> None:
        self._line = line
        self._http, self._sock = line._http, line._sock
        self.token = endpoints.token
        self._stream = self._http.call(endpoints.block(WATCH), (), end=False)
        self.host = line.host
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)

    def send(self, messages: list[bytes]) -> None:
        self._http.send(self._stream, tuple(messages))
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
            if isinstance(event, Ended):
                raise event.refused or ConnectionError("the server has ended the watch")
        return [event.body for event in events if isinstance(event, Message)]

    def _flush(self) -> None:
        if out := self._http.to_send():
            self._sock.sendall(out)

    def wake(self) -> None:
        """Have the one who reads come back."""
        try:
            self._wake.send(b"\0")
        except OSError:
            pass  # it is woken already, or closed

    def close(self) -> None:
        self._line.close()
        self._woken.close()
        self._wake.close()


class Pool:
    """Where calls go. What is asked for in haste waits for nobody who is not in as much haste."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._free: list[Line] = []
        self._keepers: list[Line] = []
        self._ear: Ear | None = None
        self.after_fork()

    def after_fork(self) -> None:
        """In the child: let go of what is the parent's. That closes our copies; the parent's connections stay."""
        self._close_idle()
        if self._ear is not None:
            self._ear.close()
            self._ear = None
        self._turns = {Haste.NONE: Turns(ASKING), Haste.SOME: Turns(GIVING), Haste.MOST: Turns(KEEPING)}
        self._closed = False

    def send(self, call: Call, limit: float) -> list[bytes]:
        """The messages that the server answers. Raises Refused, OSError."""
        ends = clock.now() + limit
        turns = self._turns[call.haste]
        turn = turns.take(limit)
        try:
            for last in (False, True):
                token = self._endpoints.token
                try:
                    if self._endpoints.needs_login:
                        self._endpoints.logged_in(self._call(self._endpoints.login(), ends))
                    return self._call(call, ends)
                except Refused as error:
                    if last or not error.token_is_old:
                        raise
                    self._endpoints.logged_out(token)
            raise AssertionError
        finally:
            turns.over(turn)

    def _call(self, call: Call, ends: float) -> list[bytes]:
        idle, most = (self._keepers, 1) if call.haste is Haste.MOST else (self._free, IDLE)
        line = self._take(idle, ends)
        kept = False
        try:
            answer = line.call(call, ends - clock.now())
            kept = True
            return answer
        except (Refused, OSError) as error:
            kept = isinstance(error, Refused)
            if is_members_fault(error):
                self._endpoints.blame(line.host)
            raise
        finally:  # also when interrupted: whatever is on its way on it is of no use any more
            if kept and not self._closed and len(idle) < most:
                idle.append(line)
            else:
                line.close()

    def _take(self, idle: list[Line], ends: float) -> Line:
        while idle:
            try:
                line = idle.pop()
            except IndexError:
                break
            if line.host == self._endpoints.current and line.usable():
                return line
            line.close()
        return self._connect(ends)

    def _connect(self, ends: float) -> Line:
        """To the first member that accepts."""
        tries = len(self._endpoints.address.hosts)
        while True:
            tries -= 1
            host = self._endpoints.current
            try:
                return Line(self._endpoints, ends - clock.now())
            except OSError:
                self._endpoints.blame(host)
                if not tries or clock.now() >= ends:
                    raise

    def ear(self, limit: float) -> Ear:
        ends = clock.now() + limit
        if self._endpoints.needs_login:
            self._endpoints.logged_in(self._call(self._endpoints.login(), ends))
        self._ear = Ear(self._connect(ends), self._endpoints)
        return self._ear

    def blame(self, host: tuple[str, int]) -> None:
        self._endpoints.blame(host)

    def logged_out(self, token: bytes) -> None:
        self._endpoints.logged_out(token)

    def close(self) -> None:
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        for idle in (self._free, self._keepers):
            while idle:
                idle.pop().close()
