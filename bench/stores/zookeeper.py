"""ZooKeeper, a single server, beside kazoo's Lock and the bare calls."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import kazoo.version

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from servers.zookeeper import ZooKeeper

TITLE = "ZooKeeper"
ABOUT = (
    f"A single server on loopback, without fsync; kazoo {kazoo.version.__version__}'s Lock; leasehold's three calls "
    "through kazoo without a library."
)
PAIRS = 60


@contextlib.contextmanager
def peers(folder: Path) -> Iterator[dict[str, tuple[str, str]]]:
    """See ``sqlite.py``."""
    with ZooKeeper(maxSessionTimeout=5_000_000) as server:  # some measures hold a name for an hour
        yield {
            "leasehold": ("leasehold_peer", server.url),
            "kazoo": ("kazoo_lock", server.url),
            "bare calls": ("bare_kazoo", server.url),
        }
