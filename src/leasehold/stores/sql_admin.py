"""For those who run the SQL stores: make the table, print its SQL, and look at a live server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from .. import clock
from ..connect import find
from ..errors import StoreError, StoreNotReady
from ..findings import ERROR, OK, WARNING, Finding
from .mysql_sql import MySQL
from .mysql_sql import bell as bell_name
from .postgresql_sql import PostgreSQL
from .sql_dialect import DEFAULT_TABLE, Dialect, Statement
from .sql_session import Broken, Refused, broken
from .sql_threads import SqlThreads, carry_out

LIMIT = 10.0
SKEW = 5.0
"""Clocks further apart than this are worth a word, though leases do not mind."""


def schema_sql(flavour: str, table: str = DEFAULT_TABLE) -> str:
    """The SQL that makes the table, for those who run migrations themselves; ``flavour`` is a URL's scheme."""
    dialects: dict[str, type[PostgreSQL | MySQL]] = {"postgresql": PostgreSQL, "mysql": MySQL, "mariadb": MySQL}
    if flavour not in dialects:
        raise ValueError(f"{flavour!r} is no SQL store; known are {', '.join(dialects)}")
    return "".join(f"{sql};\n" for sql in dialects[flavour](table).schema())


def init(url: object) -> None:
    """Make the table, or see that it is there and ours. Raises StoreNotReady, StoreUnavailable."""
    driver = _driver(url)
    try:
        with _Connection(driver) as connection:
            carry_out(driver.session.check(), connection, clock.now() + LIMIT)
            # Also where the table was there already: an index may have been forgotten.
            carry_out(driver.session.create(), connection, clock.now() + LIMIT)
    except Broken as error:
        raise broken(error) from (error.__cause__ or error)
    finally:
        driver.close()


def doctor(url: object) -> list[Finding]:
    """What speaks for and against this server, this table and this user. Changes nothing."""
    driver = _driver(url)
    try:
        with _Connection(driver) as connection:
            return list(_look(driver, _Ask(connection)))
    except Broken as error:
        return [Finding(ERROR, "connection", str(error), "see that the server runs and the URL is right")]
    except StoreError as error:
        return [Finding(ERROR, "connection", str(error), "mend what it says")]
    finally:
        driver.close()


def _driver(url: object) -> SqlThreads:
    driver = find(url, "").threads()
    if not isinstance(driver, SqlThreads):
        raise ValueError("this is no SQL store")
    return driver


class _Connection:
    """A connection of the driver's, lent for a block."""

    def __init__(self, driver: SqlThreads) -> None:
        self._driver = driver

    def __enter__(self) -> Any:
        self._connection, _ = self._driver.source.take(LIMIT)
        return self._connection

    def __exit__(self, *exc: object) -> None:
        self._driver.source.give(self._connection, False)


class _Ask:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def row(self, sql: str, **values: Any) -> Any:
        """The first row, or None."""
        rows = self._connection.execute(Statement(sql, values), LIMIT).rows
        return rows[0] if rows else None

    def value(self, sql: str, **values: Any) -> Any:
        row = self.row(sql, **values)
        return None if row is None else row[0]

    def check(self, dialect: Dialect) -> bool:
        return dialect.checked(self._connection.execute(dialect.check(), LIMIT))

    def denied(self, sql: str, dialect: Dialect) -> bool:
        """Whether this user may not do that. Any other complaint comes after that question."""
        try:
            self._connection.execute(Statement(sql, {}), LIMIT)
        except Refused as refused:
            return refused.code in dialect.DENIED
        return False


def _look(driver: SqlThreads, ask: _Ask) -> Iterator[Finding]:
    dialect = driver.session.dialect
    try:
        there = ask.check(dialect)
    except StoreNotReady as error:
        yield Finding(ERROR, "server and table", str(error), "mend what it says")
        return
    yield Finding(OK, "primary", "the server takes writes")
    if there:
        yield Finding(OK, "table", f"{dialect.table} is there, with its key")
        yield from _privileges(dialect, ask)
    else:
        yield Finding(WARNING, "table", f"{dialect.table} does not exist yet", "it is made on first use; or run `init`")
    yield from (_look_mysql if isinstance(dialect, MySQL) else _look_postgresql)(dialect, ask, there)


def _privileges(dialect: Dialect, ask: _Ask) -> Iterator[Finding]:
    """Statements that touch no row are refused just like others."""
    table = dialect.quoted
    tries = {
        "SELECT": f"SELECT name FROM {table} WHERE 1 = 0",
        "INSERT": f"INSERT INTO {table} (namespace) SELECT namespace FROM {table} WHERE 1 = 0",
        "UPDATE": f"UPDATE {table} SET version = version WHERE 1 = 0",
        "DELETE": f"DELETE FROM {table} WHERE 1 = 0",
    }
    missing = [right for right, sql in tries.items() if ask.denied(sql, dialect)]
    if missing:
        advice = dialect.grants("this_user")
        yield Finding(ERROR, "privileges", f"this user lacks {', '.join(missing)} on {dialect.table}", advice)
    else:
        yield Finding(OK, "privileges", "SELECT, INSERT, UPDATE, DELETE")


def _index(there: bool, found: object, dialect: Dialect) -> Iterator[Finding]:
    if there and not found:
        advice = f"CREATE INDEX … ON {dialect.quoted} (expires_day), or run `init`"
        yield Finding(WARNING, "index", "there is no index on expires_day: purging reads the whole table", advice)


def _skew(server: float, before: float, after: float) -> Iterator[Finding]:
    apart = server - (before + after) / 2
    if abs(apart) > SKEW + (after - before):
        message = f"the server's clock is {apart:+.1f} s from this machine's"
        yield Finding(WARNING, "clock", message, "leases go by the server's alone; mend it for whoever reads times")
    else:
        yield Finding(OK, "clock", f"the server's clock is {apart:+.3f} s from this machine's")


def _look_postgresql(dialect: Dialect, ask: _Ask, there: bool) -> Iterator[Finding]:
    version = int(ask.value("SELECT current_setting('server_version_num')"))
    if version < 120000:
        yield Finding(ERROR, "version", f"PostgreSQL {version // 10000}", "12 or newer is needed")
    index = "SELECT 1 FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]"
    where = "WHERE i.indrelid = to_regclass(%(table)s) AND a.attname = 'expires_day'"
    yield from _index(there, ask.value(f"{index} {where}", table=dialect.quoted), dialect)
    before = time.time()
    server = float(ask.value("SELECT extract(epoch FROM clock_timestamp())"))
    yield from _skew(server, before, time.time())
    if ask.value("SELECT current_setting('fsync')") != "on":
        yield Finding(WARNING, "durability", "fsync is off: a crash can lose what was acknowledged", "turn it on")
    elif ask.value("SELECT current_setting('synchronous_commit')") == "off":
        message = "synchronous_commit is off: a crash can lose leases that were acknowledged"
        yield Finding(
            WARNING, "durability", message, "turn it on for this user: ALTER ROLE … SET synchronous_commit = on"
        )
    names = ask.value("SELECT current_setting('synchronous_standby_names')")
    standbys = ask.value("SELECT count(*) FROM pg_stat_replication")
    if standbys and not names:
        message = f"{standbys} standby(s), none synchronous: a failover can lose the last leases"
        yield Finding(WARNING, "replication", message, "set synchronous_standby_names, or fence what you write")
    if len({ask.value("SELECT pg_backend_pid()") for _ in range(5)}) > 1:
        message = "statements of one connection meet different servers' backends: a pooler in transaction mode"
        yield Finding(WARNING, "pooler", message, "it works, without push: waiters poll; or connect directly")


def _look_mysql(dialect: Dialect, ask: _Ask, there: bool) -> Iterator[Finding]:
    version = _text(ask.value("SELECT VERSION()"))
    numbers = tuple(int(part) for part in version.split("-")[0].split(".")[:2])
    oldest = (10, 5) if "mariadb" in version.lower() else (8, 0)
    if numbers < oldest:
        yield Finding(ERROR, "version", version, f"{oldest[0]}.{oldest[1]} or newer is needed")
    schema, _, table = dialect.table.rpartition(".")
    index = "SELECT 1 FROM information_schema.STATISTICS WHERE COLUMN_NAME = 'expires_day' AND SEQ_IN_INDEX = 1"
    where = f"TABLE_NAME = %(table)s AND TABLE_SCHEMA = {'%(schema)s' if schema else 'DATABASE()'}"
    yield from _index(there, ask.value(f"{index} AND {where}", table=table, schema=schema), dialect)
    before = time.time()
    server = ask.value("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))") / 1e6
    yield from _skew(server, before, time.time())
    if int(ask.value("SELECT @@global.innodb_flush_log_at_trx_commit")) != 1:
        message = "innodb_flush_log_at_trx_commit is not 1: a crash can lose leases that were acknowledged"
        yield Finding(WARNING, "durability", message, "set it to 1")
    galera = ask.row("SHOW GLOBAL STATUS LIKE 'wsrep_ready'")
    if galera is not None and _text(galera[1]).upper() == "ON":
        message = "a Galera cluster: two nodes can each grant a lease before one of them is rolled back"
        yield Finding(WARNING, "cluster", message, "let all clients of leasehold use one node")
    got = ask.value("SELECT GET_LOCK(%(name)s, 0)", name=bell_name("doctor"))
    if got is None:
        yield Finding(WARNING, "push", "named locks are refused", "it works, without push: waiters poll")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
