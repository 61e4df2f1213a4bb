"""The rules of :mod:`leasehold.core.entry` as MongoDB update pipelines: one atomic command per operation.

Each pipeline finds its arguments in the field ``ask``, which :func:`with_ask` adds and the last stage removes. That is
the only place where text from outside enters a pipeline, below one ``$literal``: ``"$owner"`` or ``"$$NOW"`` as an
owner stays the text it is. Everything else is constant. A pipeline that leaves everything as it was makes MongoDB write
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .stages import (
    ABANDONED,
    CLAIMS,
    EXPIRE,
    FORGET,
    FREE,
    HELD,
    INTERRUPTED,
    LAPSED,
    LIVE,
    MINE,
    MY_TOKEN,
    NEXT_TOKEN,
    NOBODY,
    NOW,
    PROMOTE,
    PURGE,
    RESTING,
    TERM,
    UNBROKEN,
    WAITER_MS,
    WAITING,
    Encoded,
    Stages,
    asks,
    empty,
    encode,
    every,
    filtered,
    finish,
    later,
    mapped,
)

ABANDONED_MS = 60_000
"""How long an attempt that has ended is remembered of which an answer got lost, so that a command of it that arrives
late takes nothing."""
ABANDONED_MOST = 1000
"""So that a record does not grow without end when all that is asked for it gets lost."""


def with_ask(ask: Mapping[str, Any], stages: Encoded) -> list[Mapping[str, Any]]:
    """A pipeline with its arguments: whatever they contain, they are values."""
    return [{"$set": {"ask": {"$literal": ask}}}, *stages]


ACQUIRE = encode(
    *EXPIRE,
    *PROMOTE,
    {
        "$set": {
            "shape": {"$cond": [NOBODY, "$ask.shape", "$shape"]},
            "limit": {"$cond": [NOBODY, "$ask.limit", "$limit"]},
        }
    },
    {
        "$set": {
            "can": {
                "$switch": {
                    "branches": [
                        {"case": ABANDONED, "then": "nothing"},
                        {"case": CLAIMS, "then": "claim"},
                        {
                            "case": {
                                "$or": [{"$ne": ["$shape", "$ask.shape"]}, {"$ne": ["$limit", "$ask.limit"]}],
                            },
                            "then": "nothing",
                        },
                        {"case": asks("$queue"), "then": "stay"},
                        {
                            "case": every(
                                {"$gte": [FREE, "$ask.permit.weight"]},
                                {"$or": [empty("$queue"), {"$not": ["$ask.fair"]}]},
                            ),
                            "then": "take",
                        },
                        {"case": "$ask.queue", "then": "queue"},
                    ],
                    "default": "nothing",
                }
            }
        }
    },
    {
        "$set": {
            "token": {"$cond": [{"$eq": ["$can", "take"]}, NEXT_TOKEN, "$token"]},
            "holders": {
                "$switch": {
                    "branches": [
                        # Its answer got lost, or it claims what a release granted it.
                        {"case": {"$eq": ["$can", "claim"]}, "then": mapped("$holders", every(MINE, UNBROKEN), TERM)},
                        {
                            "case": {"$eq": ["$can", "take"]},
                            "then": {
                                "$concatArrays": [
                                    "$holders",
                                    [
                                        {
                                            "$mergeObjects": [
                                                "$ask.permit",
                                                {
                                                    "token": NEXT_TOKEN,
                                                    "acquired": NOW,
                                                    "expires": later("$ask.ttl"),
                                                    "state": HELD,
                                                },
                                            ]
                                        }
                                    ],
                                ]
                            },
                        },
                    ],
                    "default": "$holders",
                }
            },
            "queue": {
                "$switch": {
                    "branches": [
                        {
                            "case": {"$eq": ["$can", "queue"]},
                            "then": {
                                "$concatArrays": [
                                    "$queue",
                                    [
                                        {
                                            "$mergeObjects": [
                                                "$ask.permit",
                                                {"expires": later(WAITER_MS), "state": WAITING},
                                            ]
                                        }
                                    ],
                                ]
                            },
                        },
                        {
                            "case": {"$eq": ["$can", "stay"]},
                            "then": mapped(
                                "$queue",
                                every(MINE, {"$lt": ["$$one.expires", later(WAITER_MS * 2 // 3)]}),
                                {"expires": later(WAITER_MS)},
                            ),
                        },
                    ],
                    "default": "$queue",
                }
            },
        }
    },
    *finish(LAPSED),
)
"""``ask``: attempt, sent, ttl (ms), shape, limit, fair, queue, permit (what is stored of the attempt)."""

_ALL_THERE = every(
    {"$setIsSubset": ["$ask.attempts", "$queue.attempt"]},
    {"$gt": [{"$min": "$holders.expires"}, later("$ask.horizon")]},
    {"$gt": [{"$min": "$queue.expires"}, NOW]},
)

_KEPT = mapped("$queue", every({"$in": ["$$one.attempt", "$ask.attempts"]}, LIVE), {"expires": later(WAITER_MS)})

KEEP_PLACES = encode(
    {"$set": {"can": {"$or": [{"$eq": ["$ask.horizon", None]}, _ALL_THERE]}}},
    {"$set": {"queue": {"$cond": ["$can", _KEPT, "$queue"]}}},
    # Else nothing changes at all: that a document has changed means that all have been kept.
    {"$set": {"purge": {"$cond": ["$can", PURGE, "$purge"]}}},
    FORGET,
)
"""``ask``: attempts, which wait, and horizon (ms): to keep all their places, if all are there, nobody in the queue has
expired, and no holder does within the horizon. None: to keep those that are there. For a document that has a queue."""

_TAKES_OVER = {
    "$and": [
        {"$eq": ["$$one.attempt", "$ask.heir.attempt"]},
        {"$eq": ["$$one.token", "$ask.heir.token"]},
        {"$gte": ["$$one.weight", "$ask.permit.weight"]},
        UNBROKEN,
    ]
}
_INHERITED = {
    "token": NEXT_TOKEN,
    "acquired": NOW,
    "expires": later("$ask.ttl"),
    "state": HELD,
    # What is left of min_hold goes on.
    "rest": {"$max": ["$ask.permit.rest", {"$subtract": [{"$add": ["$$one.acquired", "$$one.rest"]}, NOW]}]},
}

INHERIT = encode(
    *EXPIRE,
    {
        "$set": {
            "can": {
                "$switch": {
                    "branches": [
                        {"case": ABANDONED, "then": "nothing"},
                        {"case": CLAIMS, "then": "claim"},
                    ],
                    "default": "inherit",
                }
            }
        }
    },
    {"$set": {"ousted": {"$cond": [{"$eq": ["$can", "inherit"]}, filtered("$holders", _TAKES_OVER), []]}}},
    {
        "$set": {
            "holders": {
                "$switch": {
                    "branches": [
                        {"case": {"$eq": ["$can", "claim"]}, "then": mapped("$holders", every(MINE, UNBROKEN), TERM)},
                        {
                            "case": {"$eq": ["$can", "inherit"]},
                            "then": mapped("$holders", _TAKES_OVER, {"$mergeObjects": ["$ask.permit", _INHERITED]}),
                        },
                    ],
                    "default": "$holders",
                }
            }
        }
    },
    {"$set": {"token": {"$max": ["$token", {"$max": "$holders.token"}]}}},
    *PROMOTE,
    *finish(LAPSED, ousted="$ousted"),
)
"""As ``ACQUIRE``, with ``heir``: attempt and token of the permit that the asking attempt takes over."""

_HOLDS = {
    "$anyElementTrue": [{"$map": {"input": "$holders", "as": "one", "in": every(MINE, MY_TOKEN, LIVE, UNBROKEN)}}]
}

WRITE_NOTE = encode(
    {"$set": {"note": {"$cond": [_HOLDS, {"$ifNull": ["$ask.text", "$$REMOVE"]}, "$note"]}}},
    {"$set": {"purge": PURGE}},
    FORGET,
)
"""``ask``: attempt, token, text (None: to delete it)."""

RENEW = encode(
    {
        "$set": {
            "holders": mapped(
                "$holders",
                every(MINE, MY_TOKEN, LIVE, UNBROKEN),
                {**TERM, "mark": "$ask.mark"},
            )
        }
    },
    # A renewal that is refused changes nothing at all: that a document has changed means that it was renewed.
    {"$set": {"purge": {"$cond": [{"$in": ["$ask.mark", "$holders.mark"]}, PURGE, "$purge"]}}},
    FORGET,
)
"""``ask``: attempt, token, ttl, mark. The mark tells afterwards that it was this renewal that succeeded."""

# Until when min_hold keeps the name: not longer than that from now, also when the clock was put back.
_RESTED = {"$add": [{"$min": ["$$one.acquired", NOW]}, "$$one.rest"]}
_RESTS = {"$gt": [_RESTED, NOW]}
_THIS = every(MINE, MY_TOKEN)
_RESTING = {
    "$anyElementTrue": [
        {"$map": {"input": "$holders", "as": "one", "in": every(MY_TOKEN, {"$eq": ["$$one.state", RESTING]})}}
    ]
}

_NOTED = {
    "$slice": [
        {
            "$concatArrays": [
                "$abandoned",
                [
                    {
                        "attempt": "$ask.attempt",
                        "sent": "$ask.sent",
                        "found": {"$or": [asks("$holders"), asks("$queue")]},
                        "expires": later("$ask.keep"),
                    }
                ],
            ]
        },
        -ABANDONED_MOST,
    ]
}

_RELEASE: Stages = [
    {"$set": {"holders": filtered("$holders", {"$or": [{"$not": [_THIS]}, _RESTS]})}},
    {
        "$set": {
            "holders": mapped(
                "$holders",
                _THIS,
                {
                    "state": RESTING,
                    "expires": _RESTED,
                    "attempt": "",
                    "session": "",
                },
            )
        }
    },
    *PROMOTE,
    *finish(_RESTING),  # the head has to learn the new expiry
]

RELEASE = encode(*EXPIRE, *_RELEASE)
"""``ask``: attempt, token."""

RELEASE_AND_NOTE = encode(*EXPIRE[:1], {"$set": {"abandoned": _NOTED}}, *EXPIRE[1:], *_RELEASE)
"""``ask``: attempt, token, sent, keep (ms). For one of which a command may yet arrive."""

ABANDON = encode(
    *EXPIRE[:1],
    {
        "$set": {
            "abandoned": _NOTED,
            # What was never used is not subject to min_hold.
            "holders": filtered("$holders", {"$not": [MINE]}),
            "queue": filtered("$queue", {"$not": [MINE]}),
        }
    },
    *EXPIRE[1:],
    *PROMOTE,
    *finish({"$last": "$abandoned.found"}),
)
"""``ask``: attempt, sent, keep (ms). The last of ``abandoned`` then says whether it was found."""

INTERRUPT = encode(
    *EXPIRE,
    *PROMOTE,
    {"$set": {"holders": mapped("$holders", {"$ne": ["$$one.state", RESTING]}, {"state": INTERRUPTED})}},
    *finish(True, {"$eq": ["$$one.state", INTERRUPTED]}),
)

EVICT = encode(
    *EXPIRE,
    {"$set": {"holders": filtered("$holders", {"$not": [{"$in": ["$$one.state", [INTERRUPTED, RESTING]]}]})}},
    *PROMOTE,
    *finish(True),
)
"""Remove those who have been interrupted, and what rests."""
