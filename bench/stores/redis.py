"""Redis, beside the Python locks on it and beside the same scripts sent over a bare socket."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

TITLE = "Redis"
ABOUT = (
    "A redis-server of its own on loopback, without persistence; redis-py's Lock, python-redis-lock, pottery, "
    "sherlock, tooz; leasehold with a client of the user's; leasehold's scripts over a bare socket, without a library."
)
PORT = 16379


@contextlib.contextmanager
def peers(folder: Path) -> Iterator[dict[str, tuple[str, str]]]:
    """Name of each peer: (its module in ``bench.peers``, its target). The first one is ours."""
    command = ["redis-server", "--port", str(PORT), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        _wait_for(PORT)
        url = f"redis://127.0.0.1:{PORT}/0"
        yield {
            "leasehold": ("leasehold_peer", url),
            "redis-py": ("redis_py_lock", url),
            "python-redis-lock": ("python_redis_lock", url),
            "pottery": ("pottery_peer", url),
            "sherlock": ("sherlock_peer", url),
            "tooz": ("tooz_peer", url),
            "leasehold, your client": ("leasehold_client", url),
            "bare scripts": ("bare_redis", url),
        }
    finally:
        server.kill()
        server.wait()


def _wait_for(port: int) -> None:
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError("redis-server does not start: is it installed?")
