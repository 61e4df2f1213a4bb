"""What users see of leases from outside: plain records."""

from __future__ import annotations

from .typed import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


class LeaseInfo(NamedTuple):
    """One holding as the store tells it. Times are aware datetimes in UTC."""

    name: str
    kind: str
    owner: str
    token: int
    data: Any
    acquired: datetime
    expires: datetime
    waiters: int | None

    def as_dict(self) -> dict[str, Any]:
        """The record with its times as ISO 8601 text, ready for JSON."""
        times = {"acquired": self.acquired.isoformat(), "expires": self.expires.isoformat()}
        return {**self._asdict(), **times}


class Counters(NamedTuple):
    """How this ``Locks`` has fared with its store since it was made. Known without asking the store."""

    renewals: int
    renewal_failures: int
    unavailable: int
    """Calls of an acquire that the store did not answer."""


class LockMetrics(NamedTuple):
    """What is held in the namespace now, and how this ``Locks`` has fared with its renewals."""

    total: int
    by_kind: Mapping[str, int]
    by_owner: Mapping[str, int]
    average_hold: float
    longest_hold: float
    expired: int
    renewals: int
    renewal_failures: int
    unavailable: int
    """Calls of an acquire that the store did not answer."""

    @property
    def renewal_success_rate(self) -> float:
        """Of all renewals that were answered or failed, the share that succeeded; 1.0 when there was none."""
        tried = self.renewals + self.renewal_failures
        return self.renewals / tried if tried else 1.0


class Event(NamedTuple):
    """Something that happened to a lease of this ``Locks``.

    ``type`` is one of ``acquired``, ``taken_over``, ``renewed``, ``renewal_failed``, ``lost``, ``released``,
    ``refused``, ``broken``, ``skipped``, ``unavailable``, ``release_failed``.
    """

    type: str
    name: str
    owner: str
    token: int | None
    reason: str | None
