"""What the library writes itself is never called damaged, however large it is."""

from __future__ import annotations

import json
import secrets
from typing import Any

import pytest

import leasehold
from leasehold import Lease

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

YEAR = 366 * 86400.0
TTL = {"zookeeper": 20.0}
"""ZooKeeper's servers limit the length of sessions."""
NAME, OWNER, KIND = "\U0001f600" * 512, '"\\' * 64 + "é" * 128, "k/" * 32
LONG, DEEP, NUMBER = "ß" * 2047, json.loads("[" * 400 + "]" * 400), 10**4000


@pytest.mark.parametrize("store", ["etcd", "zookeeper", "mongodb"])
@pytest.mark.parametrize("shape", ["semaphore", "lock", "read", "write"])
@pytest.mark.parametrize("data", [LONG, DEEP, NUMBER], ids=["long", "deep", "number"])
def test_largest_values_are_written_and_read_back(
    store: str, shape: str, data: Any, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f"{store}_server").url
    options: dict[str, Any] = {"ttl": TTL.get(store, YEAR), "min_hold": YEAR, "kind": KIND, "data": data}
    with leasehold.connect(url, namespace="é" * 52 + secrets.token_hex(6), owner=OWNER) as locks:

        def take(timeout: float, **more: Any) -> Lease | None:
            chosen = {**options, **more}
            match shape:
                case "semaphore":
                    lock = locks.semaphore(NAME, limit=1_000_000, **chosen)
                case "lock":
                    lock = locks.lock(NAME, **chosen)
                case "read":
                    lock = locks.rwlock(NAME, **chosen).read()
                case _:
                    lock = locks.rwlock(NAME, **chosen).write()
            return lock.try_acquire(timeout=timeout)

        lease = take(30)
        assert lease is not None
        lease.renew()
        alone = shape in ("lock", "write")
        other = take(0.2 if alone else 30, min_hold=None)
        assert (other is None) == alone, "it holds too, or has waited"
        info = locks.inspect(NAME)
        assert info is not None
        assert (info.name, info.owner, info.kind, info.data) == (NAME, OWNER, KIND, data)
        assert info in [each._replace(expires=info.expires, acquired=info.acquired) for each in locks.leases()]
        assert lease.release(), "it rests for a year"
        assert locks.inspect(NAME) is not None
        assert locks.break_lease(NAME, force=True)
