"""Refuses calls of signal handlers and destructors that interrupt the code of a driver.

A signal handler runs between two instructions of the main thread; the garbage collector runs destructors in any
thread. Their call could wait for a mutex that their own thread holds. It is refused at once instead; a refused release
is done by the keeper.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import StoreUnavailable


class _Inside(threading.local):
    yes = False


_inside = _Inside()


@contextmanager
def inside() -> Iterator[None]:
    """Marks the block as code of a driver, which this thread must not enter a second time."""
    before = _inside.yes
    try:
        _inside.yes = True
        yield
    finally:
        _inside.yes = before


def is_inside() -> bool:
    """Whether this thread is in such a block, or is a thread of pymongo."""
    return _inside.yes or threading.current_thread().name.startswith("pymongo_")


def refused(where: str) -> StoreUnavailable:
    """The error for such a call. Nothing was sent."""
    error = StoreUnavailable(f"{where}: this signal handler or destructor interrupted a call, and cannot make another")
    error.reentered = True
    return error
