"""MongoDB, a replica set of one member, beside the bare commands: waiters hear by change stream."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from . import mongodb

from servers.mongodb import MongoReplicaSet  # isort: skip  (mongodb has made it importable)

TITLE = "MongoDB, replica set of one"
ABOUT = mongodb.ABOUT
PAIRS = 100


@contextlib.contextmanager
def peers(folder: Path) -> Iterator[dict[str, tuple[str, str]]]:
    """See ``sqlite.py``. The same by the collection of calls shows what the change stream is worth."""
    with MongoReplicaSet(members=1) as servers:
        yield {
            "leasehold": ("leasehold_peer", servers.url),
            "bare commands": ("bare_mongodb", servers.url),
            "push=calls": ("leasehold_peer", f"{servers.url}&push=calls"),
        }
