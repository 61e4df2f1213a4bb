"""leasehold, with a client that the user has made."""

from __future__ import annotations

from functools import cache

import redis
import redis.asyncio

import leasehold
from leasehold import aio

from . import leasehold_peer


class Peer(leasehold_peer.Peer):
    def __init__(self, target: str) -> None:
        self.target = target
        self.locks = leasehold.connect(redis.Redis.from_url(target))
        self.alocks = aio.connect(redis.asyncio.Redis.from_url(target))
        self._lock = cache(self.locks.lock)
        self._alock = cache(self.alocks.lock)
