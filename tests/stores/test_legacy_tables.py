"""``init --from-legacy`` on MySQL and MariaDB, with the old code's statements (documents C and D) beside."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import pymysql
import pytest
from old_lock_tables import DEADLOCK, DUPLICATE, Replica, ReplicaC, ReplicaD
from pymysql.constants import CLIENT
from sql_servers import Database

import leasehold
from leasehold import StoreUnavailable, admin
from leasehold.testing.handles import eventually
from servers.mysql import MariaDB

pytestmark = pytest.mark.server


@pytest.fixture(params=["mariadb", "mysql"])
def database(request: pytest.FixtureRequest) -> Database:
    return Database(request.getfixturevalue(f"{request.param}_server"))


class Old:
    """A table of locks of the old code, and what works on it."""

    def __init__(self, database: Database, code: type[Any]) -> None:
        self.database, self.code = database, code
        self.table = f"old_{os.urandom(5).hex()}"
        self.namespace = self.table[4:]
        self.made: list[Any] = []
        database.sql(code.create.replace("{table}", self.table))

    def replica(self, owner: str = "old-1") -> Any:
        # The driver of the code of D counts the rows that a statement finds, that of C those that it changes.
        flag = CLIENT.FOUND_ROWS if self.code is ReplicaD else 0
        raw = self.database.connect(init_command="SET SESSION time_zone = '+00:00'", client_flag=flag)
        self.made.append(raw)
        return self.code(raw, self.table, owner)

    def init(self, **more: Any) -> list[Any]:
        how = {"namespace": self.namespace, "legacy": [self.table], **more}
        return [each for each in admin.init(self.database.url, from_legacy=True, **how) if each.subject == self.table]

    def levels(self, **more: Any) -> list[str]:
        return [each.level for each in self.init(**more)]

    @property
    def columns(self) -> tuple[str, str, str]:
        return ("lock_key", "owner", "expires_at") if self.code is ReplicaD else ("action", "holder", "expired_at")

    def live_rows(self) -> list[str]:
        """The names whose rows have not expired, by the server's clock."""
        name, _, expires = self.columns
        query = f"SELECT {name} FROM {self.table} WHERE {expires} > UTC_TIMESTAMP(6)"
        return [found for (found,) in self._in_utc(query)]

    def until(self, name: str) -> datetime:
        found: datetime = self._in_utc(
            f"SELECT {self.columns[2]} FROM {self.table} WHERE {self.columns[0]} = '{name}'"
        )[0][0]
        return found

    def _in_utc(self, query: str) -> list[Any]:
        connection = self.database.connect(init_command="SET SESSION time_zone = '+00:00'")
        try:
            cursor = connection.cursor()
            cursor.execute(query)
            return list(cursor.fetchall())
        finally:
            connection.close()

    def triggers(self) -> list[str]:
        query = "SELECT TRIGGER_NAME FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_TABLE = %s"
        return [name for (name,) in self.database.sql(query, self.table)]

    def connect(self, **more: Any) -> leasehold.Locks:
        made = leasehold.connect(self.database.url, namespace=self.namespace, **more)
        self.made.append(made)
        return made


@pytest.fixture(params=[ReplicaC, ReplicaD], ids=["C", "D"])
def old(request: pytest.FixtureRequest, database: Database) -> Iterator[Old]:
    old = Old(database, request.param)
    yield old
    for made in old.made:
        made.close()
    database.sql(f"DROP TABLE {old.table}")


def refused(act: Callable[[], Any]) -> bool:
    """Whether the server refuses it as it refuses a second insert of one name."""
    try:
        return act() is False
    except pymysql.err.Error as error:
        return bool(error.args[0] == DUPLICATE)


def test_a_held_lock_becomes_a_lease_of_its_owner(old: Old) -> None:
    """C1, C4, D1."""
    replica: Replica = old.replica("host-1")
    assert replica.lock("init", 60)  # type: ignore[attr-defined]
    assert old.levels() == ["done", "done"]
    locks = old.connect()
    found = locks.inspect("init")
    assert found is not None
    assert found.owner == "host-1"
    assert found.kind == ("workflow" if old.code is ReplicaD else "lock")
    assert 55 < (found.expires - found.acquired).total_seconds() <= 61
    assert [each.name for each in locks.leases()] == ["init"]
    assert locks.lock("init").try_acquire() is None


def test_a_new_replica_waits_until_the_old_row_has_expired(old: Old) -> None:
    """C2."""
    assert old.replica().lock("job", 2)
    old.init()
    with old.connect().lock("job").acquire(timeout=20) as lease:
        assert old.live_rows() == [], "SAFETY: two holders"
        assert lease.token > 0


def test_a_refresh_extends_row_and_lease_together(old: Old) -> None:
    """C2, D7."""
    replica, locks = old.replica(), old.connect()
    assert replica.lock("job", 3)
    old.init()
    before = locks.inspect("job")
    replica.refresh("job", 60)
    after = locks.inspect("job")
    assert before is not None
    assert after is not None
    assert after.token == before.token
    assert 50 < (after.expires - before.expires).total_seconds() < 60
    replica.refresh("job", 30)  # the lease never gets shorter
    shorter = locks.inspect("job")
    assert shorter is not None
    assert abs(shorter.expires - after.expires) < timedelta(seconds=1)
    assert locks.lock("job").try_acquire() is None


def test_a_refresh_after_the_lease_has_ended_is_refused(old: Old) -> None:
    replica = old.replica()
    assert replica.lock("job", 1)
    old.init()
    with old.connect().lock("job").acquire(timeout=20):
        assert refused(lambda: replica.refresh("job", 60)), "SAFETY: two holders"
    assert refused(lambda: replica.refresh("job", 60))
    assert old.live_rows() == []


def test_a_refresh_of_a_broken_lease_is_refused(old: Old) -> None:
    """D7."""
    replica, locks = old.replica(), old.connect()
    assert replica.lock("job", 60)
    assert replica.lock("other", 60)
    old.init()
    assert locks.break_lease("job")
    assert locks.break_lease("other", force=True)
    assert refused(lambda: replica.refresh("job", 60))
    assert refused(lambda: replica.refresh("other", 60))
    found = old.init()
    assert [each.level for each in found] == ["ok", "warning", "ok"]  # "job" is free when its lease has expired
    assert "'other' of 'old-1' is no lease any more" in found[1].message
    assert locks.lock("other").try_acquire() is not None


def test_old_code_acquires_nothing_after_init(old: Old) -> None:
    """C1, D3: neither a new row, nor one that is there and expired, nor one that its owner released."""
    first, second = old.replica("old-1"), old.replica("old-2")
    assert first.lock("expired", -5)
    assert first.lock("released", 60)
    assert first.lock("held", 60)
    old.init()
    first.unlock("released")
    for name in ("new", "expired", "released", "held"):
        assert refused(lambda name=name: second.lock(name, 60)), name
        assert refused(lambda name=name: first.lock(name, 60)), name
    assert old.live_rows() == ["held"]
    # Nor by a statement that takes a live row from its owner.
    name, owner, *_ = old.columns
    assert refused(lambda: first.do(f"UPDATE {old.table} SET {owner} = 'thief' WHERE {name} = 'held'"))
    assert refused(lambda: first.do(f"UPDATE {old.table} SET {name} = 'other' WHERE {name} = 'held'"))


def test_a_released_lock_is_a_lease_until_it_expires(old: Old) -> None:
    replica, locks = old.replica(), old.connect()
    assert replica.lock("job", 60)
    old.init()
    replica.unlock("job")
    assert locks.lock("job").try_acquire() is None
    assert locks.break_lease("job", force=True)
    assert locks.lock("job").try_acquire() is not None


def test_rolling_swap_never_has_two_holders(old: Old) -> None:
    """Old and new replicas side by side, on two names, while init runs."""
    inside, entered, broken = {"a": 0, "b": 0}, {"old": 0, "new": 0}, []
    guard, started, stop = threading.Lock(), threading.Event(), threading.Event()

    def work(name: str, who: str) -> None:
        with guard:
            inside[name] += 1
            entered[who] += 1
            if inside[name] > 1:
                broken.append((name, who))
        stop.wait(0.02)
        with guard:
            inside[name] -= 1

    def old_code(replica: Any) -> None:
        while not stop.is_set():
            for name in inside:
                try:
                    if replica.lock(name, 2):
                        work(name, "old")
                        replica.refresh(name, 2)
                        work(name, "old")
                        replica.unlock(name)
                except pymysql.err.Error as error:
                    if error.args[0] not in (DUPLICATE, DEADLOCK):  # the code of D has deadlocks with itself
                        raise
            stop.wait(0.01)

    def new_code(locks: leasehold.Locks) -> None:
        assert started.wait(60)
        while not stop.is_set():
            for name in inside:
                if lease := locks.lock(name).try_acquire(timeout=0.2):
                    work(name, "new")
                    lease.release()

    failed: list[BaseException] = []

    def watched(act: Callable[..., None], argument: Any) -> None:
        try:
            act(argument)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=watched, args=(old_code, old.replica(f"old-{n}"))) for n in range(3)]
    threads += [threading.Thread(target=watched, args=(new_code, old.connect(ttl=5))) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: failed or entered["old"] > 10)
        assert "error" not in old.levels()
        started.set()
        eventually(lambda: failed or entered["new"] > 20, within=60)
        before = entered["old"]
        eventually(lambda: failed or entered["new"] > 40, within=60)
        assert entered["old"] <= before
    finally:
        stop.set()
        started.set()
        for thread in threads:
            thread.join()
    assert broken == [], "SAFETY: two holders"
    assert failed == []


def test_a_refresh_while_init_runs_is_not_lost(old: Old) -> None:
    """The first of many rows is extended once, when its lease is there and init has yet to make the others."""
    replica, locks, found = old.replica(), old.connect(), []
    for n in range(200):
        assert replica.lock(f"job-{n:03}", 60)
    thread = threading.Thread(target=lambda: found.extend(old.levels()))
    thread.start()
    try:
        eventually(lambda: locks.inspect("job-000"))
        replica.refresh("job-000", 300)
    finally:
        thread.join()
    assert found == ["done"] * 201
    lease = locks.inspect("job-000")
    assert lease is not None
    assert lease.expires.replace(tzinfo=None) >= old.until("job-000"), "SAFETY: the lease ends before the row"
    assert locks.inspect("job-199") is not None


def test_init_waits_for_an_acquire_under_way(old: Old) -> None:
    """D3: the old code's transaction is open when init begins."""
    replica, found = old.replica(), []
    replica.raw.begin()
    lock, replica.raw.begin, commit = replica.lock, lambda: None, replica.raw.commit
    replica.raw.commit = lambda: None
    assert lock("job", 60)
    thread = threading.Thread(target=lambda: found.extend(old.levels()))
    thread.start()
    waits = "SELECT 1 FROM information_schema.PROCESSLIST WHERE STATE LIKE 'Waiting for table metadata lock'"
    eventually(lambda: old.database.sql(waits))
    assert found == []
    commit()
    thread.join()
    assert found == ["done", "done"]
    assert old.connect().lock("job").try_acquire() is None


def test_dry_run_changes_nothing(old: Old) -> None:
    replica = old.replica()
    assert replica.lock("job", 60)
    found = old.init(dry_run=True)
    assert [each.level for each in found] == ["to do", "to do"]
    assert "'job': a lease of 'old-1' for" in found[0].message
    assert old.triggers() == []
    assert old.connect().inspect("job") is None
    assert replica.lock("another", 60)


def test_init_again_says_what_old_code_still_holds(old: Old) -> None:
    replica, locks = old.replica(), old.connect()
    assert replica.lock("job", 60)
    old.init()
    first = locks.inspect("job")
    replica.refresh("job", 90)
    found = old.init()
    assert [each.level for each in found] == ["ok", "ok"]
    assert "'job' is a lease of 'old-1' for" in found[0].message
    again = locks.inspect("job")
    assert first is not None
    assert again is not None
    assert again.token == first.token
    replica.unlock("job")
    (found,) = old.init()
    assert "old code holds nothing" in found.message
    assert "drop it" in found.advice
    (found,) = old.init(namespace="another")
    assert found.level == "error"
    assert "closed for another" in found.message


def test_what_cannot_be_a_lease_stops_the_import(old: Old) -> None:
    replica = old.replica()
    assert replica.lock("fits", 60)
    assert replica.lock("tab\there", 60)
    (found,) = old.init()
    assert found.level == "error"
    assert "control character (U+0009)" in found.message
    assert old.triggers() == []
    assert old.connect().inspect("fits") is None
    replica.unlock("tab\there")
    assert old.levels() == ["done", "done"]


def test_a_name_that_new_code_holds_stops_the_import(old: Old) -> None:
    replica = old.replica()
    assert replica.lock("job", 60)
    with old.connect(owner="new-1").lock("job"):
        (found,) = old.init()
        assert found.level == "error"
        assert "held by 'old-1' in" in found.message
        assert "by 'new-1' in leasehold" in found.message
    assert old.triggers() == []
    assert replica.lock("another", 60)
    assert old.levels() == ["done", "done", "done"]


@pytest.mark.parametrize(("charset", "name"), [("utf8mb4", "Ünï 名"), ("latin1", "Ünï"), ("ascii", "it's %s \\ `x`")])
def test_names_and_owners_are_kept_whole(old: Old, charset: str, name: str) -> None:
    replica, locks = old.replica(f"{name} 'quoted'"), old.connect()
    replica.do(f"ALTER TABLE {old.table} CONVERT TO CHARACTER SET {charset}")
    names = (name, "x" * 191)
    for each in names:
        assert replica.lock(each, 60)
    old.init()
    for each in names:
        replica.refresh(each, 90)
        found = locks.inspect(each)
        assert found is not None
        assert found.owner == replica.owner
        assert (found.expires - found.acquired).total_seconds() > 80


def test_the_user_needs_rights_on_the_old_table(old: Old) -> None:
    replica, user = old.replica(), f"u{old.namespace}"
    assert replica.lock("job", 60)
    old.database.sql(f"CREATE USER {user}")
    try:
        old.database.sql(f"GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, LOCK TABLES ON leasehold.* TO {user}")
        url = old.database.as_user(user)
        found = admin.init(url, from_legacy=True, legacy=[old.table], namespace=old.namespace)[-1]
        assert found.level == "error"
        assert "TRIGGER" in found.advice
        assert old.triggers() == []
        assert replica.lock("another", 60)
        assert old.levels() == ["done", "done", "done"]
        begun = time.monotonic()  # now there are triggers, which this user cannot see on MySQL
        with suppress(StoreUnavailable):
            admin.init(url, from_legacy=True, legacy=[old.table], namespace=old.namespace)
        assert time.monotonic() - begun < 10
        assert len(old.triggers()) == 2
        assert old.levels() == ["ok", "ok", "ok"]
    finally:
        old.database.sql(f"DROP USER {user}")


def test_data_of_a_row_becomes_data_of_the_lease(database: Database) -> None:
    """D1."""
    old = Old(database, ReplicaD)
    try:
        replica, locks = old.replica(), old.connect()
        for name in ("fits", "none", "long"):
            assert replica.lock(name, 60, "node")
        replica.do("UPDATE {table} SET lock_data = %s WHERE lock_key = 'fits'", '{"step": 3}')
        replica.do("UPDATE {table} SET lock_data = %s WHERE lock_key = 'none'", "null")
        replica.do("UPDATE {table} SET lock_data = %s WHERE lock_key = 'long'", f'"{"x" * 5000}"')
        found = old.init()
        assert [each.level for each in found] == ["warning", "done", "done", "done", "done"]
        held = {each.name: (each.kind, each.data) for each in locks.leases()}
        assert held == {"fits": ("node", {"step": 3}), "none": ("node", None), "long": ("node", None)}
    finally:
        database.sql(f"DROP TABLE {old.table}")
        for made in old.made:
            made.close()


def test_datetimes_are_read_in_the_zone_that_is_given(database: Database) -> None:
    old = Old(database, ReplicaC)
    try:
        replica, locks = old.replica(), old.connect()
        replica.clock = lambda: Replica.clock(replica) - timedelta(hours=5, minutes=30)
        assert replica.lock("job", 60)
        assert old.levels() == ["done"]  # read as UTC, it has expired long ago
        for name in old.triggers():
            database.sql(f"DROP TRIGGER {name}")
        found = old.init(legacy_zone="-05:30")
        assert "expired_at read as UTC-05:30" in found[-1].message
        replica.refresh("job", 90)
        lease = locks.inspect("job")
        assert lease is not None
        assert 80 < (lease.expires - lease.acquired).total_seconds() <= 91
        with pytest.raises(ValueError, match="offset from UTC"):
            old.init(legacy_zone="Europe/Berlin")
    finally:
        database.sql(f"DROP TABLE {old.table}")
        for made in old.made:
            made.close()


def test_a_datetime_without_a_zone_is_refused_where_the_server_is_not_on_utc(start_server: Callable[..., Any]) -> None:
    database = Database(start_server(MariaDB))
    database.sql("SET GLOBAL time_zone = '+02:00'")
    in_go, in_node = Old(database, ReplicaC), Old(database, ReplicaD)
    assert in_go.replica().lock("job", 60)
    assert in_node.replica().lock("job", 60)
    (found,) = in_go.init()
    assert found.level == "error"
    assert "--legacy-zone" in found.advice
    assert in_go.levels(legacy_zone="+00:00") == ["done", "done"]
    assert in_node.levels() == ["done", "done"]
    for old in (in_go, in_node):
        assert old.connect().lock("job").try_acquire() is None
        for made in old.made:
            made.close()


def test_tables_that_are_no_tables_of_locks(database: Database) -> None:
    for name in ("nosuch", "leasehold"):
        found = admin.init(database.url, from_legacy=True, legacy=[name])[-1]
        assert found.level == "error"
        assert f"{name} is not a known table of locks" in found.message
    (found,) = admin.init(database.url, from_legacy=True)[1:]
    assert found.level == "ok"
    with pytest.raises(ValueError, match="table must be a name"):
        admin.init(database.url, from_legacy=True, legacy=["a`b"])
    with pytest.raises(ValueError, match="only with from_legacy"):
        admin.init(database.url, namespace="billing")
