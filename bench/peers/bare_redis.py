"""leasehold's own scripts, sent over a socket by hand: what no library on Redis with these promises can be below.

Knows only names that nobody else wants.
"""

from __future__ import annotations

import os
import socket
from typing import Any
from urllib.parse import urlsplit

from leasehold.core.protocol import Ask
from leasehold.stores.redis.scripts import ALL, RELEASE
from leasehold.stores.redis.store import RedisStore

from .base import Base


def pack(parts: list[bytes]) -> bytes:
    """In Redis's protocol, without the number of words."""
    return b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])


class Peer(Base):
    waits = False

    def __init__(self, target: str) -> None:
        super().__init__(target)
        where = urlsplit(target)
        self.socket = socket.create_connection((where.hostname or "localhost", where.port or 6379))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._store = RedisStore("redis", "")
        self._packed: dict[tuple[str, float], tuple[bytes, bytes, bytes]] = {}
        for script in ALL:
            self.socket.sendall(b"*3\r\n" + pack([b"SCRIPT", b"LOAD", script.text]))
            self.socket.recv(1000)

    def acquire(self, name: str, ttl: float = 30.0) -> Any:
        attempt = os.urandom(16).hex()
        packed = self._packed.get((name, ttl))
        if packed is None:  # all but the attempt is packed once
            ask = Ask(name, attempt, "bare", "lock", None, int(ttl * 1e6))
            words = next(self._store.acquire(ask)).command()
            head, rest = list(words[:5]), list(words[6:])
            release = [b"EVALSHA", RELEASE.sha, b"2", *self._store.keys(name)]
            packed = b"*%d\r\n%b" % (len(words), pack(head)), pack(rest), b"*7\r\n" + pack(release)
            self._packed[name, ttl] = packed
        self.socket.sendall(packed[0] + pack([attempt.encode()]) + packed[1])
        code, token, _ = self.socket.recv(1000).split(b"\r\n:")[1:]
        assert code == b"1"
        return packed[2], attempt, token

    def release(self, handle: Any) -> None:
        start, attempt, token = handle
        self.socket.sendall(start + pack([attempt.encode(), token]))
        assert self.socket.recv(1000) == b":1\r\n"

    def close(self) -> None:
        self.socket.close()
