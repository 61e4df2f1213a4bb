"""What the tests of etcd share: a look at its keys, acquires in threads, operations that are run by hand."""

from __future__ import annotations

import base64
import threading
from typing import Any

import leasehold
from leasehold.stores.etcd import wire
from servers.etcd import Etcd, ask, b64

A, B = "a" * 32, "b" * 32
LIMIT = 30.0
"""How long what is carried out by hand may take: nothing here is about a server that is slow."""
LONG = 100_000
"""A ttl. Nobody who joins has such a lease renewed before unless that was 1000 s ago, and no keeper comes into it."""


def keys(server: Etcd, namespace: str, kind: str) -> list[str]:
    start = f"leasehold/{namespace}/{kind}/"
    found = ask(server.port, "kv/range", {"key": b64(start), "range_end": b64(start[:-1] + "0")})
    return [base64.b64decode(each["key"]).decode() for each in found.get("kvs", [])]


def delete(server: Etcd, key: str) -> None:
    ask(server.port, "kv/deleterange", {"key": b64(key)})


def deletion(watch: int, keys: dict[bytes, int]) -> bytes:
    """What etcd says on a stream of watches when keys are deleted, each at its revision."""
    events = (wire.number(1, 1) + wire.text(2, wire.text(1, key) + wire.number(3, at)) for key, at in keys.items())
    return wire.number(2, watch) + b"".join(wire.text(11, event) for event in events)


def created(watch: int, revision: int) -> bytes:
    """What etcd says when it has taken on a watch, which tells of what comes after that revision."""
    return wire.text(1, wire.number(3, revision)) + wire.number(2, watch) + wire.number(3, 1)


class Waiter:
    """An acquire in a thread of its own."""

    def __init__(self, locks: leasehold.Locks, name: str, **options: Any) -> None:
        self.leases: list[leasehold.Lease] = []
        self.thread = threading.Thread(target=lambda: self.leases.append(locks.lock(name, **options).acquire(100)))
        self.thread.start()

    def lease(self, within: float = 60.0) -> leasehold.Lease:
        self.thread.join(within)
        assert self.leases, "it was not served"
        return self.leases[0]


def without_listener(locks: leasehold.Locks) -> None:
    """Once there is one, the keeper renews all that is held, nobody can say when: not where that is done by hand."""
    locks._core.driver.listen = lambda attempt, busy: False  # type: ignore[method-assign]


def finish(locks: leasehold.Locks, steps: Any, call: wire.Call) -> Any:
    """Run an operation that has come as far as this call to its end."""
    while True:
        answer = locks._core.driver._link.send(call, LIMIT)  # type: ignore[attr-defined]
        try:
            call = steps.send(answer)
        except StopIteration as over:
            return over.value
