"""What the library's mutexes rest on: Python runs no signal handler between entering ``with lock:`` and its block, nor
between the block and its end."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import random, signal, sys, threading, time

class Interrupted(Exception):
    pass

def handler(number, frame):
    raise Interrupted

def enter(lock, times):
    for _ in range(times):
        with lock:
            pass

lock = getattr(threading, sys.argv[1])()
count, ends = 0, time.monotonic() + 2
signal.signal(signal.SIGALRM, handler)
while time.monotonic() < ends:
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00005, 0.0005))
        enter(lock, 1000000)
    except Interrupted:
        count += 1
signal.setitimer(signal.ITIMER_REAL, 0)
seen = []
other = threading.Thread(target=lambda: seen.append(lock.acquire(timeout=1)))
other.start()
other.join()
assert seen == [True], f"locked for ever after {count} interrupts"
assert count > 100, count
"""


@pytest.mark.xfail(
    sys.version_info[:2] == (3, 14),
    reason="a bug of Python 3.14: github.com/python/cpython/issues/148874",
    strict=False,
)
@pytest.mark.parametrize("kind", ["Lock", "RLock"])
def test_interrupt_leaves_no_mutex_locked(kind: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, kind], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
