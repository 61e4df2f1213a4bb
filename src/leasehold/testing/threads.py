"""A process that cannot start threads."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any

import pytest


def refuse_threads(patch: pytest.MonkeyPatch, refused: Callable[[str], bool]) -> None:
    """Refuse to start threads for whose names ``refused`` is true."""
    start, start_bare = threading.Thread.start, _thread.start_new_thread

    def started(thread: threading.Thread) -> None:
        _check(thread.name)
        start(thread)

    def started_bare(function: Any, args: tuple[Any, ...]) -> int:
        _check(args[0])  # see `leasehold.runtime.thread_start`
        return start_bare(function, args)

    def _check(name: str) -> None:
        if refused(name):
            raise RuntimeError("can't start new thread")

    patch.setattr(threading.Thread, "start", started)
    patch.setattr(_thread, "start_new_thread", started_bare)
