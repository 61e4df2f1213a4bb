"""A program whose main thread is interrupted again and again, and goes on: Ctrl-C in a notebook, a soft time limit.

`interrupted.py URL NAMESPACE SECONDS`: holds "held" all the time, and takes and releases other names. A signal handler
raises in the middle of that, at random moments. The report says what is left of it all.
"""

from __future__ import annotations

import faulthandler
import json
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType

import leasehold

TTL = 3.0
NAMES = 5


class Interrupted(Exception):
    """What Celery's soft time limit raises, say."""


class Interrupts:
    """While entered, a signal comes at random moments; its handler raises, at most once per ``arm``."""

    def __init__(self) -> None:
        self.count = 0
        self._armed = False
        signal.signal(signal.SIGALRM, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._armed:
            self._armed = False
            self.count += 1
            raise Interrupted

    def run(self, seconds: float, works: Sequence[Callable[[], None]]) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            try:
                self._armed = True
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0002, 0.003))
                while self._armed:
                    random.choice(works)()
            except Interrupted:
                pass


def main(url: str, namespace: str, seconds: float) -> None:
    faulthandler.dump_traceback_later(seconds + 45, exit=True)
    with (
        leasehold.connect(url, namespace=namespace, ttl=TTL) as locks,
        leasehold.connect(url, namespace=namespace) as other,
    ):
        held = locks.lock("held").acquire()
        least = [TTL]

        def plain() -> None:
            locks.lock(f"name-{random.randrange(NAMES)}").acquire(timeout=TTL + 2).release()

        def block() -> None:
            with locks.lock(f"name-{random.randrange(NAMES)}", timeout=TTL + 2):
                least[0] = min(least[0], held.remaining)

        def try_only() -> None:
            if lease := locks.lock(f"name-{random.randrange(NAMES)}").try_acquire():
                lease.release()

        for work in (plain, block, try_only):  # imports and connections are made
            work()
        interrupts = Interrupts()
        interrupts.run(seconds, (plain, block, try_only))
        lost = held.lost_reason
        # The process lives on: every name can be acquired, and the keeper renews.
        for number in range(NAMES):
            locks.lock(f"name-{number}").acquire(timeout=TTL + 10).release()
        renewed = before = locks.metrics().renewals
        ends = time.monotonic() + 2 * TTL
        while renewed <= before and time.monotonic() < ends:
            time.sleep(0.05)
            renewed = locks.metrics().renewals
        ends = time.monotonic() + TTL + 5
        left = ["?"]
        while left and time.monotonic() < ends:
            left = sorted({info.name for info in other.leases()} - {"held"})
            time.sleep(0.05)
        released = held.release()
    print(
        json.dumps(
            {
                "interrupts": interrupts.count,
                "least": least[0],
                "lost": lost,
                "renews": renewed > before,
                "left": left,
                "released": released,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
