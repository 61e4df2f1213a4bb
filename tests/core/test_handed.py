"""A lease that a push brings: how long it can be trusted, and when it has to be asked for instead (S2)."""

import pytest

from leasehold import engine, policy
from leasehold.protocol import SECOND, Busy, Grant

T0, S0 = 100.0, 5_000 * SECOND


class FakeCore:
    def __init__(self, now: float) -> None:
        self._now = now

    def now(self) -> float:
        return self._now


class FakeSpec:
    def __init__(self, **options: object) -> None:
        self.timing = policy.make_timing(**{"ttl": 30.0, **options})


class FakeAsk:
    name, attempt = "a", "0" * 32


def handed(granted_after: float, arrived_after: float, **options: object) -> engine.Taken | None:
    """Asked at T0, when the store's clock read S0; granted and told so many seconds later."""
    grant = Grant(7, at=S0 + int(granted_after * SECOND))
    busy = Busy(None, 0, 1.0, (), S0)
    return engine._handed(FakeCore(T0 + arrived_after), FakeSpec(**options), FakeAsk(), grant, busy, T0)


def test_its_deadline_counts_from_the_grant_by_the_stores_clock() -> None:
    taken = handed(2.0, 2.3)
    assert taken is not None
    assert taken.sent == pytest.approx(T0 + 2.0)
    assert taken.trusted == pytest.approx(policy.FIRST_TERM * 0.99 - 0.05)


def test_it_never_counts_from_later_than_its_arrival() -> None:
    """The store's clock is a little faster than ours."""
    taken = handed(2.02, 2.0)
    assert taken is not None
    assert taken.sent == pytest.approx(T0 + 2.0)


@pytest.mark.parametrize(
    ("granted", "arrived", "options"),
    [
        (2.0, 2.7, {}),  # too late: its first term is over
        (300.0, 2.0, {}),  # the store's clock was set forth meanwhile: it does not tell when
        (3.0, 2.0, {}),
        (3.0, 2.0, {"ttl": 300}),  # however much of its whole term is not trusted
        (-0.1, 0.1, {}),  # older than the answer that said Busy
        (0.0, 0.1, {}),
        (2.0, 2.1, {"renew": False}),  # nobody would extend it
        (2.0, 2.1, {"drift": 0.4}),  # the tolerance leaves nothing of a first term
    ],
)
def test_else_it_has_to_be_asked_for(granted: float, arrived: float, options: dict[str, object]) -> None:
    assert handed(granted, arrived, **options) is None


def test_a_store_without_a_clock_is_asked() -> None:
    busy = Busy(None, 0, 1.0)
    assert engine._handed(FakeCore(T0), FakeSpec(), FakeAsk(), Grant(7), busy, T0) is None
