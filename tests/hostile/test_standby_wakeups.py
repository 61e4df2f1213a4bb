"""A candidate that stands by sleeps until something happens."""

from __future__ import annotations

import secrets
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import leasehold

from .stores import url_of

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts with /proc"),
]

STANDBYS = 10
SECONDS = 4.0
PROGRAM = """
import sys, threading
import leasehold

locks = leasehold.connect(sys.argv[1], namespace=sys.argv[2], ttl=30)
elections = [locks.election("e") for _ in range(int(sys.argv[3]))]
threads = [threading.Thread(target=each.run, args=(lambda term: None,)) for each in elections]
for thread in threads:
    thread.start()
print("up", flush=True)
sys.stdin.readline()
for each in elections:
    each.stop()
for thread in threads:
    thread.join(5)
print("stopped" if not any(thread.is_alive() for thread in threads) else "hangs", flush=True)
"""


def wakeups(pid: int) -> int:
    """How often the threads of a process have gone to sleep by themselves."""
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        for line in status.read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                total += int(line.split()[1])
    return total


def count(url: str) -> None:
    space = secrets.token_hex(6)
    with leasehold.connect(url, namespace=space, ttl=30) as locks:
        election, leads, may_end = locks.election("e"), threading.Event(), threading.Event()

        def lead(term: object) -> None:
            leads.set()
            may_end.wait()

        leader = threading.Thread(target=election.run, args=(lead,))
        leader.start()
        assert leads.wait(20)
        arguments = [sys.executable, "-c", PROGRAM, url, space, str(STANDBYS)]
        with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdin
            assert program.stdout
            try:
                assert program.stdout.readline() == "up\n"
                time.sleep(1.5)  # they join the queue
                before = wakeups(program.pid)
                time.sleep(SECONDS)
                after = wakeups(program.pid)
                began = time.monotonic()
                program.stdin.write("end\n")
                program.stdin.flush()
                assert program.stdout.readline() == "stopped\n"
                assert time.monotonic() - began < 5
            finally:
                program.kill()
                may_end.set()
                leader.join()
        assert (after - before) / SECONDS / STANDBYS < 3


def test_standby_of_sqlite_sleeps_until_something_happens(tmp_path: Path) -> None:
    count(f"sqlite:///{tmp_path}/leases.db")


@pytest.mark.server
@pytest.mark.parametrize("store", ["redis", "postgresql"])
def test_standby_of_a_server_sleeps_until_something_happens(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    count(url_of(store, request, tmp_path))
