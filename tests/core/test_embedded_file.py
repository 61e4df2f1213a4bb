"""The file of the embedded store: links to it, its wake-ups, its old records."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import leasehold
from leasehold.core import keeper
from leasehold.testing.faults import install
from leasehold.testing.handles import eventually


@pytest.fixture
def locks(tmp_path: Path) -> Iterator[leasehold.Locks]:
    with leasehold.connect(f"sqlite:///{tmp_path}/leases.db") as locks:
        yield locks


def test_link_to_the_file_leads_to_the_same_leases(tmp_path: Path) -> None:
    (tmp_path / "link").mkdir()
    link = tmp_path / "link" / "other.db"
    with leasehold.connect(f"sqlite:///{tmp_path}/leases.db") as here:
        with here.lock("job"):
            link.symlink_to(tmp_path / "leases.db")
            with leasehold.connect(f"sqlite:///{link}") as there:
                assert there.lock("job").try_acquire() is None
                assert len(os.listdir(tmp_path / "leases.db-wake")) == 2
    assert not (tmp_path / "link" / "other.db-wake").exists()


def test_waiter_without_its_fifo_polls(locks: leasehold.Locks, tmp_path: Path) -> None:
    lease = locks.lock("job").acquire()
    for fifo in (tmp_path / "leases.db-wake").iterdir():
        fifo.unlink()
    with leasehold.connect(f"sqlite:///{tmp_path}/leases.db") as others:
        others.inspect("job")
        for fifo in (tmp_path / "leases.db-wake").iterdir():
            fifo.unlink()
        faults = install(others)
        waiter = threading.Thread(target=lambda: others.lock("job").acquire())
        waiter.start()
        eventually(lambda: (info := locks.inspect("job")) and info.waiters)
        before = faults.calls["acquire"]
        # A waiter that relies on wake-ups asks every 5 s: it would take 40 s for that.
        eventually(lambda: faults.calls["acquire"] >= before + 8, 20)
        lease.release()
        waiter.join()


def test_many_dead_names_are_purged(locks: leasehold.Locks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "TIDY_LIMIT", 60.0)  # however busy the machine is
    locks.lock("held", ttl=3600).acquire()
    kept = locks.lock("kept", ttl=3600).acquire()
    connection = sqlite3.connect(tmp_path / "leases.db", isolation_level=None)
    connection.execute("BEGIN")
    rows = [(f"old {number}",) for number in range(2500)]
    connection.executemany("INSERT INTO leasehold VALUES ('', ?, 1, 1, 5, 'b', '', 0, NULL)", rows)
    connection.execute("INSERT INTO leasehold VALUES ('', 'of another boot', 1, 1, 5, 'b', '[\"x\",1,[],[]]', 0, NULL)")
    connection.execute("UPDATE leasehold SET updated = 0 WHERE name = 'kept'")
    connection.execute("DELETE FROM leasehold_meta WHERE key = 'tidied'")
    connection.execute("COMMIT")
    with leasehold.connect(f"sqlite:///{tmp_path}/leases.db") as others:
        network = install(others)
        others.lock("new").acquire().release()  # it starts the keeper of these Locks, which tidies at its start
        eventually(lambda: network.calls["tidy"])
        network.settle()
    names = {name for (name,) in connection.execute("SELECT name FROM leasehold")}
    connection.close()
    assert "kept" in names
    assert not [name for name in names if name.startswith("old") or name == "of another boot"]
    kept.release()
