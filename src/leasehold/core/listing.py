"""What the store holds, as people want to see it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from ..model import LeaseInfo, LockMetrics
from .protocol import Holding
from .registry import Registry

PAGE = 500
"""Records in one page of a listing."""


def info(holding: Holding) -> LeaseInfo:
    """A holding for people: wall-clock times, data decoded."""
    now = datetime.now(UTC)
    return LeaseInfo(
        holding.name,
        holding.kind,
        holding.owner,
        holding.token,
        None if holding.data is None else json.loads(holding.data),
        now - timedelta(seconds=holding.age),
        now + timedelta(seconds=holding.expires_in),
        holding.waiters,
    )


def first(holdings: Sequence[Holding]) -> LeaseInfo | None:
    """Who holds a name (of several holders, the first), or None."""
    return info(holdings[0]) if holdings else None


def metrics(core: Registry, holdings: Iterable[Holding]) -> LockMetrics:
    by_kind: dict[str, int] = {}
    by_owner: dict[str, int] = {}
    ages = []
    expired = 0
    for holding in holdings:
        if holding.expires_in <= 0:
            expired += bool(holding.attempt)  # without one it was given back, and min_hold alone had run on
            continue
        ages.append(holding.age)
        by_kind[holding.kind] = by_kind.get(holding.kind, 0) + 1
        by_owner[holding.owner] = by_owner.get(holding.owner, 0) + 1
    average = sum(ages) / len(ages) if ages else 0.0
    longest = max(ages, default=0.0)
    return LockMetrics(len(ages), by_kind, by_owner, average, longest, expired, *core.counters())
