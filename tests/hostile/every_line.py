"""A program whose calls of the library are interrupted at each of their lines, one after the other.

`every_line.py URL enter NAMESPACE`: there a signal handler would wait for a name, and acquire another. The report says
what it was granted and does not hold.
`every_line.py URL raise NAMESPACE`: there it would raise, in the middle of waiting for a lease. The report says what is
left behind.

The interrupts come from a trace function, so that none is left out, and the same ones come every time.
"""

from __future__ import annotations

import faulthandler
import json
import linecache
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import leasehold

HOME = os.path.dirname(leasehold.__file__)
STEP = int(os.environ.get("HOSTILE_STEP", "1"))


class Interrupted(Exception):
    pass


def never_interrupted(frame: FrameType) -> bool:
    """A trace function sees the end of a ``with``, and the first line after ``finally``, as lines of their own.

    A signal handler runs only after a call or a jump back, and so not just before these."""
    line, before = (linecache.getline(frame.f_code.co_filename, frame.f_lineno - back).strip() for back in (0, 1))
    return line.startswith("with ") or before.startswith("finally:")


class AtLine:
    """Calls ``act`` once, at the given line of those of the library that this thread runs."""

    def __init__(self, line: int, act: Callable[[], None]) -> None:
        self._left = line
        self._act = act
        self.acted = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if self.acted or not frame.f_code.co_filename.startswith(HOME):
            return None
        if event == "line":
            self._left -= 1
            if self._left < 0 and not never_interrupted(frame):
                self.acted = True
                sys.settrace(None)
                frame.f_trace = None
                self._act()
                return None
        return self

    def run(self, work: Callable[[], None]) -> None:
        sys.settrace(self)
        try:
            work()
        finally:
            sys.settrace(None)


def at_each_line(work: Callable[[], None], act: Callable[[], None]) -> int:
    """Do the work again and again, interrupted at its first line, its second …; how often it was interrupted."""
    line = 0
    while True:
        faulthandler.dump_traceback_later(30, exit=True)  # a deadlock
        trace = AtLine(line, act)
        try:
            trace.run(work)
        except Interrupted:
            pass
        if not trace.acted:
            return line
        line += STEP


def main(url: str, what: str, namespace: str) -> None:
    logging.getLogger("leasehold").info("imported")
    locks = leasehold.connect(url, ttl=60, namespace=namespace)
    other = leasehold.connect(url, ttl=60, namespace=namespace)
    busy = other.lock("busy").acquire()
    stolen: list[str] = []
    denied = 0

    def enter() -> None:
        """A lease that a handler is granted is a lease."""
        nonlocal denied
        try:
            locks.lock("busy").try_acquire(timeout=0.001)
            lease = locks.lock("handler").try_acquire()
        except leasehold.StoreUnavailable:
            denied += 1  # in the middle of something that cannot be shared, and said so
            return
        if lease is None:
            stolen.append("busy")
            return
        granted.append(lease)

    granted: list[leasehold.Lease] = []

    def check() -> None:
        """After what was interrupted has come to its end."""
        while granted:
            lease = granted.pop()
            found = other.inspect("handler")
            if found is None or found.token != lease.token:
                stolen.append(f"token {lease.token} was rolled back: {found}")
            lease.release()

    def interrupt() -> None:
        raise Interrupted

    def wait() -> None:
        nonlocal denied
        try:
            locks.lock("busy").acquire(timeout=0.001)
        except leasehold.AcquireTimeout:
            pass
        except leasehold.StoreUnavailable:
            denied += 1  # such a call has half a second, which the handler's calls may have used up

    def take() -> None:
        with locks.lock("free", timeout=20) as lease:
            lease.check()

    def together() -> None:
        with locks.all_of("free", "another", timeout=20):
            pass

    works = (wait, take, together)
    for work in works:  # imports and connections are made
        work()
    wait()
    # Also those of the keepers, which may not have begun yet: SQLite has one for all threads but the main one.
    thread = threading.Thread(target=lambda: [each.inspect("busy") for each in (locks, other)])
    thread.start()
    thread.join()
    count = {}
    descriptors = len(os.listdir("/proc/self/fd"))
    for work in works if what == "enter" else works[:1]:

        def checked(work: Callable[[], None] = work) -> None:
            try:
                work()
            finally:
                sys.settrace(None)
                check()

        count[work.__name__] = at_each_line(checked, enter if what == "enter" else interrupt)
    ends = time.monotonic() + 10
    left = -1
    while left and time.monotonic() < ends:
        time.sleep(0.02)
        wait()
        left = max(0, len(os.listdir("/proc/self/fd")) - descriptors - 1)
    ends = time.monotonic() + 20
    held = ["?"]
    while held and time.monotonic() < ends:
        held = sorted({info.name for info in other.leases()} - {"busy"})
        time.sleep(0.02)
    faulthandler.dump_traceback_later(30, exit=True)
    busy.check()
    busy.release()
    locks.close()
    other.close()
    print(
        json.dumps(
            {
                "count": count,
                "denied": denied,
                "stolen": stolen[:3],
                "descriptors": left,
                "held": held,
            }
        )
    )
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])
