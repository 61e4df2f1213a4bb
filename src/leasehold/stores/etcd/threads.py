"""The driver for threads: sockets that block, and one listener thread for all waiters."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress

from ...core import clock
from ...core.protocol import Busy, Steps, T, run_steps
from ...errors import StoreError
from ...runtime.ready import readable
from ...runtime.thread_start import start_thread
from ...runtime.wakeups import ThreadBell
from ..common.turns import Turns
from .driver import PAUSES, EtcdDriver
from .endpoints import Endpoints
from .http2 import BrokenHttp2, Http2
from .transport import EtcdTransport

FAREWELL = 1.0
_CHUNK = 65536
_LEAST = 0.5
"""How long the rest of what can be read may take."""


def run_calls(steps: Steps[T]) -> T:
    """Run steps that yield functions to call."""
    try:
        return run_steps(steps, lambda call: call())
    finally:
        steps.close()  # at once, also when a KeyboardInterrupt went past it


class ThreadConnection:
    """See :class:`leasehold.stores.etcd.transport.EtcdConnection`."""

    def __init__(self, endpoints: Endpoints, limit: float) -> None:
        self.host = endpoints.current
        self.http, self.idle_since = Http2(), 0.0
        self._woken, self._wake = socket.socketpair()
        self._sock: socket.socket = socket.create_connection(self.host, timeout=endpoints.connect_limit(limit))
        try:
            self._wake.setblocking(False)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if endpoints.context is not None:
                self._sock = endpoints.context.wrap_socket(self._sock, server_hostname=endpoints.server_name)
        except BaseException:
            self.close()
            raise

    def exchange(self, out: bytes, seconds: float) -> bytes | None:
        sock = self._sock
        try:
            sock.settimeout(seconds or _LEAST)
            if out:
                sock.sendall(out)
            buffered = isinstance(sock, ssl.SSLSocket) and sock.pending()
            if not buffered and not readable(sock, self._woken, within=seconds):
                return None
            if not buffered and not readable(sock, within=0):
                self._woken.recv(_CHUNK)
                return b""
            data = sock.recv(_CHUNK)
        except TimeoutError:
            return None
        if not data:
            raise BrokenHttp2("the server has closed the connection")
        return data

    def wake(self) -> None:
        with suppress(OSError):  # it is woken already, or closed
            self._wake.send(b"\0")

    def close(self) -> None:
        for name in ("_sock", "_woken", "_wake"):
            if (each := getattr(self, name, None)) is not None:
                each.close()

    forget = __del__ = close  # the parent's connection stays; an interrupt may have come before one could be put back


class ThreadTransport(EtcdTransport):
    """For threads."""

    def __init__(self, endpoints: Endpoints) -> None:
        super().__init__(endpoints, ThreadConnection, run_calls, Turns)


class EtcdThreads(EtcdDriver):
    def _begin(self) -> None:
        super()._begin()
        self._listens = threading.Lock()
        """Whoever has it is the listener."""
        self._start_again = 0.0
        self._end = ThreadBell()
        self._sleep = self._end.wait

    def run(self, steps: Steps[T], limit: float) -> T:
        return run_calls(self._running(steps, limit))

    def listen(self, attempt: str, busy: Busy | None) -> bool:
        listens = self._wants(attempt, busy)
        if not self._listens.locked():
            self._start()
        return listens

    def _start(self) -> None:
        """At most one a second, also when many begin to wait at once: whoever finds another listening ends."""
        now = clock.now()
        if now >= self._start_again and not self._closed:
            self._start_again = now + PAUSES[1]
            try:
                start_thread("leasehold-etcd", self._listen)
            except RuntimeError:
                pass  # the process can have no more threads: waiters poll

    def _listen(self) -> None:
        if self._listens.acquire(False):
            try:
                run_calls(self._listening())
            finally:
                self._listens.release()

    def close(self) -> None:
        self._closed = True
        self._end.ring()
        self._wake()
        try:
            self.run(self._store.farewell(), FAREWELL)
        except StoreError:
            pass  # what is left goes when its lease runs out
        self._transport.close()
        self._listens.acquire(timeout=1.0)  # it has ended
