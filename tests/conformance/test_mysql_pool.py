"""The MySQL store passes the conformance suite through an aiomysql pool of one connection, under asyncio."""

import asyncio
from collections.abc import Iterator
from typing import Any

import aiomysql
import pytest

from leasehold.testing import StoreUnderTest
from leasehold.testing.conformance import *  # noqa: F403
from leasehold.testing.conformance.fixtures import open_scene
from leasehold.testing.scene import Scene

from .sql_engines import ClosesItsClient
from .sql_probes import MySQLProbe

pytestmark = [pytest.mark.server, pytest.mark.slow]


class WithPool(ClosesItsClient):
    async def close_client(self, client: Any) -> None:
        client.close()
        await client.wait_closed()


@pytest.fixture(params=["mariadb", "mysql"])
def store(request: pytest.FixtureRequest) -> StoreUnderTest:
    server = request.getfixturevalue(f"{request.param}_server")
    place = {"host": "127.0.0.1", "port": server.port, "user": "root", "db": "leasehold", "charset": "utf8mb4"}

    def client(side: str) -> Any:
        return aiomysql.Pool(0, 1, False, -1, loop=asyncio.get_running_loop(), **place)

    probe = MySQLProbe(server.port)
    # Other processes open the URL.
    return WithPool(
        f"{request.param} pool",
        server.url,
        probe,
        ttl=1.0,
        slack=0.6,
        client=client,
        count_files=False,
        wipe=probe.wipe,
        age=probe.age,
        joint=True,
    )


@pytest.fixture(params=["asyncio"])
def scene(request: pytest.FixtureRequest, store: StoreUnderTest) -> Iterator[Scene]:
    yield from open_scene(request, store, request.param)
