"""The embedded store, beside a lock file and beside the bare statements."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

TITLE = "SQLite"
ABOUT = f"SQLite {sqlite3.sqlite_version}; filelock's FileLock; two bare fenced SQLite statements without a library."


@contextlib.contextmanager
def peers(folder: Path) -> Iterator[dict[str, tuple[str, str]]]:
    """Name of each peer: (its module in ``bench.peers``, its target). The first one is ours."""
    yield {
        "leasehold": ("leasehold_peer", f"sqlite:///{folder}/leases.db"),
        "filelock": ("filelock_peer", str(folder)),
        "bare SQL": ("bare_sqlite", f"{folder}/bare.db"),
    }
