"""What can go wrong, as a tree.

    LeaseholdError
    ├─ AcquireTimeout   (also TimeoutError)       another holder had the name for the whole timeout
    ├─ AcquireCancelled                           the ``cancel`` event was set
    ├─ LeaseLost                                  the lease can no longer be trusted; with the reason
    │  └─ fence.StaleToken                        the resource refused the lease's token
    ├─ OnceFailed                                 work that another did has failed: its recorded error
    ├─ TooManyOutcomes                            ``once`` has no room to record another version
    ├─ ShuttingDown                               drained or closed: no new leases
    └─ StoreError                                 the driver's error is ``__cause__``
       ├─ StoreUnavailable (also ConnectionError) outcome unknown, may be retried
       └─ StoreNotReady                           says what is missing and how to fix it

Wrong arguments are ``ValueError`` or ``TypeError``.
"""

from __future__ import annotations

from typing import Any

from .model import LeaseInfo


class LeaseholdError(Exception):
    """The base class of every error of leasehold. Errors can be pickled, with their attributes."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle would call the constructor with the finished message. The constructors take other arguments.
        return _made_again, (type(self), self.args), self.__dict__


def _made_again(kind: type[LeaseholdError], args: tuple[Any, ...]) -> LeaseholdError:
    error = kind.__new__(kind, *args)
    error.args = args
    return error


class AcquireTimeout(LeaseholdError, TimeoutError):
    """The lease was not acquired within the timeout.

    Fields:
        message: what was waited for, how long, and who holds it.
        holder: the :class:`leasehold.LeaseInfo` of the holder that the store reported last; None if it reported none.
    """

    def __init__(self, message: str, holder: LeaseInfo | None = None) -> None:
        super().__init__(message)
        self.holder = holder


class AcquireCancelled(LeaseholdError):
    """The ``cancel`` event given to ``acquire`` was set. Nothing is held."""


class LeaseLost(LeaseholdError):
    """The lease can no longer be trusted: stop the work that it protects.

    Fields:
        name: the lease's name.
        reason: why it was lost.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"lease {name!r} is lost: {reason}")
        self.name = name
        self.reason = reason


class ShuttingDown(LeaseholdError):
    """This ``Locks`` was drained or closed: it acquires no new leases."""


class StoreError(LeaseholdError):
    """The store answered with an error, or did not answer. The driver's error is ``__cause__``."""


class StoreUnavailable(StoreError, ConnectionError):
    """The store did not answer in time. The outcome of the call is unknown, and the call may be retried."""

    queued = False
    """Set by a driver that did not send the call: all its connections were busy with other calls of this process."""
    reentered = False
    """Set by a driver that did not send the call: a signal handler or destructor made it while the same thread was in
    the driver's code. The call must not wait there: other threads may wait for a mutex that this thread holds."""


class StoreNotReady(StoreError):
    """The store answers but cannot serve leases: a schema, index, permission or setting is missing. The message says
    which one and how to fix it."""

    nothing_asked = False
    """Set by the core when the failed acquire cannot have left anything in the store."""
