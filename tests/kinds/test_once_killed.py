"""Two replicas in processes of their own, one of them killed with −9 at a write: nothing is done twice, or lost."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import leasehold

REPLICA = """
import os, signal, sys
import leasehold
from leasehold import aio
from leasehold.kinds.once import archive

side, url, log, write, when = sys.argv[1:]
archive.MOST_MARKS = 0
writes = 0

def dying(core):
    inner = core.store.write_note
    def write_note(*arguments):
        global writes
        writes += 1
        if writes == int(write) and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        found = yield from inner(*arguments)
        if writes == int(write):
            os.kill(os.getpid(), signal.SIGKILL)
        return found
    core.store.write_note = write_note

def work(version):
    with open(log, "a") as file:
        file.write(f"{version}\\n")

def threads():
    with leasehold.connect(url, ttl=1) as locks:
        dying(locks._core)
        for version in range(12):
            locks.once("x", version=version, keep=2).run(lambda: work(version))

async def tasks():
    async with aio.connect(url, ttl=1) as locks:
        dying(locks._core)
        for version in range(12):
            await locks.once("x", version=version, keep=2).run(lambda: work(version))

if side == "threads":
    threads()
else:
    import asyncio
    asyncio.run(tasks())
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("write", [3, 4, 5, 6])
@pytest.mark.parametrize("side", ["threads", "asyncio"])
def test_replica_that_is_killed_at_a_write_costs_no_version(side: str, write: int, when: str, tmp_path: Path) -> None:
    """The writes 3 to 6 are those of version 2: its outcome, and three by which the mark of version 0 moves."""
    url, log = f"sqlite:///{tmp_path / 'leases.db'}", tmp_path / "log"

    def replica(write: int) -> int:
        words = [sys.executable, "-c", REPLICA, side, url, str(log), str(write), when]
        return subprocess.run(words, timeout=60, check=False).returncode

    assert replica(write) == -signal.SIGKILL
    assert log.read_text().split() == ["0", "1", "2"]
    assert replica(0) == 0
    again = ["2"] if (write, when) == (3, "before") else []
    assert log.read_text().split() == ["0", "1", "2", *again, *map(str, range(3, 12))]
    with leasehold.connect(url) as locks:
        for version in range(12):
            outcome = locks.once("x", version=version, keep=2).run(lambda: "again")
            assert (outcome.ok, outcome.ran) == (True, False)
        assert [each.version for each in locks.once("x").history()] == ["10", "11"]
