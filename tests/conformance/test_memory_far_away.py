"""The same suite over a network: every operation takes 30 ms, so that things meet on the way."""

import pytest

from leasehold.testing import StoreUnderTest
from leasehold.testing.conformance import *  # noqa: F403

from .probes import MemoryProbe

pytestmark = pytest.mark.slow


@pytest.fixture
def store() -> StoreUnderTest:
    return StoreUnderTest(
        "memory, far away",
        "memory://far-away",
        MemoryProbe("far-away"),
        shared=False,
        latency=0.03,
        rounds=30,
        ttl=1.0,
        joint=True,
    )
