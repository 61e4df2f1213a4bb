"""A program whose main thread is interrupted again and again, and goes on: Ctrl-C in a notebook, a soft time limit.

`interrupted.py URL NAMESPACE SECONDS`: holds "held" all the time, and takes and releases other names, for which a rival
contends. A signal handler raises in the middle of that, at random moments. The report says what is left of it all.
A URL that begins with `engine+` or `pool+` is used through an engine or a pool of the program's own.
"""

from __future__ import annotations

import faulthandler
import json
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import leasehold

TTL = 3.0
NAMES = 5
PATIENCE = TTL + 2


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
        """For so long, or three times that on a machine so slow that few come."""
        begun = time.monotonic()
        while (passed := time.monotonic() - begun) < seconds or (self.count < 6 * seconds and passed < 3 * seconds):
            try:
                self._armed = True
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0002, 0.003))
                while self._armed:
                    random.choice(works)()
            except Interrupted:
                pass


def contend(rival: leasehold.Locks, over: threading.Event) -> None:
    """Take what the main thread wants, so that it waits, and hand it over."""
    while not over.is_set():
        lease = rival.lock(f"name-{random.randrange(NAMES)}").try_acquire(timeout=0.05)
        over.wait(random.uniform(0, 0.004))
        if lease is not None:
            lease.release()


def works(locks: leasehold.Locks, held: leasehold.Lease, least: list[float]) -> list[Callable[[], None]]:
    """What a program does with leases, all that its store can."""
    never = threading.Event()

    def name() -> str:
        return f"name-{random.randrange(NAMES)}"

    def plain() -> None:
        locks.lock(name()).acquire(timeout=PATIENCE).release()

    def block() -> None:
        with locks.lock(name(), timeout=PATIENCE):
            least[0] = min(least[0], held.remaining)

    def try_only() -> None:
        if lease := locks.lock(name()).try_acquire():
            lease.release()

    def cancellable() -> None:
        locks.lock(name()).acquire(timeout=PATIENCE, cancel=never).release()

    def reentrant() -> None:
        lock = locks.rlock("re-entrant", timeout=PATIENCE)
        with lock, lock:
            pass

    def several() -> None:
        with locks.all_of("several-1", "several-2", timeout=PATIENCE):
            pass

    def shared() -> None:
        with locks.semaphore("semaphore", limit=2, timeout=PATIENCE):
            pass

    def wait_for_loss() -> None:
        assert not held.lost.wait(0.001)

    everywhere = [plain, block, try_only, cancellable, reentrant, several, wait_for_loss]
    try:
        shared()
    except ValueError:  # not on Redlock
        return everywhere
    return [*everywhere, shared]


def client(url: str) -> Any:
    """What to connect by."""
    if url.startswith("engine+"):
        import sqlalchemy

        return sqlalchemy.create_engine(url.removeprefix("engine+").replace("postgresql:", "postgresql+psycopg:"))
    if url.startswith("pool+"):
        import psycopg_pool

        return psycopg_pool.ConnectionPool(url.removeprefix("pool+"), open=True)
    return url


def main(url: str, namespace: str, seconds: float) -> None:
    faulthandler.dump_traceback_later(3 * seconds + 60, exit=True)
    with (
        leasehold.connect(client(url), namespace=namespace, ttl=TTL) as locks,
        leasehold.connect(client(url), namespace=namespace, ttl=TTL) as other,
    ):
        held = locks.lock("held").acquire()
        least = [TTL]
        todo = works(locks, held, least)
        for work in todo:  # imports and connections are made
            work()
        over = threading.Event()
        rival = threading.Thread(target=contend, args=(other, over))
        rival.start()
        interrupts = Interrupts()
        interrupts.run(seconds, todo)
        over.set()
        rival.join()
        lost = held.lost_reason
        # The process lives on: every name can be acquired, and the keeper renews.
        longest = 0.0
        for number in range(NAMES):
            begun = time.monotonic()
            locks.lock(f"name-{number}").acquire(timeout=TTL + 20).release()
            longest = max(longest, time.monotonic() - begun)
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
                "ttl": TTL,
                "least": least[0],
                "lost": lost,
                "longest": longest,
                "renews": renewed > before,
                "left": left,
                "released": released,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
