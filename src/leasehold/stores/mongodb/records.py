"""What a document of the MongoDB store says: who holds a name, how one stands that waits, what became of a renewal.

:mod:`.store` has its shape. ``now`` in it is the server's time when it was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from types import NoneType
from typing import Any

from ...core import checks
from ...core.log import WARNING, log
from ...core.protocol import BROKEN, GONE, RENEWED, Busy, Holding
from ...core.timing import STAGGER, WAITER_TTL
from ...errors import StoreNotReady, StoreUnavailable
from ..common.forms import LONGEST, MOST, is_data, is_number
from .pipelines import FORMAT, GRANTED, HELD, INTERRUPTED, RESTING, WAITING
from .requests import Document


def ms(moment: datetime) -> int:
    return (moment - _EPOCH) // _MS


_EPOCH, _MS = datetime(1970, 1, 1), timedelta(milliseconds=1)
_HALF = timedelta(seconds=WAITER_TTL / 2)


def taken_from(document: Document, attempt: str, sent: int) -> Document | None:
    """The last holder that had let it expire, as the command found that was sent then: what an earlier one found is no
    news. Who was granted it and never came is no holder, and nobody takes over from itself."""
    lapsed = document.get("lapsed")
    if lapsed is None or lapsed.get("found_by") != sent:
        return None
    used = [one for one in lapsed["holders"] if one["state"] != GRANTED]
    return used[-1] if used and used[-1]["attempt"] != attempt else None


def has_lapsed(document: Document, attempt: str, token: int) -> bool:
    """Whether this holder was the last to let it expire, or one of them."""
    lapsed = document.get("lapsed") or {"holders": ()}
    return any((one["attempt"], one["token"]) == (attempt, token) for one in lapsed["holders"])


def outcome(name: str, found: tuple[Document, datetime] | None, mark: str) -> str | StoreUnavailable:
    """What became of the renewal that was to leave this mark."""
    if found is None or found[0]["expires"] <= found[1]:
        return GONE
    holder = found[0]
    if holder["state"] == INTERRUPTED:
        return BROKEN
    if holder.get("mark") == mark:
        return RENEWED
    # Another renewal has come between this one and the look at what became of it.
    return StoreUnavailable(f"{name!r} is held, but it is unknown whether this renewal succeeded")


def standings(name: str, attempts: Iterable[str], document: Document | None) -> Iterator[tuple[str, Busy | None]]:
    """The answer for each waiter; None if it has to acquire itself: it may be its turn, or its place is gone."""
    if document is None:  # or damaged: an acquire says how
        yield from ((attempt, None) for attempt in attempts)
        return
    holders, queue, now = document["holders"], document["queue"], document["now"]
    alive = [waiter for waiter in queue if waiter["expires"] > now]
    places = {waiter["attempt"]: place for place, waiter in enumerate(alive)}
    reply = busy(name, {**document, "waiters": len(alive), "place": 0})
    expired = max(((now - holder["expires"]).total_seconds() for holder in holders), default=-1.0)
    for attempt in attempts:
        place = places.get(attempt)
        if place is None or (place == 0 and (len(alive) < len(queue) or not holders)) or expired >= STAGGER * place:
            yield attempt, None
        else:
            yield attempt, reply._replace(place=place)


def is_stale(document: Document) -> bool:
    """Whether a place in the queue has used up half of the time that it lasts."""
    return any(waiter["expires"] < document["now"] + _HALF for waiter in document["queue"])


def placed(document: Document, attempt: str | None) -> Document:
    """With what the answer to a change has in place of the queue."""
    queue = [waiter["attempt"] for waiter in document["queue"]]
    return {**document, "waiters": len(queue), "place": queue.index(attempt) if attempt in queue else -1}


def busy(name: str, document: Document) -> Busy:
    now, place = document["now"], document["place"]
    first = min(document["holders"], key=lambda holder: holder["expires"], default=None)
    holder = None if first is None else holding(name, first, document)
    wait = None if holder is None else holder.expires_in
    # The clock is cut to the ms: it was not later than this.
    return Busy(holder, None if place < 0 else place, wait, now=(ms(now) + 1) * 1000, token=document.get("token"))


def holdings(name: str, document: Document) -> Iterator[Holding]:
    found = {**document, "waiters": len(document["queue"])}
    for holder in document["holders"]:
        yield holding(name, holder, found)


def holding(name: str, one: Document, document: Document) -> Holding:
    now, waiters = document["now"], document["waiters"]
    age, left = (now - one["acquired"]).total_seconds(), (one["expires"] - now).total_seconds()
    data: str | None = one.get("data")
    return Holding(name, one["attempt"], one["owner"], one["kind"], data, int(one["token"]), age, left, waiters)


def check(name: str, document: Document) -> Document:
    """The document, if all that is read of it has the form that leasehold writes. Raises StoreNotReady about the name.

    Nobody is granted anything by a record that does not pass: its tokens may not rise, its permits not add up."""
    if is_newer(document):
        raise StoreNotReady(
            f"the record of {name!r} was written by a newer leasehold (format {document['format']}, this version knows "
            f"{FORMAT}): upgrade leasehold"
        )
    found = {**_EMPTY, **document}
    if (wrong := next(_faults(found), None)) is not None:
        raise StoreNotReady(
            f"the record of {name!r} is damaged, or of another program ({wrong}): delete it when nobody holds "
            f"{name!r}, or give leasehold a collection of its own (?collection=…)"
        )
    return found


def is_newer(document: Document) -> bool:
    format = document.get("format", FORMAT)
    return isinstance(format, (int, float)) and format > FORMAT


def checked(documents: Iterable[Document]) -> Iterator[tuple[str, Document]]:
    """Those that pass, by name. The others are logged: one bad record does not hide the rest."""
    for document in documents:
        name = document["_id"]["name"]
        try:
            yield name, check(name, document)
        except StoreNotReady as error:
            log(WARNING, "a bad record is skipped: %s", error, event="bad_record", name=name)


_EMPTY: Document = {"format": FORMAT, "token": 0, "shape": "lock", "limit": 1, "holders": [], "queue": []}
_TEXTS = ("attempt", "owner", "kind")
_STATES = (WAITING, GRANTED, HELD, INTERRUPTED, RESTING)


def _faults(document: Document) -> Iterator[str]:
    """What is wrong with it."""
    if not is_number(document["format"], FORMAT):
        yield "format"
    if not is_number(document["token"], MOST - 1):
        yield "token"
    if not isinstance(document["shape"], str) or not is_number(document["limit"], checks.MAX_PERMITS, 1):
        yield "shape or limit"
    for field in ("call", "note"):
        if not isinstance(document.get(field), (str, NoneType)):
            yield field
    lapsed = document.get("lapsed")
    if not isinstance(lapsed, (dict, NoneType)):
        yield "lapsed"
    for field, permits in (("holders", document["holders"]), ("lapsed", (lapsed or {"holders": []}).get("holders"))):
        if not isinstance(permits, list) or not all(map(_is_permit, permits)):
            yield field
    waiting = document["queue"]
    if not isinstance(waiting, list) or not all(isinstance(one, dict) and _waits(one) for one in waiting):
        yield "queue"


def _is_permit(one: Any) -> bool:
    return (
        isinstance(one, dict)
        and all(isinstance(one.get(field), str) for field in _TEXTS)
        and is_number(one.get("token"), MOST - 1)
        and is_number(one.get("weight"), checks.MAX_PERMITS, 1)
        and is_number(one.get("ttl"), LONGEST)
        and _is_time(one.get("acquired"))
        and _is_time(one.get("expires"))
        and one.get("state") in _STATES
        and is_data(one.get("data"))
    )


def _waits(one: Document) -> bool:
    return isinstance(one.get("attempt"), str) and _is_time(one.get("expires"))


def _is_time(value: Any) -> bool:
    return isinstance(value, datetime) and 1 < value.year < 9999  # times beyond a calendar were cut to its ends
