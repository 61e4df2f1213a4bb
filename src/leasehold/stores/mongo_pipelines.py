"""The rules of :mod:`leasehold.entry` as MongoDB update pipelines: one atomic command per operation.

Each pipeline finds its arguments in the field ``ask``, which :func:`with_ask` adds and the last stage removes. That is
the only place where text from outside enters a pipeline, below one ``$literal``: ``"$owner"`` or ``"$$NOW"`` as an
owner stays the text it is. Everything else here is constant.

The time is ``$$NOW``, the server's, the same in all stages of a command. A pipeline that leaves everything as it was
makes MongoDB write nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import bson
from bson.raw_bson import RawBSONDocument

from ..policy import FIRST_TERM, WAITER_TTL

Expression: TypeAlias = Any
Stages: TypeAlias = list[dict[str, Any]]
Encoded: TypeAlias = list[RawBSONDocument]

FORMAT = 1
"""Of a document. A newer one is refused, so that an old process never misreads a new one's record."""

WAITING, GRANTED, HELD, INTERRUPTED, RESTING = "waiting", "granted", "held", "interrupted", "resting"

FIRST_TERM_MS = int(FIRST_TERM * 1000)
WAITER_MS = int(WAITER_TTL * 1000)
HOUR_MS = 3_600_000
KEEP_MS = 24 * HOUR_MS
ABANDONED_MS = 60_000
"""How long an abandoned attempt is remembered, so that a command of it that arrives late takes nothing."""
ABANDONED_MOST = 20

NOW = "$$NOW"


def with_ask(ask: Mapping[str, Any], stages: Encoded) -> list[Mapping[str, Any]]:
    """A pipeline with its arguments: whatever they contain, they are values."""
    return [{"$set": {"ask": {"$literal": ask}}}, *stages]


def _encode(*stages: dict[str, Any]) -> Encoded:
    """Once and for all: they are longer than what is asked with them."""
    return [RawBSONDocument(bson.encode(stage)) for stage in stages]


# Words of the language that are used more than once.


def _later(ms: Expression) -> Expression:
    return {"$add": [NOW, ms]}


def _filter(array: Expression, condition: Expression) -> Expression:
    return {"$filter": {"input": array, "as": "one", "cond": condition}}


def _map(array: Expression, condition: Expression, change: Expression) -> Expression:
    """The array with ``change`` merged into the elements for which the condition holds."""
    changed = {"$mergeObjects": ["$$one", change]}
    return {"$map": {"input": array, "as": "one", "in": {"$cond": [condition, changed, "$$one"]}}}


def _all(*conditions: Expression) -> Expression:
    return {"$and": list(conditions)}


def _empty(array: str) -> Expression:
    return {"$eq": [{"$size": array}, 0]}


def _asks(array: str) -> Expression:
    """Whether the asking attempt is in the array."""
    return {"$in": ["$ask.attempt", f"{array}.attempt"]}


_MINE = {"$eq": ["$$one.attempt", "$ask.attempt"]}
_MY_TOKEN = {"$eq": ["$$one.token", "$ask.token"]}
_LIVE = {"$gt": ["$$one.expires", NOW]}
_UNBROKEN = {"$ne": ["$$one.state", INTERRUPTED]}
_CLAIMS = {"$anyElementTrue": [{"$map": {"input": "$holders", "as": "one", "in": _all(_MINE, _UNBROKEN)}}]}
_ABANDONED = {
    # This command was sent before its attempt was abandoned, and has arrived after that.
    "$anyElementTrue": [
        {"$map": {"input": "$abandoned", "as": "one", "in": _all(_MINE, {"$gt": ["$$one.sent", "$ask.sent"]})}}
    ]
}
_NOBODY = _all(_empty("$holders"), _empty("$queue"))
_FREE = {"$subtract": ["$limit", {"$sum": "$holders.weight"}]}
_NEXT_TOKEN = {"$max": [{"$add": ["$token", 1]}, {"$multiply": [{"$toLong": NOW}, 1000]}]}

# A term that is claimed or renewed never gets shorter: an older request that arrives late must not cut a newer one.
_TERM = {"ttl": "$ask.ttl", "expires": {"$max": ["$$one.expires", _later("$ask.ttl")]}, "state": HELD}


# Stages.

_EXPIRE: Stages = [
    {
        "$set": {
            "format": FORMAT,
            "token": {"$ifNull": ["$token", 0]},
            "shape": {"$ifNull": ["$shape", "lock"]},
            "limit": {"$ifNull": ["$limit", 1]},
            "holders": {"$ifNull": ["$holders", []]},
            "queue": {"$ifNull": ["$queue", []]},
            "abandoned": {"$ifNull": ["$abandoned", []]},
        }
    },
    {
        "$set": {
            "holders": _filter("$holders", _LIVE),
            "queue": _filter("$queue", _LIVE),
            "abandoned": _filter("$abandoned", _LIVE),
            # Who let it expire, and the attempt that found that out. Nobody: as it was.
            "lapsed": {
                "$let": {
                    "vars": {"expired": _filter("$holders", {"$not": [_LIVE]})},
                    "in": {
                        "$cond": [
                            _empty("$$expired"),
                            "$lapsed",
                            {"found_by": "$ask.attempt", "holders": "$$expired"},
                        ]
                    },
                }
            },
        }
    },
]
"""Give the document its shape and drop what has expired."""

_FITS = {
    # How many from the head of the queue fit: the first that does not fit stops those behind it.
    "$reduce": {
        "input": "$queue.weight",
        "initialValue": {"free": _FREE, "count": 0, "open": True},
        "in": {
            "$cond": [
                _all("$$value.open", {"$lte": ["$$this", "$$value.free"]}),
                {
                    "free": {"$subtract": ["$$value.free", "$$this"]},
                    "count": {"$add": ["$$value.count", 1]},
                    "open": True,
                },
                {"free": "$$value.free", "count": "$$value.count", "open": False},
            ]
        },
    }
}
_GRANTED = {
    "token": {"$add": ["$first", "$$place"]},
    "acquired": NOW,
    "expires": _later({"$min": ["$$one.ttl", FIRST_TERM_MS]}),
    "state": GRANTED,
}

_PROMOTE: Stages = [
    {"$set": {"fits": _FITS, "first": _NEXT_TOKEN}},
    {
        "$set": {
            "holders": {
                "$concatArrays": [
                    "$holders",
                    {
                        "$map": {
                            "input": {"$range": [0, "$fits.count"]},
                            "as": "place",
                            "in": {
                                "$let": {
                                    "vars": {"one": {"$arrayElemAt": ["$queue", "$$place"]}},
                                    "in": {"$mergeObjects": ["$$one", _GRANTED]},
                                }
                            },
                        }
                    },
                ]
            },
            "queue": {"$slice": ["$queue", "$fits.count", {"$max": [1, {"$size": "$queue"}]}]},
            "token": {
                "$cond": ["$fits.count", {"$add": ["$first", "$fits.count", -1]}, "$token"],
            },
        }
    },
]
"""Grant to the head of the queue while it fits, for a first term."""

_LAST_USE = {"$toLong": {"$max": [NOW, {"$max": "$holders.expires"}, {"$max": "$queue.expires"}]}}

_FINISH: Stages = [
    {
        "$set": {
            # To the hour, so that the TTL index is touched once an hour.
            "purge": {
                "$let": {
                    "vars": {"used": _LAST_USE},
                    "in": {
                        "$toDate": {
                            "$add": [{"$subtract": ["$$used", {"$mod": ["$$used", HOUR_MS]}]}, KEEP_MS + HOUR_MS]
                        }
                    },
                }
            }
        }
    },
    {"$unset": ["ask", "fits", "first", "can"]},
]


# The operations.

ACQUIRE = _encode(
    *_EXPIRE,
    *_PROMOTE,
    {
        "$set": {
            "shape": {"$cond": [_NOBODY, "$ask.shape", "$shape"]},
            "limit": {"$cond": [_NOBODY, "$ask.limit", "$limit"]},
        }
    },
    {
        "$set": {
            "can": {
                "$switch": {
                    "branches": [
                        {"case": _ABANDONED, "then": "nothing"},
                        {"case": _CLAIMS, "then": "claim"},
                        {
                            "case": {
                                "$or": [{"$ne": ["$shape", "$ask.shape"]}, {"$ne": ["$limit", "$ask.limit"]}],
                            },
                            "then": "nothing",
                        },
                        {"case": _asks("$queue"), "then": "stay"},
                        {
                            "case": _all(
                                {"$gte": [_FREE, "$ask.permit.weight"]},
                                {"$or": [_empty("$queue"), {"$not": ["$ask.fair"]}]},
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
            "token": {"$cond": [{"$eq": ["$can", "take"]}, _NEXT_TOKEN, "$token"]},
            "holders": {
                "$switch": {
                    "branches": [
                        # Its answer got lost, or it claims what a release granted it.
                        {"case": {"$eq": ["$can", "claim"]}, "then": _map("$holders", _all(_MINE, _UNBROKEN), _TERM)},
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
                                                    "token": _NEXT_TOKEN,
                                                    "acquired": NOW,
                                                    "expires": _later("$ask.ttl"),
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
                                                {"expires": _later(WAITER_MS), "state": WAITING},
                                            ]
                                        }
                                    ],
                                ]
                            },
                        },
                        {
                            "case": {"$eq": ["$can", "stay"]},
                            "then": _map(
                                "$queue",
                                _all(_MINE, {"$lt": ["$$one.expires", _later(WAITER_MS * 2 // 3)]}),
                                {"expires": _later(WAITER_MS)},
                            ),
                        },
                    ],
                    "default": "$queue",
                }
            },
        }
    },
    *_FINISH,
)
"""``ask``: attempt, sent, ttl (ms), shape, limit, fair, queue, permit (what is stored of the attempt)."""

RENEW = _encode(
    {
        "$set": {
            "holders": _map(
                "$holders",
                _all(_MINE, _MY_TOKEN, _LIVE, _UNBROKEN),
                {**_TERM, "mark": "$ask.mark"},
            )
        }
    },
    *_FINISH,
)
"""``ask``: attempt, token, ttl, mark. The mark tells afterwards that it was this renewal that succeeded."""

# Until when min_hold keeps the name: not longer than that from now, also when the clock was put back.
_RESTED = {"$add": [{"$min": ["$$one.acquired", NOW]}, "$$one.rest"]}
_RESTS = {"$gt": [_RESTED, NOW]}
_THIS = _all(_MINE, _MY_TOKEN)

RELEASE = _encode(
    *_EXPIRE,
    {"$set": {"holders": _filter("$holders", {"$or": [{"$not": [_THIS]}, _RESTS]})}},
    {
        "$set": {
            "holders": _map(
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
    *_PROMOTE,
    *_FINISH,
)
"""``ask``: attempt, token."""

ABANDON = _encode(
    *_EXPIRE[:1],
    {
        "$set": {
            "abandoned": {
                "$slice": [
                    {
                        "$concatArrays": [
                            "$abandoned",
                            [
                                {
                                    "attempt": "$ask.attempt",
                                    "sent": "$ask.sent",
                                    "found": {"$or": [_asks("$holders"), _asks("$queue")]},
                                    "expires": _later(ABANDONED_MS),
                                }
                            ],
                        ]
                    },
                    -ABANDONED_MOST,
                ]
            },
            # What was never used is not subject to min_hold.
            "holders": _filter("$holders", {"$not": [_MINE]}),
            "queue": _filter("$queue", {"$not": [_MINE]}),
        }
    },
    *_EXPIRE[1:],
    *_PROMOTE,
    *_FINISH,
)
"""``ask``: attempt, sent. The last of ``abandoned`` then says whether it was found."""

INTERRUPT = _encode(
    *_EXPIRE,
    *_PROMOTE,
    {"$set": {"holders": _map("$holders", {"$ne": ["$$one.state", RESTING]}, {"state": INTERRUPTED})}},
    *_FINISH,
)

EVICT = _encode(
    *_EXPIRE,
    {"$set": {"holders": _filter("$holders", {"$not": [{"$in": ["$$one.state", [INTERRUPTED, RESTING]]}]})}},
    *_PROMOTE,
    *_FINISH,
)
"""Remove those who have been interrupted, and what rests."""


def granted(document: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Whom the command that returned this document has just granted (or another one in the same millisecond)."""
    now = document["now"]
    return [one for one in document["holders"] if one["state"] == GRANTED and one["acquired"] == now]
