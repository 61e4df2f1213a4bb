"""MongoDB, a replica set of three members on one machine, beside the bare commands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from . import mongodb

from servers.mongodb import MongoReplicaSet  # isort: skip  (mongodb has made it importable)

TITLE = "MongoDB, replica set of three"
ABOUT = mongodb.ABOUT


@contextlib.contextmanager
def peers(folder: Path) -> Iterator[dict[str, tuple[str, str]]]:
    """See ``sqlite.py``."""
    with MongoReplicaSet() as servers:
        yield {"leasehold": ("leasehold_peer", servers.url), "bare commands": ("bare_mongodb", servers.url)}
