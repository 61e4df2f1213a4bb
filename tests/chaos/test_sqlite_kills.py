"""Processes that do nothing but take and give back are killed, wherever they are in it: the file stays whole."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import leasehold
from leasehold.testing.history import History, assert_clean

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BUSY = """
import sys, leasehold
lock = leasehold.connect(sys.argv[1], ttl=60).lock("x")
while True:
    with lock as lease:
        print(lease.token, flush=True)
"""


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.variant)])
def test_sqlite_holders_killed_at_any_moment_break_no_promise(tmp_path: Path, count: int) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    rng = random.Random(1)
    history = History()
    highest = 0
    with leasehold.connect(url, ttl=60) as locks:  # whoever is killed is replaced at once all the same
        locks.lock("x").acquire().release()
        kills = 0
        while kills < count:
            busy = [start(url) for _ in range(4)]
            for each in busy:
                assert each.stdout is not None
                for _ in range(rng.randrange(1, 12)):
                    highest = max(highest, int(each.stdout.readline()))
                each.kill()
                kills += 1
            for each in busy:
                rest, _ = each.communicate()
                highest = max([highest, *map(int, rest.split()[:-1])])  # the last may be cut off
            invoked = history.now()
            lease = locks.lock("x").acquire(timeout=60)
            history.add("took", "x", invoked=invoked, token=lease.token, limit=10.0)
            assert lease.token > highest
            highest = lease.token
            assert lease.release()
        assert not list(locks.leases())
    assert sqlite3.connect(tmp_path / "leases.db").execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert_clean(history)


def start(url: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", BUSY, url], stdout=subprocess.PIPE)
