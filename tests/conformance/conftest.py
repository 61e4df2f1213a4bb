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
