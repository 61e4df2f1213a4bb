"""Looks into Redis behind leasehold's back."""

from collections.abc import Sequence
from typing import Any

import redis

from leasehold.testing import Held

_HOLDERS = """
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local found = {}
for _, holder in ipairs(cmsgpack.unpack(redis.call('HGET', KEYS[1], 'h') or cmsgpack.pack({}))) do
  found[#found + 1] = {holder[2], holder[10], holder[9] - now, holder[1]}
end
return found
"""
_WAITERS = """
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local count = 0
for _, attempt in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
  if cmsgpack.unpack(redis.call('HGET', KEYS[1], 'w' .. attempt))[9] > now then count = count + 1 end
end
return count
"""


class RedisProbe:
    def __init__(self, url: str, client: Any = None) -> None:
        self.client = client or redis.Redis.from_url(url)

    def key(self, namespace: str, name: str) -> str:
        space = namespace.replace("%", "%25").replace(":", "%3A").replace("}", "%7D")
        return f"leasehold:{{{space}:{name}}}"

    def names(self, namespace: str) -> Sequence[str]:
        start = self.key(namespace, "")[:-1]
        keys = [key.decode() for key in self.client.scan_iter("leasehold:*")]
        return [key[len(start) : -1] for key in keys if key.startswith(start) and key.endswith("}")]

    def holders(self, namespace: str, name: str) -> Sequence[Held]:
        return [held for _, held in self.attempts(namespace, name)]

    def attempts(self, namespace: str, name: str) -> Sequence[tuple[bytes, Held]]:
        found = self.client.eval(_HOLDERS, 1, self.key(namespace, name))
        return [(attempt, Held(owner.decode(), token, left / 1e6)) for owner, token, left, attempt in found]

    def waiters(self, namespace: str, name: str) -> int:
        key = self.key(namespace, name)
        return int(self.client.eval(_WAITERS, 2, key, key + ":queue"))

    def age(self, namespace: str, name: str) -> None:
        """As if a day had gone by: the key's own expiry is what removes it."""
        self.client.delete(self.key(namespace, name))

    def sessions(self) -> Sequence[str]:
        return [channel.decode() for channel in self.client.pubsub_channels("leasehold:*")]
