"""The words of MongoDB's pipeline language that :mod:`.pipelines` is written in: conditions, and changes of arrays.

The time is ``$$NOW``, the server's, the same in all stages of a command. ``$ask`` holds the arguments. In a condition
about an element of an array, ``$$one`` is the element.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import bson
from bson.raw_bson import RawBSONDocument

Expression: TypeAlias = Any
Stages: TypeAlias = list[dict[str, Any]]
Encoded: TypeAlias = list[RawBSONDocument]

NOW = "$$NOW"


def encode(*stages: dict[str, Any]) -> Encoded:
    """Encode the constant stages once: they are longer than the arguments."""
    return [RawBSONDocument(bson.encode(stage)) for stage in stages]


def change(**fields: Expression) -> dict[str, Any]:
    return {"$set": fields}


def later(ms: Expression) -> Expression:
    return {"$add": [NOW, ms]}


def every(*conditions: Expression) -> Expression:
    return {"$and": list(conditions)}


def either(*conditions: Expression) -> Expression:
    return {"$or": list(conditions)}


def no(condition: Expression) -> Expression:
    return {"$not": [condition]}


def equal(left: Expression, right: Expression) -> Expression:
    return {"$eq": [left, right]}


def if_else(condition: Expression, then: Expression, otherwise: Expression) -> Expression:
    return {"$cond": [condition, then, otherwise]}


def first_of(*cases: tuple[Expression, Expression], default: Expression) -> Expression:
    """The value of the first case that is true."""
    return {"$switch": {"branches": [{"case": case, "then": then} for case, then in cases], "default": default}}


def let(variables: dict[str, Expression], value: Expression) -> Expression:
    return {"$let": {"vars": variables, "in": value}}


def merged(*documents: Expression) -> Expression:
    return {"$mergeObjects": list(documents)}


def empty(array: Expression) -> Expression:
    return {"$eq": [{"$size": array}, 0]}


def joined(*arrays: Expression) -> Expression:
    return {"$concatArrays": list(arrays)}


def filtered(array: Expression, condition: Expression) -> Expression:
    return {"$filter": {"input": array, "as": "one", "cond": condition}}


def mapped(array: Expression, condition: Expression, changes: Expression) -> Expression:
    """The array, with ``changes`` merged into the elements that meet the condition."""
    changed = if_else(condition, merged("$$one", changes), "$$one")
    return {"$map": {"input": array, "as": "one", "in": changed}}


def exists(array: Expression, condition: Expression) -> Expression:
    """Whether an element meets the condition."""
    return {"$anyElementTrue": [{"$map": {"input": array, "as": "one", "in": condition}}]}
