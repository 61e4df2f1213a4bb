"""The SQL stores pass the conformance suite at every isolation level, through a URL and through a user's engine.

The engines with SERIALIZABLE and a pool of one are in ``test_postgresql_engine`` and ``test_mariadb_engine``.
"""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from leasehold.stores.sql.requests import Statement
from leasehold.testing import StoreUnderTest
from leasehold.testing.conformance import *  # noqa: F403
from leasehold.testing.inside import core
from leasehold.testing.store import ASYNCIO, THREADS

from .sql_engines import Engines, WithEngines
from .sql_probes import MySQLProbe, PostgreSQLProbe

pytestmark = [pytest.mark.server, pytest.mark.slow]
CASES = [
    ("postgresql", "REPEATABLE READ", "url"),
    ("postgresql", "REPEATABLE READ", "engine"),
    ("postgresql", "SERIALIZABLE", "url"),
    ("mariadb", "READ COMMITTED", "url"),
    ("mariadb", "READ COMMITTED", "engine"),
    ("mariadb", "SERIALIZABLE", "url"),
    ("mysql", "READ COMMITTED", "url"),
    ("mysql", "SERIALIZABLE", "url"),
    ("mysql", "SERIALIZABLE", "engine"),
]
ASKED = {
    "postgresql": "SHOW transaction_isolation",
    "mariadb": "SELECT @@tx_isolation",
    "mysql": "SELECT @@transaction_isolation",
}


@pytest.fixture(params=CASES, ids=" ".join)
def store(request: pytest.FixtureRequest) -> Iterator[StoreUnderTest]:
    kind, level, through = request.param
    server = request.getfixturevalue(f"{kind}_server")
    make = postgresql if kind == "postgresql" else mysql
    yield from make(server, level, through)


def postgresql(server: Any, level: str, through: str) -> Iterator[StoreUnderTest]:
    escaped = level.lower().replace(" ", "\\ ")
    setting = f"-c default_transaction_isolation={escaped}"
    url = f"{server.url}?options={quote(setting)}"
    driver = server.url.replace("postgresql://", "postgresql+psycopg://")
    engines = Engines(
        lambda: sqlalchemy.create_engine(driver, connect_args={"options": setting}),
        lambda: create_async_engine(driver, connect_args={"options": setting}),
    )
    probe = PostgreSQLProbe(server.url)
    given = engines if through == "engine" else None
    yield under_test(f"{server.kind} {level} {through}", url, probe, given)
    engines.close()


def mysql(server: Any, level: str, through: str) -> Iterator[StoreUnderTest]:
    probe = MySQLProbe(server.port)
    where = f"root@127.0.0.1:{server.port}/leasehold"
    engines = Engines(
        lambda: sqlalchemy.create_engine(f"mysql+pymysql://{where}", connect_args=isolated(level)),
        lambda: create_async_engine(f"mysql+aiomysql://{where}", connect_args=isolated(level)),
    )
    given = engines if through == "engine" else None
    if given is None:  # new connections begin with the server's own level; ours can't be told another
        probe.query(f"SET GLOBAL TRANSACTION ISOLATION LEVEL {level}")
    try:
        yield under_test(f"{server.kind} {level} {through}", server.url, probe, given)
    finally:
        probe.query("SET GLOBAL TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        engines.close()


def isolated(level: str) -> dict[str, str]:
    return {"init_command": f"SET SESSION TRANSACTION ISOLATION LEVEL {level}"}


def under_test(name: str, url: str, probe: Any, engines: Engines | None) -> StoreUnderTest:
    client = engines.make if engines else None
    timing = {"ttl": 1.0, "slack": 0.6} if isinstance(probe, MySQLProbe) else {}
    more = {"client": client, "count_files": not engines, "wipe": probe.wipe, "age": probe.age, "joint": True}
    return WithEngines(name, url, probe, **more, **timing)


def check_level(store: StoreUnderTest, found: str) -> None:
    """``found`` is what a connection says to ``ASKED``."""
    assert found.upper().replace("-", " ") == store.name.partition(" ")[2].rpartition(" ")[0]


def asked(store: StoreUnderTest) -> Statement:
    return Statement(ASKED[store.name.partition(" ")[0]], {})


def test_connections_have_that_level(store: StoreUnderTest) -> None:
    """Else all the rest would show nothing."""
    with store.connect(THREADS) as locks:
        pool: Any = core(locks).driver.pool
        lent = pool.take(5.0)
        result = lent.connection.execute(asked(store), 5.0)
        pool.give(lent, True)
    check_level(store, result.rows[0][0])


async def test_connections_of_tasks_have_that_level(store: StoreUnderTest) -> None:
    async with store.connect(ASYNCIO) as locks:
        pool: Any = core(locks).driver.pool
        lent = await pool.take(5.0)
        result = await lent.connection.execute(asked(store), 5.0)
        await pool.give(lent, True)
    check_level(store, result.rows[0][0])
