"""The memory store passes the conformance suite, but for what needs more than one process."""

import pytest

from leasehold.testing import StoreUnderTest
from leasehold.testing.conformance import *  # noqa: F403

from .clocks import StepClock
from .probes import MemoryProbe


@pytest.fixture
def store(step_clock: StepClock) -> StoreUnderTest:
    probe = MemoryProbe("conformance")
    return StoreUnderTest(
        "memory",
        "memory://conformance",
        probe,
        shared=False,
        wipe=probe.table.rows.clear,
        step_clock=step_clock,
        joint=True,
    )
