"""leasehold, with a client that the user has made."""

from __future__ import annotations

import redis
import redis.asyncio

import leasehold
from leasehold import aio

from . import leasehold_peer


class Peer(leasehold_peer.Peer):
    def __init__(self, target: str) -> None:
        self.target = target
        self.use(leasehold.connect(redis.Redis.from_url(target)), aio.connect(redis.asyncio.Redis.from_url(target)))
