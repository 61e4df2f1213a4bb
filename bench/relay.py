"""A TCP relay that counts what clients send to the server: Redis' commands, the requests of ZooKeeper and MongoDB, the
messages of etcd's calls (not HTTP/2's frames), and SQL statements: what is sent on a connection when the last one is
answered, in however many pieces."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Self

COMMAND = re.compile(rb"\*\d+\r\n\$")
PORT = re.compile(r":(\d+)")


def relayed(target: str) -> int | None:
    """The port of the one server whose clients can be sent through a relay. None: it is a file, there are several, or
    clients ask it where it is and go there."""
    ports = PORT.findall(target)
    return int(ports[0]) if len(ports) == 1 and "replicaSet=" not in target else None


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
    """Listens on ``port`` and passes everything on to the server's port, and back."""

    def __init__(self, server: int, target: str) -> None:
        self.messages = 0
        self._scheme = target.partition(":")[0]
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        begun = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._accept, "127.0.0.1", 0), self._loop)
        self._listening = begun.result()
        self.port: int = self._listening.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._listening.close()
        carrying = asyncio.all_tasks() - {asyncio.current_task()}
        for task in carrying:
            task.cancel()
        await asyncio.gather(*carrying, return_exceptions=True)

    def settled(self) -> int:
        """The count, once nothing has been sent for half a second; or after 20 s, if many look by themselves."""
        for _ in range(40):
            before = self.messages
            time.sleep(0.5)
            if self.messages == before:
                break
        return self.messages

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._server)
        counted = counter(self._scheme)

        def sent(data: bytes) -> None:
            self.messages += counted.sent(data)

        ways = self._carry(reader, back, sent), self._carry(there, writer, lambda data: counted.answered())
        with contextlib.suppress(asyncio.CancelledError):  # by our end: the connections end with us
            await asyncio.gather(*ways, return_exceptions=True)

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: Callable[[bytes], None]
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                seen(data)
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()
