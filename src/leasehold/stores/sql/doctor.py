"""``leasehold init`` and ``leasehold doctor``: what is the same for PostgreSQL, MySQL and MariaDB."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from ...core import clock
from ...errors import StoreError, StoreNotReady
from ..common.findings import DONE, ERROR, OK, TO_DO, WARNING, Finding
from ..urls import find_store
from .dialect import Dialect
from .requests import Broken, Refused, Statement
from .session import broken
from .threads import SqlThreads, carry_out

LIMIT = 10.0
RING_AGAIN = 0.3
"""Seconds to wait for a test wake-up before the next one is sent."""
SKEW = 5.0
"""Seconds. A larger difference between the clocks is worth a warning, though leases are safe."""


def schema_sql(url: object) -> str:
    """The SQL that creates the table of ``url``, for migrations. No I/O. Raises ValueError for a store without SQL."""
    driver = _driver(url)
    try:
        return "".join(f"{sql};\n" for sql in driver.session.dialect.schema())
    finally:
        driver.close()


def init(url: object, *, dry_run: bool = False) -> list[Finding]:
    """Create the table, or add what it lacks. ``dry_run``: change nothing; findings have the level TO_DO.

    Raises StoreNotReady (also if the table is not a table of leasehold), StoreUnavailable."""
    driver = _driver(url)
    dialect = driver.session.dialect
    try:
        with _Connection(driver) as connection:
            ask = Asking(connection)
            lacking = ask.lacking(dialect)
            if lacking != dialect.schema() and not ask.has_index(dialect):
                lacking = [*lacking, dialect.INDEX]
            if not dry_run:
                carry_out(driver.session.create(lacking), connection, clock.now() + LIMIT)
        if not lacking:
            return [Finding(OK, "table", f"{dialect.table} exists")]
        level, advice = (TO_DO, "--print-sql shows the whole table") if dry_run else (DONE, "")
        if lacking == dialect.schema():
            return [Finding(level, "table", f"{dialect.table} created", advice)]
        return [Finding(level, "table", sql, advice) for sql in lacking]
    except Broken as error:
        raise broken(error) from (error.__cause__ or error)
    except Refused as refused:
        raise dialect.error(refused.code, str(refused)) from refused
    finally:
        driver.close()


def doctor(url: object) -> list[Finding]:
    """Check server, table, this user's privileges, clocks, replication and push. Changes nothing.

    Raises ValueError for a bad URL; any other problem is a finding."""
    driver = _driver(url)
    found: list[Finding] = []  # kept if a later check fails
    try:
        with _Connection(driver) as connection:
            found.extend(_check(driver, Asking(connection)))
        if any(each.subject == "table" and each.level == OK for each in found):
            found.extend(_push(driver))
    except Broken as error:
        found.append(Finding(ERROR, "connection", str(error), "check that the server runs and that the URL is right"))
    except (StoreError, Refused) as error:
        found.append(Finding(ERROR, "connection", str(error), "fix what the message names"))
    finally:
        driver.close()
    return found


def _driver(url: object) -> SqlThreads:
    driver = find_store(url, "").threads()
    if not isinstance(driver, SqlThreads):
        raise ValueError("this is not a SQL store")
    return driver


class _Connection:
    """A connection of the driver, borrowed for the block."""

    def __init__(self, driver: SqlThreads) -> None:
        self._driver = driver

    def __enter__(self) -> Any:
        self._lent = self._driver.pool.take(LIMIT)
        return self._lent.connection

    def __exit__(self, *exc: object) -> None:
        self._driver.pool.give(self._lent, False)


class Asking:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def row(self, sql: str, **values: Any) -> Any:
        """The first row, or None."""
        rows = self._connection.execute(Statement(sql, values), LIMIT).rows
        return rows[0] if rows else None

    def value(self, sql: str, **values: Any) -> Any:
        row = self.row(sql, **values)
        return None if row is None else row[0]

    def may_see(self, sql: str) -> Any:
        """The first row, or None; also None if this user may not run the statement, or the server does not know it."""
        try:
            return self.row(sql)
        except Refused:
            return None

    def lacking(self, dialect: Dialect) -> Sequence[str]:
        return dialect.lacking(self._connection.execute(dialect.check(), LIMIT))

    def has_index(self, dialect: Dialect) -> bool:
        return bool(self._connection.execute(dialect.has_index(), LIMIT).rows)

    def denied(self, sql: str, dialect: Dialect) -> bool:
        """Whether this user may not run the statement. Privileges are checked before anything else could fail."""
        try:
            self._connection.execute(Statement(sql, {}), LIMIT)
        except Refused as refused:
            return refused.code in dialect.DENIED
        return False


def _check(driver: SqlThreads, ask: Asking) -> Iterator[Finding]:
    dialect = driver.session.dialect
    try:
        lacking = ask.lacking(dialect)
    except StoreNotReady as error:
        yield Finding(ERROR, "server and table", str(error), "fix what the message names")
        return
    yield Finding(OK, "primary", "the server accepts writes")
    if lacking == dialect.schema():
        advice = "the first use creates it; or run `leasehold init`"
        yield Finding(WARNING, "table", f"{dialect.table} does not exist yet", advice)
    elif lacking:
        message = f"{dialect.table} was created by an earlier leasehold and lacks a column"
        advice = f"the first use adds it, if this user may; or run `leasehold init`: {lacking[0]}"
        yield Finding(WARNING, "table", message, advice)
    else:
        yield Finding(OK, "table", f"{dialect.table} exists, with its primary key")
    if lacking != dialect.schema():
        yield from _privileges(dialect, ask)
        if not ask.has_index(dialect):
            message = "there is no index on expires_day: purging reads the whole table"
            yield Finding(WARNING, "index", message, f"run `leasehold init`, or: {dialect.INDEX}")
    yield from dialect.findings(ask)


def _push(driver: SqlThreads) -> Iterator[Finding]:
    """Whether wake-ups arrive: send one to ourselves."""
    rung = threading.Event()
    driver.on_ring = lambda attempt: rung.set()
    trouble = driver.trouble_listening(LIMIT)
    dialect, address = driver.session.dialect, driver.session.address
    if not trouble and dialect.find_listener(address) is not None:  # otherwise the listener has proved it
        rung.clear()
        ends = clock.now() + LIMIT / 2
        with _Connection(driver) as connection:
            # More than one: on a busy machine the listener may not sleep yet, and miss the first.
            while not rung.is_set() and clock.now() < ends:
                carry_out(driver.session.wake(address), connection, clock.now() + LIMIT)
                rung.wait(RING_AGAIN)
        if not rung.is_set():
            trouble = "wake-ups were sent, but none arrives"
    if trouble:
        yield Finding(WARNING, "push", f"no push: {trouble}", "leases work without it: waiters poll")
    else:
        yield Finding(OK, "push", "a release wakes its waiter at once")


def _privileges(dialect: Dialect, ask: Asking) -> Iterator[Finding]:
    """Try statements that touch no row: they need the same privileges."""
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


def skew(server: float, before: float, after: float) -> Iterator[Finding]:
    apart = server - (before + after) / 2
    if abs(apart) > SKEW + (after - before):
        message = f"the server's clock is {apart:+.1f} s from this machine's"
        yield Finding(
            WARNING,
            "clock",
            message,
            "leases are safe, they use the server's clock alone; synchronise both, so that listed times are right",
        )
    else:
        yield Finding(OK, "clock", f"the server's clock is {apart:+.3f} s from this machine's")
