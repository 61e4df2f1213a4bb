"""A service that finishes its work when it is told to stop, and hands its leases over at once.

Run it, and press Ctrl-C (or send SIGTERM): what it has begun is finished, then it ends with exit code 0. If nobody
does, it sends itself a SIGTERM after a moment.
"""

import os
import signal
import threading
import time

import leasehold

locks = leasehold.connect()
locks.drain_on_signals(grace=30)


def worker(number: int) -> None:
    try:
        while True:
            with locks.lock(f"queue:{number}") as lease:
                for _ in range(5):  # a batch
                    lease.check()
                    time.sleep(0.1)
                print(f"worker {number} has finished a batch")
    except leasehold.ShuttingDown:
        print(f"worker {number} takes no new work")


for number in range(3):
    threading.Thread(target=worker, args=(number,)).start()
threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGTERM)).start()
while True:
    time.sleep(1)
