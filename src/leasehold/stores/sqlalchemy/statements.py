"""Statements as SQLAlchemy sends them, its results and errors as the SQL stores know them, and what an engine knows."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any
from weakref import WeakSet

import sqlalchemy
from sqlalchemy import exc

from ..sql.dialect import DEFAULT_TABLE, Dialect
from ..sql.requests import Broken, Refused, Result
from ..sql.session import POOL_SIZE, no_connection
from ..sql.slots import RESERVED
from ..sql.url import SqlAddress, without

_PARAMETER = re.compile(r"%\((\w+)\)s")
_NUMBERS = {"ttl", "token", "version", "state", "acquired", "expires", "length", "most", "until", "patience"}


@lru_cache(500)
def text_of(sql: str) -> Any:
    """The statement with SQLAlchemy's parameters, and its numbers declared as BIGINT."""
    names = set(_PARAMETER.findall(sql))
    text = sqlalchemy.text(_PARAMETER.sub(r":\1", sql))
    large = [sqlalchemy.bindparam(each, type_=sqlalchemy.BigInteger) for each in names if _is_number(each)]
    return text.bindparams(*large) if large else text


def _is_number(name: str) -> bool:
    return name in _NUMBERS or bool(re.fullmatch(r"[td]\d+", name))


def _code_of(original: BaseException | None) -> Any:
    """The server's error code, wherever the driver keeps it. For MySQL the number, not the SQLSTATE."""
    arguments = getattr(original, "args", ())
    if arguments and isinstance(arguments[0], int):
        return arguments[0]
    for name in ("sqlstate", "pgcode"):
        if isinstance(code := getattr(original, name, None), str):
            return code
    return getattr(original, "errno", None)


def failure(error: exc.SQLAlchemyError, password: str | None) -> Exception:
    """Refused where the server answered with an error, else Broken."""
    if not isinstance(error, exc.DBAPIError):
        return Broken(without(error, password))
    code = _code_of(error.orig)
    message = without(error.orig, password)
    lost = code[:2] in ("08", "57") if isinstance(code, str) else code is None or 2000 <= code < 3000
    if error.connection_invalidated or lost:
        return Broken(message)
    return Refused(code, message)


def no_connection_from(error: Exception, dialect: Dialect, password: str | None) -> Exception:
    """Why the engine has no connection to lend: the error's type depends on the driver."""
    original = error.orig if isinstance(error, exc.DBAPIError) else error
    message = without(original, password) or "timed out connecting to the server"
    return no_connection(dialect, _code_of(original), message)


def result_of(found: Any) -> Result:
    if found.returns_rows:
        rows = [tuple(row) for row in found.fetchall()]
        return Result(rows, len(rows))
    try:
        last = found.lastrowid or 0
    except Exception:  # drivers without such a thing
        last = 0
    return Result((), found.rowcount, last)


# What an engine knows.


def password_of(engine: Any) -> str | None:
    return str(engine.url.password) if engine.url.password is not None else None


def address_of(engine: Any) -> SqlAddress:
    return SqlAddress(None, None, None, password_of(engine), None, {}, DEFAULT_TABLE, 1, True)


def size_of(engine: Any) -> int:
    """How many connections the engine keeps. For a pool without a fixed size: as many as a pool of leasehold's."""
    size = getattr(engine.pool, "size", None)
    return (size() if callable(size) else size) or POOL_SIZE + RESERVED


def is_new(raw: Any, source: object) -> bool:
    """Whether this source uses the connection for the first time. The note ends with the connection."""
    known: WeakSet[object] = raw.info.setdefault("leasehold", WeakSet())
    new = source not in known
    known.add(source)
    return new
