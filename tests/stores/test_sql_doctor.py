"""``init`` and ``doctor`` of the SQL stores."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from sql_servers import KINDS, Database, inside

import leasehold
from leasehold.stores.mysql import listener as mysql_listener
from leasehold.stores.mysql.listener import SLEEPING, SleepingListener
from leasehold.stores.postgresql import threads as postgresql_threads
from leasehold.stores.sql import doctor as sql_doctor
from leasehold.stores.sql.requests import Broken
from leasehold.testing.handles import eventually
from servers.clock import FakeClock

pytestmark = pytest.mark.server


def test_the_printed_schema_is_the_one_that_is_made(database: Database) -> None:
    sql = sql_doctor.schema_sql(f"{database.url}?table=printed")
    for statement in filter(str.strip, sql.split(";\n")):
        database.sql(statement)
    with leasehold.connect(f"{database.url}?table=printed") as locks:
        locks.lock("name").acquire().release()
    assert database.sql("SELECT state FROM printed") == [(0,)]
    database.sql("DROP TABLE printed")


def test_doctor_sees_a_missing_index(database: Database) -> None:
    url = f"{database.url}?table=bare"
    sql_doctor.init(url)
    assert not [finding for finding in sql_doctor.doctor(url) if finding.subject == "index"]
    database.sql("DROP INDEX bare_expires_day" if database.is_postgresql else "DROP INDEX expires_day ON bare")
    assert [finding for finding in sql_doctor.doctor(url) if finding.subject == "index"]
    assert [finding.level for finding in sql_doctor.init(url)] == ["done"]
    assert not [finding for finding in sql_doctor.doctor(url) if finding.subject == "index"]
    database.sql("DROP TABLE bare")


def test_doctor_of_a_server_that_is_not_there() -> None:
    (finding,) = sql_doctor.doctor("postgresql://ann:hunter2@127.0.0.1:1/db")
    assert finding.level == "error"
    assert "hunter2" not in str(finding)


def levels(url: str) -> dict[str, str]:
    return {finding.subject: finding.level for finding in sql_doctor.doctor(url)}


def test_doctor_of_a_server_that_is_well(database: Database) -> None:
    sql_doctor.init(database.url)
    found = levels(database.url)
    expected = dict.fromkeys(("primary", "table", "privileges", "clock", "push"), "ok")
    assert {subject: found.get(subject) for subject in expected} == expected
    assert "error" not in found.values()


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_doctor_rings_again_if_the_first_ring_came_too_soon(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listener that a busy machine keeps from sleeping misses it: that is no reason to say that there is no push."""
    database = Database(request.getfixturevalue(f"{kind}_server"))
    sql_doctor.init(database.url)
    sleep = SleepingListener.sleep

    def late(self: SleepingListener) -> Any:
        time.sleep(1.0)
        return sleep(self)

    monkeypatch.setattr(SleepingListener, "sleep", late)
    assert levels(database.url)["push"] == "ok"


def test_doctor_waits_for_a_listener_that_tries_again(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """One connection that broke, or took a busy machine too long to make, says nothing about push."""
    sql_doctor.init(database.url)
    postgresql = database.is_postgresql
    listener: Any = postgresql_threads.PostgreSQLListener if postgresql else mysql_listener.MySQLListener
    run, tries = listener.run, []

    def broken_at_first(self: Any, ready: Any, rung: Any) -> None:
        tries.append(self)
        if len(tries) == 1:
            raise Broken("connection reset")
        run(self, ready, rung)

    monkeypatch.setattr(listener, "run", broken_at_first)
    assert levels(database.url)["push"] == "ok"
    assert len(tries) > 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_doctor_sees_that_other_users_wait(kind: str, request: pytest.FixtureRequest, namespace: str) -> None:
    """They cannot be rung by this one, and so are not served in order."""
    database = Database(request.getfixturevalue(f"{kind}_server"))
    sql_doctor.init(database.url)
    user = f"u{namespace}"
    database.sql(f"CREATE USER {user}")
    database.sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold.leasehold TO {user}")
    asleep = "SELECT 1 FROM information_schema.PROCESSLIST WHERE LEFT(INFO, 27) = %s AND USER = %s"
    try:
        for who, found in ((user, [user]), ("root", [])):
            with leasehold.connect(database.as_user(who)) as locks:
                driver: Any = inside(locks).driver
                eventually(lambda driver=driver: driver.listen("", None))
                eventually(lambda who=who: database.sql(asleep, SLEEPING, who))
                told = [each for each in sql_doctor.doctor(database.url) if each.subject == "users"]
                assert [each.level for each in told] == ["warning" for _ in found]
                assert all(each in told[0].message for each in found)
            # On a busy machine it is not ended in time, and sleeps out.
            eventually(lambda: not database.sql(asleep, SLEEPING, user), mysql_listener.SLEEP + 15)
    finally:
        database.sql(f"DROP USER {user}")


def test_doctor_sees_that_push_is_off(database: Database) -> None:
    sql_doctor.init(database.url)
    assert levels(f"{database.url}?push=off")["push"] == "warning"


@pytest.mark.parametrize("right", ["INSERT", "UPDATE", "DELETE"])
def test_doctor_sees_a_missing_privilege(database: Database, right: str) -> None:
    sql_doctor.init(database.url)
    user = f"without_{right.lower()}"
    table = "leasehold" if database.is_postgresql else "leasehold.leasehold"
    database.sql(f"CREATE {'ROLE' if database.is_postgresql else 'USER'} {user}{' LOGIN' * database.is_postgresql}")
    rest = ", ".join({"SELECT", "INSERT", "UPDATE", "DELETE"} - {right})
    database.sql(f"GRANT {rest} ON {table} TO {user}")
    try:
        (finding,) = [each for each in sql_doctor.doctor(database.as_user(user)) if each.subject == "privileges"]
        assert finding.level == "error"
        assert f"lacks {right} on" in finding.message
        assert "GRANT" in finding.advice
    finally:
        if database.is_postgresql:
            database.sql(f"DROP OWNED BY {user}")
        database.sql(f"DROP {'ROLE' if database.is_postgresql else 'USER'} {user}")


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_doctor_sees_a_clock_that_is_off(kind: str, start_server: Callable[..., Any]) -> None:
    clock = FakeClock()
    server = start_server(KINDS[kind], env=clock.env)
    sql_doctor.init(server.url)
    assert levels(server.url)["clock"] == "ok"
    clock.step(-300)
    (finding,) = [each for each in sql_doctor.doctor(server.url) if each.subject == "clock"]
    assert finding.level == "warning"
    found = re.search(r"is ([-+][\d.]+) s from", finding.message)
    assert found is not None
    assert float(found[1]) == pytest.approx(-300, abs=10)  # as exact as the answer was fast


@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "mariadb"])
def test_sql_is_printed_without_a_server(scheme: str) -> None:
    sql = sql_doctor.schema_sql(f"{scheme}://nobody@127.0.0.1:1/db?table=ops")
    assert sql.startswith("CREATE TABLE IF NOT EXISTS")
    assert "ops" in sql
