"""What the pipelines of the MongoDB store are made of: words of the language, conditions, and stages that most share.

The time is ``$$NOW``, the server's, the same in all stages of a command. ``$ask`` is what is asked: see
:mod:`leasehold.stores.mongodb.pipelines`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import bson
from bson.raw_bson import RawBSONDocument

from ...core.timing import FIRST_TERM, WAITER_TTL

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

NOW = "$$NOW"


def encode(*stages: dict[str, Any]) -> Encoded:
    """Once and for all: they are longer than what is asked with them."""
    return [RawBSONDocument(bson.encode(stage)) for stage in stages]


# Words of the language that are used more than once.


def later(ms: Expression) -> Expression:
    return {"$add": [NOW, ms]}


def filtered(array: Expression, condition: Expression) -> Expression:
    return {"$filter": {"input": array, "as": "one", "cond": condition}}


def mapped(array: Expression, condition: Expression, change: Expression) -> Expression:
    """The array with ``change`` merged into the elements for which the condition holds."""
    changed = {"$mergeObjects": ["$$one", change]}
    return {"$map": {"input": array, "as": "one", "in": {"$cond": [condition, changed, "$$one"]}}}


def every(*conditions: Expression) -> Expression:
    return {"$and": list(conditions)}


def empty(array: str) -> Expression:
    return {"$eq": [{"$size": array}, 0]}


def asks(array: str) -> Expression:
    """Whether the asking attempt is in the array."""
    return {"$in": ["$ask.attempt", f"{array}.attempt"]}


MINE = {"$eq": ["$$one.attempt", "$ask.attempt"]}
MY_TOKEN = {"$eq": ["$$one.token", "$ask.token"]}
LIVE = {"$gt": ["$$one.expires", NOW]}
UNBROKEN = {"$ne": ["$$one.state", INTERRUPTED]}
CLAIMS = {"$anyElementTrue": [{"$map": {"input": "$holders", "as": "one", "in": every(MINE, UNBROKEN)}}]}
ABANDONED = {
    # This command was sent before its attempt was abandoned, and has arrived after that.
    "$anyElementTrue": [
        {"$map": {"input": "$abandoned", "as": "one", "in": every(MINE, {"$gt": ["$$one.sent", "$ask.sent"]})}}
    ]
}
NOBODY = every(empty("$holders"), empty("$queue"))
FREE = {"$subtract": ["$limit", {"$sum": "$holders.weight"}]}
NEXT_TOKEN = {"$max": [{"$add": ["$token", 1]}, {"$multiply": [{"$toLong": NOW}, 1000]}]}

# A term that is claimed or renewed never gets shorter: an older request that arrives late must not cut a newer one.
TERM = {"ttl": "$ask.ttl", "expires": {"$max": ["$$one.expires", later("$ask.ttl")]}, "state": HELD}


# Stages.

EXPIRE: Stages = [
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
            "holders": filtered("$holders", LIVE),
            "queue": filtered("$queue", LIVE),
            "abandoned": filtered("$abandoned", LIVE),
            # Who let it expire, and when the command was sent that found that out. Nobody: as it was.
            "lapsed": {
                "$let": {
                    "vars": {"expired": filtered("$holders", {"$not": [LIVE]})},
                    "in": {
                        "$cond": [
                            empty("$$expired"),
                            "$lapsed",
                            {"found_by": "$ask.sent", "holders": "$$expired"},
                        ]
                    },
                }
            },
        }
    },
]
"""Give the document its shape and drop what has expired."""

_FITS = {
    # How many from the head of the queue fit: the first that does not fit stops those behind it. Each weighs 1 at
    # least, so no more are looked at than there is room for.
    "$reduce": {
        "input": {"$slice": ["$queue", {"$max": [0, {"$min": [FREE, {"$size": "$queue"}]}]}]},
        "initialValue": {"free": FREE, "count": 0, "open": True},
        "in": {
            "$cond": [
                every("$$value.open", {"$lte": ["$$this.weight", "$$value.free"]}),
                {
                    "free": {"$subtract": ["$$value.free", "$$this.weight"]},
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
    "expires": later({"$min": ["$$one.ttl", FIRST_TERM_MS]}),
    "state": GRANTED,
}

PROMOTE: Stages = [
    {"$set": {"fits": _FITS, "first": NEXT_TOKEN}},
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

PURGE = {
    # To the hour, so that the TTL index is touched once an hour. A document without the field is not purged.
    "$let": {
        "vars": {"used": _LAST_USE},
        "in": {
            "$cond": [
                {"$eq": [{"$type": "$note"}, "string"]},
                "$$REMOVE",
                {"$toDate": {"$add": [{"$subtract": ["$$used", {"$mod": ["$$used", HOUR_MS]}]}, KEEP_MS + HOUR_MS]}},
            ]
        },
    }
}
FORGET = {"$unset": ["ask", "fits", "first", "can", "ousted"]}

_JUST_GRANTED = every({"$eq": ["$$one.state", GRANTED]}, {"$eq": ["$$one.acquired", NOW]})


def finish(head: Expression, awake: Expression = _JUST_GRANTED, ousted: Expression = ()) -> Stages:
    """Note whom to call: the ``ousted``, the holders that are ``awake``, and then, or if ``head``, the next in queue.

    One text, ``<ms> <session>/<attempt>/<token if granted>…``, so that a change stream shows it whole.
    """
    called = {
        "$let": {
            "vars": {"awake": filtered("$holders", awake)},
            "in": {
                "$concatArrays": [
                    ousted,
                    "$$awake",
                    {"$cond": [{"$or": [head, {"$not": [empty("$$awake")]}]}, {"$slice": ["$queue", 1]}, []]},
                ]
            },
        }
    }
    others = filtered(called, every({"$ne": ["$$one.session", ""]}, {"$not": [MINE]}))
    token = {"$cond": [{"$eq": ["$$this.state", GRANTED]}, {"$toString": "$$this.token"}, ""]}
    text = {
        "$reduce": {
            "input": "$$called",
            "initialValue": {"$toString": {"$toLong": NOW}},
            "in": {"$concat": ["$$value", " ", "$$this.session", "/", "$$this.attempt", "/", token]},
        }
    }
    call = {"$let": {"vars": {"called": others}, "in": {"$cond": [empty("$$called"), "$call", text]}}}
    return [{"$set": {"purge": PURGE, "call": call}}, FORGET]


LAPSED = {"$eq": ["$lapsed.found_by", "$ask.sent"]}
