"""A program whose signal handler releases and acquires at random moments, beside other threads that do.

`releasing.py URL NAMESPACE SECONDS`: the report tells how long the slowest call took, of any thread.
"""

from __future__ import annotations

import faulthandler
import json
import random
import signal
import sys
import threading
import time
from types import FrameType

import leasehold

CROWD = 4


def main(url: str, namespace: str, seconds: float) -> None:
    faulthandler.dump_traceback_later(seconds + 45, exit=True)
    errors: list[str] = []
    mine: list[leasehold.Lease] = []
    handled = 0
    slowest = 0.0
    stop = threading.Event()

    with leasehold.connect(url, namespace=namespace, ttl=3) as locks:

        def pair(name: str) -> None:
            nonlocal slowest
            begun = time.monotonic()
            try:
                locks.lock(name).acquire(timeout=20).release()
            except leasehold.StoreError as error:
                errors.append(str(error))
            slowest = max(slowest, time.monotonic() - begun)

        def crowd(number: int) -> None:
            while not stop.is_set():
                pair(f"crowd-{number}")

        def handle(number: int, frame: FrameType | None) -> None:
            nonlocal handled, slowest
            handled += 1
            begun = time.monotonic()
            try:
                if mine:
                    mine.pop().release()
            except leasehold.StoreError as error:
                errors.append(str(error))
            slowest = max(slowest, time.monotonic() - begun)

        held = locks.lock("held").acquire()
        workers = [threading.Thread(target=crowd, args=(number,)) for number in range(CROWD)]
        for worker in workers:
            worker.start()
        signal.signal(signal.SIGALRM, handle)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            mine.append(locks.lock("mine").acquire(timeout=20))
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.004))
            while mine:
                pair("main")
        signal.setitimer(signal.ITIMER_REAL, 0)
        stop.set()
        for worker in workers:
            worker.join()
        lost = held.lost_reason
    print(json.dumps({"handled": handled, "errors": errors[:3], "slowest": slowest, "lost": lost}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
