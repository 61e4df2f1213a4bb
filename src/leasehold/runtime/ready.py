"""Waiting until there is something to read.

With poll(2) where there is one. Windows and eventlet have only ``select``, without its limit of 1,024 files. Both are
looked up at each call, because gevent and eventlet replace them.
"""

from __future__ import annotations

import select
from types import BuiltinFunctionType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from socket import socket


def kernel_polls() -> bool:
    """Whether ``select.poll`` is that of the kernel, and so also tells of a FIFO whose last reader has gone."""
    return isinstance(getattr(select, "poll", None), BuiltinFunctionType)


def readable(*files: int | socket, within: float | None, writable: bool = False) -> bool:
    """Whether one of the files can be read, or has failed, within so many seconds (None: however long).

    ``writable``: or can be written.
    """
    if not hasattr(select, "poll"):
        found = select.select(files, files if writable else (), (), within)
        return any(found)
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN | select.POLLOUT if writable else select.POLLIN)
    return bool(poll.poll(None if within is None else within * 1000))
