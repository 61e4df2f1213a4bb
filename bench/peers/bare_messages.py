"""What the way to a server and back takes, and no more: one message to take a name, one to give it back, and one to who
is next, by a server that knows nothing else.

``python -m bench.peers.bare_messages`` is the server: it says its port, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any, ClassVar
from urllib.parse import urlsplit

from .base import Base

ROOT = Path(__file__).resolve().parents[2]

TAKE, GIVE, YOURS, DONE = b"t", b"g", b"y", b"d"
"""What begins a client's message, before the name, and what the server answers."""


class Connection(StreamRequestHandler):
    disable_nagle_algorithm = True
    lock = threading.Lock()
    queues: ClassVar[defaultdict[bytes, deque[Connection]]] = defaultdict(deque)
    """By name, who has it and who waits for it."""

    def handle(self) -> None:
        for line in self.rfile:
            with self.lock:
                queue = self.queues[line[1:]]
                if line.startswith(TAKE):
                    queue.append(self)
                    free = len(queue) == 1
                else:
                    queue.popleft()
                    free = bool(queue)
                if free:
                    queue[0].wfile.write(YOURS)
            if not line.startswith(TAKE):
                self.wfile.write(DONE)


class Peer(Base):
    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._place = urlsplit(target).hostname, urlsplit(target).port
        self._socket = socket.create_connection(self._place)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def _ask(self, verb: bytes, name: str, answer: bytes) -> str:
        self._socket.sendall(verb + name.encode() + b"\n")
        assert self._socket.recv(1) == answer
        return name

    async def _aask(self, verb: bytes, name: str, answer: bytes) -> str:
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._place)
        reader, writer = self._streams
        writer.write(verb + name.encode() + b"\n")
        assert await reader.readexactly(1) == answer
        return name

    def acquire(self, name: str, ttl: float = 30.0) -> str:
        return self._ask(TAKE, name, YOURS)

    def release(self, handle: Any) -> None:
        self._ask(GIVE, handle, DONE)

    async def aacquire(self, name: str) -> str:
        return await self._aask(TAKE, name, YOURS)

    async def arelease(self, handle: Any) -> None:
        await self._aask(GIVE, handle, DONE)

    def close(self) -> None:
        self._socket.close()

    async def aclose(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """A server in a process of its own: its address."""
    line = [sys.executable, "-m", __name__]
    process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    with process:
        assert process.stdout is not None
        yield f"tcp://127.0.0.1:{int(process.stdout.readline())}"


def main() -> None:
    with ThreadingTCPServer(("127.0.0.1", 0), Connection) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(server.server_address[1], flush=True)
        sys.stdin.read()
        server.shutdown()


if __name__ == "__main__":
    main()
