"""The thread that listens for all waiters of a ``Locks``, where one is to be had."""

from __future__ import annotations

import threading
from collections.abc import Callable


def start_thread(listen: Callable[[], object], name: str) -> threading.Thread | None:
    """None when the process can have no more threads: then waiters poll, and the next who waits tries again."""
    thread = threading.Thread(target=listen, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread
