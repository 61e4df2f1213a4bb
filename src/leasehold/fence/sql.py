"""Fences in SQL databases, through SQLAlchemy Core: a token column of the row, or a table of tokens beside the data.

A row that is written under the lease has a column for the token. The write says so itself, in one statement::

    statement = update(accounts).where(accounts.c.id == 1).values(balance=50)
    fence.sql.execute(connection, statement, accounts.c.token, lease)

Where the data has no room for that, or one lease guards many rows, the tokens are in a table of their own, and a
transaction begins by passing there::

    fences = fence.sql.Fences()
    with engine.begin() as connection:
        fences.check(connection, lease)      # from here to the commit nobody else passes with this name
        connection.execute(...)

With asyncio, ``await connection.run_sync(fences.check, lease)``.
"""

from __future__ import annotations

from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    CursorResult,
    Dialect,
    Insert,
    MetaData,
    String,
    Table,
    Update,
    insert,
    or_,
    update,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.types import TypeDecorator, TypeEngine

from .. import checks
from ..lease import BaseLease
from . import StaleToken, token

U = TypeVar("U", bound=Update)


def condition(column: ColumnElement[Any], lease: BaseLease) -> ColumnElement[bool]:
    """True of rows that no later holder has written. For the WHERE of a statement that also sets ``column``."""
    return or_(column.is_(None), column <= token(lease))


def guarded(statement: U, column: Column[Any], lease: BaseLease) -> U:
    """An UPDATE that leaves alone what a later holder has written, and says by its token who wrote it."""
    return statement.where(condition(column, lease)).values({column: lease.token})


def execute(connection: Connection, statement: Update, column: Column[Any], lease: BaseLease) -> CursorResult[Any]:
    """Execute the UPDATE, guarded. Raises StaleToken when it has met no row: a later holder has been there.

    (Or there is no such row at all, which the database does not tell apart.) Rows are fenced one by one: for a lease
    that protects several, use ``Fences``.
    """
    result = connection.execute(guarded(statement, column, lease))
    if not result.rowcount:
        raise StaleToken(lease.name, lease.token)
    return result


class Fences:
    """A table with the greatest token that has been seen of each name."""

    def __init__(self, metadata: MetaData | None = None, table: str = "leasehold_fences") -> None:
        self.table = Table(
            table,
            metadata if metadata is not None else MetaData(),
            Column("name", _Name, primary_key=True),
            Column("token", BigInteger, nullable=False),
        )

    def create(self, connection: Connection) -> None:
        """Make the table if there is none."""
        self.table.create(connection, checkfirst=True)

    def check(self, connection: Connection, lease: BaseLease, name: str | None = None) -> int:
        """Pass, in the caller's transaction, or raise StaleToken. Returns the token.

        The row of the name stays locked until that transaction ends: a later holder has to wait, and who comes after
        that one is refused. ``name`` is what is being guarded, unless that is the lease's own name."""
        own = token(lease)
        name = checks.name(lease.name if name is None else name)
        new = _insert_new(self.table, connection.dialect.name).values(name=name, token=own)
        column = self.table.c.token
        passing = update(self.table).where(self.table.c.name == name, column <= own).values(token=own)
        connection.execute(new)
        if not connection.execute(passing).rowcount:
            raise StaleToken(lease.name, own)
        return own


def _insert_new(table: Table, dialect: str) -> Insert:
    """An INSERT that does nothing when the row is there."""
    if dialect in ("mysql", "mariadb"):
        return insert(table).prefix_with("IGNORE")
    dialects: dict[str, Any] = {"postgresql": postgresql, "sqlite": sqlite}
    if dialect not in dialects:
        raise ValueError(f"Fences knows PostgreSQL, MySQL, MariaDB and SQLite, not {dialect}; use a token column")
    statement: Insert = dialects[dialect].insert(table).on_conflict_do_nothing()
    return statement


class _Name(TypeDecorator[str]):
    """Any text, compared by its bytes. MySQL's text would fold cases and drop spaces at the end."""

    impl = String(checks.MAX_NAME)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name in ("mysql", "mariadb"):
            return dialect.type_descriptor(mysql.VARBINARY(4 * checks.MAX_NAME))
        return dialect.type_descriptor(String(checks.MAX_NAME))

    def process_bind_param(self, value: str | None, dialect: Dialect) -> Any:
        return value.encode() if value is not None and dialect.name in ("mysql", "mariadb") else value
