"""What the tests of etcd share: a look at its keys, acquires in threads, operations that are run by hand."""

from __future__ import annotations

import base64
import threading
from typing import Any

import leasehold
from leasehold.stores.etcd import wire
from servers.etcd import Etcd, ask, b64

A, B = "a" * 32, "b" * 32


def keys(server: Etcd, namespace: str, kind: str) -> list[str]:
    start = f"leasehold/{namespace}/{kind}/"
    found = ask(server.port, "kv/range", {"key": b64(start), "range_end": b64(start[:-1] + "0")})
    return [base64.b64decode(each["key"]).decode() for each in found.get("kvs", [])]


def delete(server: Etcd, key: str) -> None:
    ask(server.port, "kv/deleterange", {"key": b64(key)})


class Waiter:
    """An acquire in a thread of its own."""

    def __init__(self, locks: leasehold.Locks, name: str, **options: Any) -> None:
        self.leases: list[leasehold.Lease] = []
        self.thread = threading.Thread(target=lambda: self.leases.append(locks.lock(name, **options).acquire(60)))
        self.thread.start()

    def lease(self, within: float = 20.0) -> leasehold.Lease:
        self.thread.join(within)
        assert self.leases, "it was not served"
        return self.leases[0]


def finish(locks: leasehold.Locks, steps: Any, call: wire.Call) -> Any:
    """Run an operation that has come as far as this call to its end."""
    while True:
        answer = locks._core.driver._link.send(call, 5)  # type: ignore[attr-defined]
        try:
            call = steps.send(answer)
        except StopIteration as over:
            return over.value
