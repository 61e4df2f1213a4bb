"""Distributed leases: locks that expire by themselves, are renewed while held, tell their holder when they are lost,
and carry a fencing token. ``leasehold`` is for threads, ``leasehold.aio`` for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .connect import connect

if TYPE_CHECKING:
    from . import aio as aio
    from . import fence as fence
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
    from .kinds.election.threads import Term
    from .kinds.group.membership import Member
    from .kinds.once.outcomes import OnceFailed, Outcome, TooManyOutcomes
    from .model import Counters, Event, LeaseInfo, LockMetrics
    from .threads.lease import Lease
    from .threads.lock import Lock
    from .threads.locks import Locks

__version__ = "0.1.0"

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

# Loaded when first asked for: `import leasehold` costs a millisecond, and the command starts the sooner.
_HOMES = {
    "Lease": "threads.lease",
    "Lock": "threads.lock",
    "Locks": "threads.locks",
    "Counters": "model",
    "Event": "model",
    "LeaseInfo": "model",
    "LockMetrics": "model",
    "Preset": "core.timing",
    "current": "core.lease",
    "Term": "kinds.election.threads",
    "Member": "kinds.group.membership",
    "OnceFailed": "kinds.once.outcomes",
    "Outcome": "kinds.once.outcomes",
    "TooManyOutcomes": "kinds.once.outcomes",
}
_MODULES = ("aio", "fence")


if not TYPE_CHECKING:  # or a type checker would take any name for one that is there

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return __import__(f"{__name__}.{name}", fromlist=[name])
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = __import__(f"{__name__}.{_HOMES.get(name, 'errors')}", fromlist=[name])
        value = globals()[name] = getattr(module, name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
