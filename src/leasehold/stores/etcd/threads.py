"""The driver for threads: sockets that block, and one listener thread for all waiters."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ...core import clock
from ...core.protocol import Busy, Steps, T, run_steps
from ...errors import StoreError
from ...runtime.ready import readable
from ...runtime.thread_start import start_thread
from ...runtime.wakeups import ThreadBell
from ..common.turns import Turns
from .endpoints import Endpoints
from .errors import DRIVER_ERRORS, translate
from .http2 import BrokenHttp2, Http2
from .listening import PAUSES, EtcdCarrier, EtcdListener
from .store import EtcdStore
from .transport import EtcdTransport
from .wire import EtcdCall

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


class EtcdThreads:
    def __init__(self, store: EtcdStore, transport: EtcdCarrier, where: str) -> None:
        self.on_ring: Callable[..., None] = lambda attempt, news=None: None
        self._store = store
        self._transport = transport
        self._where = where
        self.listener = EtcdListener(store, transport, where, self._rung)
        self._reset()

    def _reset(self) -> None:
        self._listens = threading.Lock()
        """Whoever has it is the listener."""
        self._start_again = 0.0
        self._end = ThreadBell()

    def after_fork(self) -> None:
        self._store.reset()
        self.listener.begin()
        self._reset()
        self._transport.after_fork()

    def run(self, steps: Steps[T], limit: float) -> T:
        ends = clock.now() + limit

        def send(call: EtcdCall) -> list[bytes]:
            left = ends - clock.now()
            if left <= 0:
                raise TimeoutError(f"timed out after {limit:.3g} s")
            answer: list[bytes] = self._transport.send(call, left)
            return answer

        try:
            result = run_steps(steps, send)
            if self._store.session.rests:
                self.listener.wake()
            return result
        except StoreError:
            raise
        except DRIVER_ERRORS as error:
            raise translate(error, self._where) from error
        finally:
            steps.close()  # at once, also when a KeyboardInterrupt went past it

    def listen(self, attempt: str, busy: Busy | None) -> bool:
        listens = self.listener.wants(attempt, busy)
        if not self._listens.locked():
            self._start()
        return listens

    def _start(self) -> None:
        """At most one a second, also when many begin to wait at once: whoever finds another listening ends."""
        now = clock.now()
        if now >= self._start_again and not self.listener.closed:
            self._start_again = now + PAUSES[1]
            try:
                start_thread("leasehold-etcd", self._listen)
            except RuntimeError:
                pass  # the process can have no more threads: waiters poll

    def _listen(self) -> None:
        if self._listens.acquire(False):
            try:
                run_calls(self.listener.listen(self.run, self._end.wait))
            finally:
                self._listens.release()

    def forget(self, attempt: str) -> None:
        self.listener.forget(attempt)

    def _rung(self, *wake_up: Any) -> None:
        self.on_ring(*wake_up)

    def close(self) -> None:
        self.listener.closed = True
        self._end.ring()
        self.listener.wake()
        try:
            self.run(self._store.farewell(), FAREWELL)
        except StoreError:
            pass  # what is left goes when its lease runs out
        self._transport.close()
        self._listens.acquire(timeout=1.0)  # it has ended
