"""A process of test_drain. Its event loop ends while two leases are held and the store is away.

At its exit it writes how many calls it has made since, and how many of the leases are still trusted."""

from __future__ import annotations

import asyncio
import atexit
import sys
from typing import Any

from kinds.seams import AwayTasks, connect

kept: list[Any] = []


def report() -> None:
    store, _, *leases = kept
    print(store.calls, sum(lease.valid for lease in leases))


async def work(url: str) -> None:
    store = AwayTasks()
    locks = connect(url, "asyncio", ttl=60, driver=store)
    kept.extend([store, locks, await locks.lock("a").acquire(), await locks.lock("b").acquire()])
    store.away = True


if __name__ == "__main__":
    atexit.register(report)  # before leasehold is loaded: so it is called after leasehold's own handler
    assert "leasehold.core.registry" not in sys.modules
    asyncio.run(work("memory://at-exit"))
