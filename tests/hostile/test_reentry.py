"""A signal handler may release and acquire leases while its thread is inside the library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(120)

PROGRAM = """
import faulthandler, random, signal, sys, time
import leasehold

faulthandler.dump_traceback_later(40, exit=True)
locks = leasehold.connect(sys.argv[1], ttl=3)
held = locks.lock("held").acquire()
mine = []
calls = 0

def handler(number, frame):
    global calls
    calls += 1
    if mine:
        mine.pop().release()
    elif lease := locks.lock("handler").try_acquire():
        mine.append(lease)
    signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0005, 0.005))

signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.001)
ends = time.monotonic() + 4
while time.monotonic() < ends:
    locks.lock("main").acquire(timeout=10).release()
    with locks.lock("main") as lease:
        lease.check()
signal.setitimer(signal.ITIMER_REAL, 0)
while mine:
    mine.pop().release()
held.check()
assert held.release()
locks.close()
assert calls > 100, calls
"""


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_signal_handler_that_releases_and_acquires_does_not_deadlock(store: str, tmp_path: Path) -> None:
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path}/leases.db"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, url], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
