"""One bad record of a SQLite file concerns its name alone."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from pathlib import Path

import pytest

import leasehold
from leasehold import aio
from leasehold.testing.handles import eventually

BAD = {
    "newer format": "UPDATE leasehold SET format = 2 WHERE name = 'bad'",
    "not JSON": "UPDATE leasehold SET state = '{' WHERE name = 'bad'",
    "not UTF-8": "UPDATE leasehold SET state = CAST(x'ff' AS TEXT) WHERE name = 'bad'",
    "largest token": "UPDATE leasehold SET token = 9223372036854775807 WHERE name = 'bad'",
    "text as token": "UPDATE leasehold SET token = 'x' WHERE name = 'bad'",
    "another list": "UPDATE leasehold SET state = '[1]' WHERE name = 'bad'",
}


def write(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None, timeout=10)
    connection.execute(statement)
    connection.close()


@pytest.mark.parametrize("what", BAD)
def test_bad_record_fails_its_own_name_alone(tmp_path: Path, what: str) -> None:
    path = tmp_path / "leases.db"
    with leasehold.connect(f"sqlite:///{path}", ttl=1.5) as locks:
        bad, good = locks.lock("bad").acquire(), locks.lock("good").acquire()
        write(path, BAD[what])
        assert bad.lost.wait(20)
        renewals = locks.metrics().renewals
        eventually(lambda: locks.metrics().renewals > renewals)
        assert good.valid, "SAFETY: a bad record of another name lost this lease"
        for call in (
            lambda: locks.lock("bad").try_acquire(),
            lambda: locks.inspect("bad"),
            lambda: locks.break_lease("bad"),
        ):
            with pytest.raises(leasehold.StoreError, match="bad"):
                call()
        assert [info.name for info in locks.leases()] == ["good"]
        assert good.release()


def test_live_holder_under_another_boot_id_keeps_its_lease(tmp_path: Path) -> None:
    """LXC and systemd-nspawn give each container a boot id of its own."""
    path = tmp_path / "leases.db"
    url = f"sqlite:///{path}"
    with leasehold.connect(url, ttl=60) as there, leasehold.connect(url, ttl=60) as here:
        lease = there.lock("job").acquire()
        write(path, "UPDATE leasehold SET boot = 'of another container'")
        assert here.lock("job").try_acquire() is None, "SAFETY: two holders"
        assert [info.name for info in here.leases()] == ["job"]
        lease.renew()
        assert lease.release()


def test_holder_of_an_earlier_boot_without_a_fifo_has_its_ttl_left(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    with leasehold.connect(f"sqlite:///{path}") as locks:
        lease = locks.lock("job", ttl=1, renew=False).acquire()
        # As after days of uptime: its times are far ahead of the clock of this boot.
        write(path, "UPDATE leasehold SET boot = 'an earlier one'")
        connection = sqlite3.connect(path, isolation_level=None, timeout=10)
        [(state,)] = connection.execute("SELECT state FROM leasehold").fetchall()
        stored = json.loads(state)
        stored[2][0][4], stored[2][0][8] = "", stored[2][0][8] + 10**12
        connection.execute("UPDATE leasehold SET state = ?", (json.dumps(stored),))
        connection.close()
        assert locks.lock("job").try_acquire() is None
        other = locks.lock("job").acquire(timeout=20)
        assert other.token > lease.token


async def test_limit_of_a_call_counts_from_when_it_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    async with aio.connect(f"sqlite:///{path}") as locks:
        await (await locks.lock("job").acquire()).release()
        stuck = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        stuck.execute("BEGIN IMMEDIATE")
        try:
            started = time.monotonic()
            calls = [locks.lock(f"job-{number}").acquire(timeout=1) for number in range(15)]
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(each, leasehold.StoreUnavailable) for each in results)
            assert time.monotonic() - started < 8
        finally:
            stuck.close()
