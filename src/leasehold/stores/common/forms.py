"""Finds damaged records (SQLite, SQL): checks each before use. Others who can write the store can write anything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ...core import checks
from ...core.entry import RESTING, WAITING, Entry
from ...core.protocol import SECOND
from ...core.timing import LONGEST_TTL
from ...errors import StoreNotReady

MOST = 1 << 62
"""Upper bound of tokens and versions. Real ones stay far below, and the next ones still fit into 64 bits."""
LATEST = 1 << 53
"""Upper bound of times, in µs: 285 years, which a date can show."""
LONGEST = int(LONGEST_TTL * SECOND)
"""Upper bound of durations, in µs."""
_ID = 64


class Damaged(ValueError):
    """A record is not in the form that leasehold writes. The message says what is wrong."""


def damaged(name: str, why: object, where: str) -> StoreNotReady:
    """The error for a damaged record in ``where``, with the way to repair it."""
    return StoreNotReady(
        f"the record of {name!r} in {where} is damaged ({why}): stop the programs that use {name!r}, then delete its "
        "row from the table leasehold"
    )


def load(name: str, token: object, state: str | Sequence[Any]) -> Entry:
    """The entry of a record. ``state`` is JSON text, or parsed already. Raises Damaged."""
    number(token, "token", 0, MOST - 1)
    try:
        stored = json.loads(state) if state and isinstance(state, str) else state
    except (ValueError, RecursionError) as error:
        raise Damaged(f"its state is not JSON: {type(error).__name__}") from None
    if stored:
        _check(stored)
    return Entry.load(name, token, stored)  # type: ignore[arg-type]  # checked


def _check(stored: object) -> None:
    shape, limit, holders, queue = _list(stored, "state", 4)
    text(shape, "shape", checks.MAX_LABEL)
    number(limit, "limit", 1, checks.MAX_PERMITS)
    for permit in _list(holders, "holders"):
        _permit(permit, limit, range(WAITING + 1, RESTING + 1))
    for permit in _list(queue, "queue"):
        _permit(permit, limit, range(WAITING, WAITING + 1))


def _permit(stored: object, limit: int, states: range) -> None:
    fields = _list(stored, "a permit", 12)
    attempt, owner, kind, data, session, weight, ttl, rest, expires, token, acquired, state = fields
    text(attempt, "attempt", _ID, 0)
    text(owner, "owner", checks.MAX_OWNER)
    text(kind, "kind", checks.MAX_LABEL)
    if data is not None:
        _data(text(data, "data", checks.MAX_DATA, printable=False))
    text(session, "session", _ID, 0)
    number(weight, "weight", 1, limit)
    number(ttl, "ttl", 1, LONGEST)
    number(rest, "rest", 0, LONGEST)
    number(expires, "expires", 0, LATEST)
    number(token, "token", 0, MOST - 1)
    number(acquired, "acquired", 0, LATEST)
    number(state, "state", states.start, states.stop - 1)


@lru_cache(maxsize=64)
def _data(text: str) -> None:
    try:
        checks.data_text(json.loads(text))
    except (ValueError, RecursionError):
        raise Damaged("data is not JSON") from None


def number(value: object, what: str, least: int, most: int) -> int:
    """``value`` if it is an int in this range. Raises Damaged."""
    if type(value) is not int or not least <= value <= most:
        raise Damaged(f"{what} is not a whole number from {least} to {most}")
    return value


def is_number(value: object, most: int, least: int = 0) -> bool:
    """Whether ``value`` is an int from ``least`` to ``most``; subclasses of int pass, as some drivers return them."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_data(value: Any) -> bool:
    """Whether ``value`` can be the data of a lease: JSON text, or None."""
    try:
        if value is not None:
            _data(text(value, "data", checks.MAX_DATA, printable=False))
    except ValueError:
        return False
    return True


def text(value: object, what: str, longest: int, shortest: int = 1, printable: bool = True) -> str:
    """``value`` if it is text of this length, without control characters if ``printable``. Raises Damaged."""
    if not isinstance(value, str) or not shortest <= len(value) <= longest:
        raise Damaged(f"{what} is not text of {shortest} to {longest} characters")
    if printable:
        try:
            checks.text(value, what, longest, shortest)
        except ValueError as error:
            raise Damaged(error) from None
    return value


def _list(value: object, what: str, length: int | None = None) -> Sequence[Any]:
    if type(value) is not list or (length is not None and len(value) != length):
        raise Damaged(f"{what} is not a list{'' if length is None else f' of {length}'}")
    return value
