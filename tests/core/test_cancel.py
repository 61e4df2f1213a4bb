"""``cancel=`` ends an acquire in threads, whatever it is at."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

import pytest

import leasehold
from intercept import Intercepted
from leasehold import AcquireCancelled
from leasehold.core import timing
from leasehold.testing.handles import eventually


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/leases.db"


def test_cancelled_acquire_does_not_wait_for_an_answer_that_does_not_come(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what the store grants after all is given back, when it has."""
    monkeypatch.setattr(timing, "CALL_LIMIT", 60.0)  # so that nothing else ends the call meanwhile
    store = Intercepted(url)
    with store.connect() as locks, leasehold.connect(url) as others:
        locks.lock("other").acquire().release()
        blocker = sqlite3.connect(tmp_path / "leases.db", isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")  # the store can be read, and not written
        cancel = threading.Event()
        threading.Timer(0.2, cancel.set).start()
        began = time.monotonic()
        with pytest.raises(AcquireCancelled):
            locks.lock("name").acquire(cancel=cancel)
        assert time.monotonic() - began < 20  # the call itself would take 29 s
        assert store.begun["acquire"] == store.over["acquire"] + 1, "the call is over, so this shows nothing"
        blocker.execute("COMMIT")
        blocker.close()
        with others.lock("name").acquire(timeout=20) as lease:
            assert lease.valid
        eventually(lambda: store.over["abandon"])
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


def test_acquire_with_a_cancel_event_raises_errors_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "leases.db").write_text("this is a letter to my aunt " * 100)
    with leasehold.connect(f"sqlite:///{tmp_path}/leases.db") as locks, pytest.raises(leasehold.StoreNotReady):
        locks.lock("name").acquire(cancel=threading.Event())


def test_acquire_with_a_cancel_event_that_is_not_set_gets_the_lease(url: str) -> None:
    with leasehold.connect(url) as locks:
        lease = locks.lock("name").acquire(cancel=threading.Event())
        assert lease.valid
        assert lease.release()


def test_cancel_ends_a_try_acquire_that_waits(url: str) -> None:
    with leasehold.connect(url) as holder, leasehold.connect(url) as locks, holder.lock("name"):
        for lock in (locks.lock("name"), locks.rlock("name"), locks.all_of("name", "other")):
            cancel = threading.Event()
            threading.Timer(0.1, cancel.set).start()
            began = time.monotonic()
            with pytest.raises(AcquireCancelled):
                lock.try_acquire(30, cancel=cancel)
            assert time.monotonic() - began < 10
