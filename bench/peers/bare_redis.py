"""leasehold's own scripts, sent over a socket by hand: what no library on Redis with these promises can be below.

Knows only names that nobody else wants.
"""

from __future__ import annotations

import os
import socket
from typing import Any
from urllib.parse import urlsplit

from leasehold.core.protocol import Ask
from leasehold.stores.redis.scripts import ALL, RELEASE, Form, pack
from leasehold.stores.redis.store import RedisStore

from .base import Base


class Peer(Base):
    waits = False

    def __init__(self, target: str) -> None:
        super().__init__(target)
        where = urlsplit(target)
        self.socket = socket.create_connection((where.hostname or "localhost", where.port or 6379))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._store = RedisStore("redis", "")
        self._forms: dict[tuple[str, float], tuple[Form, Form]] = {}
        for script in ALL:
            self.socket.sendall(pack((b"SCRIPT", b"LOAD", script.text)))
            self.socket.recv(1000)

    def receive(self) -> bytes:
        return self.socket.recv(1000)

    def acquire(self, name: str, ttl: float = 30.0) -> Any:
        attempt = os.urandom(16).hex()
        forms = self._forms.get((name, ttl))
        if forms is None:  # all but the attempt is packed once, as leasehold does it
            ask = Ask(name, attempt, "bare", "lock", None, int(ttl * 1e6))
            release = Form(RELEASE, self._store.keys(name), 2)
            forms = self._forms[name, ttl] = self._store._form(ask), release
        self.socket.sendall(forms[0].call(attempt.encode()).ready)
        code, token, _ = self.receive().split(b"\r\n:")[1:]
        assert code == b"1"
        return forms[1], attempt, token

    def release(self, handle: Any) -> None:
        form, attempt, token = handle
        self.socket.sendall(form.call(attempt.encode(), token).ready)
        assert self.receive() == b":1\r\n"

    def close(self) -> None:
        self.socket.close()
