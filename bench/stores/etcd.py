"""etcd, beside the Python locks on it and beside two bare transactions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from . import servers_path  # noqa: F401

from servers.etcd import Etcd  # isort: skip

TITLE = "etcd"
ABOUT = (
    "An etcd of its own on loopback that does not sync to disk; etcd3gw's Lock (polled every 10 ms where it has to "
    "wait), aetcd's Lock (asyncio only), and two transactions over leasehold's own connection, without a library."
)
PAIRS = 60


@contextlib.contextmanager
def peers(folder: Path) -> Iterator[dict[str, tuple[str, str]]]:
    """See ``sqlite.py``."""
    with Etcd() as server:
        yield {
            "leasehold": ("leasehold_peer", server.url),
            "etcd3gw": ("etcd3gw_peer", server.url),
            "aetcd": ("aetcd_peer", server.url),
            "bare transactions": ("bare_etcd", server.url),
        }
