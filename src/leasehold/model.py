"""Public records: leases as the store lists them, events and counters."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple


class LeaseInfo(NamedTuple):
    """One lease as the store reports it. Times are aware datetimes in UTC.

    Fields:
        name: the name of the lock.
        kind: the label given to ``lock``.
        owner: the owner of the holder's ``Locks``.
        token: the fencing token.
        data: what the holder gave as ``data``.
        acquired: when the lease was acquired.
        expires: when it expires, unless it is renewed.
        waiters: how many wait for the name; None where the store does not know.
    """

    name: str
    kind: str
    owner: str
    token: int
    data: Any
    acquired: datetime
    expires: datetime
    waiters: int | None

    def as_dict(self) -> dict[str, Any]:
        """The record as a dict for JSON. Times are ISO 8601 text."""
        times = {"acquired": self.acquired.isoformat(), "expires": self.expires.isoformat()}
        return {**self._asdict(), **times}


class Counters(NamedTuple):
    """Local counters of one ``Locks`` since it was created: no I/O, so they work while the store is down.

    Fields:
        renewals: renewals that succeeded.
        renewal_failures: renewals that failed.
        unavailable: calls of ``acquire`` that the store did not answer.
    """

    renewals: int
    renewal_failures: int
    unavailable: int


class LockMetrics(NamedTuple):
    """The leases in the namespace now, and the :class:`Counters` of this ``Locks``. Durations are in seconds.

    Fields:
        total: leases held now.
        by_kind: leases held now, by kind.
        by_owner: leases held now, by owner.
        average_hold: how long the held leases have been held, on average.
        longest_hold: how long the oldest of them has been held.
        expired: records of leases that expired and that nobody has taken over yet.
        renewals: renewals of this ``Locks`` that succeeded.
        renewal_failures: renewals of this ``Locks`` that failed.
        unavailable: calls of ``acquire`` that the store did not answer.
    """

    total: int
    by_kind: Mapping[str, int]
    by_owner: Mapping[str, int]
    average_hold: float
    longest_hold: float
    expired: int
    renewals: int
    renewal_failures: int
    unavailable: int

    @property
    def renewal_success_rate(self) -> float:
        """The share of renewals that succeeded; 1.0 if there was none."""
        tried = self.renewals + self.renewal_failures
        return self.renewals / tried if tried else 1.0


class Event(NamedTuple):
    """Something that happened to a lease of this ``Locks``.

    Fields:
        type: ``acquired``, ``taken_over``, ``renewed``, ``renewal_failed``, ``lost``, ``released``, ``refused``,
            ``broken``, ``skipped``, ``unavailable`` or ``release_failed``.
        name: the name of the lock.
        owner: the owner of this ``Locks``.
        token: the fencing token; None if there is none.
        reason: why, in words; None if there is nothing to say.
        store: the scheme of the store's URL, such as ``redis``.
        kind: the label given to ``lock``; None where only the name is known.
        waited: how long the acquire has taken, in seconds: of ``acquired``, ``taken_over``, ``refused``,
            ``unavailable``.
        held: for how long the lease could be trusted, in seconds: of ``released``, ``lost``, ``broken``.
        remaining: for how long it could still be trusted when a renewal was confirmed, in seconds: of ``renewed``. None
            if that ended its first short term, after a hand-over.
    """

    type: str
    name: str
    owner: str
    token: int | None
    reason: str | None
    store: str = ""
    kind: str | None = None
    waited: float | None = None
    held: float | None = None
    remaining: float | None = None
