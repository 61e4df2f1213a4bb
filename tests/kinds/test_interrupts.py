"""A KeyboardInterrupt may come between any two lines. Here it comes at the first of them, at the second, and so on,
each in a run of its own: wherever that was, nothing is left in the store, in the ``Locks`` or on the thread.
"""

from __future__ import annotations

import gc
import linecache
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import leasehold
from leasehold.core.timing import CALL_LIMIT
from leasehold.testing.handles import eventually
from leasehold.testing.scene import our_threads

FILES = {
    str(Path(leasehold.__file__).parent / f"{name}.py")
    for name in (
        *("runtime/hooks", "runtime/thread_start", "runtime/timer"),
        *(f"kinds/joint/{part}" for part in ("all_of", "joint_lease", "reentrant", "threads")),
        *("threads/cancel", "threads/lease", "threads/lock", "threads/locks", "threads/runner"),
        *("core/acquire", "core/lease", "core/listing", "core/registry", "core/release"),
    )
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

    def run(self, function: Callable[[], object]) -> None:
        """Call the function. ``where`` says whether it came before that had ended."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            function()
        except KeyboardInterrupt:
            if not self.where:
                raise
        finally:
            sys.settrace(before)


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


def held_by(locks: leasehold.Locks) -> dict[str, int | None]:
    return {info.name: info.waiters for info in locks.leases()}


GRACE = 30.0
"""A drain or close that waits for something that is over takes long. The others take a moment."""


def drained(locks: leasehold.Locks, caplog: pytest.LogCaptureFixture) -> bool:
    """Whether nothing is left in it: no lease, none that is being acquired or released, none that is to be."""
    begun = time.monotonic()
    with caplog.at_level("WARNING", "leasehold"):
        gave_up = locks.drain(GRACE)
    told = [record for record in caplog.records if getattr(record, "lease_event", "") == "drain_left"]
    return gave_up == told == [] and time.monotonic() - begun < GRACE / 2


def interrupt_at(
    place: int, work: Callable[[leasehold.Locks], None], locks: leasehold.Locks, other: leasehold.Locks
) -> Interrupt:
    interrupt = Interrupt(place)
    interrupt.run(lambda: work(locks))
    eventually(lambda: held_by(other) == {"z": 0}, what=f"nothing is left by {interrupt.where}")
    with pytest.raises((LookupError, leasehold.LeaseLost)):
        leasehold.current()
    return interrupt


@pytest.mark.parametrize("work", [plain, block, lease_block, again, nested, several, several_in_block, reader])
def test_interrupt_at_any_line_leaves_nothing(
    work: Callable[[leasehold.Locks], None], caplog: pytest.LogCaptureFixture
) -> None:
    url = f"memory://interrupts-{work.__name__}"
    earlier = set(our_threads())
    with leasehold.connect(url, ttl=600) as other:
        held = other.lock("z").acquire()
        keeper = eventually(lambda: set(our_threads()) - earlier)
        used = leasehold.connect(url, ttl=600)
        for place in range(1, MOST):
            if place % 4:
                interrupt = interrupt_at(place, work, used, other)
            else:  # one that has yet to start its threads
                new = leasehold.connect(url, ttl=600)
                interrupt = interrupt_at(place, work, new, other)
                begun = time.monotonic()
                new.close()
                assert time.monotonic() - begun < CALL_LIMIT / 2, f"close waits for what is left by {interrupt.where}"
            if not interrupt.where:
                break
        work(used)
        assert drained(used, caplog)
        del used
        gc.collect()
        eventually(
            lambda: set(our_threads()) <= earlier | keeper,
            what="the keeper of a Locks that nobody has ends, since nothing is left to be kept",
        )
        assert held.release()
    assert 100 < place < MOST - 1
