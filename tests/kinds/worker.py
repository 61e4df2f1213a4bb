"""A process of test_processes: takes and gives back until it is told to stop, and writes down when it was inside. All
begin at the same time, when each of them is there.

Each line is ``pid what asked stood stalled entered left`` on the machine's monotonic clock; a line without ``left`` is
written on the way in, so that what a killed process was doing is known. ``stood`` is when the store had said that it
waits; ``stalled`` for how long its process did not run meanwhile, at the longest. ``left`` was read while the lease
could be trusted; where it is LOST, that was over.

Whoever is let in has TERM to come, ten times as long as usual: a process that a busy machine leaves standing for some
seconds has not lost its turn by that.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

TERM = 8.0
LOST = "lost"
TICK = 0.05


class Standing:
    """Since when the acquire that was begun last stands in the queue."""

    def __init__(self) -> None:
        self.since: float | None = None
        self._stalls: list[tuple[float, float]] = []
        self._ticked = time.monotonic()
        threading.Thread(target=self._tick, daemon=True).start()

    def stands(self) -> None:
        if self.since is None:
            self.since = time.monotonic()

    def _tick(self) -> None:
        while True:
            time.sleep(TICK)
            before, self._ticked = self._ticked, time.monotonic()
            if self._ticked - before > 2 * TICK:
                self._stalls.append((self._ticked, self._ticked - before))

    def stalled(self, since: float) -> float:
        """For how long this process did not run, at the longest, of the times that ended after ``since``."""
        lengths = [length for ended, length in list(self._stalls) if ended > since]
        return max(*lengths, time.monotonic() - self._ticked, 0.0)  # what ends just now may not be noted yet


def main(url: str, namespace: str, role: str, folder: str) -> None:
    from seams import Through, connect  # beside this file

    random.seed(os.getpid())
    log = os.open(Path(folder) / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    stop, go = Path(folder) / "stop", Path(folder) / "go"
    standing = Standing()

    class Listening(Through):
        """Who stands in the queue listens."""

        def listen(self, attempt: str, busy: Any) -> Any:
            if attempt:
                standing.stands()
            return self.inner.listen(attempt, busy)

    with connect(url, namespace=namespace, ttl=TERM, driver=Listening()) as locks:
        (Path(folder) / f"ready-{os.getpid()}").touch()
        while not go.exists():
            time.sleep(0.01)
        while not stop.exists():
            if role == "philosopher":
                left = int(os.environ["SEAT"])
                forks = [f"fork-{left}", f"fork-{(left + 1) % 5}"]
                random.shuffle(forks)
                lock = locks.all_of(*forks, on_lost="log")
            else:
                forks = [role]
                book = locks.rwlock("book", on_lost="log")
                lock = book.read() if role == "reader" else book.write()
            standing.since = None
            asked = time.monotonic()
            with lock as lease:
                entered = time.monotonic()
                stood = standing.since or entered
                line = f"{os.getpid()} {','.join(forks)} {asked} {stood} {standing.stalled(stood)} {entered}"
                os.write(log, f"{line}\n".encode())
                time.sleep(random.random() * 0.004)
                left: object = time.monotonic()
                if not lease.valid:  # it stood still for too long, and knows: then it was not inside
                    left = LOST
                os.write(log, f"{line} {left}\n".encode())


if __name__ == "__main__":
    from first_terms import lengthen  # beside this file

    lengthen(TERM, sys.argv[1])
    main(*sys.argv[1:])
