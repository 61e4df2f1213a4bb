"""``leasehold init --from-legacy``: the locks of an application's own table become leases.

Under a lock of the old table, each row that has not expired becomes a lease, and then two triggers (:mod:`.triggers`)
close the table. From then on old code can keep what it holds, but acquires nothing; a row can be extended only together
with its lease. So a name has one holder, whether that is an old process or a new one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, NamedTuple

import pymysql

from ...core import checks
from ...core.protocol import SECOND, Ask, Busy, Grant, Opened
from ...core.timing import LONGEST_TTL
from ...errors import StoreError, StoreUnavailable
from ..common.findings import DONE, ERROR, OK, TO_DO, WARNING, Finding
from ..sql.dialect import check_table
from ..sql.threads import SqlThreads
from ..sql.url import read_url
from ..urls import find_store
from .triggers import NOW, Columns, Destination, OldTable, close_table, drop_triggers, instant, offset_of, triggers_on

LIMIT, LEASE_LIMIT = 30.0, 2.0
"""Seconds for each statement, of which LOCK TABLES waits for half; and for each lease, while old code has to wait.

(A user who may not see our triggers locks, with the old table, the table of leases that they name.)"""
TABLES = ("locks", "workflow_locks")
"""Where the old code has its locks, unless told otherwise (documents C and D)."""
FORMS = (
    Columns("action", "holder", "expired_at"),
    Columns("lock_key", "owner", "expires_at", "lock_type", "lock_data"),
)
"""The tables of these documents."""
_ON_UTC = "SELECT ABS(TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), NOW())) < 60"
TIMES = ("timestamp", "datetime")
LOCK_WAIT_TIMEOUT = 1205


class OldLock(NamedTuple):
    """A row that has not expired. ``expires_in`` is None if it has no expiry."""

    name: str
    owner: str
    kind: str
    data: str | None
    expires_in: int | None

    @property
    def left(self) -> str:
        return f"{(self.expires_in or 0) / SECOND:.0f} s"


def check(url: str, tables: Sequence[str], zone: str | None) -> None:
    """Check the arguments of ``import_locks``, without I/O. Raises ValueError."""
    for table in tables:
        check_table(table)
    if zone is not None:
        offset_of(zone)
    find_store(url, "")


def import_locks(
    url: str, namespace: str, *, tables: Sequence[str] = (), zone: str | None = None, dry_run: bool = False
) -> list[Finding]:
    """Close the old tables, and make leases of ``namespace`` from their rows.

    ``tables``: besides ``TABLES``. ``zone``: in which DATETIME columns are written, as ``+02:00``.
    Arguments as in ``check``. Can be run again at any time. Raises StoreUnavailable, StoreNotReady.
    """
    offset = None if zone is None else offset_of(zone)
    opened = find_store(url, namespace)
    driver = opened.threads()
    if not isinstance(driver, SqlThreads):
        raise ValueError("this is not a SQL store")
    ours = read_url(url).table
    with closing(driver), _connection(driver) as connection:
        found: list[Finding] = []
        for table in dict.fromkeys((*TABLES, *tables)):
            old = _find_table(connection, table, offset)
            if isinstance(old, Finding):
                found.append(old)
            elif old is None and table in tables:
                advice = "it needs action, holder, expired_at, or lock_key, owner, expires_at, lock_type, lock_data"
                found.append(Finding(ERROR, table, f"{table} is not a known table of locks", advice))
            elif old is not None:
                destination = Destination(_qualified(connection, ours), namespace, old)
                found += _Import(connection, opened, driver, destination).run(dry_run)
        return found or [Finding(OK, "legacy locks", f"there is no table of locks named {' or '.join(TABLES)}")]


class _Import:
    """The import of one table."""

    def __init__(self, connection: Any, opened: Opened, driver: SqlThreads, destination: Destination) -> None:
        self._connection, self._opened, self._driver = connection, opened, driver
        self._destination, self._old = destination, destination.old

    def run(self, dry_run: bool) -> list[Finding]:
        table = self._old.table
        there = triggers_on(self._connection, self._old)
        if foreign := there - set(self._destination.triggers):
            message = f"{table} was closed for another table of leases, namespace or zone"
            advice = "use the same as before; or, while no old code runs, drop " + ", ".join(sorted(foreign))
            return [Finding(ERROR, table, message, advice)]
        if there == set(self._destination.triggers):
            return self._report()
        try:
            return self._read(dry_run) if dry_run else self._close()
        except pymysql.err.Error as error:
            if error.args[0] in range(2000, 3000):  # the connection is gone
                raise
            _execute(self._connection, "UNLOCK TABLES")
            if error.args[0] == LOCK_WAIT_TIMEOUT:
                advice = "a transaction has the table open: run init again when it has ended"
                return [Finding(ERROR, table, f"{table} cannot be locked: {error.args[-1]}", advice)]
            advice = (
                "run it as a user with the rights LOCK TABLES and TRIGGER on this table; with a binary log, MySQL also "
                "asks for SUPER or log_bin_trust_function_creators=1"
            )
            return [Finding(ERROR, table, f"{table} cannot be closed: {error.args[-1]}", advice)]

    def _close(self) -> list[Finding]:
        """Nothing can change a row between the moment in which it is read and that in which the triggers are there."""
        drop_triggers(self._connection, self._destination)
        _execute(self._connection, f"SET SESSION lock_wait_timeout = {int(LIMIT / 2)}")
        _execute(self._connection, f"LOCK TABLES {self._old.quoted} WRITE")
        found = self._read(dry_run=False)
        if not _refused(found):
            close_table(self._connection, self._destination)
        _execute(self._connection, "UNLOCK TABLES")
        return found

    def _read(self, dry_run: bool) -> list[Finding]:
        """Make the leases, or nothing if one of the rows cannot be one."""
        table, rows, expires = self._old.table, _live_rows(self._connection, self._old), self._old.columns.expires
        found = [finding for row in rows for finding in _unfit(table, row)]
        if not _refused(found):
            found += [self._would_import(row) if dry_run else self._import(row) for row in rows]
        if _refused(found):
            return found
        level, verb = (TO_DO, "would be") if dry_run else (DONE, "is")
        read = "" if self._old.offset is None else f"; {expires} read as UTC{_shown(self._old.offset)}"
        return [*found, Finding(level, table, f"{table} {verb} closed: old code acquires no more locks{read}")]

    def _would_import(self, row: OldLock) -> Finding:
        return Finding(TO_DO, self._old.table, f"{row.name!r}: a lease of {row.owner!r} for {row.left}")

    def _import(self, row: OldLock) -> Finding:
        data = None
        with suppress(ValueError):  # reported already
            data = _data_of(row)
        ttl = min(row.expires_in or 1, int(LONGEST_TTL * SECOND))
        ask = Ask(row.name, self._destination.attempt, row.owner, row.kind, data, ttl)
        reply = self._driver.run(self._opened.store.acquire(ask), LEASE_LIMIT)
        if isinstance(reply, Grant):
            message = f"{row.name!r} is now a lease of {row.owner!r} for {row.left} (token {reply.token})"
            return Finding(DONE, self._old.table, message)
        holder = reply.holder.owner if isinstance(reply, Busy) and reply.holder else "somebody"
        message = f"{row.name!r} is held by {row.owner!r} in {self._old.table}, and by {holder!r} in leasehold"
        return Finding(ERROR, self._old.table, message, "stop one of them, then run init again")

    def _report(self) -> list[Finding]:
        """What old code still holds of a table that is closed."""
        table, rows = self._old.table, _live_rows(self._connection, self._old)
        holds, advice = f"{len(rows)} locks" if rows else "nothing", "" if rows else "drop it when no old code runs"
        return [
            *(self._held(row) for row in rows),
            Finding(OK, table, f"{table} is closed; old code holds {holds}", advice),
        ]

    def _held(self, row: OldLock) -> Finding:
        held = self._driver.run(self._opened.store.inspect(row.name), LEASE_LIMIT)
        if any(holding.attempt == self._destination.attempt for holding in held):
            return Finding(OK, self._old.table, f"{row.name!r} is a lease of {row.owner!r} for {row.left}")
        message = f"{row.name!r} of {row.owner!r} is no lease any more: its holder cannot extend it"
        return Finding(WARNING, self._old.table, message, "stop its holder")


def _refused(findings: Sequence[Finding]) -> bool:
    return any(finding.level == ERROR for finding in findings)


def _unfit(table: str, row: OldLock) -> Iterator[Finding]:
    """Why the row cannot become a lease. WARNING: it does, but without its data."""
    if row.expires_in is None:
        advice = "delete the row when its holder has stopped, then run init again"
        yield Finding(ERROR, table, f"{row.name!r} of {row.owner!r} has no expiry", advice)
    try:
        checks.name(row.name)
    except ValueError as error:
        advice = "stop its holder or wait until it expires, then run init again"
        yield Finding(ERROR, table, f"{row.name!r} of {row.owner!r} cannot be a lease: {error}", advice)
    try:
        _data_of(row)
    except ValueError as error:
        yield Finding(WARNING, table, f"{row.name!r}: the lease has no data: {error}")


def _data_of(row: OldLock) -> str | None:
    """The data as leases have it. Raises ValueError."""
    try:
        return None if row.data is None else checks.data_text(json.loads(row.data))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _find_table(connection: Any, table: str, offset: int | None) -> OldTable | Finding | None:
    """The table with its columns; None if it is not there, or is no table of locks."""
    schema, _, name = table.rpartition(".")
    where = f"TABLE_SCHEMA = {'%s' if schema else 'DATABASE()'} AND TABLE_NAME = %s"
    query = f"SELECT COLUMN_NAME, DATA_TYPE FROM information_schema.COLUMNS WHERE {where}"
    columns = dict(_execute(connection, query, *([schema] if schema else []), name))
    for form in FORMS:
        if not all(column is None or column in columns for column in form):
            continue
        kind = columns[form.expires]
        if kind not in TIMES:
            advice = "it must be a TIMESTAMP or a DATETIME"
            return Finding(ERROR, table, f"the column {form.expires} of {table} is a {kind}", advice)
        if kind == "timestamp":
            return OldTable(table, form, None)
        if offset is None and not _execute(connection, _ON_UTC)[0][0]:
            message = f"{form.expires} of {table} is a DATETIME: nothing says in which time zone old code writes it"
            return Finding(ERROR, table, message, "give it: --legacy-zone=+00:00 if it is UTC (Go's default)")
        return OldTable(table, form, offset or 0)
    return None


def _live_rows(connection: Any, old: OldTable) -> list[OldLock]:
    """Rows that have not expired by the server's clock. Text comes in hex: whole, whatever its character set is."""
    columns = old.columns.name, old.columns.owner, old.columns.kind, old.columns.data
    texts = ", ".join(f"HEX(CONVERT({column or 'NULL'} USING utf8mb4))" for column in columns)
    until = instant(old, old.columns.expires)
    query = f"SELECT {texts}, {until} - {NOW} FROM {old.quoted} WHERE IFNULL({until} > {NOW}, TRUE) ORDER BY 1"
    rows = []
    for *values, left in _execute(connection, query):
        name, owner, kind, data = (None if text is None else bytes.fromhex(text).decode("utf8") for text in values)
        owner, kind = _label(owner or "?", checks.MAX_OWNER), _label(kind or "lock", checks.MAX_LABEL)
        rows.append(OldLock(name or "", owner, kind, data, left))
    return rows


def _label(text: str, longest: int) -> str:
    """An owner or a kind that a record can have. It is only shown, never compared."""
    return "".join(char if char.isprintable() else "?" for char in text)[:longest]


def _shown(offset: int) -> str:
    minutes = abs(offset) // 60
    return f"{'-' if offset < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}"


def _qualified(connection: Any, table: str) -> str:
    """The quoted table of leases, with its database: the old table may be in another."""
    schema, _, name = table.rpartition(".")
    return f"`{schema or _execute(connection, 'SELECT DATABASE()')[0][0]}`.`{name}`"


def _execute(connection: Any, sql: str, *values: Any) -> Sequence[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql, values or None)
        return list(cursor.fetchall())


@contextmanager
def _connection(driver: SqlThreads) -> Iterator[Any]:
    """A connection of the driver's, which is closed after it, and errors of it as ours."""
    try:
        lent = driver.pool.take(LIMIT)
    except StoreError:
        raise
    except Exception as error:  # it was there for the check of the table of leases
        raise StoreUnavailable(f"the connection to the server was lost: {error}") from error
    try:
        yield lent.connection.raw  # type: ignore[attr-defined]  # of MySQL
    except pymysql.err.Error as error:
        raise StoreUnavailable(f"the server reports: {error.args[-1]}") from error
    finally:
        driver.pool.give(lent, False)
