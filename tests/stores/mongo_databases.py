"""A database of its own for a test of MongoDB, on a server that others use too."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pymongo


def own_url(server: Any) -> Iterator[str]:
    name = _name()
    yield str(server.url).replace("/leasehold", f"/{name}")
    with pymongo.MongoClient[Any](server.url) as client:
        client.drop_database(name)


def own_database(server: Any) -> Iterator[Any]:
    with pymongo.MongoClient[Any](server.url) as client:
        database = client[_name()]
        yield database
        client.drop_database(database.name)


def _name() -> str:
    return f"t{uuid.uuid4().hex[:12]}"
