"""What can go wrong, as a tree.

    LeaseholdError
    ├─ AcquireTimeout   (also TimeoutError)       somebody else held it all the while
    ├─ AcquireCancelled                           the ``cancel`` event was set
    ├─ LeaseLost                                  with its reason
    │  └─ fence.StaleToken                        the resource has refused its token
    ├─ OnceFailed                                 work of ``once`` that has failed for good
    ├─ TooManyOutcomes                            no room to record another version of it
    ├─ ShuttingDown                               drained or closed: no new leases
    └─ StoreError                                 the driver's error is ``__cause__``
       ├─ StoreUnavailable (also ConnectionError) outcome unknown, may be retried
       └─ StoreNotReady                           says what is missing and how to mend it

Wrong arguments are ``ValueError`` or ``TypeError``.
"""

from __future__ import annotations

from .typed import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .model import LeaseInfo


class LeaseholdError(Exception):
    """The base of everything that leasehold raises by itself. Can be pickled, with its attributes."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by its constructor, which is given something else than the message it makes of that.
        return _made_again, (type(self), self.args), self.__dict__


def _made_again(kind: type[LeaseholdError], args: tuple[Any, ...]) -> LeaseholdError:
    error = kind.__new__(kind, *args)
    error.args = args
    return error


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

    queued = False
    """Set by a driver that never sent the call, because others of this process were before it and were answered."""
    reentered = False
    """Set by a driver that never sent the call, because a signal handler or destructor made it in the middle of the
    driver's own code: the call must not wait there, since others may wait for what its thread has."""


class StoreNotReady(StoreError):
    """The store answers, but cannot serve leases as it is; the message says how to mend it."""

    nothing_asked = False
    """Set by the engine when nothing can have been left in the store before this happened."""
