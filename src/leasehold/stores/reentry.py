"""Signal handlers and destructors that use a driver in the middle of its own code.

A signal handler runs between two instructions of the main thread; the garbage collector runs destructors in any
thread. A call that waits there may wait for a mutex that its own thread has, or make the keeper wait for it. So it is
refused at once. A release that was refused is the keeper's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import StoreUnavailable


class _Inside(threading.local):
    yes = False


_inside = _Inside()


@contextmanager
def inside() -> Iterator[None]:
    """This thread is in the code of a driver that cannot be entered twice, or holds a mutex of its own."""
    before = _inside.yes
    try:
        _inside.yes = True
        yield
    finally:
        _inside.yes = before


def is_inside() -> bool:
    return _inside.yes or threading.current_thread().name.startswith("pymongo_")  # pymongo has threads of its own


def refused(where: str) -> StoreUnavailable:
    error = StoreUnavailable(f"{where}: this signal handler or destructor interrupted a call, and cannot make another")
    error.reentered = True
    return error
