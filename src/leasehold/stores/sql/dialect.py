"""From a store's request to a statement, and from its result to the answer. Pure; PostgreSQL and MySQL fill it in.

Statements have ``%(name)s`` placeholders and no other percent signs. Each is complete in itself and runs in autocommit.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ...errors import StoreError, StoreNotReady, StoreUnavailable
from ..common import forms
from ..common.entries import Page, Read, ReadNote, Row, WriteNote
from .rows import ALL_COLUMNS, COLUMNS, FORMAT, NOTE, columns_of, state_of, waiter_of
from .store import (
    Accept,
    Accepted,
    CanHold,
    Exchange,
    ExchangeAll,
    Extend,
    Extended,
    Free,
    Leftovers,
    Mend,
    Purge,
    ReadAll,
    Take,
    TakeOrJoin,
    Unlocked,
)

DEFAULT_TABLE = "leasehold"
_SESSION = re.compile(r"[0-9a-f]{24}")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}(\.[A-Za-z_][A-Za-z0-9_]{0,47})?", re.ASCII)


class Result(NamedTuple):
    """What a statement gave: its rows, how many it touched, and LAST_INSERT_ID where there is such a thing."""

    rows: Sequence[Sequence[Any]]
    touched: int
    last_id: int = 0


class Statement(NamedTuple):
    sql: str
    values: Mapping[str, Any]


class Hint(Statement):
    """A statement whose result does not matter: after so many seconds its answer is no longer waited for."""

    within = 0.2


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
    """Error codes by which an ExchangeAll undoes itself: one of its rows has changed meanwhile. Any other statement
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

    quote: str
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

    def lacking_columns(self, key: str, columns: str) -> Sequence[str]:
        """The same for a table that is there, if it is ours: to another's nothing is ever added."""
        if key != "namespace,name":
            raise self.wrong_table(f"its primary key is ({key or 'missing'}), not (namespace, name)")
        missing = set(ALL_COLUMNS) - set(columns.split(","))
        if missing - {NOTE}:
            raise self.wrong_table(f"it has no column {', '.join(sorted(missing))}")
        return (self.ADD_NOTE,) if missing else ()

    # Requests.

    def statement(
        self, request: Any, namespace: str, session: str, until: int, patience: float | None = None
    ) -> Statement:
        """``until``, by the server's clock: when the caller gives up. What is done later grants nothing.

        ``patience``: for how many seconds to wait for a row that is locked, if less than until then."""
        statement = self._statement(request, namespace, session)
        if "%(until)s" in statement.sql:
            return Statement(statement.sql, {**statement.values, "until": until})
        return statement

    def probe(self, namespace: str, names: Sequence[str]) -> Statement | None:
        """What fails if one of these rows is locked, where something else may be in the way of a statement."""
        return None

    def waits_longer(self, patience: float) -> bool:
        """Whether a statement cannot be kept from waiting longer than that for a row."""
        return False

    def _statement(self, request: Any, namespace: str, session: str) -> Statement:
        match request:
            case Take(name, ask) | TakeOrJoin(name, ask):
                values = self.key(namespace, name)
                values["attempt"], values["session"], values["owner"] = ask.attempt, session, ask.owner
                values["kind"], values["data"], values["ttl"] = ask.kind, ask.data, ask.ttl
                if isinstance(request, Take):
                    return Statement(self.TAKE, values)
                values["waiter"] = waiter_of(ask, session)
                return Statement(self.TAKE_OR_JOIN, values)
            case Accept(name, attempt, ttl):
                return Statement(self.ACCEPT, {**self.key(namespace, name), "attempt": attempt, "ttl": ttl})
            case Free(name, attempt, token):
                values = self.key(namespace, name)
                values["attempt"], values["token"] = attempt, token
                return Statement(self.FREE, values)
            case Read(name):
                return Statement(self.READ, self.key(namespace, name))
            case Exchange(name, version, token, state, rings):
                values = self.key(namespace, name)
                values.update(columns_of(token, state))
                if not version:
                    return Statement(self.INSERT, values)
                others = [ring for ring in rings if _SESSION.fullmatch(ring[0]) and ring[0] != session]
                return self.exchange({**values, "version": version}, others)
            case ReadAll(names):
                return self.read_all(namespace, names)
            case ExchangeAll(exchanges):
                return self.exchange_all(namespace, [_row_of(each) for each in exchanges])
            case Extend(batch):
                return self.extend(namespace, batch)
            case Unlocked(names):
                return self.unlocked(namespace, names)
            case Page(prefix, after, most):
                return self.page(namespace, prefix, after, most)
            case ReadNote(name):
                return Statement(self.READ_NOTE, self.key(namespace, name))
            case WriteNote(name, version, text):
                return Statement(self.WRITE_NOTE, {**self.key(namespace, name), "version": version, "note": text})
            case CanHold(name):
                return Statement(self.CAN_HOLD, self.key(namespace, name))
            case Mend(name):
                return Statement(self.MEND, self.key(namespace, name))
            case Purge():
                return Statement(self.PURGE, {})
            case Leftovers():
                return Statement(self.LEFTOVERS, self.key(namespace, ""))
        raise TypeError(request)

    def answer(self, request: Any, result: Result, session: str) -> Any:
        match request:
            case Take():
                return self.taken(result)
            case TakeOrJoin(name, ask):
                return self.taken_or_joined(name, ask.attempt, result, session)
            case Accept():
                return Accepted(*self.accepted(result))
            case Free() | WriteNote() | Mend():
                return result.touched > 0
            case ReadNote(name):
                for format, note in result.rows:
                    self.check_format(name, format)
                    return note
                return None
            case Read(name):
                now, *found = result.rows[0]
                return self.readable(name, now, found, session)
            case Exchange(_, version):
                if not version:
                    return self.inserted(result)
                return version + 1 if result.touched > 0 else 0
            case ReadAll(names):
                there = {self.text(name): found for name, _, *found in result.rows if name is not None}
                now = result.rows[0][1]
                return [self.row(name, now, there.get(name, (None, 0)), session) for name in names]
            case ExchangeAll():
                return result.touched > 0
            case Extend(batch):
                return Extended(self.extended(batch, result), self.extended_at(result))
            case Unlocked():
                return {self.text(name) for (name,) in result.rows}
            case Page():
                return [self.row(self.text(name), now, found, session) for name, now, *found in result.rows]
            case CanHold():
                return all(free for (free,) in result.rows)
            case Purge():
                return result.touched
            case Leftovers():
                return [self.text(name) for (name,) in result.rows]
        raise TypeError(request)

    def readable(self, name: str, now: int, found: Sequence[Any], session: str) -> Row:
        """The row, or its fault as an error."""
        row = self.row(name, now, found, session)
        if row.fault is not None:
            raise row.fault
        return row

    def row(self, name: str, now: int, found: Sequence[Any], session: str) -> Row:
        """A record as read; with its fault, when it is not what leasehold writes."""
        format, version, *columns = found
        if format is None:
            return Row(name, 0, 0, [], now, now, session)
        try:
            self.check_format(name, format)
            forms.number(version, "version", 1, forms.MOST - 1)
            token, state = state_of(tuple(columns))
        except forms.Damaged as error:
            return Row(name, 0, 0, [], now, now, session, fault=forms.damaged(name, error, self.table))
        except StoreNotReady as error:
            return Row(name, 0, 0, [], now, now, session, fault=error)
        return Row(name, version, token, state, now, now, session)

    def check_format(self, name: str, format: int) -> None:
        if format > FORMAT:
            raise StoreNotReady(
                f"the record of {name!r} in {self.table} was written by a newer leasehold (format {format}, this "
                f"version knows {FORMAT}): upgrade leasehold"
            )

    # Said by each dialect.

    TAKE: str
    TAKE_OR_JOIN: str
    ACCEPT: str
    READ_NOTE: str
    WRITE_NOTE: str
    FREE: str
    READ: str
    INSERT: str
    PURGE: str
    LEFTOVERS: str
    MEND: str

    def key(self, namespace: str, name: str) -> dict[str, Any]:
        raise NotImplementedError

    def text(self, name: Any) -> str:
        raise NotImplementedError

    def taken(self, result: Result) -> int:
        raise NotImplementedError

    def taken_or_joined(self, name: str, attempt: str, result: Result, session: str) -> int | Row:
        """The token, or the row where that is known to have the attempt in its queue now; else 0."""
        return self.taken(result)

    def accepted(self, result: Result) -> tuple[int, bool]:
        """The token or 0, and whether others wait too."""
        raise NotImplementedError

    def inserted(self, result: Result) -> int:
        raise NotImplementedError

    def exchange(self, values: dict[str, Any], rings: Sequence[tuple[str, str]]) -> Statement:
        raise NotImplementedError

    def read_all(self, namespace: str, names: Sequence[str]) -> Statement:
        """Asks for the rows of these names, with the clock; for a row without a name where there are none."""
        raise NotImplementedError

    def exchange_all(self, namespace: str, rows: Sequence[Mapping[str, Any]]) -> Statement:
        """Writes all of these rows, in this order, or fails with one of ``UNDONE``."""
        raise NotImplementedError

    def extend(self, namespace: str, batch: Sequence[Any]) -> Statement:
        raise NotImplementedError

    def extended(self, batch: Sequence[Any], result: Result) -> Collection[Sequence[Any]]:
        """The name, attempt and token of each that is known to be renewed by this alone."""
        raise NotImplementedError

    def extended_at(self, result: Result) -> int:
        """The server's time at which it renewed any, where :meth:`extended` may leave out some of them; else 0."""
        return 0

    def unlocked(self, namespace: str, names: Sequence[str]) -> Statement:
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

    def hold(self, values: dict[str, Any]) -> Statement:
        """Take a free name for as long as the transaction lasts: its row is locked, and free again when that ends.
        If the name is not free, the row is locked all the same."""
        raise NotImplementedError

    def without_notify(self, statement: Statement) -> Statement | None:
        """The same exchange without its notifications, to send when the server refused it. None: it had none."""
        return None

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


def _row_of(exchange: Exchange) -> dict[str, Any]:
    """What an ExchangeAll writes for one name; ``version`` is the one that it must have still."""
    return {"name": exchange.name, "version": exchange.version, **columns_of(exchange.token, exchange.state)}


SELECTED = ", ".join(f"l.{column}" for column in COLUMNS)
