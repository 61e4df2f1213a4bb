"""The TTL index, which removes the records of unused names. Leases never need it."""

from __future__ import annotations

import pymongo
from pymongo.errors import OperationFailure, PyMongoError

from ...core.log import INFO, WARNING, log
from ...core.protocol import Steps
from .errors import FORBIDDEN, translate

INDEX = "leasehold_purge"
INDEX_LIMIT = 0.5
"""How long the keeper waits for the index: renewals must not wait for it."""

indexed: set[tuple[object, ...]] = set()
"""Collections whose TTL index this process has seen to."""


def see_to_index() -> Steps[None]:
    """Create the index if it is not there, once per process and collection. Never fails: a warning at most."""
    key, where = yield lambda access: (access.index_key, access.target.where)
    if key in indexed:
        return
    try:
        with pymongo.timeout(INDEX_LIMIT):
            yield lambda access: access.leases.create_index("purge", name=INDEX, expireAfterSeconds=0)
    except PyMongoError as error:
        if error.timeout or not isinstance(error, OperationFailure):
            _tell(where, error, INFO)
            return  # tried again later
        _tell(where, error, INFO if error.code == FORBIDDEN else WARNING)
    indexed.add(key)


def _tell(where: str, error: PyMongoError, level: int) -> None:
    if isinstance(error, OperationFailure) and error.code == FORBIDDEN:
        message = "%s: this user may not check the TTL index on `purge`; no need if `leasehold init` was run"
        log(level, message, where, event="index_unchecked")
        return
    log(
        level,
        "cannot create the TTL index on `purge` (%s); leases work, but records of unused names are never removed: "
        "run `leasehold init` as an administrator",
        translate(error, where),
        event="no_index",
    )
