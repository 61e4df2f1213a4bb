"""A program whose signal handlers, or destructors, use the library while their own thread is inside it.

`reentered.py URL NAMESPACE SECONDS handler|destructor`: holds "held" all the time, takes, waits for and releases other
names in two threads, and does the same in the handler of a signal that comes at random moments, or in destructors that
the garbage collector runs at random allocations, in whatever thread. The report says what is left of it all.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import random
import signal
import sys
import threading
import time
from types import FrameType

import leasehold

TTL = 3.0
EXPIRED = "it expired: no renewal succeeded before its deadline"


class Guests:
    """Holds leases of names that nobody else wants: takes them and gives them back when it is called."""

    def __init__(self, locks: leasehold.Locks) -> None:
        self.locks = locks
        self.leases: list[leasehold.Lease] = []
        self.calls = self.taken = self.refused = self.undone = 0
        self.ended = False

    def plant(self) -> None:
        """Have it called soon, if it is not by itself."""

    def call(self) -> None:
        if self.ended:
            return
        self.calls += 1
        try:
            if random.random() < 0.6 and self.leases:
                lease = self.leases.pop()
                if not lease.release() and lease.lost_reason != EXPIRED:
                    self.undone += 1  # the store had granted it to nobody, or to another since
            elif lease := self.locks.lock(f"guest-{random.randrange(4)}").try_acquire():
                self.taken += 1
                self.leases.append(lease)
        except IndexError:
            pass  # another thread was faster
        except leasehold.StoreUnavailable:
            self.refused += 1  # the store cannot be used in the middle of what was interrupted


class Handler(Guests):
    """As a signal handler. It calls itself again, sooner or later."""

    def start(self) -> None:
        signal.signal(signal.SIGALRM, self._handle)
        self._handle(0, None)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.call()
        if not self.ended:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0005, 0.005))

    def stop(self) -> None:
        self.ended = True
        signal.setitimer(signal.ITIMER_REAL, 0)


class Destructors(Guests):
    """As the destructor of an object that only the collector finds. Some also drop a lease that they hold."""

    def start(self) -> None:
        gc.collect()
        gc.freeze()

    def plant(self) -> None:
        gc.set_threshold(random.randrange(2, 400))
        Cycle(self)

    def stop(self) -> None:
        self.ended = True
        gc.set_threshold(700)


class Cycle:
    inside = threading.local()

    def __init__(self, guests: Destructors) -> None:
        self.guests = guests
        self.me = self
        self.dropped: leasehold.Lease | None = None

    def __del__(self) -> None:
        if getattr(self.inside, "yes", False):
            return  # one at a time: a pile of destructors in each other shows nothing more
        self.inside.yes = True
        try:
            self.guests.call()
            with contextlib.suppress(leasehold.StoreUnavailable):
                if random.random() < 0.1 and not self.guests.ended:
                    Cycle(self.guests).dropped = self.guests.locks.lock("dropped").try_acquire()
        finally:
            self.inside.yes = False


def main(url: str, namespace: str, seconds: float, how: str) -> None:
    faulthandler.dump_traceback_later(seconds + 45, exit=True)
    with (
        leasehold.connect(url, namespace=namespace, ttl=TTL) as locks,
        leasehold.connect(url, namespace=namespace) as other,
    ):
        held = locks.lock("held").acquire()
        ends = time.monotonic() + seconds
        rounds = 0
        failed: list[BaseException] = []

        def work() -> None:
            nonlocal rounds
            while time.monotonic() < ends:
                guests.plant()
                with locks.lock("shared", timeout=TTL + 10):  # both threads want it: so they wait, and are woken
                    held.check()
                guests.plant()
                if both := locks.all_of("guest-0", "guest-1").try_acquire():
                    both.release()
                guests.plant()
                locks.lock("single" + threading.current_thread().name).acquire(timeout=TTL + 10).release()
                rounds += 1

        def beside() -> None:
            try:
                work()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=beside)
        locks.lock("shared").acquire().release()
        guests = Handler(locks) if how == "handler" else Destructors(locks)
        guests.start()
        thread.start()
        work()
        guests.stop()
        thread.join()
        for error in failed:
            raise error
        lost = held.lost_reason
        ends = time.monotonic() + TTL + 5
        left = ["?"]
        while left and time.monotonic() < ends:
            gc.collect()
            while guests.leases:
                guests.leases.pop().release()
            left = sorted({info.name for info in other.leases()} - {"held"})
            time.sleep(0.05)
        released = held.release()
    print(
        json.dumps(
            {
                "calls": guests.calls,
                "taken": guests.taken,
                "refused": guests.refused,
                "undone": guests.undone,
                "rounds": rounds,
                "lost": lost,
                "left": left,
                "released": released,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4])
