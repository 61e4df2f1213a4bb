"""What a thread sleeps on until a wake-up. The asyncio one is in :mod:`leasehold.tasks.wakeups`."""

from __future__ import annotations

import _thread
from _thread import allocate_lock
from typing import TYPE_CHECKING

from ..core.protocol import Busy, Grant

if TYPE_CHECKING:
    from ..core.places import Place


def refuse_late_patch() -> None:
    """Raise RuntimeError when gevent or eventlet has replaced locks since this module was loaded.

    A greenlet that waits on one of the system's locks stops all greenlets of its thread, also the one that releases it.
    """
    if _thread.allocate_lock is not allocate_lock:
        raise RuntimeError(
            "threads were patched after leasehold was loaded, and waiting for a lease would hang: patch (for example "
            "with gevent.monkey.patch_all()) before leasehold is imported"
        )


class ThreadBell:
    """One bit that can be waited for: a ring before the wait counts, several count as one.

    Ringing never blocks and takes no lock that a destructor or a signal handler could already hold.
    """

    __slots__ = ("_gate", "news", "place")

    def __init__(self) -> None:
        self.news: Grant | Busy | None = None
        self.place: Place | None = None
        self._gate = allocate_lock()
        self._gate.acquire()

    def ring(self) -> None:
        try:
            self._gate.release()
        except RuntimeError:
            pass  # it has rung already

    def rang(self) -> bool:
        """Whether it has rung since the last wait. Resets that."""
        return self._gate.acquire(False)

    @property
    def silent(self) -> bool:
        """Whether it has not rung since the last wait."""
        return self._gate.locked()

    def wait(self, seconds: float | None) -> bool:
        """Sleep until it rings, at most so many seconds (None: no limit). True when it rang."""
        if seconds is None:
            return self._gate.acquire()
        return self._gate.acquire(timeout=min(max(seconds, 0.0), 1e6))
