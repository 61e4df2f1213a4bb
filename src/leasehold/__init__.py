"""Distributed leases: locks that expire by themselves, are renewed while held, tell their holder when they are lost,
and carry a fencing token. ``leasehold`` is for threads, ``leasehold.aio`` for asyncio."""

from __future__ import annotations

from .connect import connect
from .typed import TYPE_CHECKING

if TYPE_CHECKING:
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
    from .lease import current
    from .lock import Lease, Lock, Locks
    from .model import Event, LeaseInfo, LockMetrics
    from .policy import Preset

__version__ = "0.1.0"

__all__ = [
    "AcquireCancelled",
    "AcquireTimeout",
    "Event",
    "Lease",
    "LeaseInfo",
    "LeaseLost",
    "LeaseholdError",
    "Lock",
    "LockMetrics",
    "Locks",
    "Preset",
    "ShuttingDown",
    "StoreError",
    "StoreNotReady",
    "StoreUnavailable",
    "connect",
    "current",
]

# Loaded when first asked for: `import leasehold` costs a millisecond, and the command starts the sooner.
_HOMES = {
    "Lease": "lock",
    "Lock": "lock",
    "Locks": "lock",
    "Event": "model",
    "LeaseInfo": "model",
    "LockMetrics": "model",
    "Preset": "policy",
    "current": "lease",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = __import__(f"{__name__}.{_HOMES.get(name, 'errors')}", fromlist=[name])
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
