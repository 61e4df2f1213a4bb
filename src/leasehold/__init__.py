"""Distributed leases: locks that expire by themselves, are renewed while held, tell their holder when they are lost,
and carry a fencing token. ``leasehold`` is for threads, ``leasehold.aio`` for asyncio."""

from __future__ import annotations

from .connect import connect
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
