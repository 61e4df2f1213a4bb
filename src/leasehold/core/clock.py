"""The local clock of all deadlines.

CLOCK_BOOTTIME where there is one: it never jumps, and it goes on while a laptop sleeps, as the
store's clock does. Elsewhere the monotonic clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

if hasattr(time, "CLOCK_BOOTTIME"):
    now: Callable[[], float] = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    """Seconds since boot, suspended time included. Called often, so it is a C function."""

    def now_us() -> int:
        """Microseconds since boot, suspended time included."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000

else:  # macOS, Windows
    now = time.monotonic

    def now_us() -> int:
        """Microseconds of the monotonic clock."""
        return time.monotonic_ns() // 1000


def wall_us() -> int:
    """Microseconds of the wall clock. Only for tokens and for people to read; never for expiry."""
    return time.time_ns() // 1000
