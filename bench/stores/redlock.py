"""A quorum of five Redis nodes: all well, one of them dead, one that hangs; beside pottery's Redlock."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from . import servers_path  # noqa: F401

from servers.proxy import Proxy  # isort: skip
from servers.redis import Redis  # isort: skip

TITLE = "Redlock"
ABOUT = (
    "Five Redis nodes on loopback, without persistence; the same with one node dead, and with one that accepts "
    "connections and never answers; pottery's Redlock on the same five."
)


@contextlib.contextmanager
def peers(folder: Path) -> Iterator[dict[str, tuple[str, str]]]:
    """See ``sqlite.py``."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(Redis()) for _ in range(5)]
        hole = stack.enter_context(Proxy(servers[0].port))
        hole.blackhole()
        dead = Redis()  # it has a port, and is not started
        stack.callback(dead.close)
        well = [server.address for server in servers]

        def url(*addresses: str) -> str:
            return "redlock://" + ",".join(addresses)

        yield {
            "leasehold": ("leasehold_peer", url(*well)),
            "one of five dead": ("leasehold_peer", url(dead.address, *well[1:])),
            "one of five hangs": ("leasehold_peer", url(f"127.0.0.1:{hole.port}", *well[1:])),
            "pottery": ("pottery_peer", url(*well)),
        }
