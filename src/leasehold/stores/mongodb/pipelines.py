"""The rules of :mod:`leasehold.core.entry` as MongoDB update pipelines: one atomic command per operation.

Each pipeline finds its arguments in the field ``ask``, which :func:`with_ask` adds and the last stage removes. That is
the only place where text from outside enters a pipeline, below one ``$literal``: an owner named ``"$owner"`` or
``"$$NOW"`` stays the text it is. Everything else is constant. A pipeline that leaves everything as it was makes MongoDB
write nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.timing import FIRST_TERM, WAITER_TTL
from .words import (
    NOW,
    Encoded,
    Expression,
    Stages,
    change,
    either,
    empty,
    encode,
    equal,
    every,
    exists,
    filtered,
    first_of,
    if_else,
    joined,
    later,
    let,
    mapped,
    merged,
    no,
)

FORMAT = 1
"""Format of a record. A newer format is refused, so that an old process never misreads the record of a new one."""
WAITING, GRANTED, HELD, INTERRUPTED, RESTING = "waiting", "granted", "held", "interrupted", "resting"
"""States of a permit. RESTING: released, and kept by ``min_hold``."""
ABANDONED_MS = 60_000
"""How long an abandoned attempt is remembered if one of its commands was not answered: a late command takes nothing."""
ABANDONED_MOST = 1000
"""Keeps the record small while no command is answered."""
FIRST_TERM_MS = int(FIRST_TERM * 1000)
WAITER_MS = int(WAITER_TTL * 1000)
HOUR_MS = 3_600_000
KEEP_MS = 24 * HOUR_MS


def with_ask(ask: Mapping[str, Any], stages: Encoded) -> list[Mapping[str, Any]]:
    """A pipeline with its arguments: whatever they contain, they are values."""
    return [{"$set": {"ask": {"$literal": ask}}}, *stages]


# Conditions.

MINE = equal("$$one.attempt", "$ask.attempt")
MY_TOKEN = equal("$$one.token", "$ask.token")
LIVE = {"$gt": ["$$one.expires", NOW]}
UNBROKEN = {"$ne": ["$$one.state", INTERRUPTED]}
HOLDS = every(MINE, MY_TOKEN, LIVE, UNBROKEN)
CLAIMS = exists("$holders", every(MINE, UNBROKEN))
# The command was sent before its attempt was abandoned, and arrived after that.
ABANDONED = exists("$abandoned", every(MINE, {"$gt": ["$$one.sent", "$ask.sent"]}))
NOBODY = every(empty("$holders"), empty("$queue"))
FREE = {"$subtract": ["$limit", {"$sum": "$holders.weight"}]}
NEXT_TOKEN = {"$max": [{"$add": ["$token", 1]}, {"$multiply": [{"$toLong": NOW}, 1000]}]}
# A term that is claimed or renewed never gets shorter: an older request that arrives late must not cut a newer one.
TERM = {"ttl": "$ask.ttl", "expires": {"$max": ["$$one.expires", later("$ask.ttl")]}, "state": HELD}
TAKEN = {"token": NEXT_TOKEN, "acquired": NOW, "expires": later("$ask.ttl"), "state": HELD}


def asks(array: str) -> Expression:
    """Whether the asking attempt is in the array."""
    return {"$in": ["$ask.attempt", f"{array}.attempt"]}


def can(what: str) -> Expression:
    """What the stage before has decided."""
    return equal("$can", what)


# Stages that most pipelines share.

DEFAULTS = {"token": 0, "shape": "lock", "limit": 1, "holders": [], "queue": [], "abandoned": []}
SHAPE = change(format=FORMAT, **{field: {"$ifNull": [f"${field}", value]} for field, value in DEFAULTS.items()})
_EXPIRED = filtered("$holders", no(LIVE))
# Who let it expire, and when the command was sent that found that out. Nobody: as it was.
_LAPSED = if_else(empty("$$expired"), "$lapsed", {"found_by": "$ask.sent", "holders": "$$expired"})
PRUNE = change(
    holders=filtered("$holders", LIVE),
    queue=filtered("$queue", LIVE),
    abandoned=filtered("$abandoned", LIVE),
    lapsed=let({"expired": _EXPIRED}, _LAPSED),
)
EXPIRE: Stages = [SHAPE, PRUNE]
"""Give the document its shape, and remove what has expired."""

# How many from the head of the queue fit: the first that does not fit stops those behind it. Each weighs at least 1, so
# no more are looked at than there is room for.
_FITS = {
    "$reduce": {
        "input": {"$slice": ["$queue", {"$max": [0, {"$min": [FREE, {"$size": "$queue"}]}]}]},
        "initialValue": {"free": FREE, "count": 0, "open": True},
        "in": if_else(
            every("$$value.open", {"$lte": ["$$this.weight", "$$value.free"]}),
            {
                "free": {"$subtract": ["$$value.free", "$$this.weight"]},
                "count": {"$add": ["$$value.count", 1]},
                "open": True,
            },
            {"free": "$$value.free", "count": "$$value.count", "open": False},
        ),
    }
}
_GRANTED = {
    "token": {"$add": ["$first", "$$place"]},
    "acquired": NOW,
    "expires": later({"$min": ["$$one.ttl", FIRST_TERM_MS]}),
    "state": GRANTED,
}
_GRANT_AT_PLACE = let({"one": {"$arrayElemAt": ["$queue", "$$place"]}}, merged("$$one", _GRANTED))
_GRANTS = {"$map": {"input": {"$range": [0, "$fits.count"]}, "as": "place", "in": _GRANT_AT_PLACE}}

PROMOTE: Stages = [
    change(fits=_FITS, first=NEXT_TOKEN),
    change(
        holders=joined("$holders", _GRANTS),
        queue={"$slice": ["$queue", "$fits.count", {"$max": [1, {"$size": "$queue"}]}]},
        token=if_else("$fits.count", {"$add": ["$first", "$fits.count", -1]}, "$token"),
    ),
]
"""Grant to the head of the queue while it fits, for a first term."""

_LAST_USE = {"$toLong": {"$max": [NOW, {"$max": "$holders.expires"}, {"$max": "$queue.expires"}]}}
_PURGE_AT = {"$toDate": {"$add": [{"$subtract": ["$$used", {"$mod": ["$$used", HOUR_MS]}]}, KEEP_MS + HOUR_MS]}}
PURGE = let({"used": _LAST_USE}, if_else(equal({"$type": "$note"}, "string"), "$$REMOVE", _PURGE_AT))
"""To the hour, so that the TTL index is touched once an hour. A document without the field is not purged."""
FORGET = {"$unset": ["ask", "fits", "first", "can", "ousted"]}
LAPSED = equal("$lapsed.found_by", "$ask.sent")
_JUST_GRANTED = every(equal("$$one.state", GRANTED), equal("$$one.acquired", NOW))


def finish(head: Expression, awake: Expression = _JUST_GRANTED, ousted: Expression = ()) -> Stages:
    """Note whom to call: the ``ousted``, the holders that are ``awake``, and then, or if ``head``, the next in queue.

    One text, ``<ms> <session>/<attempt>/<token if granted>…``, so that a change stream shows it whole."""
    next_too = if_else(either(head, no(empty("$$awake"))), {"$slice": ["$queue", 1]}, [])
    called = let({"awake": filtered("$holders", awake)}, joined(ousted, "$$awake", next_too))
    others = filtered(called, every({"$ne": ["$$one.session", ""]}, no(MINE)))
    token = if_else(equal("$$this.state", GRANTED), {"$toString": "$$this.token"}, "")
    text = {
        "$reduce": {
            "input": "$$called",
            "initialValue": {"$toString": {"$toLong": NOW}},
            "in": {"$concat": ["$$value", " ", "$$this.session", "/", "$$this.attempt", "/", token]},
        }
    }
    call = let({"called": others}, if_else(empty("$$called"), "$call", text))
    return [change(purge=PURGE, call=call), FORGET]


# Acquire.

_OTHER_SHAPE = either({"$ne": ["$shape", "$ask.shape"]}, {"$ne": ["$limit", "$ask.limit"]})
_ROOM = every({"$gte": [FREE, "$ask.permit.weight"]}, either(empty("$queue"), no("$ask.fair")))
_CLAIMED = mapped("$holders", every(MINE, UNBROKEN), TERM)
_QUEUED = merged("$ask.permit", {"expires": later(WAITER_MS), "state": WAITING})
_STALE = {"$lt": ["$$one.expires", later(WAITER_MS * 2 // 3)]}

ACQUIRE = encode(
    *EXPIRE,
    *PROMOTE,
    change(shape=if_else(NOBODY, "$ask.shape", "$shape"), limit=if_else(NOBODY, "$ask.limit", "$limit")),
    change(
        can=first_of(
            (ABANDONED, "nothing"),
            (CLAIMS, "claim"),
            (_OTHER_SHAPE, "nothing"),
            (asks("$queue"), "stay"),
            (_ROOM, "take"),
            ("$ask.queue", "queue"),
            default="nothing",
        )
    ),
    change(
        token=if_else(can("take"), NEXT_TOKEN, "$token"),
        holders=first_of(
            (can("claim"), _CLAIMED),  # its answer got lost, or it claims what a release granted it
            (can("take"), joined("$holders", [merged("$ask.permit", TAKEN)])),
            default="$holders",
        ),
        queue=first_of(
            (can("queue"), joined("$queue", [_QUEUED])),
            (can("stay"), mapped("$queue", every(MINE, _STALE), {"expires": later(WAITER_MS)})),
            default="$queue",
        ),
    ),
    *finish(LAPSED),
)
"""``ask``: attempt, sent, ttl (ms), shape, limit, fair, queue, permit (what is stored of the attempt)."""

_TAKES_OVER = every(
    equal("$$one.attempt", "$ask.heir.attempt"),
    equal("$$one.token", "$ask.heir.token"),
    {"$gte": ["$$one.weight", "$ask.permit.weight"]},
    UNBROKEN,
)
# What is left of min_hold goes on.
_REST = {"$max": ["$ask.permit.rest", {"$subtract": [{"$add": ["$$one.acquired", "$$one.rest"]}, NOW]}]}
_INHERITED = mapped("$holders", _TAKES_OVER, merged("$ask.permit", {**TAKEN, "rest": _REST}))

INHERIT = encode(
    *EXPIRE,
    change(can=first_of((ABANDONED, "nothing"), (CLAIMS, "claim"), default="inherit")),
    change(ousted=if_else(can("inherit"), filtered("$holders", _TAKES_OVER), [])),
    change(holders=first_of((can("claim"), _CLAIMED), (can("inherit"), _INHERITED), default="$holders")),
    change(token={"$max": ["$token", {"$max": "$holders.token"}]}),
    *PROMOTE,
    *finish(LAPSED, ousted="$ousted"),
)
"""As ``ACQUIRE``, with ``heir``: attempt and token of the permit that the asking attempt takes over."""

# While it is held, or waited for.

RENEW = encode(
    change(holders=mapped("$holders", HOLDS, {**TERM, "mark": "$ask.mark"})),
    # A renewal that is refused changes nothing at all: that a document has changed means that it was renewed.
    change(purge=if_else({"$in": ["$ask.mark", "$holders.mark"]}, PURGE, "$purge")),
    FORGET,
)
"""``ask``: attempt, token, ttl, mark. The mark tells afterwards that it was this renewal that succeeded."""

WRITE_NOTE = encode(
    change(note=if_else(exists("$holders", HOLDS), {"$ifNull": ["$ask.text", "$$REMOVE"]}, "$note")),
    change(purge=PURGE),
    FORGET,
)
"""``ask``: attempt, token, text (None: to delete it)."""

_KEPT = mapped("$queue", every({"$in": ["$$one.attempt", "$ask.attempts"]}, LIVE), {"expires": later(WAITER_MS)})

KEEP_PLACES = encode(change(queue=_KEPT), change(purge=PURGE), FORGET)
"""``ask``: attempts, which wait. For a document that has a queue."""

# Release.

# Until when min_hold keeps the name: not longer than that from now, also when the clock was set back.
_RESTED = {"$add": [{"$min": ["$$one.acquired", NOW]}, "$$one.rest"]}
_THIS = every(MINE, MY_TOKEN)
_RESTS = {"state": RESTING, "expires": _RESTED, "attempt": "", "session": ""}
_NOTE = {
    "attempt": "$ask.attempt",
    "sent": "$ask.sent",
    "found": either(asks("$holders"), asks("$queue")),
    "expires": later("$ask.keep"),
}
_NOTED = {"$slice": [joined("$abandoned", [_NOTE]), -ABANDONED_MOST]}

_RELEASE: Stages = [
    change(holders=filtered("$holders", either(no(_THIS), {"$gt": [_RESTED, NOW]}))),
    change(holders=mapped("$holders", _THIS, _RESTS)),
    *PROMOTE,
    # The head of the queue has to learn the new expiry of what rests.
    *finish(exists("$holders", every(MY_TOKEN, equal("$$one.state", RESTING)))),
]

RELEASE = encode(*EXPIRE, *_RELEASE)
"""``ask``: attempt, token."""

RELEASE_AND_NOTE = encode(SHAPE, change(abandoned=_NOTED), PRUNE, *_RELEASE)
"""``ask``: attempt, token, sent, keep (ms). For an attempt of which a command may still arrive."""

ABANDON = encode(
    SHAPE,
    change(
        abandoned=_NOTED,
        holders=filtered("$holders", no(MINE)),  # a lease that was never used is not subject to min_hold
        queue=filtered("$queue", no(MINE)),
    ),
    PRUNE,
    *PROMOTE,
    *finish({"$last": "$abandoned.found"}),
)
"""``ask``: attempt, sent, keep (ms). The last of ``abandoned`` then says whether the attempt was found."""

# Break.

INTERRUPT = encode(
    *EXPIRE,
    *PROMOTE,
    change(holders=mapped("$holders", {"$ne": ["$$one.state", RESTING]}, {"state": INTERRUPTED})),
    *finish(True, equal("$$one.state", INTERRUPTED)),
)

EVICT = encode(
    *EXPIRE,
    change(holders=filtered("$holders", no({"$in": ["$$one.state", [INTERRUPTED, RESTING]]}))),
    *PROMOTE,
    *finish(True),
)
"""Remove the holders that were interrupted, and what rests."""
