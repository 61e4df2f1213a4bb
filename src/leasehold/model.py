"""Public records: leases as the store lists them, events and counters."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple


class LeaseInfo(NamedTuple):
    """One lease as the store reports it. Times are aware datetimes in UTC.

    ``expires`` is when the lease ends unless it is renewed. ``waiters`` is None where the store does not know it."""

    name: str
    kind: str
    owner: str
    token: int
    data: Any
    acquired: datetime
    expires: datetime
    waiters: int | None

    def as_dict(self) -> dict[str, Any]:
        """The record as a dict for JSON: times are ISO 8601 text."""
        times = {"acquired": self.acquired.isoformat(), "expires": self.expires.isoformat()}
        return {**self._asdict(), **times}


class Counters(NamedTuple):
    """Local counters of one ``Locks`` since it was created: no I/O, so they work while the store is down."""

    renewals: int
    renewal_failures: int
    unavailable: int
    """Calls of ``acquire`` that the store did not answer."""


class LockMetrics(NamedTuple):
    """The leases in the namespace now, and the :class:`Counters` of this ``Locks``. Durations are in seconds."""

    total: int
    by_kind: Mapping[str, int]
    by_owner: Mapping[str, int]
    average_hold: float
    longest_hold: float
    expired: int
    renewals: int
    renewal_failures: int
    unavailable: int
    """Calls of ``acquire`` that the store did not answer."""

    @property
    def renewal_success_rate(self) -> float:
        """The share of renewals that succeeded; 1.0 if there was none."""
        tried = self.renewals + self.renewal_failures
        return self.renewals / tried if tried else 1.0


class Event(NamedTuple):
    """Something that happened to a lease of this ``Locks``. ``owner`` is the owner of the ``Locks``.

    ``type`` is one of ``acquired``, ``taken_over``, ``renewed``, ``renewal_failed``, ``lost``, ``released``,
    ``refused``, ``broken``, ``skipped``, ``unavailable``, ``release_failed``.
    """

    type: str
    name: str
    owner: str
    token: int | None
    reason: str | None
