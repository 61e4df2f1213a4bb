"""The thread that listens for all waiters of a ``Locks``, where one is to be had."""

from __future__ import annotations

from collections.abc import Callable

from ..starting import Life, start_thread


def start_listener(listen: Callable[[], object], name: str) -> Life | None:
    """None when the process can have no more threads: then waiters poll, and the next who waits tries again."""
    try:
        return start_thread(name, listen)
    except RuntimeError:
        return None
