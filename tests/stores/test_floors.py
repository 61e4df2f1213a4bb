"""What bench/ compares with: the bare peers use leasehold's own statements and scripts, and must follow them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

FLOORS = {
    "postgresql": "bare_postgresql",
    "mariadb": "bare_mysql",
    "mysql": "bare_mysql",
    "redis": "bare_redis",
    "mongodb": "bare_mongodb",
    "etcd": "bare_etcd",
    "zookeeper": "bare_kazoo",
}


def peer(module: str, target: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    return import_module(f"bench.peers.{module}").Peer(target)


@pytest.mark.server
@pytest.mark.parametrize("kind", list(FLOORS))
async def test_a_bare_peer_takes_and_gives_back(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = request.getfixturevalue(f"{kind}_server")
    bare = peer(FLOORS[kind], server.url, monkeypatch)
    name = "a name of its own"  # the servers are shared with other tests
    for _ in range(2):  # the second finds it free
        bare.release(bare.acquire(name))
    if bare.has_asyncio():
        for _ in range(2):
            await bare.arelease(await bare.aacquire(name))
        await bare.aclose()
    bare.close()
