"""Fences in MongoDB: a token field in the document. The filter of each update compares it, the update sets it.

result = accounts.update_one(*fence.mongo.guarded({"_id": 1}, {"$set": {"balance": 50}}, lease))
fence.mongo.check(result, lease)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.lease import BaseLease
from . import StaleToken, token


def condition(lease: BaseLease, field: str = "token") -> dict[str, Any]:
    """A filter for documents that no later holder has written. Use it for a delete, or an update that also sets
    ``field``. Raises LeaseLost or ValueError, as :func:`leasehold.fence.token`.

    A deleted document loses its token: if it is inserted again, by an upsert, an earlier holder can write it."""
    return {field: {"$not": {"$gt": token(lease)}}}


def guarded(
    filter: Mapping[str, Any], update: Any, lease: BaseLease, field: str = "token", upsert: bool = False
) -> tuple[Any, Any]:
    """The filter and the update (operators, a pipeline or a whole document), fenced: they do not change a document that
    a later holder has written.

    For an operation with ``upsert=True``, give it here too: the filter must then name the ``_id``. A refused upsert
    raises ``DuplicateKeyError``; without the ``_id`` it would insert a second document.
    """
    if upsert and "_id" not in filter:
        raise ValueError("an upsert needs the _id in its filter: without it a refused write inserts a second document")
    return {"$and": [dict(filter), condition(lease, field)]}, _marked(update, field, lease.token)


def check(result: Any, lease: BaseLease, upsert: bool = False) -> None:
    """Raise StaleToken if the update or delete matched no document. (A document that does not exist gives the same
    result.)

    ``result`` is what ``update_one``, ``replace_one``, ``delete_one`` and the like return, or the document (or None)
    that ``find_one_and_update`` and the like return; anything else is a TypeError. An ``upsert`` always matches or
    inserts a document: if it is refused, pymongo raises ``DuplicateKeyError``."""
    if result is None or isinstance(result, Mapping):
        met = result is not None or upsert
    elif hasattr(result, "upserted_id"):
        if result.upserted_id is not None and not upsert:
            raise ValueError("the update inserted a document: give upsert=True to guarded() and check()")
        met = result.matched_count or upsert
    elif hasattr(result, "deleted_count") and not hasattr(result, "matched_count"):
        met = result.deleted_count
    else:  # the sums of several writes (bulk_write) do not show whether one was refused
        raise TypeError(f"check() takes the result of one update or delete, or a document, not {type(result).__name__}")
    if not met:
        raise StaleToken(lease.name, lease.token)


def _marked(update: Any, field: str, own: int) -> Any:
    if not isinstance(update, Mapping):
        assert isinstance(update, Sequence)
        return [*update, {"$set": {field: own}}]
    if any(key.startswith("$") for key in update):
        return {**update, "$set": {**update.get("$set", {}), field: own}}
    return {**update, field: own}
