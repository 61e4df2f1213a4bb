"""MariaDB's sql_mode SIMULTANEOUS_ASSIGNMENT, in which an UPDATE's assignments do not see each other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pymysql
import pytest
import sqlalchemy

import leasehold
from leasehold.testing.handles import eventually
from servers.mysql import MariaDB
from servers.plugin import shared

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

DAY = 86_400_000_000
LONG = 10 * 86_400.0


class Simultaneous(MariaDB):
    quick: ClassVar[list[str]] = [*MariaDB.quick, "--sql-mode=STRICT_TRANS_TABLES,SIMULTANEOUS_ASSIGNMENT"]


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with contextmanager(shared)(Simultaneous) as server:
        yield server


@pytest.fixture(params=["url", "engine"])
def locks(server: Any, request: pytest.FixtureRequest) -> Iterator[leasehold.Locks]:
    engine = sqlalchemy.create_engine(server.url.replace("mariadb://", "mysql+pymysql://"))
    with leasehold.connect(server.url if request.param == "url" else engine) as locks:
        yield locks
    engine.dispose()
    sql(server, "DELETE FROM leasehold")


def sql(server: Any, statement: str) -> Any:
    place = {"host": "127.0.0.1", "port": server.port, "user": "root", "database": "leasehold"}
    with pymysql.connect(**place, autocommit=True) as connection:
        cursor = connection.cursor()
        cursor.execute(statement)
        return cursor.fetchall()


def test_purge_keeps_a_live_lease_that_was_renewed(server: Any, locks: leasehold.Locks) -> None:
    locks.lock("free").acquire(timeout=30).release()
    lease = locks.lock("renewed", ttl=LONG, renew=False).acquire(timeout=30)
    sql(server, f"UPDATE leasehold SET expires = expires - 9 * {DAY}, expires_day = expires_day - 9")
    lease.renew()
    sql(server, "UPDATE leasehold SET expires_day = expires_day - 5")  # as five days later
    with leasehold.connect(server.url) as others:  # whose first lease purges
        assert others.lock("another").acquire(timeout=30).release()
        eventually(lambda: sql(server, "SELECT COUNT(*) FROM leasehold WHERE name = 'free'") == ((0,),))
    assert locks.inspect("renewed") is not None, "SAFETY: a live lease was purged"
    assert lease.release()


def test_accepted_grant_keeps_its_day_of_expiry(server: Any, locks: leasehold.Locks) -> None:
    lease = locks.lock("accepted", ttl=60).acquire(timeout=30)
    taken: list[leasehold.Lease] = []
    waiter = threading.Thread(target=lambda: taken.append(locks.lock("accepted", ttl=LONG).acquire(timeout=30)))
    waiter.start()
    eventually(lambda: locks.inspect("accepted").waiters == 1)
    lease.release()
    waiter.join()
    assert sql(server, f"SELECT expires_day = expires DIV {DAY} FROM leasehold WHERE name = 'accepted'") == ((1,),)
    assert taken[0].release()


def test_note_is_kept_until_it_is_forgotten(server: Any, locks: leasehold.Locks) -> None:
    once = locks.once("noted", version=1)
    assert once.run(lambda: 7).result == 7
    never = "SELECT expires_day = 2147483647 FROM leasehold WHERE name = 'noted' AND note IS NOT NULL"
    assert sql(server, never) == ((1,),)
    once.forget()
    there = "SELECT COUNT(*) FROM leasehold WHERE name = 'noted' AND expires_day = 2147483647 AND note IS NULL"
    assert sql(server, there) == ((0,),)


def test_lapsed_name_is_taken_for_a_transaction(server: Any, locks: leasehold.Locks) -> None:
    locks.lock("lapsed", ttl=60, renew=False).acquire(timeout=30)
    sql(server, f"UPDATE leasehold SET expires = expires - {DAY} WHERE name = 'lapsed'")
    place = {"host": "127.0.0.1", "port": server.port, "user": "root", "database": "leasehold"}
    with pymysql.connect(**place) as connection:
        token = locks.lock("lapsed").in_transaction(connection)
        connection.commit()
    row = "SELECT token, state, expires = acquired FROM leasehold WHERE name = 'lapsed'"
    assert sql(server, row) == ((token, 0, 1),)
