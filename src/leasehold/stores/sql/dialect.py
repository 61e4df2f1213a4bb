"""What differs from one server to the next: its statements, how their results are read, what its errors mean. Pure.

Each statement is complete in itself and runs in autocommit.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...core.protocol import Renewal
from ...errors import StoreError, StoreNotReady, StoreUnavailable
from .requests import Result, Statement
from .rows import ALL_COLUMNS, COLUMNS, NOTE

if TYPE_CHECKING:
    from ..common.findings import Finding
    from .doctor import Asking

DEFAULT_TABLE = "leasehold"
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}(\.[A-Za-z_][A-Za-z0-9_]{0,47})?", re.ASCII)


def check_table(table: str) -> str:
    """The table's name, if it is one that needs no quoting of any kind; ``schema.table`` too."""
    if not _IDENTIFIER.fullmatch(table):
        raise ValueError(
            "table must be a name of ASCII letters, digits and _ (at most 48), or two of them with a dot between, "
            f"not {table!r}"
        )
    return table


BELOW = " AND l.name < %(before)s"
"""In a statement about names with a prefix: where they end, so that it reads these alone, by the key."""


def after_all_with(prefix: str) -> str:
    """The first text that comes after all that begin with ``prefix``, by bytes of UTF-8; empty if there is none."""
    for at in range(len(prefix) - 1, -1, -1):
        following = ord(prefix[at]) + 1
        if following <= 0x10FFFF:
            return prefix[:at] + chr(0xE000 if following == 0xD800 else following)
    return ""


class OnlyReads(StoreNotReady):
    """The server is no primary: wrong from the beginning, or, if it was one before, a failover is under way."""


class Dialect:
    """The SQL of one kind of database, for one table."""

    scheme: str
    CREATED: Collection[Any]
    """Error codes that say: another process has just created the table, its index, its column."""
    MISSING: Collection[Any]
    """Error codes that say: there is no such table."""
    LOCKED: Collection[Any]
    """Error codes of statements that have done nothing because a row is locked."""
    AGAIN: Collection[Any]
    """Error codes of statements that have done nothing and can be sent again at once."""
    UNDONE: Collection[Any]
    """Error codes by which EXCHANGE_ALL undoes itself: one of its rows has changed meanwhile. Any other statement
    meets them in a damaged row only, where a number is too large to go on from: it has done nothing."""
    WRONG: Collection[Any]
    """Error codes that say: the table is not as we need it."""
    DENIED: Collection[Any]
    READ_ONLY: Collection[Any]
    LOGIN: Collection[Any]
    LOGIN_WORDS: Collection[str] = ()
    FULL: Collection[Any]
    FULL_WORDS: Collection[str] = ()
    """What says the same, where a driver gives no code."""
    UNPREPARED: Collection[Any] = ()
    """Error codes that say: a pooler between us and the server has lost our prepared statements."""

    def __init__(self, table: str = DEFAULT_TABLE) -> None:
        self.table = check_table(table)
        quote = self.quote
        self.quoted = ".".join(f"{quote}{part}{quote}" for part in self.table.split("."))
        for name in dir(type(self)):  # the statements, for this table
            if name.isupper() and isinstance(sql := getattr(self, name), str):
                setattr(self, name, sql.replace("{table}", self.quoted))

    quote: str
    SCHEMA: str
    CLOCK: str
    """Asks for the server's clock."""

    def schema(self) -> Sequence[str]:
        """What makes the table, in order."""
        raise NotImplementedError

    ADD_NOTE: str
    """Adds the column that the first tables had not."""
    INDEX: str
    """Makes the index of days, which is part of the schema, on a table that has lost it."""

    def has_index(self) -> Statement:
        """Asks for the index of days: a row if it is there."""
        raise NotImplementedError

    def grants(self, user: str) -> str:
        """The least that ``user`` needs once the table is there."""
        return f"GRANT SELECT, INSERT, UPDATE, DELETE ON {self.quoted} TO {user}"

    def check(self) -> Statement:
        """Asked once on each connection of ours; :meth:`lacking` reads the answer, of which the clock is the first."""
        raise NotImplementedError

    def lacking(self, result: Result) -> Sequence[str]:
        """What has to be run before the table can serve. Raises StoreNotReady where this server or table can't."""
        raise NotImplementedError

    def findings(self, ask: Asking) -> Iterator[Finding]:
        """What only this kind of server can be wrong in, for ``doctor``."""
        raise NotImplementedError

    def lacking_columns(self, key: str, columns: str) -> Sequence[str]:
        """The same for a table that is there, if it is ours: to another's nothing is ever added."""
        if key != "namespace,name":
            raise self.wrong_table(f"its primary key is ({key or 'missing'}), not (namespace, name)")
        missing = set(ALL_COLUMNS) - set(columns.split(","))
        if missing - {NOTE}:
            raise self.wrong_table(f"it has no column {', '.join(sorted(missing))}")
        return (self.ADD_NOTE,) if missing else ()

    # Its statements. Those with a table's name in them are made once, for this table.

    def timed(self, statement: Statement, until: int, patience: float | None) -> Statement:
        """The statement as it is sent. ``until``, by the server's clock: when the caller gives up. What is done later
        grants nothing. ``patience``: for how many seconds to wait for a row that is locked, if less than until then."""
        if "%(until)s" not in statement.sql:
            return statement
        return Statement(statement.sql, {**statement.values, "until": until})

    def probe(self, namespace: str, names: Sequence[str]) -> Statement | None:
        """What fails if one of these rows is locked, where something else may be in the way of a statement."""
        return None

    def waits_longer(self, patience: float) -> bool:
        """Whether a statement cannot be kept from waiting longer than that for a row."""
        return False

    TAKE: str
    TAKE_OR_JOIN: str
    ACCEPT: str
    FREE: str
    READ: str
    INSERT: str
    UPDATE: str
    READ_NOTE: str
    WRITE_NOTE: str
    MEND: str
    READ_ALL: str
    """Gives the rows of these names, with the clock; a row without a name where there are none."""
    EXCHANGE_ALL: str
    EXTEND: str
    UNLOCKED: str
    PAGE: str
    PURGE: str
    LEFTOVERS: str

    def key(self, namespace: str, name: str) -> dict[str, Any]:
        raise NotImplementedError

    def text(self, name: Any) -> str:
        raise NotImplementedError

    def about(self, sql: str, namespace: str, names: Sequence[str]) -> Statement:
        """A statement about several names."""
        raise NotImplementedError

    def taken(self, result: Result) -> int:
        """What TAKE and HOLD have granted: the token or 0. Of INSERT, the version or 0."""
        raise NotImplementedError

    def taken_or_joined(self, attempt: str, result: Result) -> int | Sequence[Any]:
        """The token; or the clock and the row, where that is known to have the attempt in its queue now; else 0."""
        return self.taken(result)

    def accepted(self, result: Result) -> tuple[int, bool]:
        """The token or 0, and whether others wait too."""
        raise NotImplementedError

    def exchange(self, values: dict[str, Any], rings: Sequence[tuple[str, str]]) -> Statement:
        """Writes a row, and notifies, where a statement can."""
        return Statement(self.UPDATE, values)

    def without_notify(self, statement: Statement) -> Statement | None:
        """The same exchange without its notifications, to send when the server refused it. None: it had none."""
        return None

    def exchange_all(self, namespace: str, rows: Sequence[Mapping[str, Any]]) -> Statement:
        """Writes all of these rows, in this order, or fails with one of ``UNDONE``."""
        raise NotImplementedError

    def extend(self, namespace: str, batch: Sequence[Renewal]) -> Statement:
        raise NotImplementedError

    def extended(self, batch: Sequence[Renewal], result: Result) -> tuple[Collection[Sequence[Any]], int]:
        """The name, attempt and token of each that is known to be renewed by this alone; and the server's time at which
        it renewed any, where these may not be all, else 0."""
        raise NotImplementedError

    def page(self, namespace: str, prefix: str, after: str, most: int) -> Statement:
        raise NotImplementedError

    # In the caller's own transaction.

    CHECK_HELD: str
    """Locks the row of a lease until the transaction ends. Returns a row if it is still that lease."""

    CAN_HOLD: str
    """Asks whether :meth:`hold` would take a name, without locking its row; no row: the name was never used."""
    SNAPSHOT = ""
    """Where a transaction may be too old to see a lease: asks for its isolation level, and what it sees of the row."""
    UNDOES = False
    """Whether rolling back to a savepoint frees row locks taken after it, and a read fixes no older snapshot."""

    HOLD: str
    """Takes a free name for as long as the transaction lasts: its row is locked, and free again when that ends. If the
    name is not free, the row is locked all the same."""

    # Waking other sessions, where an exchange does not notify them itself.

    def wake_sleeping(self, session: str) -> Statement | None:
        """Wakes a session that sleeps. Refused if it does not sleep now: then see :meth:`find_listener`."""
        return None

    def find_listener(self, session: str) -> Statement | None:
        """Asks which connection listens for a session; :meth:`found_listener` reads the answer."""
        return None

    def found_listener(self, result: Result) -> tuple[Statement | None, bool]:
        """The statement that wakes it, if it listens, and whether it is awake now and would miss that."""
        raise NotImplementedError

    # Errors.

    def not_there(self, lacking: Sequence[str] = ()) -> StoreNotReady:
        """What this user may not make, the whole table or a part of it, and how another can."""
        sql = ";\n".join(lacking or self.schema())
        what = "does not exist, and this user may not create it"
        if lacking and lacking != self.schema():
            what = "was created by an earlier leasehold, or is incomplete, and this user may not change it"
        return StoreNotReady(
            f"the table {self.table} {what}: have an administrator run `leasehold init`, or this SQL:\n{sql};"
        )

    def wrong_table(self, what: str) -> StoreNotReady:
        return StoreNotReady(
            f"the table {self.table} is not a table of leasehold: {what}; choose another name with ?table=…, or see "
            "`leasehold init --print-sql` for the columns it needs"
        )

    def too_old(self, server: str, needed: str) -> StoreNotReady:
        return StoreNotReady(f"the server is {server}: leases need {needed} or newer")

    def read_only(self, why: str) -> OnlyReads:
        return OnlyReads(f"leases need the primary, and this server is read-only ({why}): give the primary's URL")

    def turned_away(self, code: Any, message: str) -> StoreNotReady | None:
        """Why there is no connection, if another try would be no use: wrong password, no such database, no right."""
        if code in self.LOGIN or code in self.DENIED or any(each in message for each in self.LOGIN_WORDS):
            return StoreNotReady(f"login failed: {message}")
        return None

    def is_full(self, code: Any, message: str) -> bool:
        """Whether there is no connection because there are too many already."""
        return code in self.FULL or any(each in message for each in self.FULL_WORDS)

    def error(self, code: Any, message: str) -> StoreError:
        """What a statement's failure means to the engine."""
        if code in self.MISSING:
            return self.not_there()
        if code in self.WRONG:
            return self.wrong_table(message)
        if code in self.READ_ONLY:
            # It was the primary when we connected: a failover is under way, and the next connection is checked again.
            return StoreUnavailable(f"the server has become read-only: {message}")
        if code in self.DENIED:
            return StoreNotReady(f"this user lacks a privilege: {message}; it needs {self.grants('…')}")
        return StoreUnavailable(f"the {self.scheme} server reports: {message}")


SELECTED = ", ".join(f"l.{column}" for column in COLUMNS)
