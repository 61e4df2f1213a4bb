"""Standbys, read-only servers, and PgBouncer: what is refused, and what works with less."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from sql_servers import Database, at_rest, inside

import leasehold
from leasehold import StoreNotReady, StoreUnavailable, aio
from leasehold.stores.sql import doctor as sql_doctor
from leasehold.testing.handles import eventually
from servers.pgbouncer import PgBouncer
from servers.postgresql import PostgreSQL, Standby

pytestmark = pytest.mark.server


async def test_a_streaming_replica_is_refused_until_it_is_promoted(start_server: Callable[..., Any]) -> None:
    """D2: leases are taken on the primary only."""
    primary = start_server(PostgreSQL)
    with leasehold.connect(primary.url, ttl=120) as locks:
        held = locks.lock("name").acquire()
        standby = start_server(Standby, primary)
        eventually(lambda: Database(primary).sql("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'"))

        with leasehold.connect(standby.url) as others, pytest.raises(StoreNotReady, match=r"primary.*standby"):
            others.lock("name").try_acquire()
        async with aio.connect(standby.url) as tasks:
            with pytest.raises(StoreNotReady, match=r"primary.*standby"):
                await tasks.lock("name").try_acquire()
        assert any(each.level == "error" and "standby" in each.message for each in sql_doctor.doctor(standby.url))
        warnings = [each for each in sql_doctor.doctor(primary.url) if each.subject == "replication"]
        assert "none synchronous" in warnings[0].message

        # libpq finds the primary among several.
        both = f"postgresql://postgres@127.0.0.1:{standby.port},127.0.0.1:{primary.port}/postgres"
        with leasehold.connect(f"{both}?target_session_attrs=read-write") as found:
            assert found.lock("name").try_acquire() is None

        last = Database(primary).sql("SELECT pg_current_wal_lsn()")[0][0]
        eventually(lambda: Database(standby).sql("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", last)[0][0])
        primary.kill()
        Database(standby).sql("SELECT pg_promote()")
        with leasehold.connect(standby.url) as others:
            assert others.lock("name").try_acquire() is None  # the lease has come along
            assert others.lock("other").acquire().token > held.token


def test_mysql_that_only_reads_is_refused(mysql_server: Any) -> None:
    """D2: ``super_read_only``, which binds administrators too. (MariaDB's ``read_only``: in ``test_sql``.)"""
    database = Database(mysql_server)
    sql_doctor.init(database.url)
    with leasehold.connect(database.url, namespace="reads", ttl=120) as before:
        held = before.lock("name", renew=False).acquire()
        at_rest(before)  # so that nobody else uses its connection
        database.sql("SET GLOBAL super_read_only = 1")
        try:
            with leasehold.connect(database.url) as locks, pytest.raises(StoreNotReady, match="primary"):
                locks.lock("name").try_acquire()
            # A connection of before learns it from its statement: a failover may be under way.
            with pytest.raises(StoreUnavailable, match="read-only"):
                held.renew()
            assert any(each.level == "error" and "primary" in each.message for each in sql_doctor.doctor(database.url))
        finally:
            database.sql("SET GLOBAL read_only = 0")
        held.renew()
        assert held.release()


@pytest.fixture
def pooled(postgresql_server: Any, start_server: Callable[..., Any]) -> Any:
    """PgBouncer in transaction mode: two statements of one client meet different connections."""
    return start_server(PgBouncer, postgresql_server, "transaction")


def test_pgbouncer_in_transaction_mode_has_no_push_but_works(pooled: Any, namespace: str) -> None:
    with (
        leasehold.connect(pooled.url, namespace=namespace, ttl=30) as one,
        leasehold.connect(pooled.url, namespace=namespace, ttl=30) as two,
    ):
        holders, rounds, wrong = 0, 0, 0

        def work(locks: leasehold.Locks) -> None:
            nonlocal holders, rounds, wrong
            for _ in range(5):
                with locks.lock("name", timeout=60) as lease:
                    holders += 1
                    wrong += holders != 1
                    time.sleep(0.002)
                    lease.renew()
                    rounds += 1
                    holders -= 1

        threads = [threading.Thread(target=work, args=(locks,)) for locks in (one, two) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (rounds, wrong) == (30, 0)
        drivers: list[Any] = [inside(one).driver, inside(two).driver]
        assert [driver.listen("", None) for driver in drivers] == [False, False]
        # Statements that were prepared on another connection than this one had to be sent again, whole.
        assert not all(driver.session.prepares for driver in drivers)


async def test_pgbouncer_in_transaction_mode_under_asyncio(pooled: Any, namespace: str) -> None:
    async with aio.connect(pooled.url, namespace=namespace, ttl=30) as locks:
        first = await locks.lock("name").acquire()
        assert await locks.lock("name").try_acquire() is None
        async with aio.connect(pooled.url, namespace=namespace) as others:
            waiting = asyncio.ensure_future(others.lock("name").acquire(timeout=60).__aenter__())
            await asyncio.sleep(1.5)
            driver: Any = inside(others).driver
            assert await driver.listen("", None) is False
            await first.release()
            second = await waiting
            assert second.token > first.token
            await second.release()


def test_pgbouncer_in_session_mode_has_push(
    postgresql_server: Any, namespace: str, start_server: Callable[..., Any]
) -> None:
    pooler = start_server(PgBouncer, postgresql_server, "session", 12)
    with leasehold.connect(pooler.url, namespace=namespace) as locks:
        driver: Any = inside(locks).driver
        eventually(lambda: driver.listen("", None))
    assert [each.level for each in sql_doctor.doctor(pooler.url) if each.subject == "push"] == ["ok"]


def test_doctor_sees_a_pooler_in_transaction_mode(pooled: Any) -> None:
    sql_doctor.init(pooled.url)
    (finding,) = [each for each in sql_doctor.doctor(pooled.url) if each.subject == "push"]
    assert finding.level == "warning"
    assert "transaction mode" in finding.message
