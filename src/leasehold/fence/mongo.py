"""Fences in MongoDB: a token field of the document, compared by the filter of the update that sets it.

result = accounts.update_one(*fence.mongo.guarded({"_id": 1}, {"$set": {"balance": 50}}, lease))
fence.mongo.check(result, lease)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..lease import BaseLease
from ..typed import Any
from . import StaleToken, token


def condition(lease: BaseLease, field: str = "token") -> dict[str, Any]:
    """A filter for documents that no later holder has written. For a delete, or an update that also sets ``field``.

    What is deleted takes its token along: a document that is made anew, by an upsert, is open to any holder."""
    return {field: {"$not": {"$gt": token(lease)}}}


def guarded(
    filter: Mapping[str, Any], update: Any, lease: BaseLease, field: str = "token", upsert: bool = False
) -> tuple[Any, Any]:
    """Filter and update (operators, a pipeline or a whole document) that leave alone what a later holder has written.

    For an operation with ``upsert=True`` say so here too: the filter must then name the ``_id``. A refused write is a
    ``DuplicateKeyError``; without the ``_id`` it would make a second document.
    """
    if upsert and "_id" not in filter:
        raise ValueError("an upsert is fenced only by the _id: without it a refused write makes a second document")
    return {"$and": [dict(filter), condition(lease, field)]}, _marked(update, field, lease.token)


def check(result: Any, lease: BaseLease, upsert: bool = False) -> None:
    """Raise StaleToken when the update or delete has met no document. (Or there is none at all, which is not told
    apart.) ``result`` is what ``update_one``, ``replace_one``, ``delete_one`` and the like return, or the document (or
    None) that ``find_one_and_update`` and the like do; of anything else it cannot be told: TypeError.

    After an ``upsert``, which has met or made one, it is the ``DuplicateKeyError`` that tells."""
    if result is None or isinstance(result, Mapping):
        met = result is not None or upsert
    elif hasattr(result, "upserted_id"):
        if result.upserted_id is not None and not upsert:
            raise ValueError("a document was made by an upsert: say upsert=True to guarded() and check()")
        met = result.matched_count or upsert
    elif hasattr(result, "deleted_count") and not hasattr(result, "matched_count"):
        met = result.deleted_count
    else:  # of several writes (bulk_write) one may have been refused, and the sums do not tell
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
