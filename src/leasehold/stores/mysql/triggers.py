"""The triggers that close an application's own table of locks, once its locks are leases.

No row can be inserted. A row can be made to expire later only if it keeps its name and owner, and if the same statement
extends its lease, which must not have ended. Deleting is free. What is refused gets the error that old code knows from
two processes that insert one name at once: "Duplicate entry".
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, NamedTuple

from ..sql.rows import DAY
from .sql import hexed

NOW = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
PREFIX = "leasehold_"
_ZONE = re.compile(r"([+-])(\d\d):(\d\d)", re.ASCII)
_LATEST = "9007199254740000"
"""No lease may end later: 285 years after 1970, in µs."""
_REFUSE = (
    "SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = 1062, "
    "MESSAGE_TEXT = 'Duplicate entry: leasehold has taken over the locks of this table'"
)
_EXISTING = """SELECT TRIGGER_NAME FROM information_schema.TRIGGERS
WHERE EVENT_OBJECT_SCHEMA = {schema} AND EVENT_OBJECT_TABLE = %s AND LEFT(TRIGGER_NAME, 10) = 'leasehold_'"""


class Columns(NamedTuple):
    """The names of the columns of a table of locks."""

    name: str
    owner: str
    expires: str
    kind: str | None = None
    data: str | None = None


class OldTable(NamedTuple):
    """A table of locks. ``offset``: of a DATETIME column, in seconds from UTC; None for TIMESTAMP."""

    table: str
    columns: Columns
    offset: int | None

    @property
    def quoted(self) -> str:
        return ".".join(f"`{part}`" for part in self.table.split("."))


class Destination(NamedTuple):
    """Where the locks of a table become leases: the quoted table of leases, and the namespace."""

    leases: str
    namespace: str
    old: OldTable

    @property
    def mark(self) -> str:
        """In the triggers' names, so that another destination is noticed."""
        what = json.dumps([self.leases, self.namespace, self.old])
        return hashlib.sha256(what.encode()).hexdigest()[:16]

    @property
    def attempt(self) -> str:
        """Of all leases from this table, which a second import and the triggers find by it."""
        return f"legacy_{self.mark}"

    @property
    def triggers(self) -> tuple[str, str]:
        return f"{PREFIX}{self.mark}_insert", f"{PREFIX}{self.mark}_update"


def offset_of(zone: str) -> int:
    """Seconds from UTC. Raises ValueError."""
    found = _ZONE.fullmatch(zone)
    if found is None or int(found[2]) > 14 or int(found[3]) > 59:
        raise ValueError(f"the legacy zone must be an offset from UTC such as +00:00 or -05:00, not {zone!r}")
    return (int(found[2]) * 60 + int(found[3])) * (-60 if found[1] == "-" else 60)


def instant(old: OldTable, column: str) -> str:
    """The column as microseconds since 1970 in UTC, whatever the session's time zone is."""
    if old.offset is None:
        return f"CAST(UNIX_TIMESTAMP({column}) * 1000000 AS SIGNED)"
    return f"(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {column}) - {old.offset * 1_000_000})"


def triggers_on(connection: Any, old: OldTable) -> set[str]:
    """The names of our triggers on this table."""
    schema, _, table = old.table.rpartition(".")
    with connection.cursor() as cursor:
        query = _EXISTING.replace("{schema}", "%s" if schema else "DATABASE()")
        cursor.execute(query, (schema, table) if schema else (table,))
        return {name for (name,) in cursor.fetchall()}


def drop_triggers(connection: Any, destination: Destination) -> None:
    """What an import that failed may have left."""
    for name in destination.triggers:
        with connection.cursor() as cursor:
            if name in triggers_on(connection, destination.old):
                cursor.execute(f"DROP TRIGGER {_beside(destination.old, name)}")


def close_table(connection: Any, destination: Destination) -> None:
    insert, update = destination.triggers
    with connection.cursor() as cursor:
        head = "CREATE TRIGGER {} BEFORE {} ON " + destination.old.quoted + " FOR EACH ROW "
        cursor.execute(head.format(_beside(destination.old, update), "UPDATE") + _update(destination))
        cursor.execute(head.format(_beside(destination.old, insert), "INSERT") + _REFUSE)


def _beside(old: OldTable, name: str) -> str:
    """The trigger's name: it is in the database of its table."""
    schema = old.table.rpartition(".")[0]
    return f"`{schema}`.`{name}`" if schema else f"`{name}`"


def _update(destination: Destination) -> str:
    old = destination.old
    after = instant(old, f"NEW.{old.columns.expires}")
    until = f"GREATEST(expires, LEAST({after}, {_LATEST}))"
    unchanged = " AND ".join(f"{_bytes(f'OLD.{column}')} <=> {_bytes(f'NEW.{column}')}" for column in old.columns[:2])
    return f"""BEGIN
    IF IFNULL({after} > {NOW}, TRUE) THEN
        UPDATE {destination.leases} SET
            version = version + 1, expires_day = {until} DIV {DAY}, expires = {until}, updated = {NOW}
        WHERE namespace = UNHEX('{hexed(destination.namespace)}') AND name = {_bytes(f"NEW.{old.columns.name}")}
            AND attempt = '{destination.attempt}' AND state = 2 AND expires > {NOW} AND {unchanged};
        IF ROW_COUNT() = 0 THEN {_REFUSE}; END IF;
    END IF;
END"""


def _bytes(column: str) -> str:
    return f"CAST(CONVERT({column} USING utf8mb4) AS BINARY)"
