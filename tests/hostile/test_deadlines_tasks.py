"""asyncio: the timeout of an acquire counts from when it was called, however many others were called before."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import leasehold
from leasehold import aio
from servers.proxy import Proxy

from .stores import url_of

pytestmark = pytest.mark.timeout(90)

CROWD = 40
TIMEOUT = 1.0
SLACK = 4.0
"""Seconds that giving up, and a busy machine, may add."""


async def longest(locks: aio.Locks) -> float:
    """The seconds that the slowest of a crowd of acquires takes until it fails."""

    async def acquire(number: int) -> float:
        began = time.monotonic()
        with pytest.raises((leasehold.StoreUnavailable, leasehold.AcquireTimeout)):
            await locks.lock(f"name-{number}").acquire(timeout=TIMEOUT)
        return time.monotonic() - began

    return max(await asyncio.gather(*map(acquire, range(CROWD))))


def test_acquires_beside_a_sqlite_writer_end_in_time(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"

    async def main() -> float:
        async with aio.connect(f"sqlite:///{path}") as locks:
            await (await locks.lock("a").acquire()).release()
            writer = sqlite3.connect(path, isolation_level=None)
            writer.execute("BEGIN IMMEDIATE")
            try:
                return await longest(locks)
            finally:
                writer.close()

    assert asyncio.run(main()) < TIMEOUT + SLACK


@pytest.mark.server
@pytest.mark.parametrize("store", ["redis", "postgresql", "mariadb", "mysql", "mongodb", "etcd", "zookeeper"])
def test_acquires_at_a_server_that_hangs_end_in_time(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = url_of(store, request, tmp_path)
    port = urlsplit(url).port
    assert port

    async def main(proxy: Proxy) -> float:
        locks = aio.connect(url.replace(f":{port}", f":{proxy.port}"))
        try:
            await (await locks.lock("a").acquire(timeout=30)).release()
            proxy.blackhole()
            return await longest(locks)
        finally:
            proxy.all_well()
            await locks.close()

    with Proxy(port) as proxy:
        assert asyncio.run(main(proxy)) < TIMEOUT + SLACK
