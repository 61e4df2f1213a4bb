"""Push on the SQL servers: connections that break, and what a listener must not hold up."""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any
from unittest.mock import AsyncMock, Mock

import psycopg
import pymysql
import pytest
import sqlalchemy
from sql_servers import Database, hears, inside, statements

import leasehold
from leasehold import aio
from leasehold.core import clock, timing
from leasehold.core.protocol import ALL, HELD, Busy, Holding
from leasehold.stores.mysql import listener as mysql_listener
from leasehold.stores.mysql import threads as mysql_threads
from leasehold.stores.mysql.listener import INTERRUPTED, SleepingListener
from leasehold.stores.mysql.sql import MySQL, listener_lock, sleep_lock
from leasehold.stores.postgresql import tasks as postgresql_tasks
from leasehold.stores.postgresql import threads as postgresql_threads
from leasehold.stores.postgresql.sql import PostgreSQL
from leasehold.stores.sql import tasks as sql_tasks
from leasehold.stores.sql import threads as sql_threads
from leasehold.stores.sql.dialect import OnlyReads
from leasehold.stores.sql.requests import Refused, Result, Statement
from leasehold.stores.sql.session import Session
from leasehold.testing.handles import eventually
from servers.mysql import MariaDB
from servers.pgbouncer import PgBouncer
from servers.proxy import Proxy

pytestmark = pytest.mark.server


@pytest.fixture
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener whose proof did not arrive, because the machine stood still or the network broke in the middle of it,
    tries again at once: where that is not what the test is about."""
    for module in (sql_threads, sql_tasks):
        monkeypatch.setattr(module, "RETRY_WITHOUT_PUSH", sql_threads.RETRY)


def sleeps(database: Database, locks: Any) -> bool:
    """MySQL: whether its listener sleeps in the server, and can be rung. One that is about to may miss a ring."""
    address = inside(locks).driver.session.address
    found = "SELECT IS_USED_LOCK(%s) = IS_USED_LOCK(%s)"
    return database.is_postgresql or database.sql(found, listener_lock(address), sleep_lock(address)) == [(1,)]


@pytest.mark.usefixtures("soon_again")
def test_a_dropped_connection_is_replaced(database: Database, namespace: str) -> None:
    """MySQL: though the server still has the old one, asleep, with the lock by which it is found."""
    with (
        Proxy(database.port) as proxy,
        leasehold.connect(database.at(proxy.port), namespace=namespace) as locks,
    ):
        eventually(lambda: hears(locks))
        for _ in range(2):
            proxy.reset()
            eventually(lambda: not hears(locks))
            proxy.all_well()
            eventually(lambda: hears(locks))
        with leasehold.connect(database.url, namespace=namespace) as others:
            held = locks.lock("name", ttl=270).acquire()
            eventually(lambda: sleeps(database, locks))
            assert others.break_lease("name")  # rings its holder, who would learn it by himself after 90 s
            assert held.lost.wait(45)
            held.release()


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_lost_connection_that_takes_its_time_to_go_is_waited_for(
    kind: str, request: pytest.FixtureRequest, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else there would be no push for a minute."""
    database = Database(request.getfixturevalue(f"{kind}_server"))
    execute, killed, waited = mysql_threads.MySQLConnection.execute, [], []

    def late(self: Any, statement: Any, limit: float) -> Any:
        if killed and (wait := re.fullmatch(r"SELECT GET_LOCK\(%\(lock\)s, (\d+)\)", statement.sql)):
            # Longer than it would: a busy machine may take its time to kill.
            waited.append(int(wait[1]))
            return execute(self, Statement(statement.sql.replace(f" {wait[1]})", " 25)"), statement.values), 30.0)
        if not statement.sql.startswith("KILL "):
            return execute(self, statement, limit)
        killed.append(threading.Timer(1.3, database.sql, [statement.sql]))
        killed[-1].start()
        return Result((), 0)

    monkeypatch.setattr(mysql_threads.MySQLConnection, "execute", late)
    with leasehold.connect(database.url, namespace=namespace) as locks:
        driver: Any = inside(locks).driver
        old = database.connect()
        old.cursor().execute("SELECT GET_LOCK(%s, 1)", (listener_lock(driver.session.address),))
        eventually(lambda: hears(locks), sql_threads.RETRY_WITHOUT_PUSH / 2)
        assert len(killed) == 1
        assert waited[0] > 1.3
        killed[0].join()
        old.close()


@pytest.mark.usefixtures("soon_again")
def test_a_connection_that_fell_silent_is_noticed(
    postgresql_server: Any, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_threads, "CHECK_EVERY", 0.3)
    database = Database(postgresql_server)
    with (
        Proxy(database.port) as proxy,
        leasehold.connect(database.at(proxy.port), namespace=namespace) as locks,
    ):
        eventually(lambda: hears(locks))
        proxy.blackhole()
        eventually(lambda: not hears(locks))
        proxy.all_well()
        eventually(lambda: hears(locks))


@pytest.mark.usefixtures("soon_again")
async def test_a_connection_that_fell_silent_is_noticed_under_asyncio(
    postgresql_server: Any, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_tasks, "CHECK_EVERY", 0.3)
    database = Database(postgresql_server)
    with Proxy(database.port) as proxy:
        async with aio.connect(database.at(proxy.port), namespace=namespace) as locks:
            driver: Any = inside(locks).driver
            for wanted, change in ((True, proxy.all_well), (False, proxy.blackhole), (True, proxy.all_well)):
                change()
                async with asyncio.timeout(60):
                    while await driver.listen("", None) is not wanted:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)


@pytest.mark.usefixtures("soon_again")
@pytest.mark.parametrize("side", [postgresql_threads, postgresql_tasks], ids=["threads", "asyncio"])
async def test_the_proof_of_an_earlier_attempt_to_listen_proves_nothing(
    side: Any,
    postgresql_server: Any,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A pooler may hand over late what was sent for a listener that has given up: the next one is deaf all the same."""
    caplog.set_level("DEBUG", "leasehold")
    prove = postgresql_threads.proof
    sent: list[Any] = []
    earlier: list[Any] = []

    def late(*of_what: str) -> Any:
        sent.append(prove(*of_what))
        return earlier[0] if earlier else sent[-1]

    monkeypatch.setattr(side, "proof", late)
    database = Database(postgresql_server)
    with Proxy(database.port) as proxy:
        connect = leasehold.connect if side is postgresql_threads else aio.connect
        locks: Any = connect(database.at(proxy.port), namespace=namespace)
        driver = inside(locks).driver

        async def hears_it() -> bool:
            found = driver.listen("", None)
            return bool(found if side is postgresql_threads else await found)

        async def until(hears: bool, told: str = "") -> None:
            async with asyncio.timeout(60):
                while await hears_it() is not hears or told not in caplog.text:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

        await until(True)
        earlier.append(sent[-1])
        caplog.clear()
        proxy.reset()
        await until(False)
        proxy.all_well()
        await until(False, "no notification arrives")
        assert len(sent) > 1
        closing = locks.close()
        if closing is not None:
            await closing


def test_a_proof_that_a_busy_machine_delays_is_waited_for(
    postgresql_server: Any, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else there would be no push for a minute."""
    prove, hear = postgresql_threads.proof, postgresql_threads.notifications
    sent: list[float] = []

    def proof(*of_what: str) -> Any:
        sent.append(time.monotonic())
        return prove(*of_what)

    monkeypatch.setattr(postgresql_threads, "proof", proof)
    monkeypatch.setattr(
        postgresql_threads, "notifications", lambda raw: hear(raw) if time.monotonic() > sent[0] + 1.5 else []
    )
    with leasehold.connect(postgresql_server.url, namespace=namespace) as locks:
        eventually(lambda: hears(locks), sql_threads.RETRY_WITHOUT_PUSH / 2)


@contextmanager
def another_waits(database: Database, namespace: str, token: int) -> Iterator[None]:
    """For the name that is held with this token, and hears rings; it gets it, though perhaps by a look of its own."""
    with leasehold.connect(database.url, namespace=namespace) as others:
        got: list[Any] = []
        waiter = threading.Thread(target=lambda: got.append(others.lock("name").acquire(timeout=90)))
        waiter.start()
        eventually(lambda: (info := others.inspect("name")) is not None and info.waiters == 1)
        eventually(lambda: hears(others))
        yield
        waiter.join()
        assert got[0].token > token
        got[0].release()


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_release_that_is_done_does_not_fail_over_the_ring(
    kind: str, request: pytest.FixtureRequest, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network breaks between the two."""
    database = Database(request.getfixturevalue(f"{kind}_server"))
    with (
        Proxy(database.port) as proxy,
        leasehold.connect(f"{database.at(proxy.port)}?push=off", namespace=namespace) as locks,
    ):
        lease = locks.lock("name").acquire()
        with another_waits(database, namespace, lease.token):
            ring = MySQL.wake_sleeping

            def broken(self: MySQL, session: str) -> Any:
                proxy.reset()
                return ring(self, session)

            with monkeypatch.context() as patch:
                patch.setattr(MySQL, "wake_sleeping", broken)
                assert lease.release() is True
            proxy.all_well()
        locks.lock("other").acquire().release()  # the broken connection was not kept


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_who_sleeps_is_found_and_rung_in_one_statement(
    kind: str, request: pytest.FixtureRequest, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "FALLBACK", 1000.0)  # by the ring alone
    database = Database(request.getfixturevalue(f"{kind}_server"))
    with (
        leasehold.connect(f"{database.url}?push=off", namespace=namespace, ttl=270) as one,
        leasehold.connect(database.url, namespace=namespace, ttl=270) as two,
    ):
        lease = one.lock("name").acquire()
        got: list[Any] = []
        waiter = threading.Thread(target=lambda: got.append(two.lock("name").acquire(timeout=60)))
        waiter.start()
        eventually(lambda: (info := one.inspect("name")) is not None and info.waiters == 1)
        eventually(lambda: hears(two) and sleeps(database, two))
        sent = statements(monkeypatch)
        assert lease.release()
        waiter.join()
        assert got[0].token > lease.token
        assert [each for each in sent if "IS_USED_LOCK" in each] == ["KILL QUERY IS_USED_LOCK(%(asleep)s)"]
        got[0].release()


def no_answer_to_rings(patch: pytest.MonkeyPatch, proxy: Proxy) -> None:
    ring = MySQL.wake_sleeping

    def hung(self: MySQL, session: str) -> Any:
        proxy.blackhole()
        return ring(self, session)

    patch.setattr(MySQL, "wake_sleeping", hung)


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_ring_that_is_not_answered_holds_up_nobody(
    kind: str, request: pytest.FixtureRequest, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it tells of is done: a takeover that waited for it, as long as a call may take, was of no use any more."""
    database = Database(request.getfixturevalue(f"{kind}_server"))
    monkeypatch.setattr(timing, "CALL_LIMIT", 60.0)  # far longer than a machine stands still
    with (
        Proxy(database.port) as proxy,
        leasehold.connect(f"{database.at(proxy.port)}?push=off", namespace=namespace, ttl=270) as locks,
    ):
        lease = locks.lock("name").acquire()
        with another_waits(database, namespace, lease.token), monkeypatch.context() as patch:
            no_answer_to_rings(patch, proxy)
            began = time.monotonic()
            assert lease.release() is True
            assert time.monotonic() - began < timing.CALL_LIMIT / 2
            proxy.all_well()


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
async def test_a_ring_that_is_not_answered_holds_up_no_task(
    kind: str, request: pytest.FixtureRequest, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(request.getfixturevalue(f"{kind}_server"))
    monkeypatch.setattr(timing, "CALL_LIMIT", 60.0)
    with Proxy(database.port) as proxy:
        async with aio.connect(f"{database.at(proxy.port)}?push=off", namespace=namespace, ttl=270) as locks:
            lease = await locks.lock("name").acquire()
            with another_waits(database, namespace, lease.token), monkeypatch.context() as patch:
                no_answer_to_rings(patch, proxy)
                began = time.monotonic()
                assert await lease.release() is True
                assert time.monotonic() - began < timing.CALL_LIMIT / 2
                proxy.all_well()


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_ring_that_came_between_two_sleeps_is_made_up_for(
    kind: str, request: pytest.FixtureRequest, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listener on a busy machine is held up for longer than who rings waits for it to sleep again. And a ring for
    what is held is heard, though one who is next in a queue may have been meant."""
    monkeypatch.setattr(timing, "FALLBACK", 1000.0)  # by the ring alone
    database = Database(request.getfixturevalue(f"{kind}_server"))
    sleep, up, done = SleepingListener.sleep, threading.Event(), threading.Event()

    def held_up(self: SleepingListener) -> Any:
        if self._session is inside(two).driver.session and up.is_set() and not done.is_set():
            done.wait(30)
        called = yield from sleep(self)
        return called

    with (
        leasehold.connect(database.url, namespace=namespace) as one,
        leasehold.connect(database.url, namespace=namespace) as two,
    ):
        monkeypatch.setattr(SleepingListener, "sleep", held_up)
        lease, broken = one.lock("name", ttl=270).acquire(), two.lock("broken", ttl=270).acquire()
        got: list[Any] = []
        waiter = threading.Thread(target=lambda: got.append(two.lock("name").acquire(timeout=60)))
        waiter.start()
        eventually(lambda: (info := one.inspect("name")) is not None and info.waiters == 1)
        eventually(lambda: hears(two) and sleeps(database, two))
        up.set()
        assert one.break_lease("broken")
        assert broken.lost.wait(45)  # its listener was rung, and is held up now
        lease.release()
        done.set()
        waiter.join()
        got[0].release()


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_rings_at_the_same_time_do_not_hold_each_other_up(
    kind: str, request: pytest.FixtureRequest, namespace: str
) -> None:
    """They do in MariaDB, for two seconds, when it is a plain SLEEP() that they end."""
    database = Database(request.getfixturevalue(f"{kind}_server"))
    ended, took = threading.Event(), []
    beats: list[float] = []

    def beat() -> None:
        """Tells when machine and server were at work: what rings hold up is other rings alone."""
        with database.connect() as connection:
            while not ended.is_set():
                connection.cursor().execute("SELECT 1")
                beats.append(time.monotonic())
                time.sleep(0.02)

    def held_up(began: float, over: float) -> bool:
        """Longer than a ring may take, though all else went on."""
        alive = [began, *(each for each in beats if began < each < over), over]
        return over - began > 1.8 and max(b - a for a, b in pairwise(alive)) < 0.6

    def sleep(number: int) -> None:
        statement = next(SleepingListener(Session(MySQL("leases", kind), f"{namespace}{number}")).sleep())
        with database.connect() as connection:
            asleep.append(connection.thread_id())
            cursor = connection.cursor()
            while not ended.is_set():
                try:
                    cursor.execute(statement.sql, statement.values)
                except pymysql.Error as error:
                    if error.args[0] not in INTERRUPTED:
                        raise

    def ring(own: random.Random) -> None:
        with database.connect() as connection:
            for _ in range(300):
                began = time.monotonic()
                connection.cursor().execute(f"KILL QUERY {own.choice(asleep)}")
                took.append((began, time.monotonic()))
                time.sleep(own.uniform(0, 0.02))

    asleep: list[int] = []
    with ThreadPoolExecutor(13) as pool:
        sleeping = [pool.submit(beat), *(pool.submit(sleep, number) for number in range(8))]
        eventually(lambda: len(asleep) == 8)
        try:
            for ringing in [pool.submit(ring, random.Random(number)) for number in range(4)]:
                ringing.result()
        finally:
            ended.set()
            while not all(each.done() for each in sleeping):
                for number in asleep:
                    with suppress(pymysql.Error):  # it is closed
                        database.sql(f"KILL QUERY {number}")
        for each in sleeping:
            each.result()
    assert sum(held_up(*each) for each in took) < 10  # of 1,200, where 39 were; a busy machine may delay some


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_one_who_waits_does_not_hold_up_a_change_of_the_table(
    kind: str, request: pytest.FixtureRequest, namespace: str
) -> None:
    database = Database(request.getfixturevalue(f"{kind}_server"))
    url = f"{database.url}?table=changed"
    with leasehold.connect(url, namespace=namespace) as one, leasehold.connect(url, namespace=namespace) as two:
        leases = [one.lock(name).acquire() for name in ("first", "second")]
        waiters = []
        for name, waiting in (("first", 1), ("second", 1), ("second", 2)):
            waiter = threading.Thread(target=lambda name=name: two.lock(name).acquire(timeout=60).release())
            waiters.append(waiter)
            waiter.start()
            eventually(lambda name=name, n=waiting: (info := one.inspect(name)) is not None and info.waiters == n)
        eventually(lambda: hears(two))
        leases[0].release()  # after this ring it sleeps again, and knows for what
        waiters[0].join()
        eventually(lambda: sleeps(database, one) and sleeps(database, two))
        connection = database.connect()
        cursor = connection.cursor()
        cursor.execute("SET SESSION lock_wait_timeout = 15")  # less than one who waits sleeps
        cursor.execute("ALTER TABLE changed COMMENT 'changed'")
        connection.close()
        leases[1].release()
        for waiter in waiters:
            waiter.join()
    database.sql("DROP TABLE changed")


def test_the_url_has_the_last_word(postgresql_server: Any, namespace: str) -> None:
    url = f"{postgresql_server.url}?application_name=billing&push=off"
    with leasehold.connect(url, namespace=namespace) as locks:
        locks.lock("name").acquire().release()
        found = Database(postgresql_server).sql("SELECT application_name FROM pg_stat_activity")
        assert ("billing",) in found


def asleep_listener() -> tuple[SleepingListener, Any]:
    """A session that two wait in, asleep."""
    standing = SleepingListener(Session(MySQL("leases", "mysql"), "n"))
    holder = Holding("x", "other", "o", "lock", None, 1, 0.0, 9.0)
    for attempt in ("a", "b"):
        standing.add(attempt, Busy(holder, 0, 9.0))
    sleep = standing.sleep()
    next(sleep)
    return standing, sleep


def asks_about(standing: SleepingListener) -> list[str]:
    """The names whose rows it reads when it is rung: those of attempts that have not been rung since."""
    sleep = standing.sleep()
    next(sleep)
    sleep.send(Result([(1, 1, 1)], 1))
    try:
        return sorted(set(sleep.send(Result([(1,)], 1)).values) - {"namespace"})
    except StopIteration:
        return []


def test_a_sleep_that_nobody_ends_is_followed_by_another_at_once() -> None:
    """An idle waiter is told nothing, and nothing is asked for it: it looks by itself more often than that."""
    standing, sleep = asleep_listener()
    assert "read_only" in sleep.send(Result([(1, 0, 1)], 1)).sql
    with pytest.raises(StopIteration) as end:
        sleep.send(Result([(0, 0)], 1))
    assert end.value.value == []
    assert asks_about(standing) == ["n0"], "both still wait, for the one name"


@pytest.mark.parametrize("said", [(1, 0), (0, 1), ("NO_LOCK", "OFF")])
def test_nobody_sleeps_on_in_a_server_that_has_become_a_replica(said: Any) -> None:
    _, sleep = asleep_listener()
    sleep.send(Result([(1, 0, 1)], 1))
    with pytest.raises(OnlyReads):
        sleep.send(Result([said], 1))


def test_a_ring_while_one_asks_whether_it_has_is_heard() -> None:
    _, sleep = asleep_listener()
    sleep.send(Result([(1, 0, 1)], 1))
    sleep.throw(Refused(INTERRUPTED[0], "interrupted"))
    sleep.send(Result([(1,)], 1))
    with pytest.raises(StopIteration) as end:
        sleep.send(Result([("b", None)], 1))
    assert end.value.value == ["b"]


def test_a_listener_leaves_a_server_that_has_become_a_replica(
    start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_listener, "SLEEP", 0.5)
    database = Database(start_server(MariaDB))
    with leasehold.connect(database.url) as locks:
        eventually(lambda: hears(locks))
        database.sql("SET GLOBAL read_only = 1")
        eventually(lambda: not hears(locks))
        database.sql("SET GLOBAL read_only = 0")
        eventually(lambda: hears(locks))


# Push is not believed in for ever.


def look_often(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The proofs that are sent from now on, by listeners to whom nobody speaks."""
    prove, sent = postgresql_threads.proof, []

    def proof(*of_what: str) -> Any:
        sent.append(of_what)
        return prove(*of_what)

    for side in (postgresql_threads, postgresql_tasks):
        monkeypatch.setattr(side, "CHECK_EVERY", 0.3)
        monkeypatch.setattr(side, "proof", proof)
    return sent


@pytest.mark.usefixtures("soon_again")
def test_a_pooler_that_is_switched_to_transaction_mode_is_noticed(
    postgresql_server: Any, namespace: str, start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = look_often(monkeypatch)
    pooler = start_server(PgBouncer, postgresql_server, "session", 12)
    with leasehold.connect(pooler.url, namespace=namespace) as locks:
        eventually(lambda: hears(locks))
        eventually(lambda: len(sent) > 2 and hears(locks))
        pooler.change_mode("transaction")
        eventually(lambda: not hears(locks))


@pytest.mark.usefixtures("soon_again")
async def test_a_pooler_that_is_switched_to_transaction_mode_is_noticed_under_asyncio(
    postgresql_server: Any, namespace: str, start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = look_often(monkeypatch)
    pooler = start_server(PgBouncer, postgresql_server, "session", 12)
    async with aio.connect(pooler.url, namespace=namespace) as locks:
        driver: Any = inside(locks).driver

        async def until(hears: bool, proofs: int) -> None:
            async with asyncio.timeout(60):
                while await driver.listen("", None) is not hears or len(sent) < proofs:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

        await until(True, 3)
        pooler.change_mode("transaction")
        await until(False, 3)


@pytest.mark.usefixtures("soon_again")
def test_a_listener_that_gets_no_other_connection_goes_on(
    postgresql_server: Any, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is full is no reason to give up what still works."""
    look_often(monkeypatch)
    with leasehold.connect(postgresql_server.url, namespace=namespace) as locks:
        eventually(lambda: hears(locks))
        sent = statements(monkeypatch)

        def full(*conninfo: Any, **options: Any) -> Any:
            raise psycopg.OperationalError("sorry, too many clients already")

        monkeypatch.setattr(psycopg.Connection, "connect", full)
        eventually(lambda: sent.count("SELECT 1") > 2)
        assert hears(locks)


@pytest.mark.usefixtures("soon_again")
def test_a_listener_out_of_a_users_pool_waits_for_none_of_its_connections(
    postgresql_server: Any, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All may be in use, for as long as the user likes, and meanwhile it would hear nothing."""
    proofs = look_often(monkeypatch)
    where = postgresql_server.url.replace("postgresql://", "postgresql+psycopg://")
    engine = sqlalchemy.create_engine(where, pool_size=1, max_overflow=0)
    with leasehold.connect(engine, namespace=namespace) as locks:
        eventually(lambda: hears(locks))
        proofs.clear()
        sent = statements(monkeypatch)
        with engine.connect():
            eventually(lambda: sent.count("SELECT 1") > 2)
            assert hears(locks)
        assert proofs == []
    engine.dispose()


class Other:
    """The connection by which a listener rings itself."""

    mark = ""

    def execute(self, statement: Any, limit: float) -> None:
        self.mark = statement.values["mark"]

    def close(self) -> None: ...


class AsyncOther(Other):
    async def execute(self, statement: Any, limit: float) -> None:  # type: ignore[override]
        super().execute(statement, limit)

    async def close(self) -> None:  # type: ignore[override]
        ...


@pytest.mark.parametrize("side", [postgresql_threads, postgresql_tasks], ids=["threads", "asyncio"])
async def test_who_is_called_during_a_proof_is_told(side: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rung: list[str] = []
    session, own = Session(PostgreSQL(), "n"), Mock()
    if side is postgresql_threads:
        other = Other()
        monkeypatch.setattr(side, "notifications", lambda raw: ["called", other.mark])
        listener = postgresql_threads.PostgreSQLListener(session, Mock())
        listener.prove(own, other, rung.append)
        listener.close()
    else:
        other = AsyncOther()
        monkeypatch.setattr(side, "notifications", lambda raw: ["called", other.mark])
        await postgresql_tasks.AsyncPostgreSQLListener(session, Mock()).prove(own, other, rung.append)  # type: ignore[arg-type]
    assert rung == ["called"]


@pytest.mark.parametrize("side", [postgresql_threads, postgresql_tasks], ids=["threads", "asyncio"])
async def test_a_proof_that_came_while_all_stood_still_is_one(side: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks only when the time is over finds it."""
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now)
    session, looks = Session(PostgreSQL(), "n"), 0

    def notifications(raw: Any) -> list[str]:
        nonlocal now, looks
        looks += 1
        now += side.PROOF_WITHIN + 1.0  # between this look and what comes after it
        return [other.mark] if looks > 1 else []

    monkeypatch.setattr(side, "notifications", notifications)
    if side is postgresql_threads:
        other = Other()
        listener = postgresql_threads.PostgreSQLListener(session, Mock())
        monkeypatch.setattr(side, "readable", Mock())
        listener.prove(Mock(), other, Mock())  # type: ignore[arg-type]
        listener.close()
    else:
        other = AsyncOther()
        own = Mock()
        own.input.wait = AsyncMock(side_effect=postgresql_threads.TimedOut)
        await postgresql_tasks.AsyncPostgreSQLListener(session, Mock()).prove(own, other, Mock())  # type: ignore[arg-type]
    assert looks == 2


def deafen(locks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rings get lost on their way to these, which believe that they arrive."""
    session, rung = inside(locks).driver.session, inside(locks).driver.session.rung
    monkeypatch.setattr(session, "rung", lambda attempt: rung(attempt) if attempt == ALL else None)


@pytest.mark.usefixtures("soon_again")
def test_whoever_was_not_rung_polls_for_a_while(
    database: Database, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "FALLBACK", 1.5)  # after the first term, which has lapsed by then
    with (
        leasehold.connect(database.url, namespace=namespace) as one,
        leasehold.connect(database.url, namespace=namespace) as two,
    ):
        deafen(two, monkeypatch)
        driver: Any = inside(two).driver
        eventually(lambda: hears(two))
        for _ in range(20):  # one who comes late himself does not blame it on others
            hand_over(one, two)
            if clock.now() < driver.session.waiters.distrusted_until:
                break
        assert not hears(two)
        driver.session.waiters.distrusted_until = clock.now()  # a minute later
        eventually(lambda: hears(two))


def hand_over(one: leasehold.Locks, two: leasehold.Locks) -> None:
    lease = one.lock("name").acquire()
    waiter = threading.Thread(target=lambda: two.lock("name").acquire(timeout=60).release())
    waiter.start()
    eventually(lambda: (info := one.inspect("name")) is not None and info.waiters == 1)
    lease.release()
    waiter.join()


@pytest.mark.usefixtures("soon_again")
async def test_so_does_a_task(database: Database, namespace: str) -> None:
    async with aio.connect(database.url, namespace=namespace) as locks:
        driver: Any = inside(locks).driver

        async def until(hears: bool) -> None:
            async with asyncio.timeout(60):
                while await driver.listen("", None) is not hears:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

        await until(True)
        driver.session.waiters.distrust_push()
        assert await driver.listen("", None) is False
        driver.session.waiters.distrusted_until = clock.now()
        assert await driver.listen("", None) is True


def test_a_ring_that_grants_nothing_is_for_who_is_next_or_for_what_is_held() -> None:
    standing, sleep = asleep_listener()
    sleep.send(Result([(1, 1, 1)], 1))
    sleep.send(Result([(1,)], 1))  # it is up
    with pytest.raises(StopIteration) as end:
        sleep.send(Result([("other", json.dumps(["lock", 1, 1, 1, 1, 0, [], [["a"], ["b"]]]))], 1))
    assert end.value.value == ["a", HELD]
    standing.discard("b")
    assert asks_about(standing) == [], "the other was told, and waits no more"
