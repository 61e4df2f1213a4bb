"""One interrupt must not silence a ``Locks``: losses are still told, and leases still renewed.

Each program is interrupted at random moments, by a signal handler that raises or a destructor, and lives on.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import leasehold

from .stores import HERE

pytestmark = pytest.mark.timeout(120)

BEGIN = """
import faulthandler, logging, random, signal, sys, threading, time
import leasehold

faulthandler.dump_traceback_later(60, exit=True)
logging.disable()
leasehold.connect("memory://").lock("name", ttl=1, renew=False, on_lost=print).acquire().lost.wait()  # imports are made

class Interrupted(Exception):
    pass

armed = False

def handler(number, frame):
    global armed
    if armed:
        armed = False
        raise Interrupted

signal.signal(signal.SIGALRM, handler)

def interrupted(work, longest):
    # Do the work, or a part of it: an interrupt comes within so many seconds.
    global armed
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00001, longest))
        work()
        armed = False
        return False
    except (Interrupted, RuntimeError):
        return True
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
"""

WAIT_FOR_LOSS = """
locks = leasehold.connect("memory://", ttl=2)
watched, other = locks.lock("watched").acquire(), locks.lock("other").acquire()
lost = watched.lost
ends = time.monotonic() + 4
while time.monotonic() < ends:
    interrupted(lambda: [lost.wait(0.00001) for _ in range(100)], 0.0005)
threading.Thread(target=locks.break_lease, args=("watched",), daemon=True).start()
assert lost.wait(10), "nobody was woken"
assert not other.lost.wait(4), f"the keeper renews nothing any more: {other.lost_reason}"
"""

ACQUIRE = """
told, kept = [], []
for number in range(400):
    locks = leasehold.connect("memory://", ttl=1, namespace=str(number))
    interrupted(lambda: locks.lock("first").acquire(), 0.0003)
    kept.append(locks)
silent = [locks.lock("lost", renew=False, on_lost=told.append).acquire() for locks in kept]
renewed = [locks.lock("renewed", ttl=4).acquire() for locks in kept]
ends = time.monotonic() + 10
while len(told) < len(silent) and time.monotonic() < ends:
    time.sleep(0.05)
assert len(told) == len(silent), f"{len(silent) - len(told)} of {len(silent)} losses were not told"
ends = time.monotonic() + 4
while time.monotonic() < ends:
    time.sleep(0.1)
lost = [lease.lost_reason for lease in renewed if not lease.valid]
assert not lost, f"{len(lost)} of {len(renewed)} leases were not renewed: {lost[0]}"
"""

CANCELLED = """
cancel = threading.Event()
locks = leasehold.connect("memory://", ttl=1)
locks.lock("name").acquire(timeout=5, cancel=cancel).release()
for _ in range(1500):
    interrupted(lambda: locks.lock("name").acquire(timeout=5, cancel=cancel).release(), 0.0005)
ends = time.monotonic() + 10
while (left := [each.name for each in threading.enumerate() if each.name == "leasehold-cancelled"]):
    assert time.monotonic() < ends, f"{len(left)} threads wait for calls that never began"
    time.sleep(0.05)
assert locks.lock("name").acquire(timeout=10).release()
drained = threading.Thread(target=locks.drain, args=(30,), daemon=True)
drained.start()
drained.join(10)
assert not drained.is_alive(), "drain waits for an acquire that has ended"
"""

COLLECTED = """
import gc

class Garbage:
    # The collector comes whenever something is allocated, in any thread.
    def __del__(self):
        if threading.current_thread().name == "leasehold-timer":
            locks = leasehold.connect("memory://", ttl=30, namespace=str(len(held)))
            held.append(locks.lock("name").acquire())

held = [leasehold.connect("memory://", ttl=30, namespace=f"n{n}").lock("name").acquire() for n in range(300)]
gc.set_threshold(100)
ends, ttl = time.monotonic() + 4, 29
while time.monotonic() < ends:
    for _ in range(30):
        garbage = Garbage()
        garbage.itself = garbage
    ttl *= 0.999
    held.append(leasehold.connect("memory://", ttl=ttl, renew=False, namespace=f"t{ttl}").lock("name").acquire())
    time.sleep(0.005)
gc.set_threshold(0)
told = threading.Event()
lease = leasehold.connect("memory://").lock("last", ttl=1, renew=False, on_lost=lambda lease: told.set()).acquire()
assert told.wait(10), "nobody is told of a loss any more"
"""


@pytest.mark.parametrize(
    "program",
    [WAIT_FOR_LOSS, ACQUIRE, CANCELLED, COLLECTED],
    ids=["wait for loss", "acquire", "acquire with cancel", "garbage in the timer"],
)
def test_process_that_outlives_an_interrupt_keeps_working(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program], capture_output=True, text=True, timeout=100, check=False, cwd=HERE
    )
    assert done.returncode == 0, done.stderr[-4000:]


STARTED_ELSEWHERE = {
    "runtime/thread_start.py",
    "stores/common/main_thread.py",  # in a bare thread
    "stores/mongodb/threads.py",  # in leasehold-main: see stores/common/main_thread.py
}


def test_threads_are_started_in_one_place() -> None:
    """``Thread.start()`` in a thread that is interrupted can leave the new one waiting for ever."""
    root = Path(leasehold.__file__).parent
    files = {path.relative_to(root).as_posix(): path for path in root.rglob("*.py")}
    found = [
        name
        for name, path in files.items()
        if re.search(r"\b(Thread|Timer)\((target=|max|self)", path.read_text())
        and not name.startswith(("testing/", "cli/"))
    ]
    assert set(found) <= STARTED_ELSEWHERE
