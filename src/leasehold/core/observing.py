"""What observers of a ``Locks`` are given, beside events: how store operations, acquires and work of ``once`` ended.

An observer is called at once, wherever that happened: in any thread, inside a signal handler. So it may only queue what
it is given, for a thread of its own. What it is given keeps no lease, error or frame alive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from ..errors import AcquireCancelled, AcquireTimeout, ShuttingDown, StoreNotReady, StoreUnavailable
from ..model import Event


class AcquireFailed(NamedTuple):
    """An acquire ended without a lease. How one ends with a lease is an event."""

    store: str
    kind: str
    outcome: str
    waited: float


class Operation(NamedTuple):
    """A store operation, by the name of its method in ``Store``."""

    operation: str
    outcome: str
    seconds: float


class WorkEnded(NamedTuple):
    """A call of ``once``: ``done``, ``failed``, ``skipped``, or ``lost`` if its outcome could not be recorded."""

    outcome: str


class WaitersChanged(NamedTuple):
    """An acquire begins to wait, or no longer waits."""


Observed: TypeAlias = Event | AcquireFailed | Operation | WorkEnded | WaitersChanged
Observer: TypeAlias = Callable[[Observed], object]


def outcome_of(error: BaseException) -> str:
    """The error in one word, of a small set."""
    match error:
        case AcquireTimeout():
            return "timeout"
        case StoreUnavailable():
            return "unavailable"
        case StoreNotReady():
            return "not_ready"
        case ShuttingDown():
            return "shut_down"
        case AcquireCancelled():
            return "cancelled"
        case Exception():
            return "error"
        case _:  # CancelledError, GeneratorExit, KeyboardInterrupt
            return "cancelled"
