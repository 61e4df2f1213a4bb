"""Errors go from one process to another: what a pool of workers raises is what its caller sees."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

import leasehold
from leasehold import fence
from leasehold.kinds.once.note import DamagedNote
from leasehold.kinds.once.outcome import OnceFailed, Outcome, TooManyOutcomes
from leasehold.stores.sql.pool import PoolTimeout

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOLDER = leasehold.LeaseInfo("x", "lock", "me", 7, {"a": [1]}, NOW, NOW, 2)
OUTCOME = Outcome("x", "1", "failed", "me", 7, NOW, NOW, 1.5, "ValueError: no", 2, None, True)


def kinds(base: type[Exception] = leasehold.LeaseholdError) -> Iterator[type[Exception]]:
    for kind in base.__subclasses__():
        if kind.__module__.startswith("leasehold.") and not kind.__module__.startswith("leasehold.stores."):
            yield kind
            yield from kinds(kind)


MADE: dict[type[Exception], Callable[[], Exception]] = {
    leasehold.LeaseholdError: lambda: leasehold.LeaseholdError("why"),
    leasehold.AcquireTimeout: lambda: leasehold.AcquireTimeout("busy", HOLDER),
    leasehold.AcquireCancelled: lambda: leasehold.AcquireCancelled("the event"),
    leasehold.LeaseLost: lambda: leasehold.LeaseLost("x", "broken"),
    leasehold.ShuttingDown: lambda: leasehold.ShuttingDown("closed"),
    leasehold.StoreError: lambda: leasehold.StoreError("no"),
    leasehold.StoreUnavailable: lambda: leasehold.StoreUnavailable("away"),
    leasehold.StoreNotReady: lambda: leasehold.StoreNotReady("no table"),
    fence.StaleToken: lambda: fence.StaleToken("x", 5),
    OnceFailed: lambda: OnceFailed(OUTCOME),
    PoolTimeout: lambda: PoolTimeout(5, 0.0, 1.0, None),
    TooManyOutcomes: lambda: TooManyOutcomes("no room"),
    DamagedNote: lambda: DamagedNote("not an outcome"),
}


def test_every_public_error_is_among_the_pickled_examples() -> None:
    """But for those of the stores themselves, which come and go with their drivers: one stands for all."""
    assert {leasehold.LeaseholdError, *kinds()} == set(MADE) - {PoolTimeout}


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_can_be_pickled(kind: type[Exception], protocol: int) -> None:
    error = MADE[kind]()
    error.add_note("seen")
    for again in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error)):
        assert type(again) is kind
        assert str(again) == str(error)
        assert again.args == error.args
        assert vars(again) == vars(error)
        assert again.__notes__ == ["seen"]


def test_pickled_errors_keep_their_attributes() -> None:
    def sent(error: Any) -> Any:
        return pickle.loads(pickle.dumps(error))

    assert sent(leasehold.AcquireTimeout("busy", HOLDER)).holder == HOLDER
    lost = sent(leasehold.LeaseLost("x", "broken"))
    assert (lost.name, lost.reason, str(lost)) == ("x", "broken", "lease 'x' is lost: broken")
    stale = sent(fence.StaleToken("x", 5))
    assert (stale.name, stale.token) == ("x", 5)
    assert "5" in stale.reason
    failed = sent(OnceFailed(OUTCOME))
    assert failed.outcome == OUTCOME
    assert failed.outcome.ok is False
    away = leasehold.StoreUnavailable("away")
    away.queued = True
    assert sent(away).queued


class Mine(leasehold.LeaseLost):
    """One of a user's own."""

    def __init__(self, lease: str, more: int) -> None:
        super().__init__(lease, "mine")
        self.more = more


def test_error_of_a_users_subclass_can_be_pickled() -> None:
    again = pickle.loads(pickle.dumps(Mine("x", 3)))
    assert (type(again), again.more, again.reason) == (Mine, 3, "mine")
