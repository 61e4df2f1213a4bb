"""The collections of one ``Locks``, through a client that is open; and how many connections of it may be used."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

from bson.codec_options import CodecOptions, DatetimeConversion
from pymongo import ReadPreference
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from .pipelines import FORMAT
from .url import Target

OUR_CLIENT: Mapping[str, Any] = {"appname": "leasehold", "connect": False}
CLOSING = 0.5
"""Limit for closing a client of ours, which tells the server. pymongo itself would look for a server for 30 s."""
MOST_CALLS = 32
"""Calls under way at a time, of one urgency: more are not faster, and a client's pool has 100 connections."""
PLAIN: CodecOptions[dict[str, Any]] = CodecOptions(
    # Dates of other programs may be beyond all calendars; a server's error may be cut off in the middle of a letter.
    datetime_conversion=DatetimeConversion.DATETIME_CLAMP,
    unicode_decode_error_handler="replace",
)


class Access:
    def __init__(self, target: Target, client: Any) -> None:
        self.target = target
        self.client = client
        # Whatever the client's defaults are: an acknowledged lease is on a majority, and nothing is read elsewhere.
        self.database = client.get_database(
            target.database,
            codec_options=PLAIN,
            read_preference=ReadPreference.PRIMARY,
            read_concern=ReadConcern("local"),
            write_concern=WriteConcern("majority", wtimeout=5000),
        )
        self.leases = self.database[target.collection]
        # Calls are hints: one server is enough.
        self.calls = self.database.get_collection(f"{target.collection}.calls", write_concern=WriteConcern(1))

    def id(self, name: str) -> dict[str, str]:
        return {"ns": self.target.namespace, "name": name}

    def filter(self, name: str, where: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The document of a name, unless its format is too new for us."""
        return {"_id": self.id(name), "format": {"$not": {"$gt": FORMAT}}, **(where or {})}

    @property
    def sharded(self) -> bool:
        return bool(self.client.topology_description.topology_type_name == "Sharded")

    @property
    def index_key(self) -> tuple[object, ...]:
        return (*sorted(self.client.nodes), self.target.database, self.target.collection)

    # Connections.

    @property
    def _pool_size(self) -> int | None:
        size: int | None = self.client.options.pool_options.max_pool_size
        return size

    @property
    def most_calls(self) -> int:
        """How many calls of one urgency may be under way. Two connections are left for the listener and renewals."""
        size = self._pool_size
        return max(1, min(MOST_CALLS, (size - 2) // 2)) if size else MOST_CALLS

    def take_connection(self) -> bool:
        """Take a connection of this client for a listener. False if none would be left for all else."""
        with _taking:
            if self._pool_size and _taken[self._key] + 2 > self._pool_size:
                return False
            _taken[self._key] += 1
        return True

    def give_connection_back(self) -> None:
        with _taking:
            _taken[self._key] -= 1
            if not _taken[self._key]:
                del _taken[self._key]

    @property
    def _key(self) -> tuple[int, int]:
        return os.getpid(), id(self.client)  # clients of the same servers are equal


_taken: Counter[tuple[int, int]] = Counter()
"""How many listeners a client has, of all ``Locks`` that share it."""
_taking = threading.Lock()


def _forked() -> None:
    """Another thread of the parent may have had the mutex; it does not exist in the child."""
    global _taking
    _taking = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
