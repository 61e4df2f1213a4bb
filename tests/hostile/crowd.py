"""A program in which a crowd of threads takes and releases other names while one lease is held.

`crowd.py URL NAMESPACE SECONDS THREADS TTL`: the report says how little was left of the held lease at any time.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import threading
import time

import leasehold


def main(url: str, namespace: str, seconds: float, threads: int, ttl: float) -> None:
    faulthandler.dump_traceback_later(seconds + 90, exit=True)
    stop = threading.Event()
    pairs = [0] * threads
    slow: list[str] = []
    failed: list[str] = []

    with leasehold.connect(url, namespace=namespace, ttl=30) as locks:

        def crowd(number: int) -> None:
            lock = locks.lock(f"name-{number}")
            while not stop.is_set():
                try:
                    lease = lock.try_acquire(timeout=30)
                except leasehold.StoreUnavailable as error:  # too slow for one of the crowd is no loss
                    slow.append(str(error))
                    continue
                except BaseException as error:
                    failed.append(f"acquire: {error!r}")
                    return
                try:
                    assert lease is None or lease.release(), "it was lost"
                    pairs[number] += 1
                except BaseException as error:
                    failed.append(f"release: {error!r}")

        held = locks.lock("held", ttl=ttl).acquire()
        workers = [threading.Thread(target=crowd, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        least, ends = ttl, time.monotonic() + seconds
        while time.monotonic() < ends and held.valid:
            least = min(least, held.remaining)
            time.sleep(0.01)
        lost = held.lost_reason
        stop.set()
        for worker in workers:
            worker.join()
        held.release()
    report = {
        "least": least,
        "lost": lost,
        "pairs": sum(pairs),
        "slow": len(slow),
        "failed": len(failed),
        "first": [*failed[:1], *slow[:1]],
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
