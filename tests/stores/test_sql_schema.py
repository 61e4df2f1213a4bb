"""Tables of an earlier leasehold, which had no column ``note``; tables that are not ours; servers that are too old."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from sql_servers import Database, at_once, inside

import leasehold
from leasehold import StoreNotReady
from leasehold.stores.mysql.sql import MySQL
from leasehold.stores.postgresql.sql import PostgreSQL
from leasehold.stores.sql import doctor as sql_doctor
from leasehold.stores.sql.dialect import Dialect
from leasehold.stores.sql.requests import Result
from leasehold.stores.sql.rows import ALL_COLUMNS

COLUMNS = "SELECT column_name FROM information_schema.columns WHERE table_name = %s"


@pytest.fixture
def old(database: Database, namespace: str) -> Iterator[str]:
    """A table of the first shape, with a lease in it; its name."""
    table = f"old_{namespace}"
    url = f"{database.url}?table={table}"
    sql_doctor.init(url)
    with leasehold.connect(url) as locks:
        locks.lock("before").acquire().release()
    database.sql(f"ALTER TABLE {table} DROP COLUMN note")
    yield table
    database.sql(f"DROP TABLE {table}")


def columns(database: Database, table: str) -> set[str]:
    return {name for (name,) in database.sql(COLUMNS, table)}


def test_first_use_adds_the_column(database: Database, old: str) -> None:
    with leasehold.connect(f"{database.url}?table={old}") as locks:
        assert locks.once("work").run(lambda: 3).result == 3
        assert database.sql(f"SELECT count(*) FROM {old} WHERE note IS NOT NULL") == [(1,)]
        core: Any = inside(locks)
        core.call(core.store.tidy())
    assert columns(database, old) == set(ALL_COLUMNS)
    assert database.sql(f"SELECT count(*) FROM {old}") == [(2,)]  # what was there is still there


def test_many_add_it_at_once(database: Database, old: str) -> None:
    failed: list[BaseException] = []
    begin = threading.Barrier(6)

    def use() -> None:
        try:
            with leasehold.connect(f"{database.url}?table={old}&push=off") as locks:
                begin.wait()
                locks.lock("name", timeout=60).acquire().release()
        except BaseException as error:
            failed.append(error)

    at_once(6, use)
    assert failed == []
    assert columns(database, old) == set(ALL_COLUMNS)


def test_init_adds_the_column(database: Database, old: str) -> None:
    url = f"{database.url}?table={old}"
    (found,) = [each for each in sql_doctor.doctor(url) if each.subject == "table"]
    assert found.level == "warning"
    assert "ALTER TABLE" in found.advice
    (to_do,) = sql_doctor.init(url, dry_run=True)
    assert to_do.level == "to do"
    assert "ALTER TABLE" in to_do.message
    assert "note" not in columns(database, old)
    assert [each.level for each in sql_doctor.init(url)] == ["done"]
    assert "note" in columns(database, old)
    assert [each.level for each in sql_doctor.init(url)] == ["ok"]
    (found,) = [each for each in sql_doctor.doctor(url) if each.subject == "table"]
    assert found.level == "ok"


def test_who_may_not_add_it_is_told_how(database: Database, old: str, user: Callable[[str], str]) -> None:
    url = user(old)
    with leasehold.connect(url) as locks, pytest.raises(StoreNotReady, match=r"(?s)leasehold init.*ALTER TABLE.*note"):
        locks.lock("name").acquire()
    assert "note" not in columns(database, old)
    with pytest.raises(StoreNotReady, match="ALTER TABLE"):
        sql_doctor.init(url)
    sql_doctor.init(f"{database.url}?table={old}")
    with leasehold.connect(url) as locks:
        assert locks.once("work").run(lambda: 3).result == 3
    assert [each.level for each in sql_doctor.init(url)] == ["ok"]  # nothing to do needs no right to do it


@pytest.fixture
def user(database: Database, namespace: str) -> Iterator[Callable[[str], str]]:
    """Makes a user who has the least privileges on a table, and gives the URL."""
    name = f"ann_{namespace}"
    what, login = ("ROLE", " LOGIN") if database.is_postgresql else ("USER", "")

    def make(table: str) -> str:
        database.sql(f"CREATE {what} {name}{login}")
        where = table if database.is_postgresql else f"leasehold.{table}"
        database.sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {where} TO {name}")
        return f"{database.as_user(name)}?table={table}"

    yield make
    if database.is_postgresql:
        database.sql(f"DROP OWNED BY {name}")
    database.sql(f"DROP {what} {name}")


def test_nothing_is_added_to_a_table_of_somebody_elses(database: Database, namespace: str) -> None:
    """Though its key is the same."""
    table, text = f"their_{namespace}", "TEXT" if database.is_postgresql else "VARBINARY(200)"
    database.sql(f"CREATE TABLE {table} (namespace {text}, name {text}, weight INT, PRIMARY KEY (namespace, name))")
    try:
        with leasehold.connect(f"{database.url}?table={table}") as locks:
            with pytest.raises(StoreNotReady, match="not a table of leasehold"):
                locks.lock("name").acquire()
        with pytest.raises(StoreNotReady, match="not a table of leasehold"):
            sql_doctor.init(f"{database.url}?table={table}")
        assert columns(database, table) == {"namespace", "name", "weight"}
    finally:
        database.sql(f"DROP TABLE {table}")


@pytest.mark.parametrize(
    ("dialect_class", "row", "serves"),
    [
        (MySQL, (0, "5.7.44-log", 0, 0, None, None, None, None), False),
        (MySQL, (0, "8.0.0", 0, 0, None, None, None, None), True),
        (MySQL, (0, b"10.4.34-MariaDB-log", 0, 0, None, None, None, None), False),
        (MySQL, (0, b"10.5.1-MariaDB", 0, 0, None, None, None, None), True),
        (MySQL, (0, "11.8.2-MariaDB-ubu2404", 0, 0, None, None, None, None), True),
        (PostgreSQL, (0, 110022, "UTF8", False, "off", False, None, None), False),
        (PostgreSQL, (0, 120000, "UTF8", False, "off", False, None, None), True),
    ],
)
def test_a_server_that_is_too_old_is_refused(dialect_class: type[Dialect], row: tuple[Any, ...], serves: bool) -> None:
    """By its own answer to what each new connection asks: such servers are not at hand."""
    dialect = dialect_class()
    if serves:
        assert dialect.lacking(Result([row], 1)) == dialect.schema()
    else:
        with pytest.raises(StoreNotReady, match="or newer"):
            dialect.lacking(Result([row], 1))


@pytest.mark.server
def test_a_table_that_is_made_while_it_is_looked_for_is_not_there_yet(postgresql_server: Any, namespace: str) -> None:
    """Its name can be seen by then, but not its columns: so it was taken for somebody else's."""
    table = f"made_{namespace}"
    dialect = PostgreSQL(table)
    with psycopg.connect(postgresql_server.url) as looking:
        looking.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        looking.execute("SELECT 1")  # from now on it sees what there is at this moment
        sql_doctor.init(f"{postgresql_server.url}?table={table}")
        sql, values = dialect.check()
        found = looking.execute(sql, values).fetchall()
    assert dialect.lacking(Result(found, 1)) == dialect.schema()
    Database(postgresql_server).sql(f"DROP TABLE {table}")
