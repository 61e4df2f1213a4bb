"""MongoDB, a replica set of three members on one machine, beside the bare commands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from . import mongodb

from servers.mongodb import MongoReplicaSet  # isort: skip  (mongodb has made it importable)

TITLE = "MongoDB, replica set of three"
ABOUT = mongodb.ABOUT
PAIRS = 50  # in a batch: three members on one machine are slow


@contextlib.contextmanager
def peers(folder: Path) -> Iterator[dict[str, tuple[str, str]]]:
    """See ``sqlite.py``."""
    with MongoReplicaSet() as servers:
        yield {
            "leasehold": ("leasehold_peer", servers.url),
            "bare commands": ("bare_mongodb", servers.url),
            "push=calls": ("leasehold_peer", f"{servers.url}&push=calls"),
        }
