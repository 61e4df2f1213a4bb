"""Distributed leases: locks that expire by themselves, are renewed while held, notify their holder when they are lost,
and carry a fencing token. ``leasehold`` is for threads, ``leasehold.aio`` for asyncio::

    import leasehold

    with leasehold.connect("memory://") as locks:
        with locks.lock("invoice:42", ttl=10, timeout=5) as lease:
            lease.check()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import aio as aio
    from . import fence as fence
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
    from .kinds.election.threads import Election, Term
    from .kinds.group.membership import Member
    from .kinds.group.threads import Group
    from .kinds.joint.threads import AllOf, RLock
    from .kinds.once.outcome import OnceFailed, Outcome, TooManyOutcomes
    from .kinds.once.threads import Once
    from .kinds.rwlock.threads import RWLock
    from .model import Counters, Event, LeaseInfo, LockMetrics
    from .threads.lease import Lease
    from .threads.lock import Lock, LockOptions, SkippingLock
    from .threads.locks import Locks, connect

__version__ = "0.1.0"

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

# Loaded at the first use: every pytest run imports this package for the plugin, perhaps before gevent replaces locks,
# and `leasehold run` starts its two processes before it loads the rest. Only `aio` loads asyncio.
_HOMES = {
    "AllOf": "kinds.joint.threads",
    "Counters": "model",
    "Duration": "core.timing",
    "Election": "kinds.election.threads",
    "Event": "model",
    "Group": "kinds.group.threads",
    "Lease": "threads.lease",
    "LeaseInfo": "model",
    "Lock": "threads.lock",
    "LockMetrics": "model",
    "LockOptions": "threads.lock",
    "Locks": "threads.locks",
    "Member": "kinds.group.membership",
    "Once": "kinds.once.threads",
    "OnceFailed": "kinds.once.outcome",
    "Outcome": "kinds.once.outcome",
    "Preset": "core.timing",
    "RLock": "kinds.joint.threads",
    "RWLock": "kinds.rwlock.threads",
    "SkippingLock": "threads.lock",
    "Term": "kinds.election.threads",
    "TooManyOutcomes": "kinds.once.outcome",
    "connect": "threads.locks",
    "current": "core.lease",
}
_MODULES = ("aio", "fence")


if not TYPE_CHECKING:  # otherwise a type checker would accept any name

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
