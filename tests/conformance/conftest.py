import time

import pytest

from leasehold import clock

from .clocks import StepClock


@pytest.fixture
def step_clock(monkeypatch: pytest.MonkeyPatch) -> StepClock:
    """Steps the wall clock that the embedded stores put into tokens."""

    def step(seconds: float) -> None:
        monkeypatch.setattr(clock, "wall_us", lambda: time.time_ns() // 1000 + int(seconds * 1e6))

    return step


SEVERAL_SECONDS = {
    "test_a_try_for_several_does_not_take_what_is_there_for_a_waiter",
    "test_drain_while_the_store_is_away_ends",
    "test_leaders_can_be_observed",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On the embedded stores these are left out of ``make quick``; ``make test`` has them on every store."""
    for item in items:
        if getattr(item, "originalname", "") in SEVERAL_SECONDS and not item.get_closest_marker("server"):
            item.add_marker(pytest.mark.slow)
