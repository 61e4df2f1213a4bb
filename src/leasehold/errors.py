"""What can go wrong, as a tree.

    LeaseholdError
    ├─ AcquireTimeout   (also TimeoutError)       somebody else held it all the while
    ├─ AcquireCancelled                           the ``cancel`` event was set
    ├─ LeaseLost                                  with its reason
    ├─ ShuttingDown                               drained or closed: no new leases
    └─ StoreError                                 the driver's error is ``__cause__``
       ├─ StoreUnavailable (also ConnectionError) outcome unknown, may be retried
       └─ StoreNotReady                           says what is missing and how to mend it

Wrong arguments are ``ValueError`` or ``TypeError``.
"""

from __future__ import annotations

from .typed import TYPE_CHECKING

if TYPE_CHECKING:
    from .model import LeaseInfo


class LeaseholdError(Exception):
    """The base of everything that leasehold raises by itself."""


class AcquireTimeout(LeaseholdError, TimeoutError):
    """The lease could not be had in time. ``holder`` is who had it when last asked."""

    def __init__(self, message: str, holder: LeaseInfo | None = None) -> None:
        super().__init__(message)
        self.holder = holder


class AcquireCancelled(LeaseholdError):
    """The ``cancel`` event given to ``acquire`` was set."""


class LeaseLost(LeaseholdError):
    """The lease can no longer be trusted. ``reason`` says why."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"lease {name!r} is lost: {reason}")
        self.name = name
        self.reason = reason


class ShuttingDown(LeaseholdError):
    """This ``Locks`` gives out no leases any more."""


class StoreError(LeaseholdError):
    """The store answered with an error, or not at all."""


class StoreUnavailable(StoreError, ConnectionError):
    """The store did not answer in time: the outcome is unknown, and the call may be retried."""


class StoreNotReady(StoreError):
    """The store answers, but cannot serve leases as it is; the message says how to mend it."""

    nothing_asked = False
    """Set by the engine when nothing can have been left in the store before this happened."""
