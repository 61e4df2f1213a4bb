"""The session timeout that ZooKeeper has agreed to, and what else kazoo does not tell: one handler, two private doors.

kazoo's client does its I/O through a *handler*, a documented interface (``kazoo.interfaces.IHandler``) that its user
may supply. Ours sees what promise 1 rests on, and what the client keeps to itself:

- how long a session the server has agreed to: shorter than asked for, and a lease could outlive its session;
- when the server was last heard, and the connection itself, to hang up: kazoo takes its own requests for pings, so it
  does not notice a dead connection while it has something to send;
- that kazoo has given up: its connection thread has ended.

The private doors are at the end. ``tests/stores/test_zookeeper_compat.py`` fails first if kazoo changes any of this;
its version has an upper bound in ``pyproject.toml``.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from ...core import clock
from ..common.reentry import inside
from ..common.sockets import hang_up

_TIMEOUT_AT = 8
"""Where the reply to a client's first message has the timeout: after its length and the version of the protocol."""


class ObservedSocket:
    """One connection of kazoo's. It reads along in the first reply, and notes when anything comes."""

    def __init__(self, inner: Any, handler: SessionHandler) -> None:
        self._inner, self._handler = inner, handler
        self._first: bytes | None = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def recv(self, size: int) -> bytes:
        data: bytes = self._inner.recv(size)
        if data:
            self._handler.heard = clock.now()
            if self._first is not None:
                self._read_along(data)
        return data

    def send(self, data: Any) -> int:
        if self._handler.abandoned:
            raise BrokenPipeError("this session is left to itself")
        sent: int = self._inner.send(data)
        return sent

    def _read_along(self, data: bytes) -> None:
        self._first = (self._first or b"") + data
        if len(self._first) >= _TIMEOUT_AT + 4:
            agreed = int.from_bytes(self._first[_TIMEOUT_AT : _TIMEOUT_AT + 4], "big", signed=True)
            self._handler.agreed = agreed / 1000 if agreed > 0 else self._handler.agreed
            self._first = None


class SessionHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """The handler of one session's client. It needs one thread, kazoo's connection thread, for everything: as it is
    never *running*, answers call back in the thread that brings them, one hop less. Callbacks must not block.

    ``failed`` is called with the error when a connection cannot be made, ``ended`` when kazoo tries no more."""

    def __init__(self, failed: Callable[[OSError], object], ended: Callable[[], object]) -> None:
        super().__init__()
        self.agreed: float | None = None
        """Seconds: the timeout of the session, as the server has granted it."""
        self.heard = clock.now()
        self.connection: ObservedSocket | None = None
        self.abandoned = False
        self._failed, self._ended = failed, ended

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def spawn(self, func: Callable[..., object], *args: Any, **kwargs: Any) -> Any:
        def run() -> None:
            try:
                with inside():
                    func(*args, **kwargs)
            finally:
                self._ended()

        return super().spawn(run)

    def select(self, readers: Any, writers: Any, others: Any, timeout: float | None = None) -> Any:
        """kazoo's own makes and closes a selector each time, five times for a request: half of what that costs."""
        if not hasattr(select, "poll"):  # Windows
            return super().select(readers, writers, others, timeout)
        poll = select.poll()
        for each in {*readers, *writers}:
            poll.register(each, (each in readers and select.POLLIN) | (each in writers and select.POLLOUT))
        ready = dict(poll.poll(None if timeout is None else timeout * 1000))
        ended = select.POLLERR | select.POLLHUP
        reads = [each for each in readers if ready.get(each.fileno(), 0) & (select.POLLIN | ended)]
        return reads, [each for each in writers if ready.get(each.fileno(), 0) & (select.POLLOUT | ended)], []

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        if self.abandoned:
            raise ConnectionRefusedError("this session is left to itself")
        try:
            made = super().create_connection(*args, **kwargs)
        except OSError as error:
            self._failed(error)
            raise
        self.connection = ObservedSocket(made, self)
        return self.connection

    def hang_up(self) -> None:
        connection: socket.socket | None = self.connection  # type: ignore[assignment]
        hang_up(connection)

    def abandon(self) -> None:
        """Send nothing any more, so that the session ends by itself, later."""
        self.abandoned = True
        self.hang_up()


# Private doors.


def sasl_options(client: Any) -> Any:
    """Those that the user gave a client: kazoo passes them on, and does not show them."""
    return client._connection.sasl_options


def ask(client: Any, request: Any, answer: Any) -> None:
    """Send a request that kazoo's client lacks: ``whoAmI``, for doctor."""
    client._call(request, answer)
