"""Free ports that stay ours, also while other workers and other test runs look for theirs.

All are below 32768: from there on the kernel gives ports to outgoing connections, so that a server that is
down for a moment could find its port taken when it comes back.
"""

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

RANGE = range(10_000, 32_768)

# Not the shared generator: pytest-randomly seeds that alike in every worker.
_choice = random.SystemRandom()
_held: dict[int, int] = {}  # port -> descriptor of its locked file


def take() -> int:
    """A port that nobody listens on and that no other test process will be given while we live."""
    folder = Path(tempfile.gettempdir()) / f"leasehold-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    for _ in range(1000):
        port = _choice.choice(RANGE)
        if port in _held:
            continue
        descriptor = os.open(folder / str(port), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _check_free(port)
        except OSError:
            os.close(descriptor)
            continue
        _held[port] = descriptor
        return port
    raise RuntimeError(f"no free port found in {RANGE}")


def give_back(*ports: int) -> None:
    for port in ports:
        os.close(_held.pop(port))


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        # As servers do: a port in TIME_WAIT is free, one with a listener is not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
