"""leasehold for asyncio: the names of :mod:`leasehold`, awaited. What is behind them is in :mod:`leasehold.tasks`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .core.lease import current
from .core.timing import Preset
from .errors import (
    AcquireCancelled,
    AcquireTimeout,
    LeaseholdError,
    LeaseLost,
    ShuttingDown,
    StoreError,
    StoreNotReady,
    StoreUnavailable,
)
from .model import Counters, Event, LeaseInfo, LockMetrics
from .tasks.lease import Lease
from .tasks.lock import Lock
from .tasks.locks import Locks, connect

if TYPE_CHECKING:
    from .kinds.election.tasks import Term
    from .kinds.group.membership import Member
    from .kinds.once.outcomes import OnceFailed, Outcome, TooManyOutcomes

__all__ = [
    "AcquireCancelled",
    "AcquireTimeout",
    "Counters",
    "Event",
    "Lease",
    "LeaseInfo",
    "LeaseLost",
    "LeaseholdError",
    "Lock",
    "LockMetrics",
    "Locks",
    "Member",
    "OnceFailed",
    "Outcome",
    "Preset",
    "ShuttingDown",
    "StoreError",
    "StoreNotReady",
    "StoreUnavailable",
    "Term",
    "TooManyOutcomes",
    "connect",
    "current",
]

# Loaded when first asked for: of most programs, never.
_HOMES = {
    "Term": "kinds.election.tasks",
    "Member": "kinds.group.membership",
    "OnceFailed": "kinds.once.outcomes",
    "Outcome": "kinds.once.outcomes",
    "TooManyOutcomes": "kinds.once.outcomes",
}


if not TYPE_CHECKING:  # or a type checker would take any name for one that is there

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(__import__(f"leasehold.{_HOMES[name]}", fromlist=[name]), name)
        return value
