"""Statements over libpq itself. What a cursor of psycopg's would work out for each execution is worked out once.

A statement that a connection executes a second time is prepared. :meth:`LibpqConnection.execute` is a generator that
yields what it waits for, :data:`READ` or :data:`EITHER`. The drivers for threads and for asyncio wait for the socket.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from psycopg import errors, pq

from ..sql.requests import Result, Statement

READ, EITHER = 1, 3
"""Until the socket can be read; until it can be read or written."""
_GOOD = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
_PLACE = re.compile(r"%\((\w+)\)s")
_NUMBER = dict.fromkeys((20, 21, 23, 26), int)
_VALUES: dict[int, Callable[[bytes], Any]] = {**_NUMBER, 16: lambda value: value == b"t"}
"""How values of a type, by its number, are read: bigint and the like, boolean. All else is text."""


class LibpqConnection:
    """One connection in autocommit, with a single user at a time."""

    def __init__(self, pgconn: Any, may_prepare: Callable[[], bool]) -> None:
        self.pgconn = pgconn
        self._may_prepare = may_prepare
        self._seen: dict[str, bytes | None] = {}
        """Statements that were executed here, and under which name they are prepared."""

    def execute(self, statement: Statement) -> Generator[int, None, Result]:
        """Raises the errors of psycopg."""
        numbered, name, names = _numbered(statement.sql)
        values = [_encoded(statement.values[each]) for each in names]
        may_prepare = self._may_prepare()
        prepared = self._seen.get(statement.sql) if may_prepare else None
        if prepared is None and may_prepare and statement.sql in self._seen:
            prepared = name
            self.pgconn.send_prepare(prepared, numbered)
            yield from self._answer()
            self._seen[statement.sql] = prepared
        if prepared is None:
            self._seen.setdefault(statement.sql)
            self.pgconn.send_query_params(numbered, values)
        else:
            self.pgconn.send_query_prepared(prepared, values)
        return _result((yield from self._answer()))

    def _answer(self) -> Generator[int, None, Any]:
        pgconn = self.pgconn
        while pgconn.flush():
            yield EITHER
        answer = None
        while True:
            while pgconn.is_busy():
                yield READ
            result = pgconn.get_result()
            if result is None:
                break
            answer = result
        if answer is None:
            raise errors.OperationalError("the connection is closed")
        if answer.status not in _GOOD:
            raise errors.error_from_result(answer)
        return answer


@lru_cache(500)
def _numbered(sql: str) -> tuple[bytes, bytes, Sequence[str]]:
    """The statement with $1, $2 … in it, the name to prepare it under, and the names of its values in order.

    Behind a pooler one meets what others have prepared: the same name must mean the same statement."""
    names = list(dict.fromkeys(_PLACE.findall(sql)))
    numbered = _PLACE.sub(lambda found: f"${names.index(found[1]) + 1}", sql).encode()
    return numbered, b"leasehold_" + blake2b(numbered, digest_size=12).hexdigest().encode(), names


def _encoded(value: Any) -> bytes | None:
    """As text: the server knows the type from the statement."""
    if value is None:
        return None
    if isinstance(value, list):
        return f"{{{','.join(map(_quoted, value))}}}".encode()
    return str(value).encode()


def _quoted(value: Any) -> str:
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _result(answer: Any) -> Result:
    columns = range(answer.nfields)
    readers = [_VALUES.get(answer.ftype(column), bytes.decode) for column in columns]
    rows = []
    for number in range(answer.ntuples):
        found = [answer.get_value(number, column) for column in columns]
        rows.append([None if value is None else read(value) for read, value in zip(readers, found, strict=True)])
    return Result(rows, answer.command_tuples or 0)
