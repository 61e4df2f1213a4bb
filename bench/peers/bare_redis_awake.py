"""As ``bare_redis``, but it does not fall asleep while the server answers, as leasehold does not."""

from __future__ import annotations

import socket
import time

from leasehold.stores.redis.linger import AWAKE

from . import bare_redis


class Peer(bare_redis.Peer):
    def receive(self) -> bytes:
        awake = time.monotonic() + AWAKE
        while time.monotonic() < awake:
            try:
                return self.socket.recv(1000, socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass
        return super().receive()
