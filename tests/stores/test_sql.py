"""What is peculiar to PostgreSQL, MySQL and MariaDB: round trips, pools, plans, transactions, refusals."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sql_servers import KINDS, Counter, Database

import leasehold
from leasehold import AcquireTimeout, LeaseLost, StoreNotReady, StoreUnavailable, aio
from leasehold.stores import sql_admin
from leasehold.testing.handles import eventually
from servers.clock import FakeClock
from servers.proxy import Proxy

pytestmark = pytest.mark.server


@pytest.fixture(params=list(KINDS))
def database(request: pytest.FixtureRequest) -> Database:
    """A server shared by the tests of this run."""
    return Database(request.getfixturevalue(f"{request.param}_server"))


@pytest.fixture(params=["postgresql", "mariadb"])
def own(request: pytest.FixtureRequest, start_server: Callable[..., Any]) -> Database:
    """A server of this test's own, to be killed and starved."""
    return Database(start_server(KINDS[request.param]))


@pytest.fixture
def namespace() -> str:
    return f"n{os.urandom(5).hex()}"


@pytest.fixture
def locks(database: Database, namespace: str) -> Iterator[leasehold.Locks]:
    with leasehold.connect(database.url, namespace=namespace, ttl=5) as locks:
        yield locks


def python(code: str, *args: object, **more: Any) -> subprocess.Popen[str]:
    """A child that runs ``code`` with ``args`` in sys.argv; it prints a line when it is ready."""
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **more)


HOLD = """
import sys, leasehold
locks = leasehold.connect(sys.argv[1], namespace=sys.argv[2], ttl=float(sys.argv[4]))
lease = locks.lock(sys.argv[3]).acquire()
print(lease.token, flush=True)
sys.stdin.readline()
lease.release()
locks.close()
"""


# Cost.


def test_an_uncontended_acquire_and_a_release_are_one_round_trip_each(database: Database, namespace: str) -> None:
    counter = Counter(database.port)
    try:
        with leasehold.connect(database.at(counter.port) + "?push=off", namespace=namespace) as locks:
            lock = locks.lock("name")
            for _ in range(10):  # connected, and prepared where the driver does that
                lock.acquire().release()
            time.sleep(0.3)  # the keeper has tidied up
            before = counter.trips
            for _ in range(20):
                lock.acquire().release()
            assert counter.trips - before == 40
    finally:
        counter.close()


def test_renewals_go_in_one_statement(database: Database, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with leasehold.connect(database.url + "?push=off", namespace=namespace, ttl=30) as locks:
        leases = [locks.lock(f"name-{number}").acquire() for number in range(50)]
        sent = statements(monkeypatch)
        core: Any = locks._core
        core.urgent.update(lease._claim.attempt for lease in leases)
        core.look_now()
        eventually(lambda: core.renewals >= 50)
        time.sleep(0.1)
        assert core.renewals == 50
        assert len(sent) == 1


def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is sent from now on, by any connection of any driver for threads."""
    from leasehold.stores import mysql_threads, postgresql_threads

    sent: list[str] = []
    for module in (postgresql_threads, mysql_threads):
        original = module.Connection.execute

        def execute(self: Any, statement: Any, limit: float, original: Any = original) -> Any:
            sent.append(statement.sql)
            return original(self, statement, limit)

        monkeypatch.setattr(module.Connection, "execute", execute)
    return sent


@pytest.mark.slow
def test_an_idle_waiter_costs_little(database: Database, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue: at most 0.3 statements per second, everything counted that its session sends."""
    child = python(HOLD, database.url, namespace, "name", 90)
    assert child.stdout is not None
    assert child.stdin is not None
    child.stdout.readline()
    with leasehold.connect(database.url, namespace=namespace) as locks:
        waiter = threading.Thread(target=lambda: locks.lock("name").acquire().release())
        waiter.start()
        time.sleep(3)  # until it is settled
        sent = statements(monkeypatch)
        time.sleep(30)
        cost = len(sent) / 30
        child.stdin.close()
        waiter.join(5)
        assert not waiter.is_alive()
    child.stdout.close()
    child.wait()
    assert 0 < cost <= 0.3, sent


def test_hand_off_is_a_push(database: Database, namespace: str, record_property: Callable[..., None]) -> None:
    """Issue: p50 of 3 ms on PostgreSQL, 10 ms on MariaDB, between processes; here with room for a busy machine."""
    with (
        leasehold.connect(database.url, namespace=namespace, ttl=30) as one,
        leasehold.connect(database.url, namespace=namespace, ttl=30) as two,
    ):
        took = hand_offs(one, two, 30)
    p50 = statistics.median(took) * 1000
    record_property("p50_ms", p50)
    assert p50 < 1000  # far below the 5 s of the fallback; how fast it is, the benchmark tells


def hand_offs(one: leasehold.Locks, two: leasehold.Locks, rounds: int) -> list[float]:
    """Seconds from the release in one session to the acquire in the other."""
    took = []
    for _ in range(rounds):
        lease = one.lock("name").acquire()
        got: list[float] = []

        def wait(got: list[float] = got) -> None:
            with two.lock("name").acquire():
                got.append(time.monotonic())

        waiter = threading.Thread(target=wait)
        waiter.start()
        eventually(lambda: (info := one.inspect("name")) is not None and info.waiters == 1)
        time.sleep(0.02)
        released = time.monotonic()
        lease.release()
        waiter.join()
        took.append(got[0] - released)
    return took


def test_a_purge_goes_by_the_index(database: Database, namespace: str) -> None:
    """Issue: bounded per call, never a table scan. 100,000 dead rows, all but 1,000 of today."""
    with leasehold.connect(f"{database.url}?table=crowded", namespace=namespace) as locks:
        locks.lock("name").acquire().release()
        fill(database, "crowded", 100_000, old=1_000)
        plan = explain(database, locks, "PURGE")
        by_index = "crowded_expires_day" if database.is_postgresql else "'range', 'expires_day', 'expires_day'"
        assert by_index in plan.replace("None, ", ""), plan
        assert "Seq Scan" not in plan, plan
        core: Any = locks._core
        core.call(core.store.tidy())
        left = database.sql("SELECT count(*) FROM crowded")[0][0]
        assert left == 99_001
    database.sql("DROP TABLE crowded")


def fill(database: Database, table: str, rows: int, old: int) -> None:
    if database.is_postgresql:
        number = f"SELECT n FROM generate_series(1, {rows}) AS n"
        name = "'dead-' || n"
        now = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    else:
        number = f"WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < {rows}) SELECT n FROM r"
        name = "CONCAT('dead-', n)"
        now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    day = "/" if database.is_postgresql else "DIV"
    then = f"({now} - CASE WHEN n <= {old} THEN 172800000000 ELSE 0 END)"
    connection = database.connect()
    cursor = connection.cursor()
    if not database.is_postgresql:
        limit = "max_recursive_iterations" if database.kind == "mariadb" else "cte_max_recursion_depth"
        cursor.execute(f"SET SESSION {limit} = {rows + 1}")
    cursor.execute(
        f"""INSERT INTO {table} (namespace, name, format, version, token, attempt, session, owner, kind, state,
            acquired, expires, expires_day, created, updated)
        SELECT 'dead', {name}, 1, 1, 1, '', '', '', '', 0, 0, {then}, {then} {day} 86400000000, 0, 0
        FROM ({number}) AS numbers"""
    )
    cursor.execute(f"ANALYZE {table}" if database.is_postgresql else f"ANALYZE TABLE {table}")
    connection.close()


def explain(database: Database, locks: Any, statement: str) -> str:
    sql = getattr(locks._core.driver.session.dialect, statement)
    how = "EXPLAIN FORMAT=TRADITIONAL" if database.kind == "mysql" else "EXPLAIN"
    return " ".join(str(row) for row in database.sql(f"{how} {sql}"))


# Pools, connections, cancellation.


def test_a_pool_of_one_is_enough(database: Database, namespace: str) -> None:
    with leasehold.connect(f"{database.url}?pool_size=1", namespace=namespace, ttl=2) as locks:
        counter = 0

        def work() -> None:
            nonlocal counter
            for _ in range(5):
                with locks.lock("name", timeout=60):
                    seen = counter
                    time.sleep(0.001)
                    counter = seen + 1

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert counter == 40


async def test_cancelled_acquires_leave_nothing_and_break_nothing(database: Database, namespace: str) -> None:
    async with aio.connect(f"{database.url}?pool_size=2", namespace=namespace, ttl=20) as locks:
        for number in range(60):
            task = asyncio.ensure_future(locks.lock("name").acquire().__aenter__())
            await asyncio.sleep(number * 0.0001)
            task.cancel()
            try:
                lease = await task
            except asyncio.CancelledError:
                pass
            else:
                await lease.release()
        begun = time.monotonic()
        async with locks.lock("name", timeout=5):
            pass
        assert time.monotonic() - begun < 2  # nothing had to expire first


def test_a_server_that_went_away_while_idle_is_not_noticed(own: Database) -> None:
    with leasehold.connect(own.url, ttl=5) as locks:
        locks.lock("name").acquire().release()
        own.server.kill()
        own.server.start()
        time.sleep(1.1)  # longer than a connection is trusted without a look
        assert locks.lock("name").try_acquire() is not None


# Faults.


def test_kill_and_restart_of_the_server(own: Database) -> None:
    """Nothing is granted twice, tokens only rise, waiters go on."""
    tokens: list[int] = []
    inside = 0
    overlap = False
    stop = threading.Event()

    def work(locks: leasehold.Locks) -> None:
        nonlocal inside, overlap
        while not stop.is_set():
            try:
                with locks.lock("name", timeout=20) as lease:
                    inside += 1
                    overlap = overlap or (inside > 1 and lease.valid)
                    tokens.append(lease.token)
                    time.sleep(0.02)
                    inside -= 1
            except leasehold.LeaseholdError:
                continue

    with leasehold.connect(own.url, ttl=3) as one, leasehold.connect(own.url, ttl=3) as two:
        held = one.lock("held", ttl=30).acquire()
        threads = [threading.Thread(target=work, args=(locks,)) for locks in (one, two) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            time.sleep(0.7)
            own.server.kill()
            own.server.start()
        before = len(tokens)
        eventually(lambda: len(tokens) > before + 10, 30)
        stop.set()
        for thread in threads:
            thread.join()
        assert two.lock("held").try_acquire() is None
        held.check()
        held.release()
    assert not overlap
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("mode", ["blackhole", "to_server"])
def test_a_server_that_does_not_answer(own: Database, mode: str) -> None:
    """Within the limit of the call, with the outcome unknown; and nothing is left held when it comes back."""
    with Proxy(own.port) as proxy:
        with leasehold.connect(own.at(proxy.port), ttl=3) as locks:
            locks.lock("other").acquire().release()
            proxy.blackhole() if mode == "blackhole" else proxy.only("to_server")
            begun = time.monotonic()
            with pytest.raises(StoreUnavailable):
                locks.lock("name", ttl=2).try_acquire()
            assert time.monotonic() - begun < 4
            proxy.reset()
            proxy.all_well()
            lease = locks.lock("name", timeout=10).acquire()
            lease.release()


def test_a_killed_holder_is_replaced(database: Database, namespace: str, locks: leasehold.Locks) -> None:
    """Issue: within ttl + 250 ms of its last renewal."""
    child = python(HOLD, database.url, namespace, "name", 1.5)
    assert child.stdout is not None
    token = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    child.wait()
    killed = time.monotonic()
    lease = locks.lock("name").acquire(timeout=10)
    assert time.monotonic() - killed <= 1.5 + 0.25 + 0.25  # the last for this machine
    assert lease.token > token
    lease.release()
    child.stdout.close()
    assert child.stdin is not None
    child.stdin.close()


@pytest.mark.parametrize("step", [-3600, 3600])
def test_a_clients_wall_clock_has_no_effect(database: Database, namespace: str, step: int) -> None:
    clock = FakeClock()
    clock.step(step)
    child = python(HOLD, database.url, namespace, "name", 2, env={**os.environ, **clock.env})
    assert child.stdout is not None
    assert child.stdin is not None
    token = int(child.stdout.readline())
    with leasehold.connect(database.url, namespace=namespace, ttl=2) as locks:
        assert locks.lock("name").try_acquire() is None
        time.sleep(2.5)  # longer than its ttl: it is renewed
        assert locks.lock("name").try_acquire() is None
        assert abs(token / 1e6 - time.time()) < 60
        child.stdin.write("\n")
        child.stdin.close()
        child.wait()
        lease = locks.lock("name").acquire(timeout=2)
        assert lease.token > token
        lease.release()
    child.stdout.close()


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_tokens_rise_though_the_servers_clock_goes_back(kind: str, start_server: Callable[..., Any]) -> None:
    """S1: exclusion in time can't survive such a step, the order of tokens does."""
    clock = FakeClock()
    server = start_server(KINDS[kind], env=clock.env)
    tokens = []
    with leasehold.connect(server.url, ttl=5) as locks:
        for step in (0, -300, 300, -300):
            clock.step(step)
            time.sleep(0.1)
            with locks.lock("name", timeout=20) as lease:
                tokens.append(lease.token)
    assert tokens == sorted(set(tokens))
    assert tokens[2] - tokens[0] > 250e6  # the clock was really stepped


INITIALISE = """
import sys, leasehold
from pathlib import Path
locks = leasehold.connect(sys.argv[1], namespace=sys.argv[2], ttl=10)
folder = Path(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
for start in range(50):
    with locks.lock(f"init-{start}"):
        done = folder / f"done-{start}"
        if not done.exists():
            with open(folder / "log", "a") as log:
                log.write(f"{start}\\n")
            done.touch()
locks.close()
"""


def test_three_replicas_initialise_once(database: Database, namespace: str, tmp_path: Any) -> None:
    """Seed C: 50 starts of three replicas."""
    children = [python(INITIALISE, database.url, namespace, tmp_path) for _ in range(3)]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.close()
    for child in children:
        assert child.wait(60) == 0
        assert child.stdout is not None
        child.stdout.close()
    assert sorted((tmp_path / "log").read_text().split(), key=int) == [str(start) for start in range(50)]


@pytest.mark.parametrize(
    "pair",
    [
        ("Job", "job"),
        ("job", "job "),
        ("é", "e"),
        ("🔒", "🔓"),
        ("x" * 512, "x" * 511 + "y"),
        ("'; DROP TABLE leasehold; --", "' OR '1'='1"),
        ("%s %(name)s", "%% \\' \\"),
        ("😀" * 512, "😀" * 511),
    ],
)
def test_names_that_databases_confuse(locks: leasehold.Locks, pair: tuple[str, str]) -> None:
    with locks.lock(pair[0]).acquire(), locks.lock(pair[1]).acquire():
        assert {info.name for info in locks.leases()} == set(pair)
        assert next(info.name for info in locks.leases(prefix=pair[0])) == pair[0]


# Servers that say no.


def nothing_held(database: Database, table: str = "leasehold") -> bool:
    return not database.sql(f"SELECT 1 FROM {table} WHERE state <> 0")


def test_a_wrong_password_is_told_at_once(own: Database) -> None:
    if own.is_postgresql:
        own.sql("CREATE ROLE ann LOGIN PASSWORD 'right'")
        rules = own.server.data / "pg_hba.conf"
        rules.write_text("host all ann 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n")
        own.sql("SELECT pg_reload_conf()")
        time.sleep(0.3)
    else:
        own.sql("CREATE USER ann IDENTIFIED BY 'right'")
    with leasehold.connect(own.as_user("ann", "hunter2")) as locks:
        with pytest.raises(StoreNotReady, match="refuses") as caught:
            locks.lock("name").acquire()
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(locks)
    assert caught.value.__cause__ is not None


def test_the_least_privileges_are_enough_and_needed(own: Database) -> None:
    if own.is_postgresql:
        own.sql("CREATE ROLE ann LOGIN")
    else:
        own.sql("CREATE TABLE business (id INT)")
        own.sql("CREATE USER ann")
        own.sql("GRANT SELECT ON leasehold.business TO ann")
    url = own.as_user("ann")
    with leasehold.connect(url) as locks:
        # There is no table, and she may not make it.
        with pytest.raises(StoreNotReady, match=r"(?s)leasehold init.*CREATE TABLE"):
            locks.lock("name").acquire()
    sql_admin.init(own.url)
    with leasehold.connect(url) as locks, pytest.raises(StoreNotReady):
        locks.lock("name").acquire()
    if own.is_postgresql:
        own.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold TO ann")
    else:
        own.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold.leasehold TO ann")
    with leasehold.connect(url, ttl=5) as one, leasehold.connect(url, ttl=5) as two:
        took = hand_offs(one, two, 5)
        assert statistics.median(took) < 0.3  # push too
        core: Any = one._core
        core.call(core.store.tidy())
    assert [finding for finding in sql_admin.doctor(url) if finding.level == "error"] == []


def test_a_table_of_that_name_with_other_columns(database: Database) -> None:
    database.sql("CREATE TABLE parcels (name VARCHAR(20) PRIMARY KEY, weight INT)")
    try:
        with leasehold.connect(f"{database.url}?table=parcels") as locks:
            with pytest.raises(StoreNotReady, match="not one of leasehold's"):
                locks.lock("name").acquire()
        assert database.sql("SELECT * FROM parcels") == []
    finally:
        database.sql("DROP TABLE parcels")


def test_a_missing_column_is_told(database: Database) -> None:
    sql_admin.init(f"{database.url}?table=halved")
    database.sql("ALTER TABLE halved DROP COLUMN more")
    try:
        with leasehold.connect(f"{database.url}?table=halved") as locks:
            with pytest.raises(StoreNotReady, match="more"):
                locks.lock("name").acquire()
    finally:
        database.sql("DROP TABLE halved")


def test_a_server_that_only_reads_is_refused(own: Database) -> None:
    sql_admin.init(own.url)
    with leasehold.connect(own.url) as before:
        before.lock("name").acquire().release()
        if own.is_postgresql:
            own.sql("ALTER SYSTEM SET default_transaction_read_only = on")
            own.sql("SELECT pg_reload_conf()")
            time.sleep(0.3)
        else:
            own.sql("SET GLOBAL read_only = 1")
        with leasehold.connect(own.url) as locks, pytest.raises(StoreNotReady, match="primary"):
            locks.lock("name").acquire()
        assert any(finding.level == "error" and "primary" in finding.message for finding in sql_admin.doctor(own.url))
    assert nothing_held(own)


def test_a_newer_format_is_refused(database: Database, locks: leasehold.Locks, namespace: str) -> None:
    locks.lock("name").acquire().release()
    database.sql("UPDATE leasehold SET format = 2 WHERE namespace = %s", namespace)
    with pytest.raises(StoreNotReady, match="format 2"):
        locks.lock("name").acquire()
    database.sql("DELETE FROM leasehold WHERE namespace = %s", namespace)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ("?table=a;b", "table"),
        ('?table=a"b', "table"),
        ("?table=a.b.c", "table"),
        ("?pool_size=0", "pool_size"),
        ("?pool_size=x", "pool_size"),
        ("?push=maybe", "push"),
        ("#x", "fragment"),
    ],
)
@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "mariadb"])
def test_wrong_urls(scheme: str, options: str, what: str) -> None:
    with pytest.raises(ValueError, match=what) as caught:
        leasehold.connect(f"{scheme}://ann:hunter2@localhost/db{options}")
    assert "hunter2" not in str(caught.value)


def test_urls_that_name_no_port_or_database() -> None:
    with pytest.raises(ValueError, match="port"):
        leasehold.connect("postgresql://localhost:http/db")
    with pytest.raises(ValueError, match="database"):
        leasehold.connect("mysql://localhost")
    with pytest.raises(ValueError, match="unknown option 'colour'"):
        leasehold.connect("mariadb://localhost/db?colour=red")
    with pytest.raises(ValueError, match="not understood"):
        leasehold.connect("postgresql://localhost/db?colour=red")


# Schema and doctor.


def test_the_printed_schema_is_the_one_that_is_made(database: Database) -> None:
    sql = sql_admin.schema_sql(database.kind, "printed")
    for statement in filter(str.strip, sql.split(";\n")):
        database.sql(statement)
    with leasehold.connect(f"{database.url}?table=printed") as locks:
        locks.lock("name").acquire().release()
    assert database.sql("SELECT state FROM printed") == [(0,)]
    database.sql("DROP TABLE printed")


def test_doctor_sees_a_missing_index(database: Database) -> None:
    url = f"{database.url}?table=bare"
    sql_admin.init(url)
    assert not [finding for finding in sql_admin.doctor(url) if finding.subject == "index"]
    database.sql("DROP INDEX bare_expires_day" if database.is_postgresql else "DROP INDEX expires_day ON bare")
    assert [finding for finding in sql_admin.doctor(url) if finding.subject == "index"]
    if database.is_postgresql:
        sql_admin.init(url)
        assert not [finding for finding in sql_admin.doctor(url) if finding.subject == "index"]
    database.sql("DROP TABLE bare")


def test_doctor_of_a_server_that_is_not_there() -> None:
    (finding,) = sql_admin.doctor("postgresql://ann:hunter2@127.0.0.1:1/db")
    assert finding.level == "error"
    assert "hunter2" not in str(finding)


# In the caller's own transaction.


@pytest.fixture
def business(database: Database) -> Iterator[str]:
    table = f"business_{os.urandom(3).hex()}"
    database.sql(f"CREATE TABLE {table} (id INT PRIMARY KEY, token BIGINT)")
    yield table
    database.sql(f"DROP TABLE {table}")


def test_a_lease_checked_in_a_transaction_cannot_be_taken_before_it_commits(
    database: Database, namespace: str, locks: leasehold.Locks, business: str
) -> None:
    lease = locks.lock("name", ttl=1.2, renew=False).acquire()
    connection = database.connect(autocommit=False)
    cursor = connection.cursor()
    assert lease.in_transaction(connection) == lease.token
    cursor.execute(f"INSERT INTO {business} VALUES (1, {lease.token})")
    taken: list[float] = []
    with leasehold.connect(database.url, namespace=namespace, ttl=5) as others:

        def wait() -> None:
            with others.lock("name", timeout=20) as theirs:
                assert theirs.token > lease.token
                taken.append(time.monotonic())

        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(2.0)  # it has expired, but its transaction goes on
        assert not taken
        connection.commit()
        committed = time.monotonic()
        waiter.join()
    assert taken[0] >= committed - 0.01
    connection.close()
    assert database.sql(f"SELECT token FROM {business}") == [(lease.token,)]


def test_a_lost_lease_is_found_out_in_the_transaction(
    database: Database, namespace: str, locks: leasehold.Locks
) -> None:
    lease = locks.lock("name", ttl=30).acquire()
    database.sql("UPDATE leasehold SET attempt = 'other', token = token + 1 WHERE namespace = %s", namespace)
    connection = database.connect(autocommit=False)
    with pytest.raises(LeaseLost):
        lease.in_transaction(connection)
    connection.rollback()
    connection.close()
    database.sql("DELETE FROM leasehold WHERE namespace = %s", namespace)


def test_a_name_taken_for_a_transaction(
    database: Database, namespace: str, locks: leasehold.Locks, business: str
) -> None:
    first = locks.lock("name").acquire()
    connection = database.connect(autocommit=False)
    with pytest.raises(AcquireTimeout):
        locks.lock("name").in_transaction(connection)
    connection.rollback()
    first.release()
    token = locks.lock("name").in_transaction(connection)
    assert token > first.token
    connection.cursor().execute(f"INSERT INTO {business} VALUES (2, {token})")
    got: list[int] = []

    def wait() -> None:
        with locks.lock("name", timeout=20) as lease:
            got.append(lease.token)

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.5)
    assert not got
    connection.commit()
    waiter.join()
    assert got[0] > token
    connection.close()
    alone = database.connect(autocommit=True)
    with pytest.raises(ValueError, match="autocommit"):
        locks.lock("name").in_transaction(alone)
    alone.close()


def test_other_stores_have_no_transactions() -> None:
    with leasehold.connect("memory://") as locks, pytest.raises(ValueError, match="SQL store"):
        locks.lock("name").in_transaction(object())


async def test_in_transaction_with_an_async_engine(database: Database, namespace: str) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine

    driver = "postgresql+psycopg" if database.is_postgresql else "mysql+aiomysql"
    engine = create_async_engine(f"{driver}://{database.url.partition('://')[2]}")
    async with aio.connect(database.url, namespace=namespace) as locks, locks.lock("name") as lease:
        async with engine.begin() as connection:
            assert await lease.in_transaction(connection) == lease.token
        async with engine.begin() as connection:
            assert await locks.lock("other").in_transaction(connection) > 0
    await engine.dispose()


# Engines.


def test_an_engine_is_used_outside_of_its_transactions_and_left_open(database: Database, namespace: str) -> None:
    import sqlalchemy

    driver = "postgresql+psycopg" if database.is_postgresql else "mysql+pymysql"
    engine = sqlalchemy.create_engine(f"{driver}://{database.url.partition('://')[2]}", pool_size=2, max_overflow=0)
    mine = engine.execution_options(leasehold_table="engine_leases")
    with leasehold.connect(mine, namespace=namespace, ttl=5) as locks:
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("SELECT 1"))
            lease = locks.lock("name").acquire()
            connection.rollback()
        assert lease.release()
        assert database.sql("SELECT state FROM engine_leases WHERE namespace = %s", namespace) == [(0,)]
    with engine.connect() as connection:
        assert connection.execute(sqlalchemy.text("SELECT 1")).scalar() == 1
    engine.dispose()
    with pytest.raises(ValueError, match="sqlite"):
        leasehold.connect(sqlalchemy.create_engine("sqlite://"))


async def test_an_engine_of_asyncpg(postgresql_server: Any, namespace: str) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(postgresql_server.url.replace("postgresql://", "postgresql+asyncpg://"))
    async with aio.connect(engine, namespace=namespace, ttl=5) as locks:
        async with locks.lock("name", data={"a": 1}) as lease:
            assert await locks.lock("name").try_acquire() is None
            await lease.renew()
            info = await locks.inspect("name")
            assert info is not None
            assert info.token == lease.token
        assert [info async for info in locks.leases()] == []
    await engine.dispose()


def test_a_foreign_release_is_refused_and_logged(
    database: Database, namespace: str, locks: leasehold.Locks, caplog: pytest.LogCaptureFixture
) -> None:
    """Seed D5: with its reason."""
    lease = locks.lock("name", ttl=30).acquire()
    database.sql("UPDATE leasehold SET attempt = 'other', version = version + 1 WHERE namespace = %s", namespace)
    assert lease.release() is False
    assert [each for each in caplog.messages if "'name' was not given back: the store has it as another's" in each]
    assert database.sql("SELECT attempt FROM leasehold WHERE namespace = %s", namespace) == [("other",)]
    database.sql("DELETE FROM leasehold WHERE namespace = %s", namespace)
