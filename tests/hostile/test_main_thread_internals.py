"""The helper thread that makes the main thread's calls to pymongo and kazoo ends with its driver."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from leasehold.stores.common import main_thread
from leasehold.testing.handles import eventually


def test_helper_thread_that_begins_after_the_end_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a second helper thread may begin only when the driver has been closed."""
    started: list[Callable[[], object]] = []
    start = main_thread.start_thread

    def start_and_keep(name: str, function: Callable[[], object]) -> object:
        started.append(function)
        return start(name, function)

    monkeypatch.setattr(main_thread, "start_thread", start_and_keep)
    before = set(threading.enumerate())
    calls = main_thread.MainThread("here")
    assert calls.do(lambda: 1) == 1
    calls.end()
    eventually(lambda: not set(threading.enumerate()) - before)

    late = threading.Thread(target=started[0], daemon=True)
    late.start()
    late.join(10)
    assert not late.is_alive(), "SAFETY: a thread is left after the end"

    assert calls.do(lambda: 2) == 2  # the next call starts another
    calls.end()
