"""leasehold for asyncio: the names of :mod:`leasehold`. Operations that ask the store are awaited::

    import asyncio
    from leasehold import aio

    async def main():
        async with aio.connect("memory://") as locks:
            async with locks.lock("invoice:42", ttl=10, timeout=5) as lease:
                lease.check()

    asyncio.run(main())

The code is in :mod:`leasehold.tasks`.
"""

from __future__ import annotations

from .core.lease import current
from .core.timing import Duration, Preset
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
from .kinds.election.tasks import Election, Term
from .kinds.group.membership import Member
from .kinds.group.tasks import Group
from .kinds.joint.tasks import AllOf, RLock
from .kinds.once.outcome import OnceFailed, Outcome, TooManyOutcomes
from .kinds.once.tasks import Once
from .kinds.rwlock.tasks import RWLock
from .model import Counters, Event, LeaseInfo, LockMetrics
from .tasks.lease import Lease
from .tasks.lock import Lock, LockOptions, SkippingLock
from .tasks.locks import Locks, connect

__all__ = [
    "AcquireCancelled",
    "AcquireTimeout",
    "AllOf",
    "Counters",
    "Duration",
    "Election",
    "Event",
    "Group",
    "Lease",
    "LeaseInfo",
    "LeaseLost",
    "LeaseholdError",
    "Lock",
    "LockMetrics",
    "LockOptions",
    "Locks",
    "Member",
    "Once",
    "OnceFailed",
    "Outcome",
    "Preset",
    "RLock",
    "RWLock",
    "ShuttingDown",
    "SkippingLock",
    "StoreError",
    "StoreNotReady",
    "StoreUnavailable",
    "Term",
    "TooManyOutcomes",
    "connect",
    "current",
]
