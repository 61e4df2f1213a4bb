"""Fences in SQL databases: what looks like a fence and protects nothing is refused; what is valid passes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

import leasehold
from leasehold import fence
from leasehold.fence import sql

SERVERS = [pytest.param(each, marks=pytest.mark.server) for each in ("postgresql", "mariadb", "mysql")]
DRIVERS = {
    "postgresql": ("psycopg", "psycopg2", "asyncpg"),
    "mariadb": ("pymysql",),  # aiomysql 0.3 cannot send bytes with the newest PyMySQL
    "mysql": ("pymysql",),
    "sqlite": ("pysqlite",),
}


@pytest.fixture(params=["sqlite", *SERVERS])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> sa.URL:
    if request.param == "sqlite":
        return sa.make_url(f"sqlite:///{tmp_path}/data.db")
    return sa.make_url(request.getfixturevalue(f"{request.param}_server").url)


@pytest.fixture
def engine(database: sa.URL) -> Iterator[sa.Engine]:
    driver = DRIVERS[database.get_backend_name()][0]
    engine = sa.create_engine(database.set(drivername=f"{database.get_backend_name()}+{driver}"))
    yield engine
    engine.dispose()


@pytest.fixture
def fences(engine: sa.Engine) -> Iterator[sql.Fences]:
    fences = sql.Fences(table=f"fences_{uuid.uuid4().hex[:8]}")
    with engine.begin() as connection:
        fences.create(connection)
    yield fences
    with engine.begin() as connection:
        fences.table.drop(connection)


@pytest.fixture
def locks() -> Iterator[leasehold.Locks]:
    with leasehold.connect(f"memory://{uuid.uuid4().hex}", ttl=60) as locks:
        yield locks


async def test_fences_refuse_a_connection_in_autocommit(
    database: sa.URL, fences: sql.Fences, locks: leasehold.Locks
) -> None:
    with locks.lock("x") as lease:
        for driver in DRIVERS[database.get_backend_name()]:
            url = database.set(drivername=f"{database.get_backend_name()}+{driver}")
            if driver == "asyncpg":
                tasks = create_async_engine(url)
                async with tasks.connect() as asyncio:
                    alone = await asyncio.execution_options(isolation_level="AUTOCOMMIT")
                    with pytest.raises(ValueError, match="Fences needs a connection with an open transaction"):
                        await alone.run_sync(fences.check, lease)
                async with tasks.begin() as asyncio:
                    assert await asyncio.run_sync(fences.check, lease) == lease.token
                await tasks.dispose()
                continue
            threads = sa.create_engine(url)
            with threads.connect().execution_options(isolation_level="AUTOCOMMIT") as alone:
                with pytest.raises(ValueError, match="Fences needs a connection with an open transaction"):
                    fences.check(alone, lease)
                alone.exec_driver_sql("BEGIN")
                assert fences.check(alone, lease) == lease.token  # a transaction of the caller's own
                alone.exec_driver_sql("ROLLBACK")
            with threads.connect() as connection:
                assert fences.check(connection, lease) == lease.token
            threads.dispose()


def test_leases_of_two_namespaces_have_a_fence_each(engine: sa.Engine, fences: sql.Fences) -> None:
    store = f"memory://{uuid.uuid4().hex}"
    with leasehold.connect(store, namespace="a") as a, leasehold.connect(store, namespace="b") as b:
        first, second = a.lock("x").acquire(), b.lock("x").acquire()
        assert first.token < second.token
        for lease in (second, first):
            with engine.begin() as connection:
                fences.check(connection, lease)
                fences.check(connection, lease, "resource")
        with engine.begin() as connection:
            fences.check(connection, a.lock("later").acquire(), "resource")
            with pytest.raises(fence.StaleToken):
                fences.check(connection, first, "resource")


def test_a_table_of_fences_from_before_namespaces_goes_on_fencing(engine: sa.Engine, locks: leasehold.Locks) -> None:
    fences = sql.Fences(table=f"fences_{uuid.uuid4().hex[:8]}")
    new = fences.table
    old = sa.Table(
        new.name,
        sa.MetaData(),
        sa.Column("name", new.c.name.type, primary_key=True),
        sa.Column("token", sa.BigInteger, nullable=False),
    )
    first, second = locks.lock("first").acquire(), locks.lock("second").acquire()
    with engine.begin() as connection:
        old.create(connection)
        connection.execute(sa.insert(old).values(name="x", token=second.token))
    with engine.connect() as connection, pytest.raises(leasehold.StoreNotReady, match=r"Fences\.create"):
        fences.check(connection, second, "x")
    for _ in range(2):
        with engine.begin() as connection:
            fences.create(connection)
    with engine.begin() as connection:
        with pytest.raises(fence.StaleToken):
            fences.check(connection, first, "x")
        assert fences.check(connection, second, "x") == second.token
        # A process that has not been upgraded yet.
        assert connection.execute(sa.update(old).where(old.c.name == "x").values(token=second.token)).rowcount == 1
        connection.execute(sa.insert(old).values(name="y", token=1))
    with engine.begin() as connection:
        new.drop(connection)


def test_execute_takes_an_update_that_returns_rows(engine: sa.Engine, locks: leasehold.Locks) -> None:
    if engine.dialect.name not in ("sqlite", "postgresql"):
        return  # no UPDATE … RETURNING
    rows = sa.Table(
        f"rows_{uuid.uuid4().hex[:8]}",
        sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("balance", sa.Integer),
        sa.Column("token", sa.BigInteger),
    )
    with locks.lock("first") as old, locks.lock("second") as new, engine.begin() as connection:
        rows.create(connection)
        connection.execute(sa.insert(rows), [{"id": 1, "balance": 1}, {"id": 2, "balance": 2}])
        change = sa.update(rows).values(balance=rows.c.balance + 10).returning(rows.c.id, rows.c.balance)
        assert sorted(sql.execute(connection, change, rows.c.token, new).all()) == [(1, 11), (2, 12)]
        with pytest.raises(fence.StaleToken):
            sql.execute(connection, change, rows.c.token, old)
        assert connection.scalars(sa.select(rows.c.balance).order_by(rows.c.id)).all() == [11, 12]
        rows.drop(connection)
