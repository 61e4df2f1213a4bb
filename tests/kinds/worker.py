"""A process of test_processes: takes and gives back until it is told to stop, and writes down when it was inside. All
begin at the same time, when each of them is there.

Each line is ``pid what asked stood entered left`` on the machine's monotonic clock; a line without ``left`` is written
on the way in, so that what a killed process was doing is known. ``stood`` is when the store had said that it waits.
``left`` was read while the lease could be trusted; where it is LOST, that was over.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import leasehold

TTL = 3.0
LOST = "lost"


class Standing:
    """Since when the acquire that was begun last stands in the queue: whoever is told so listens."""

    def __init__(self, locks: leasehold.Locks) -> None:
        self.since: float | None = None
        driver: Any = locks._core.driver
        self._listen = driver.listen
        driver.listen = self._heard

    def _heard(self, attempt: str, busy: Any) -> Any:
        if attempt and self.since is None:
            self.since = time.monotonic()
        return self._listen(attempt, busy)


def main(url: str, namespace: str, role: str, folder: str) -> None:
    random.seed(os.getpid())
    log = os.open(Path(folder) / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    stop, go = Path(folder) / "stop", Path(folder) / "go"
    with leasehold.connect(url, namespace=namespace, ttl=TTL) as locks:
        standing = Standing(locks)
        (Path(folder) / f"ready-{os.getpid()}").touch()
        while not go.exists():
            time.sleep(0.01)
        while not stop.exists():
            if role == "philosopher":
                left = int(os.environ["SEAT"])
                forks = [f"fork-{left}", f"fork-{(left + 1) % 5}"]
                random.shuffle(forks)
                lock: leasehold.Lock = locks.all_of(*forks)
            else:
                forks = [role]
                lock = locks.rwlock("book").read() if role == "reader" else locks.rwlock("book").write()
            standing.since = None
            asked = time.monotonic()
            with lock as lease:
                entered = time.monotonic()
                line = f"{os.getpid()} {','.join(forks)} {asked} {standing.since or entered} {entered}"
                os.write(log, f"{line}\n".encode())
                time.sleep(random.random() * 0.004)
                left: object = time.monotonic()
                if not lease.valid:  # it stood still for too long, and knows: then it was not inside
                    left = LOST
                os.write(log, f"{line} {left}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
