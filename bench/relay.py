"""A TCP relay that counts what clients send to the server: Redis' commands, the requests of ZooKeeper and MongoDB, the
messages of etcd's calls (not HTTP/2's frames), and SQL statements: what is sent on a connection when the last one is
answered, in however many pieces.

With a delay, it stands for a network: each piece arrives that much later, in order, however many are on the way."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple, Self

COMMAND = re.compile(rb"\*\d+\r\n\$")
PORT = re.compile(r":(\d+)")


def ports(target: str) -> list[int]:
    """The ports of the servers whose clients can be sent through a relay. None: it is a file, or clients ask the
    servers where they are and go there."""
    return [] if "replicaSet=" in target else [int(port) for port in PORT.findall(target)]


def relayed(target: str) -> int | None:
    """The port of the one server, where there is only one."""
    found = ports(target)
    return found[0] if len(found) == 1 else None


class Statements:
    """Counts what is sent on one connection: here, whatever comes after an answer."""

    def __init__(self) -> None:
        self._asked = False

    def sent(self, data: bytes) -> int:
        """How many messages begin in this piece."""
        more, self._asked = not self._asked, True
        return more

    def answered(self) -> None:
        self._asked = False


class Commands(Statements):
    def sent(self, data: bytes) -> int:
        return len(COMMAND.findall(data))


class Framing(NamedTuple):
    """How a protocol says where a message ends."""

    header: int
    whole: Callable[[bytes], int]
    """By its header, the size of a message with that."""


FRAMED = {
    "zookeeper": Framing(4, lambda header: 4 + int.from_bytes(header)),
    "mongodb": Framing(4, lambda header: int.from_bytes(header, "little")),
}
HTTP2 = Framing(9, lambda header: 9 + int.from_bytes(header[:3]))
PREFACE = 24
GRPC = Framing(5, lambda header: 5 + int.from_bytes(header[1:]))


class Frames(Statements):
    def __init__(self, framing: Framing, skip: int = 0) -> None:
        super().__init__()
        self._framing = framing
        self._left = skip
        self._header = b""

    def sent(self, data: bytes) -> int:
        size, whole = self._framing
        found = 0
        while data:
            body, data = data[: self._left], data[self._left :]
            self._left -= len(body)
            found += self.inside(body)
            missing = size - len(self._header)
            self._header += data[:missing]
            data = data[missing:]
            if len(self._header) == size:
                found += self.begins(self._header)
                self._left, self._header = whole(self._header) - size, b""
        return found

    def begins(self, header: bytes) -> int:
        return 1

    def inside(self, body: bytes) -> int:
        return 0


class Calls(Frames):
    """gRPC: of HTTP/2's frames those of data, in which the messages of each stream come one after the other."""

    def __init__(self) -> None:
        super().__init__(HTTP2, PREFACE)
        self._streams: dict[bytes, Frames] = {}
        self._stream: Frames | None = None

    def begins(self, header: bytes) -> int:
        kind, ends, number = header[3], header[4] & 1, header[5:]
        self._stream = self._streams.setdefault(number, Frames(GRPC)) if kind == 0 else None
        if ends:
            self._streams.pop(number, None)
        return 0

    def inside(self, body: bytes) -> int:
        return self._stream.sent(body) if self._stream else 0


def counter(scheme: str) -> Statements:
    if scheme == "etcd":
        return Calls()
    if scheme in FRAMED:
        return Frames(FRAMED[scheme])
    return Commands() if scheme.startswith("redis") else Statements()


class Relay:
    """Listens on ``port`` and passes everything on to the server's port, and back: ``delay`` seconds later.

    By threads, not asyncio, whose timers are milliseconds."""

    def __init__(self, server: int, target: str, delay: float = 0.0) -> None:
        self.messages = 0
        self._scheme = target.partition(":")[0]
        self._server = server
        self._delay = delay
        self._counting = threading.Lock()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._listening, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(1)

    def settled(self) -> int:
        """The count, once nothing has been sent for half a second; or after 20 s, if many look by themselves."""
        for _ in range(40):
            before = self.messages
            time.sleep(0.5)
            if self.messages == before:
                break
        return self.messages

    def _start(self, run: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=run, args=arguments, daemon=True)
        thread.start()
        self._threads.append(thread)
        return thread

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # by default Linux wakes a thread, and those that it starts, 50 µs late
            Path(f"/proc/{threading.get_native_id()}/timerslack_ns").write_text("1")
        with self._listening, contextlib.suppress(OSError):  # our end
            while True:
                client, _ = self._listening.accept()
                self._open.append(client)
                self._start(self._carry, client)

    def _carry(self, client: socket.socket) -> None:
        counted = counter(self._scheme)

        def sent(data: bytes) -> None:
            with self._counting:
                self.messages += counted.sent(data)

        with contextlib.suppress(ConnectionError), client:
            with socket.create_connection(("127.0.0.1", self._server)) as server:
                self._open.append(server)
                running = []
                ways = (client, server, sent), (server, client, lambda data: counted.answered())
                for source, target, seen in ways:
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    under_way: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
                    running.append(self._start(self._depart, source, under_way, seen))
                    running.append(self._start(self._arrive, target, under_way))
                for thread in running:
                    thread.join()

    def _depart(
        self, source: socket.socket, under_way: SimpleQueue[tuple[float, bytes]], seen: Callable[[bytes], None]
    ) -> None:
        data = b"the first"
        while data:
            try:
                data = source.recv(1 << 16)
            except OSError:
                data = b""
            under_way.put((time.monotonic() + self._delay, data))
            if data:
                seen(data)

    def _arrive(self, target: socket.socket, under_way: SimpleQueue[tuple[float, bytes]]) -> None:
        with contextlib.suppress(OSError):  # it is closed: the other way ends by that too
            while True:
                due, data = under_way.get()
                if (early := due - time.monotonic()) > 0:
                    time.sleep(early)
                if not data:
                    break
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
