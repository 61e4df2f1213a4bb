"""A proxy between leasehold and etcd that reads their HTTP/2."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, SETTINGS, WINDOW_UPDATE = 0, 4, 8
INITIAL_WINDOW_SIZE = 4
WIDEST = 2**31 - 1


class Windows:
    """What the client of one connection lets the server send: RFC 9113, 6.9."""

    def __init__(self) -> None:
        self.connection = self.initial = 65535
        self.streams: dict[int, int] = {}
        self.received = 0

    def of(self, stream: int) -> int:
        return self.streams.setdefault(stream, self.initial)

    def client_sends(self, kind: int, flags: int, stream: int, payload: bytes) -> str | None:
        if kind == SETTINGS and not flags:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack(">HI", payload[at : at + 6])
                if name == INITIAL_WINDOW_SIZE:
                    self.initial = value
        elif kind == WINDOW_UPDATE:
            more = struct.unpack(">I", payload)[0]
            if not more:
                return f"stream {stream} was widened by nothing"
            if stream:
                self.streams[stream] = wide = self.of(stream) + more
            else:
                self.connection = wide = self.connection + more
            if wide > WIDEST:
                return f"the window of stream {stream} was widened by {more} to {wide}"
        return None

    def server_sends(self, kind: int, flags: int, stream: int, payload: bytes) -> str | None:
        if kind == DATA:
            self.received += len(payload)
            self.connection -= len(payload)
            self.streams[stream] = self.of(stream) - len(payload)
        return None


class Strict:
    """Passes on all and notes what a strict server would end the connection for.

    ``lies``: what the server says, and what the client is told in its place, as many bytes."""

    def __init__(self, target: int, lies: tuple[bytes, bytes] = (b"", b"")) -> None:
        self._lies = lies
        self.faults: list[str] = []
        self.connections: list[Windows] = []
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._open: list[socket.socket] = [self._listening]
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for each in self._open:
            each.close()

    @property
    def received(self) -> int:
        """Of the connection that brought most."""
        return max((windows.received for windows in self.connections), default=0)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._open += [client, server]
                for each in (client, server):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                windows = Windows()
                self.connections.append(windows)
                for way in ((client, server, windows.client_sends), (server, client, windows.server_sends)):
                    self._threads.append(threading.Thread(target=self._pass, args=way))
                    self._threads[-1].start()

    def _pass(self, source: socket.socket, target: socket.socket, look: object) -> None:
        frames = _Frames()
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                for frame in frames.split(data):
                    if fault := look(*frame):  # type: ignore[operator]
                        self.faults.append(fault)
                target.sendall(data.replace(*self._lies) if self._lies[0] else data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)


class _Frames:
    def __init__(self) -> None:
        self._rest = b""

    def split(self, data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
        data = self._rest + data
        if PREFACE.startswith(data[: len(PREFACE)]):
            if len(data) < len(PREFACE):
                self._rest = data
                return
            data = data[len(PREFACE) :]
        while len(data) >= 9 and len(data) >= 9 + (size := int.from_bytes(data[:3], "big")):
            yield data[3], data[4], int.from_bytes(data[5:9], "big") & WIDEST, data[9 : 9 + size]
            data = data[9 + size :]
        self._rest = data
