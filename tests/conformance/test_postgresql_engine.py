"""The PostgreSQL store passes the conformance suite through your own engine, at SERIALIZABLE and with a pool of one."""

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from leasehold.testing import StoreUnderTest
from leasehold.testing.conformance import *  # noqa: F403

from .sql_engines import Engines, WithEngines
from .sql_probes import PostgreSQLProbe

pytestmark = [pytest.mark.server, pytest.mark.slow]
SERIALIZABLE = {"options": "-c default_transaction_isolation=serializable"}


@pytest.fixture
def store(postgresql_server: Any) -> Iterator[StoreUnderTest]:
    url = postgresql_server.url.replace("postgresql://", "postgresql+psycopg://")
    engines = Engines(
        lambda: sqlalchemy.create_engine(url, connect_args=SERIALIZABLE, pool_size=1, max_overflow=0),
        lambda: create_async_engine(url, connect_args=SERIALIZABLE, pool_size=1, max_overflow=0),
    )
    probe = PostgreSQLProbe(postgresql_server.url)
    # Other processes open the URL.
    yield WithEngines(
        "postgresql engine",
        postgresql_server.url,
        probe,
        client=engines.make,
        count_files=False,
        wipe=probe.wipe,
        age=probe.age,
        joint=True,
    )
    engines.close()
