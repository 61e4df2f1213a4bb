"""The PostgreSQL store passes the conformance suite through your own psycopg pool of one connection."""

from collections.abc import Iterator
from typing import Any

import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from leasehold.testing import StoreUnderTest
from leasehold.testing.conformance import *  # noqa: F403

from .sql_engines import ClosesItsClient
from .sql_probes import PostgreSQLProbe

pytestmark = [pytest.mark.server, pytest.mark.slow]


class OpenedOnUse(AsyncConnectionPool):
    """A test makes its client where there is no loop yet."""

    async def getconn(self, timeout: float | None = None) -> Any:
        if self.closed and not self._opened:
            await self.open()
        return await super().getconn(timeout)


@pytest.fixture
def store(postgresql_server: Any) -> Iterator[StoreUnderTest]:
    made: list[Any] = []

    def client(side: str) -> Any:
        kind: Any = ConnectionPool if side == "threads" else OpenedOnUse
        made.append(kind(postgresql_server.url, min_size=1, max_size=1, open=side == "threads"))
        return made[-1]

    probe = PostgreSQLProbe(postgresql_server.url)
    # Other processes open the URL.
    yield ClosesItsClient(
        "postgresql pool",
        postgresql_server.url,
        probe,
        client=client,
        count_files=False,
        wipe=probe.wipe,
        age=probe.age,
        joint=True,
    )
    for pool in made:
        if isinstance(pool, ConnectionPool):
            pool.close()
