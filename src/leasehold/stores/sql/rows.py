"""The row of a name: the facts of one holder as columns, and what goes beyond that in ``more``.

``more`` is NULL in the plain case: a lock, free or with one holder, without waiters. Else it is JSON:
``[shape, limit, last token, weight, ttl, rest, further holders, queue]``, where weight, ttl and rest are those of the
holder in the columns, and permits are as in :mod:`leasehold.core.entry`. ``state`` is 0 when no holder is in the
columns.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ...core.entry import _encode
from ...core.protocol import SECOND
from ...core.timing import WAITER_TTL
from ...errors import StoreNotReady
from ..common import forms
from ..common.entries import Row
from ..common.forms import LONGEST, Damaged

FORMAT = 1
"""Of a row. A newer one is refused, so that an old process never misreads a new one's record."""
FREE = 0
DAY = 86_400_000_000
NEVER = 2**31 - 1
"""The ``expires_day`` of a free row that has a note, and so is not purged: a purge does not come across it."""

COLUMNS = (
    *("format", "version", "token", "attempt", "session", "owner", "kind", "data", "state"),
    *("acquired", "expires", "more"),
)
"""What is read of a row, in this order."""
NOTE = "note"
"""A column that the first tables had not."""
ALL_COLUMNS = (*COLUMNS, "namespace", "name", "expires_day", "created", "updated", NOTE)

PLACE = int(WAITER_TTL * SECOND)
"""How long the place lasts of a waiter that joins the queue."""


def row_of(name: str, now: int, found: Sequence[Any], session: str, table: str) -> Row:
    """A record as read, ``found`` being ``COLUMNS``; with its fault, when it is not what leasehold writes."""
    format, version, *columns = found
    if format is None:
        return Row(name, 0, 0, [], now, now, session)
    try:
        check_format(name, format, table)
        forms.number(version, "version", 1, forms.MOST - 1)
        token, state = state_of(tuple(columns))
    except forms.Damaged as error:
        return Row(name, 0, 0, [], now, now, session, fault=forms.damaged(name, error, table))
    except StoreNotReady as error:
        return Row(name, 0, 0, [], now, now, session, fault=error)
    return Row(name, version, token, state, now, now, session)


def check_format(name: str, format: int, table: str) -> None:
    if format > FORMAT:
        raise StoreNotReady(
            f"the record of {name!r} in {table} was written by a newer leasehold (format {format}, this "
            f"version knows {FORMAT}): upgrade leasehold"
        )


def state_of(columns: tuple[Any, ...]) -> tuple[int, Sequence[Any]]:
    """The last token and the entry's state, as :func:`..forms.load` takes and checks them. Raises Damaged."""
    token, attempt, session, owner, kind, data, state, acquired, expires, more = columns
    if more is None:
        if state == FREE:
            return token, []
        shape, limit, last, weight, ttl, rest, holders, queue = "lock", 1, token, 1, expires - acquired, 0, [], []
    else:
        shape, limit, last, weight, ttl, rest, holders, queue = _parsed(more)
    if state != FREE:
        if type(ttl) is int:  # a statement has counted it from when the lease was acquired, however long ago
            ttl = max(1, min(ttl, LONGEST))
        first = [attempt, owner, kind, data, session, weight, ttl, rest, expires, token, acquired, state]
        holders = [first, *holders]
    return last, [shape, limit, holders, queue] if holders or queue else []


def _parsed(more: str) -> list[Any]:
    try:
        stored = json.loads(more)
    except (TypeError, ValueError, RecursionError) as error:
        raise Damaged(f"column `more` is not JSON: {type(error).__name__}") from None
    if type(stored) is not list or len(stored) != 8 or type(stored[6]) is not list:
        raise Damaged("column `more` is not a list of 8")
    return stored


def called_by(more: str | None) -> tuple[list[str], list[str]]:
    """The attempts of the holders in ``more``, and of the first waiter. None if it is damaged."""
    try:
        *_, others, queue = _parsed(more) if more is not None else ([], [])
        found = [str(each[0]) for each in others], [str(each[0]) for each in queue[:1]]
    except (Damaged, TypeError, LookupError):
        return [], []
    return found


def columns_of(last: int, entry: Sequence[Any]) -> dict[str, Any]:
    """The columns that say what :func:`state_of` reads from them. Without a holder, ``expires`` is None: now."""
    shape, limit, holders, queue = entry or ("lock", 1, [], [])
    if not holders:
        facts = {"attempt": "", "session": "", "owner": "", "kind": "", "data": None, "state": FREE}
        more = _encode((shape, limit, last, 0, 0, 0, [], queue)) if queue else None
        return {**facts, "token": last, "acquired": 0, "expires": None, "more": more}
    first, *others = holders
    attempt, owner, kind, data, session, weight, ttl, rest, expires, token, acquired, state = first
    plain = (shape, limit, weight, rest, last) == ("lock", 1, 1, 0, token) and not others and not queue
    return {
        "attempt": attempt,
        "session": session,
        "owner": owner,
        "kind": kind,
        "data": data,
        "state": state,
        "token": token,
        "acquired": acquired,
        "expires": expires,
        "more": None if plain else _encode((shape, limit, last, weight, ttl, rest, others, queue)),
    }
