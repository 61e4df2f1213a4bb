"""Two transactions over our own connection, without a library: what no lease on etcd can be below.

Knows only names that nobody else wants; one lease for all.
"""

from __future__ import annotations

import os
from typing import Any

from leasehold.stores.etcd import wire
from leasehold.stores.etcd.endpoints import Endpoints
from leasehold.stores.etcd.threads import ThreadTransport
from leasehold.stores.etcd.url import parse

from .base import Base


class Peer(Base):
    waits = False

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._connection = ThreadTransport(Endpoints(parse(target)))
        self._lease = int.from_bytes(os.urandom(7), "big")
        self._connection.send(wire.lease_grant(self._lease, 600), 5.0)

    def acquire(self, name: str, ttl: float = 30.0) -> Any:
        key = b"bare/" + name.encode()
        free = wire.compare(wire.EQUAL, wire.CREATE, key, 0)
        answer = self._connection.send(wire.txn([free], [wire.put(key, b"x" * 100, self._lease)], [wire.get(key)]), 5.0)
        result = wire.read_txn(answer)
        assert result.succeeded
        return key, result.revision

    def release(self, handle: Any) -> None:
        key, revision = handle
        ours = wire.compare(wire.EQUAL, wire.CREATE, key, revision)
        assert wire.read_txn(self._connection.send(wire.txn([ours], [wire.delete(key)], []), 5.0)).succeeded

    def close(self) -> None:
        self._connection.close()
