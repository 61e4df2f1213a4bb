"""``doctor`` of servers that replicate, and of connections that end under it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sql_servers import Database

from leasehold.stores.common.findings import Finding
from leasehold.stores.mysql import threads as mysql_threads
from leasehold.stores.postgresql import threads as postgresql_threads
from leasehold.stores.sql import doctor as sql_doctor
from leasehold.testing.handles import eventually
from servers.mysql import MariaDB, MySQL

pytestmark = pytest.mark.server


class Replicating(MariaDB):
    """With a binary log, and a number of its own."""

    def command(self) -> list[str]:
        return [*super().command(), f"--server-id={self.port}", "--log-bin=binlog"]


class ReplicatingMySQL(Replicating, MySQL):
    def command(self) -> list[str]:
        return [each for each in super().command() if each != "--skip-log-bin"]


def follow(replica: Database, source: Database) -> None:
    """Have one server replicate the other from now on."""
    if source.kind == "mysql":
        file, position, *_ = source.sql("SHOW BINARY LOG STATUS")[0]
        change, start, word = "CHANGE REPLICATION SOURCE TO", "START REPLICA", "SOURCE"
    else:
        file, position, *_ = source.sql("SHOW MASTER STATUS")[0]
        change, start, word = "CHANGE MASTER TO", "START SLAVE", "MASTER"
    values = {"HOST": "'127.0.0.1'", "PORT": source.port, "USER": "'root'", "PASSWORD": "''"}
    values |= {"LOG_FILE": f"'{file}'", "LOG_POS": position}
    replica.sql(f"{change} {', '.join(f'{word}_{name} = {value}' for name, value in values.items())}")
    replica.sql(start)
    seen = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE LEFT(COMMAND, 11) = 'Binlog Dump'"
    eventually(lambda: source.sql(seen) == [(1,)], 60)


def about(url: str, subject: str) -> list[Finding]:
    return [each for each in sql_doctor.doctor(url) if each.subject == subject]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Replicating, ReplicatingMySQL])
def test_doctor_sees_replication(kind: type[Replicating], start_server: Callable[..., Any]) -> None:
    source, replica = Database(start_server(kind)), Database(start_server(kind))
    sql_doctor.init(source.url)
    assert about(source.url, "replication") == []
    follow(replica, source)
    (found,) = about(source.url, "replication")
    assert found.level == "warning"
    assert "1 replica(s), none semi-synchronous" in found.message
    assert found.advice

    # One that was forgotten to be made read-only.
    sql_doctor.init(f"{replica.url}?table=elsewhere")
    assert [each.level for each in about(f"{replica.url}?table=elsewhere", "primary")] == ["ok", "warning"]
    # One that is as it should be.
    replica.sql("SET GLOBAL read_only = 1")
    (found,) = sql_doctor.doctor(replica.url)
    assert found.level == "error"
    assert "leases need the primary" in found.message
    # Who may not see it is told the rest all the same.
    source.sql("CREATE USER ann")
    source.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold.leasehold TO ann")
    told = sql_doctor.doctor(source.as_user("ann"))
    assert not [each for each in told if each.level == "error"]
    assert {each.subject for each in told} >= {"primary", "table", "privileges", "clock", "push"}


@pytest.mark.slow
def test_doctor_sees_that_replication_is_semi_synchronous(start_server: Callable[..., Any]) -> None:
    source, replica = Database(start_server(Replicating)), Database(start_server(Replicating))
    sql_doctor.init(source.url)
    source.sql("SET GLOBAL rpl_semi_sync_master_enabled = 1")
    replica.sql("SET GLOBAL rpl_semi_sync_slave_enabled = 1")
    follow(replica, source)
    eventually(lambda: source.sql("SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_master_clients'")[0][1] == "1", 60)
    assert about(source.url, "replication") == []


def test_doctor_whose_connection_is_killed_under_it(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each of its statements in turn. What it had seen is told, and what happened."""
    sql_doctor.init(database.url)
    connection = postgresql_threads.PostgreSQLConnection if database.is_postgresql else mysql_threads.MySQLConnection
    execute, calls = connection.execute, 0

    def counted(self: Any, statement: Any, limit: float) -> Any:
        nonlocal calls
        calls += 1
        if calls == deadly:
            kill(database, self.raw)
        return execute(self, statement, limit)

    monkeypatch.setattr(connection, "execute", counted)
    seen = []
    for deadly in range(1, 40):
        calls = 0
        found = sql_doctor.doctor(f"{database.url}?push=off")
        if calls < deadly:
            break
        assert found[-1].subject == "connection", found
        assert found[-1].level == "error"
        assert found[-1].advice
        seen.append(len(found))
    assert len(seen) >= 8
    assert seen == sorted(seen)
    assert seen[-1] > 3


def kill(database: Database, raw: Any) -> None:
    if database.is_postgresql:
        database.sql("SELECT pg_terminate_backend(%s, 10000)", raw.info.backend_pid)
    else:
        database.sql(f"KILL {raw.thread_id()}")
        there = f"SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = {raw.thread_id()}"
        eventually(lambda: database.sql(there) == [(0,)])


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_doctor_of_a_server_that_refuses_to_go_on(kind: str, request: pytest.FixtureRequest, namespace: str) -> None:
    """A user who may ask so much and no more: refused by the server, on a connection that is well."""
    database = Database(request.getfixturevalue(f"{kind}_server"))
    sql_doctor.init(database.url)
    user = f"u{namespace}"
    for most in (2, 5, 8):
        database.sql(f"CREATE USER {user} WITH MAX_QUERIES_PER_HOUR {most}")
        try:
            database.sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold.leasehold TO {user}")
            found = sql_doctor.doctor(database.as_user(user))
            assert found[-1].level == "error"
            assert "exceeded" in found[-1].message
        finally:
            database.sql(f"DROP USER {user}")
