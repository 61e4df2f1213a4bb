"""From a store's request to a statement, and from its result to the answer. Pure; PostgreSQL and MySQL fill it in.

Statements have ``%(name)s`` placeholders and no other percent signs. Each is complete in itself and runs in autocommit.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import StoreError, StoreNotReady, StoreUnavailable
from .entries import Page, Read, Row
from .sql import Accept, Exchange, Extend, Free, Leftovers, Purge, Take
from .sql_rows import COLUMNS, FORMAT, columns_of, state_of

DEFAULT_TABLE = "leasehold"
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}(\.[A-Za-z_][A-Za-z0-9_]{0,47})?", re.ASCII)


class Result(NamedTuple):
    """What a statement gave: its rows, how many it touched, and LAST_INSERT_ID where there is such a thing."""

    rows: Sequence[Sequence[Any]]
    touched: int
    last_id: int = 0


class Statement(NamedTuple):
    sql: str
    values: Mapping[str, Any]


def check_table(table: str) -> str:
    """The table's name, if it is one that needs no quoting of any kind; ``schema.table`` too."""
    if not _IDENTIFIER.fullmatch(table):
        raise ValueError(
            "table must be a name of ASCII letters, digits and _ (at most 48), or two of them with a dot between, "
            f"not {table!r}"
        )
    return table


class Dialect:
    """One flavour of SQL, for one table."""

    scheme: str
    CREATED: Collection[Any]
    """Error codes that say: somebody else has just made the table."""
    MISSING: Collection[Any]
    """Error codes that say: there is no such table."""
    AGAIN: Collection[Any]
    """Error codes of statements that have done nothing and can be sent again at once."""
    WRONG: Collection[Any]
    """Error codes that say: the table is not as we need it."""
    DENIED: Collection[Any]
    READ_ONLY: Collection[Any]
    LOGIN: Collection[Any]
    UNPREPARED: Collection[Any] = ()
    """Error codes that say: a pooler between us and the server has lost our prepared statements."""

    def __init__(self, table: str = DEFAULT_TABLE) -> None:
        self.table = check_table(table)
        quote = self.quote
        self.quoted = ".".join(f"{quote}{part}{quote}" for part in self.table.split("."))

    quote: str

    def schema(self) -> Sequence[str]:
        """What makes the table, in order."""
        raise NotImplementedError

    def grants(self, user: str) -> str:
        """The least that ``user`` needs once the table is there."""
        return f"GRANT SELECT, INSERT, UPDATE, DELETE ON {self.quoted} TO {user}"

    def check(self) -> Statement:
        """Asked once on each connection of ours; :meth:`checked` reads the answer."""
        raise NotImplementedError

    def checked(self, result: Result) -> bool:
        """Whether the table is there. Raises StoreNotReady where this server or table can't serve."""
        raise NotImplementedError

    # Requests.

    def statement(self, request: Any, namespace: str, session: str) -> Statement:
        match request:
            case Take(name, ask):
                return self.take(
                    {
                        **self.key(namespace, name),
                        "attempt": ask.attempt,
                        "session": session,
                        "owner": ask.owner,
                        "kind": ask.kind,
                        "data": ask.data,
                        "ttl": ask.ttl,
                    }
                )
            case Accept(name, attempt, ttl):
                return Statement(self.ACCEPT, {**self.key(namespace, name), "attempt": attempt, "ttl": ttl})
            case Free(name, attempt, token):
                return Statement(self.FREE, {**self.key(namespace, name), "attempt": attempt, "token": token})
            case Read(name):
                return Statement(self.READ, self.key(namespace, name))
            case Exchange(name, version, token, state, rings):
                values = {**self.key(namespace, name), **columns_of(token, state)}
                if not version:
                    return Statement(self.INSERT, values)
                others = [ring for ring in rings if ring[0] and ring[0] != session]
                return self.exchange({**values, "version": version}, others)
            case Extend(batch):
                return self.extend(namespace, batch)
            case Page(prefix, after, most):
                return self.page(namespace, prefix, after, most)
            case Purge():
                return Statement(self.PURGE, {})
            case Leftovers():
                return Statement(self.LEFTOVERS, self.key(namespace, ""))
        raise TypeError(request)

    def answer(self, request: Any, result: Result, session: str) -> Any:
        match request:
            case Take() | Accept():
                return self.taken(result)
            case Free():
                return result.touched > 0
            case Read(name):
                now, *found = result.rows[0]
                return self.row(name, now, found, session)
            case Exchange(_, version):
                if not version:
                    return self.inserted(result)
                return version + 1 if result.touched > 0 else 0
            case Extend(batch):
                return self.extended(batch, result)
            case Page():
                return [self.row(self.text(name), now, found, session) for name, now, *found in result.rows]
            case Purge():
                return result.touched
            case Leftovers():
                return [self.text(name) for (name,) in result.rows]
        raise TypeError(request)

    def row(self, name: str, now: int, found: Sequence[Any], session: str) -> Row:
        format, version, *columns = found
        if format is None:
            return Row(name, 0, 0, "", now, now, session)
        if format > FORMAT:
            raise StoreNotReady(
                f"the record of {name!r} in {self.table} has format {format}, and this leasehold knows {FORMAT}: "
                "it was written by a newer one; upgrade this one"
            )
        token, state = state_of(tuple(columns))
        return Row(name, version, token, state, now, now, session)

    # Said by each flavour.

    ACCEPT: str
    FREE: str
    READ: str
    INSERT: str
    PURGE: str
    LEFTOVERS: str

    def key(self, namespace: str, name: str) -> dict[str, Any]:
        raise NotImplementedError

    def text(self, name: Any) -> str:
        raise NotImplementedError

    def take(self, values: dict[str, Any]) -> Statement:
        raise NotImplementedError

    def taken(self, result: Result) -> int:
        raise NotImplementedError

    def inserted(self, result: Result) -> int:
        raise NotImplementedError

    def exchange(self, values: dict[str, Any], rings: Sequence[tuple[str, str]]) -> Statement:
        raise NotImplementedError

    def extend(self, namespace: str, batch: Sequence[Any]) -> Statement:
        raise NotImplementedError

    def extended(self, batch: Sequence[Any], result: Result) -> Collection[Sequence[Any]]:
        raise NotImplementedError

    def page(self, namespace: str, prefix: str, after: str, most: int) -> Statement:
        raise NotImplementedError

    # In the caller's own transaction.

    CHECK_HELD: str
    """Locks the row of a lease against everybody until the transaction ends; a row if it is still that lease."""

    def hold(self, values: dict[str, Any]) -> Statement:
        """Take a free name for as long as the transaction lasts: its row is locked, and free again when that ends."""
        raise NotImplementedError

    # Ringing other sessions, where an exchange has not done it already.

    def knock(self, session: str) -> Statement | None:
        """The first statement that rings a session; :meth:`knocked` says which is next."""
        return None

    def knocked(self, result: Result | None) -> Statement | None:
        return None

    # Errors.

    def not_there(self) -> StoreNotReady:
        sql = ";\n".join(self.schema())
        return StoreNotReady(
            f"the table {self.table} does not exist, and this user may not create it: have an administrator run "
            f"`leasehold init`, or this SQL:\n{sql};"
        )

    def wrong_table(self, what: str) -> StoreNotReady:
        return StoreNotReady(
            f"the table {self.table} is not one of leasehold's: {what}; choose another name with ?table=…, or see "
            "`leasehold init --print-sql` for the columns it needs"
        )

    def read_only(self, why: str) -> StoreNotReady:
        return StoreNotReady(
            f"leases need the primary, and this server only reads ({why}): give the URL of the primary"
        )

    def error(self, code: Any, message: str) -> StoreError:
        """What a statement's failure means to the engine."""
        if code in self.MISSING:
            return self.not_there()
        if code in self.WRONG:
            return self.wrong_table(message)
        if code in self.READ_ONLY:
            # It was the primary when we connected: a failover is under way, and the next connection is checked again.
            return StoreUnavailable(f"the server has become read-only: {message}")
        if code in self.LOGIN:
            return StoreNotReady(f"the server refuses to let us in: {message}")
        if code in self.DENIED:
            return StoreNotReady(f"this user lacks a privilege: {message}; it needs {self.grants('…')}")
        return StoreUnavailable(f"the {self.scheme} server said: {message}")


SELECTED = ", ".join(f"l.{column}" for column in COLUMNS)
