"""MongoDB, a replica set of three members on one machine, beside the bare commands."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from . import mongodb

from servers.mongodb import MongoReplicaSet  # isort: skip  (mongodb has made it importable)

TITLE = "MongoDB, replica set of three"
MEMORY = Path("/dev/shm")
ABOUT = (
    f"{mongodb.ABOUT} Where the machine has a file system in memory, the members have their data there: that all three "
    "wait for one disk is no matter of a set of three."
)
PAIRS = 50  # in a batch: three members on one machine are slow


@contextlib.contextmanager
def in_memory() -> Iterator[None]:
    """Servers that are made in here have their folders there."""
    before, tempfile.tempdir = tempfile.tempdir, str(MEMORY) if MEMORY.is_dir() else tempfile.tempdir
    try:
        yield
    finally:
        tempfile.tempdir = before


@contextlib.contextmanager
def peers(folder: Path) -> Iterator[dict[str, tuple[str, str]]]:
    """See ``sqlite.py``."""
    with in_memory(), MongoReplicaSet() as servers:
        yield {
            "leasehold": ("leasehold_peer", servers.url),
            "bare commands": ("bare_mongodb", servers.url),
            "push=calls": ("leasehold_peer", f"{servers.url}&push=calls"),
        }
