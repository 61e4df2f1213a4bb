"""Redis, beside the Python locks on it and beside the same scripts sent over a bare socket."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import redis

from . import servers_path  # noqa: F401

from servers.redis import Redis  # isort: skip

TITLE = "Redis"
ABOUT = (
    f"A Redis of its own on loopback, without persistence; redis-py {redis.__version__}'s Lock, python-redis-lock, "
    "pottery, sherlock, tooz; leasehold with a client of the user's; leasehold's scripts over a bare socket, without a "
    "library; leasehold and redis-py "
    "with uvloop in place of asyncio's own event loop, measured for asyncio's pairs alone. Where another peer "
    "has no figure it cannot: only redis-py has asyncio, and the bare scripts do not wait."
)


@contextlib.contextmanager
def peers(folder: Path) -> Iterator[dict[str, tuple[str, str]]]:
    """Name of each peer: (its module in ``bench.peers``, its target). The first one is ours."""
    with Redis() as server:
        yield {
            "leasehold": ("leasehold_peer", server.url),
            "redis-py": ("redis_py_lock", server.url),
            "python-redis-lock": ("python_redis_lock", server.url),
            "pottery": ("pottery_peer", server.url),
            "sherlock": ("sherlock_peer", server.url),
            "tooz": ("tooz_peer", server.url),
            "leasehold, your client": ("leasehold_client", server.url),
            "bare scripts": ("bare_redis", server.url),
            "leasehold, uvloop": ("leasehold_uvloop", server.url),
            "redis-py, uvloop": ("redis_py_uvloop", server.url),
        }
