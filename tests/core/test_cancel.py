"""``cancel=`` ends an acquire in threads, whatever it is at."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

import pytest

import leasehold
from leasehold import AcquireCancelled, policy


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/leases.db"


def test_an_answer_that_does_not_come_is_not_waited_for(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what the store grants after all is given back, when it has."""
    monkeypatch.setattr(policy, "CALL_LIMIT", 60.0)  # so that nothing else ends the call meanwhile
    with leasehold.connect(url) as locks, leasehold.connect(url) as others:
        locks.lock("other").acquire().release()
        blocker = sqlite3.connect(tmp_path / "leases.db", isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")  # the store can be read, and not written
        cancel = threading.Event()
        threading.Timer(0.2, cancel.set).start()
        began = time.monotonic()
        with pytest.raises(AcquireCancelled):
            locks.lock("name").acquire(cancel=cancel)
        assert time.monotonic() - began < 20  # the call itself would take 29 s
        assert locks._core.asking, "the call is still under way, or this shows nothing"
        blocker.execute("COMMIT")
        blocker.close()
        with others.lock("name").acquire(timeout=20) as lease:
            assert lease.valid
        ends = time.monotonic() + 30
        while locks._core.asking:
            assert time.monotonic() < ends
            time.sleep(0.01)
        assert others.inspect("name") is None


def test_close_waits_for_what_a_cancelled_acquire_has_left(url: str, tmp_path: Path) -> None:
    locks = leasehold.connect(url)
    locks.lock("other").acquire().release()
    blocker = sqlite3.connect(tmp_path / "leases.db", isolation_level=None, check_same_thread=False)
    blocker.execute("BEGIN IMMEDIATE")
    cancel = threading.Event()
    threading.Timer(0.1, cancel.set).start()
    with pytest.raises(AcquireCancelled):
        locks.lock("name").acquire(cancel=cancel)
    commit = threading.Timer(0.3, lambda: blocker.execute("COMMIT"))
    commit.start()
    locks.close()
    commit.join()
    with leasehold.connect(url) as others:
        assert others.inspect("name") is None
    blocker.close()


def test_errors_come_through(tmp_path: Path) -> None:
    (tmp_path / "leases.db").write_text("this is a letter to my aunt " * 100)
    with leasehold.connect(f"sqlite:///{tmp_path}/leases.db") as locks, pytest.raises(leasehold.StoreNotReady):
        locks.lock("name").acquire(cancel=threading.Event())


def test_it_can_be_had_with_a_cancel_event_that_nobody_sets(url: str) -> None:
    with leasehold.connect(url) as locks:
        lease = locks.lock("name").acquire(cancel=threading.Event())
        assert lease.valid
        assert lease.release()
