"""Fences in MongoDB: a token field in the document. The filter of each update compares it, the update sets it.

Example::

    result = accounts.update_one(*fence.mongo.guarded({"_id": 1}, {"$set": {"balance": 50}}, lease))
    fence.mongo.check(result, lease)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.lease import BaseLease
from . import StaleToken, token


def condition(lease: BaseLease, field: str = "token") -> dict[str, Any]:
    """A filter for documents that no later holder has written: for a delete, or an update that also sets ``field``.

    A deleted document loses its token: if an upsert inserts it again, an earlier holder can write it.

    Args:
        lease: the lease that guards the document.
        field: the field with the token. Default: "token".

    Raises:
        LeaseLost: the lease can no longer be trusted.
        ValueError: the lease is not exclusive.

    Example::

        with locks.lock("account:1") as lease:
            filter = {"_id": 1, **fence.mongo.condition(lease)}
    """
    return {field: {"$not": {"$gt": token(lease)}}}


def guarded(
    filter: Mapping[str, Any], update: Any, lease: BaseLease, field: str = "token", upsert: bool = False
) -> tuple[Any, Any]:
    """The filter and the update, fenced: they do not change a document that a later holder has written.

    Args:
        filter: the filter of the operation.
        update: operators, a pipeline or a whole document.
        lease: the lease that guards the document.
        field: the field with the token. Default: "token".
        upsert: whether the operation has ``upsert=True``. The filter must then name the ``_id``: a refused upsert
            raises ``DuplicateKeyError``; without the ``_id`` it would insert a second document. Default: False.

    Raises:
        LeaseLost: the lease can no longer be trusted.
        ValueError: the lease is not exclusive, or an upsert has no ``_id`` in its filter.

    Example::

        with locks.lock("account:1") as lease:
            filter, update = fence.mongo.guarded({"_id": 1}, {"$set": {"balance": 50}}, lease)
    """
    if upsert and "_id" not in filter:
        raise ValueError("an upsert needs the _id in its filter: without it a refused write inserts a second document")
    return {"$and": [dict(filter), condition(lease, field)]}, _marked(update, field, lease.token)


def check(result: Any, lease: BaseLease, upsert: bool = False) -> None:
    """Raise StaleToken if the update or delete matched no document. A document that does not exist gives the same
    result.

    Args:
        result: what ``update_one``, ``replace_one``, ``delete_one`` and the like return, or the document (or None) that
            ``find_one_and_update`` and the like return.
        lease: the lease that guards the document.
        upsert: whether the operation had ``upsert=True``. It matches or inserts a document; if it is refused, pymongo
            raises ``DuplicateKeyError``. Default: False.

    Raises:
        StaleToken: a later holder has written.
        ValueError: an upsert inserted a document, but ``upsert`` was not given.
        TypeError: ``result`` is something else, for example of ``bulk_write``.
    """
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
