"""What the tests of Redis share: operations of the store sent by its protocol, and what the server tells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis

from leasehold.core.protocol import Renewal
from leasehold.stores.urls import find_store


class Direct:
    """The store of a URL, without a ``Locks``: each operation is sent by its driver for threads."""

    def __init__(self, url: str, namespace: str = "") -> None:
        opened = find_store(url, namespace)
        self.store: Any = opened.store
        self.driver = opened.threads()

    def run(self, operation: Any, limit: float = 10.0) -> Any:
        return self.driver.run(operation, limit)


@contextmanager
def direct(url: str, namespace: str = "") -> Iterator[Direct]:
    found = Direct(url, namespace)
    try:
        yield found
    finally:
        found.driver.close()


def listening(client: redis.Redis, count: int = 1) -> bool:
    """Whether so many ``Locks`` listen."""
    return len(client.pubsub_channels("leasehold:session:*")) >= count


def scripts_run(*clients: redis.Redis) -> int:
    stats = [client.info("commandstats") for client in clients]
    return sum(each.get(f"cmdstat_{name}", {"calls": 0})["calls"] for each in stats for name in ("evalsha", "eval"))


class Renewed:
    """True once each of the leases was renewed and stands; one that was lost never will be."""

    def __init__(self, leases: Sequence[Any]) -> None:
        self._leases = list(leases)
        self._least = [float("inf")] * len(leases)
        self._seen: set[int] = set()

    def __call__(self) -> bool:
        for number, lease in enumerate(self._leases):
            lease.check()
            left = lease.remaining
            if left > self._least[number] + 0.05:
                self._seen.add(number)
            self._least[number] = min(self._least[number], left)
        return len(self._seen) == len(self._leases)


def renewal(name: str, attempt: str, token: int, ttl: float = 600.0) -> Renewal:
    return Renewal(name, attempt, token, int(ttl * 1e6))
