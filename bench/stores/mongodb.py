"""MongoDB, a standalone server, beside the bare commands."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pymongo

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from servers.mongodb import MongoDB

TITLE = "MongoDB, standalone"
ABOUT = f"MongoDB, pymongo {pymongo.version}; leasehold's own two commands through pymongo without a library."


@contextlib.contextmanager
def peers(folder: Path) -> Iterator[dict[str, tuple[str, str]]]:
    """See ``sqlite.py``."""
    with MongoDB() as server:
        yield {"leasehold": ("leasehold_peer", server.url), "bare commands": ("bare_mongodb", server.url)}
