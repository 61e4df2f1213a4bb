"""A KeyboardInterrupt may come between any two lines. Here it comes at the first of them, at the second, and so on,
each in a run of its own: wherever that was, nothing is left in the store, in the books of its ``Locks`` or on the
thread.
"""

from __future__ import annotations

import linecache
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import leasehold
from leasehold.testing.handles import eventually

FILES = {
    str(Path(leasehold.__file__).with_name(f"{name}.py"))
    for name in ("lock", "kinds", "joint", "lease", "engine", "threads", "core", "timer")
}
"""What keeps books. There it comes when a line is passed for the first time, and for the second."""
MOST = 1000
pytestmark = pytest.mark.timeout(300)


class Interrupt:
    """Raises KeyboardInterrupt at the ``place``-th line of the library that this thread runs, once."""

    def __init__(self, place: int) -> None:
        self.left = place
        self.where = ""
        self._entered: set[tuple[int, int]] = set()
        self._passed: Counter[tuple[str, int]] = Counter()

    def __call__(self, frame: FrameType, event: str, arg: object) -> Interrupt | None:
        if frame.f_code.co_filename not in FILES or _in_destructor(frame):
            return None
        if event == "call" or (event == "line" and self._can_come(frame)):
            here = (frame.f_code.co_filename, frame.f_lineno)
            self._passed[here] += 1
            self.left -= self._passed[here] <= 2
            if self.left == 0:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name} ({event})"
                raise KeyboardInterrupt
        return self

    def _can_come(self, frame: FrameType) -> bool:
        """Python looks for signals when it begins a function and after calls, so not at a ``try:``, nor at the end of a
        ``with``, whose line comes again, before the call of its ``__exit__``: there no handler would be in force."""
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if not text.startswith("with "):
            return text != "try:"
        line = (id(frame), frame.f_lineno)
        before = line in self._entered
        self._entered.add(line)
        return not before

    def run(self, function: Callable[[], object]) -> bool:
        """Whether it came before the function had ended."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            function()
        except KeyboardInterrupt:
            if not self.where:
                raise
        finally:
            sys.settrace(before)
        return bool(self.where)


def _in_destructor(frame: FrameType | None) -> bool:
    """There Python swallows what is raised, with or without us."""
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def plain(locks: leasehold.Locks) -> None:
    locks.lock("a").acquire().release()


def block(locks: leasehold.Locks) -> None:
    with locks.lock("a"):
        leasehold.current().check()


def lease_block(locks: leasehold.Locks) -> None:
    with locks.lock("a").acquire(timeout=60) as lease:
        lease.check()


def again(locks: leasehold.Locks) -> None:
    lock = locks.rlock("a")
    outer = lock.acquire()
    inner = lock.acquire()
    inner.release()
    outer.release()


def nested(locks: leasehold.Locks) -> None:
    with locks.rlock("a"), locks.rlock("a"):
        pass


def several(locks: leasehold.Locks) -> None:
    locks.all_of("a", "b", "c").acquire().release()


def several_in_block(locks: leasehold.Locks) -> None:
    with locks.all_of("a", "b"):
        pass


def reader(locks: leasehold.Locks) -> None:
    lease = locks.rwlock("a").write().acquire()
    lease.downgrade().release()


def clean(locks: leasehold.Locks, other: leasehold.Locks) -> bool:
    core: Any = locks._core
    books = (core.leases, core.asking, core.giving, core.unsettled, locks._holds)
    held = {info.name: info.waiters for info in other.leases()}
    return held == {"z": 0} and not any(books)


@pytest.mark.parametrize("work", [plain, block, lease_block, again, nested, several, several_in_block, reader])
def test_wherever_it_comes_nothing_is_left(work: Callable[[leasehold.Locks], None]) -> None:
    url = f"memory://interrupts-{work.__name__}"
    with leasehold.connect(url, ttl=600) as other, leasehold.connect(url, ttl=600) as used:
        held = other.lock("z").acquire()
        for place in range(1, MOST):
            interrupt = Interrupt(place)
            # Some have yet to start their threads.
            with nullcontext(used) if place % 4 else leasehold.connect(url, ttl=600) as locks:
                came = interrupt.run(lambda: work(locks))
                eventually(lambda: clean(locks, other), what=f"nothing is left by {interrupt.where}")
                with pytest.raises((LookupError, leasehold.LeaseLost)):
                    leasehold.current()
                if not came:
                    break
        work(used)
        assert held.release()
    assert 100 < place < MOST - 1
