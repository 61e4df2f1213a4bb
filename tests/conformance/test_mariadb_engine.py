"""The MySQL store passes the conformance suite through your own engine, at SERIALIZABLE and with a pool of one."""

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from leasehold.testing import StoreUnderTest
from leasehold.testing.conformance import *  # noqa: F403

from .sql_engines import Engines, WithEngines
from .sql_probes import MySQLProbe

pytestmark = [pytest.mark.server, pytest.mark.slow]
SERIALIZABLE = {"init_command": "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE"}


@pytest.fixture
def store(mariadb_server: Any) -> Iterator[StoreUnderTest]:
    where = f"root@127.0.0.1:{mariadb_server.port}/leasehold"
    one = {"connect_args": SERIALIZABLE, "pool_size": 1, "max_overflow": 0}
    engines = Engines(
        lambda: sqlalchemy.create_engine(f"mysql+pymysql://{where}", **one),
        lambda: create_async_engine(f"mysql+aiomysql://{where}", **one),
    )
    probe = MySQLProbe(mariadb_server.port)
    yield WithEngines(
        "mariadb engine",
        mariadb_server.url,
        probe,
        ttl=1.0,
        slack=0.6,
        client=engines.make,
        count_files=False,
        wipe=probe.wipe,
        age=probe.age,
        joint=True,
    )
    engines.close()
