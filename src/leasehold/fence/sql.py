"""Fences in SQL databases, through SQLAlchemy Core: a token column of the row, or a table of tokens beside the data.

If the row has a column for the token, one statement compares the token and writes the row::

    statement = update(accounts).where(accounts.c.id == 1).values(balance=50)
    fence.sql.execute(connection, statement, accounts.c.token, lease)

If the data cannot have such a column, or one lease guards many rows, the tokens are in a table of their own, and a
transaction begins with a check there::

    fences = fence.sql.Fences()
    with engine.begin() as connection:
        fences.check(connection, lease)      # until the commit no other check of this name passes
        connection.execute(...)

With asyncio, ``await connection.run_sync(fences.check, lease)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, overload

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    CursorResult,
    Dialect,
    Insert,
    MetaData,
    Result,
    String,
    Table,
    Update,
    insert,
    inspect,
    or_,
    update,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.dml import ReturningUpdate
from sqlalchemy.types import TypeDecorator, TypeEngine

from ..core import checks
from ..core.lease import BaseLease, registry_of
from ..errors import StoreNotReady
from ..stores.callers import refuse_autocommit
from . import StaleToken, token

U = TypeVar("U", bound=Update)


def condition(column: ColumnElement[Any], lease: BaseLease) -> ColumnElement[bool]:
    """True for rows that no later holder has written: for the WHERE of a statement that also sets ``column``.

    Args:
        column: the column with the token.
        lease: the lease that guards the row.

    Raises:
        LeaseLost: the lease can no longer be trusted.
        ValueError: the lease is not exclusive.
    """
    return or_(column.is_(None), column <= token(lease))


def guarded(statement: U, column: Column[Any], lease: BaseLease) -> U:
    """The UPDATE, fenced: it skips rows that a later holder has written, and sets ``column`` to the lease's token.

    Args:
        statement: the UPDATE of SQLAlchemy.
        column: the column with the token.
        lease: the lease that guards the row.

    Raises:
        LeaseLost: the lease can no longer be trusted.
        ValueError: the lease is not exclusive.
    """
    return statement.where(condition(column, lease)).values({column: lease.token})


@overload
def execute(  # type: ignore[overload-overlap]  # the rows of an UPDATE … RETURNING are read before they are returned
    connection: Connection, statement: ReturningUpdate[Any], column: Column[Any], lease: BaseLease
) -> Result[Any]: ...


@overload
def execute(connection: Connection, statement: Update, column: Column[Any], lease: BaseLease) -> CursorResult[Any]: ...


def execute(connection: Connection, statement: Update, column: Column[Any], lease: BaseLease) -> Result[Any]:
    """Execute the UPDATE, fenced, and return its result. Each row is fenced by itself: for a lease that guards several
    rows use :class:`Fences`.

    Args:
        connection: a connection of SQLAlchemy, in a transaction.
        statement: the UPDATE.
        column: the column with the token.
        lease: the lease that guards the row.

    Raises:
        StaleToken: no row matched: a later holder has written, or the row does not exist.
        LeaseLost: the lease can no longer be trusted.
        ValueError: the lease is not exclusive.

    Example::

        accounts = Table("accounts", MetaData(), Column("balance", Integer), Column("token", Integer))
        with locks.lock("account:1") as lease, engine.begin() as connection:
            accounts.create(connection)
            connection.execute(accounts.insert().values(balance=100))
            fence.sql.execute(connection, accounts.update().values(balance=50), accounts.c.token, lease)
    """
    result = connection.execute(guarded(statement, column, lease))
    if result.returns_rows:  # SQLite does not count the rows before they are read
        rows = result.freeze()
        if rows().first() is None:
            raise StaleToken(lease.name, lease.token)
        return rows()
    if not result.rowcount:
        raise StaleToken(lease.name, lease.token)
    return result


class Fences:
    """A table with the greatest token seen of each name, by namespace.

    Args:
        metadata: the ``MetaData`` of SQLAlchemy to which the table is added. Default: one of its own.
        table: the name of the table. Default: "leasehold_fences".

    Example::

        fences = fence.sql.Fences()
        with engine.begin() as connection:
            fences.create(connection)
        with locks.lock("account:1") as lease, engine.begin() as connection:
            fences.check(connection, lease)
    """

    def __init__(self, metadata: MetaData | None = None, table: str = "leasehold_fences") -> None:
        self.table = Table(
            table,
            metadata if metadata is not None else MetaData(),
            Column("namespace", _Text(checks.MAX_LABEL), primary_key=True, server_default=""),
            Column("name", _Text(checks.MAX_NAME), primary_key=True),
            Column("token", BigInteger, nullable=False),
        )

    def create(self, connection: Connection) -> None:
        """Create the table if it does not exist. A table without namespaces, of an older version, gets the column.

        Args:
            connection: a connection of SQLAlchemy.
        """
        inspector = inspect(connection)
        if not inspector.has_table(self.table.name, self.table.schema):
            self.table.create(connection)
        elif "namespace" not in {each["name"] for each in inspector.get_columns(self.table.name, self.table.schema)}:
            key = inspector.get_pk_constraint(self.table.name, self.table.schema)["name"]
            for statement in _add_namespaces(self.table, connection.dialect, key):
                connection.exec_driver_sql(statement)

    def check(self, connection: Connection, lease: BaseLease, name: str | None = None) -> int:
        """Check the lease's token in the caller's transaction, and return it.

        The row of the name stays locked until the transaction ends: a later holder waits for it, and earlier holders
        are refused after that.

        Args:
            connection: the caller's connection, in a transaction.
            lease: the lease that guards the data.
            name: the name of what is guarded, in the lease's namespace. Default: the lease's name.

        Raises:
            StaleToken: a later holder has passed the check.
            LeaseLost: the lease can no longer be trusted.
            ValueError: the connection is in autocommit, or the lease is not exclusive.
            StoreNotReady: the table is of an older version: run :meth:`create`.
        """
        own = token(lease)
        key = {"namespace": registry_of(lease).namespace, "name": checks.name(lease.name if name is None else name)}
        columns = self.table.c
        new = _insert_new(self.table, connection.dialect.name).values(**key, token=own)
        passing = update(self.table).where(columns.namespace == key["namespace"], columns.name == key["name"])
        try:
            connection.execute(new)
        except DBAPIError as error:
            if "namespace" in str(error.orig):
                raise StoreNotReady(
                    f"the table {self.table.name} has no column for namespaces yet: run Fences.create(), which adds it"
                ) from error
            raise
        # After a write: in SQLite a transaction begins with its first write.
        refuse_autocommit(*_of_the_driver(connection), user="Fences")
        if not connection.execute(passing.where(columns.token <= own).values(token=own)).rowcount:
            raise StaleToken(lease.name, own)
        return own


def _of_the_driver(connection: Connection) -> tuple[Any, Any]:
    pooled = connection.connection
    return pooled.driver_connection, pooled.dbapi_connection


def _add_namespaces(table: Table, dialect: Dialect, key: str | None) -> Sequence[str]:
    """The statements that add the column. Existing tokens get the default namespace, the empty text."""
    quote, name = dialect.identifier_preparer.quote, dialect.identifier_preparer.format_table(table)
    if dialect.name in ("mysql", "mariadb"):
        column = f"namespace VARBINARY({4 * checks.MAX_LABEL}) NOT NULL DEFAULT ''"
        return [f"ALTER TABLE {name} ADD COLUMN {column} FIRST, DROP PRIMARY KEY, ADD PRIMARY KEY (namespace, name)"]
    column = f"namespace VARCHAR({checks.MAX_LABEL}) NOT NULL DEFAULT ''"
    if dialect.name == "postgresql":
        key = quote(str(key))
        return [f"ALTER TABLE {name} ADD COLUMN {column}, DROP CONSTRAINT {key}, ADD PRIMARY KEY (namespace, name)"]
    schema = f"{quote(table.schema)}." if table.schema else ""
    new = schema + quote(f"{table.name}_with_namespaces")  # SQLite cannot change a primary key
    columns = f"{column}, name VARCHAR({checks.MAX_NAME}) NOT NULL, token BIGINT NOT NULL"
    return [
        f"CREATE TABLE IF NOT EXISTS {new} ({columns}, PRIMARY KEY (namespace, name))",
        f"INSERT OR REPLACE INTO {new} (name, token) SELECT name, token FROM {name}",
        f"DROP TABLE {name}",
        f"ALTER TABLE {new} RENAME TO {quote(table.name)}",
    ]


def _insert_new(table: Table, dialect: str) -> Insert:
    """An INSERT that does nothing if the row exists."""
    if dialect in ("mysql", "mariadb"):
        return insert(table).prefix_with("IGNORE")
    dialects: dict[str, Any] = {"postgresql": postgresql, "sqlite": sqlite}
    if dialect not in dialects:
        raise ValueError(f"Fences supports PostgreSQL, MySQL, MariaDB and SQLite, not {dialect}; use a token column")
    statement: Insert = dialects[dialect].insert(table).on_conflict_do_nothing()
    return statement


class _Text(TypeDecorator[str]):
    """Any text, compared by its bytes. A text column of MySQL would ignore case and trailing spaces."""

    impl = String
    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name in ("mysql", "mariadb"):
            return dialect.type_descriptor(mysql.VARBINARY(4 * self.length))
        return dialect.type_descriptor(String(self.length))

    def process_bind_param(self, value: str | None, dialect: Dialect) -> Any:
        return value.encode() if value is not None and dialect.name in ("mysql", "mariadb") else value
