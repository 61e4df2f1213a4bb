"""The embedded store passes the conformance suite."""

import os
from pathlib import Path

import pytest

from leasehold.testing import StoreUnderTest
from leasehold.testing.conformance import *  # noqa: F403

from .clocks import StepClock
from .probes import SqliteProbe


@pytest.fixture
def store(tmp_path: Path, step_clock: StepClock) -> StoreUnderTest:
    path = tmp_path / "leases.db"
    wake = tmp_path / "leases.db-wake"
    probe = SqliteProbe(path)
    return StoreUnderTest(
        "sqlite",
        f"sqlite:///{path}",
        probe,
        wipe=path.unlink,
        step_clock=step_clock,
        age=probe.age,
        leftovers=lambda: os.listdir(wake) if wake.exists() else [],
        joint=True,
    )
