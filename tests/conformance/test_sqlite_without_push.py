"""The embedded store where no FIFO can be made: waiters poll, deaths are told by expiry, and the rest is the same."""

from pathlib import Path

import pytest

from leasehold.testing import StoreUnderTest
from leasehold.testing.conformance import *  # noqa: F403

from .probes import SqliteProbe

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path: Path) -> StoreUnderTest:
    path = tmp_path / "leases.db"
    (tmp_path / "leases.db-wake").write_text("where the FIFOs would be")
    return StoreUnderTest(
        "sqlite without push", f"sqlite:///{path}", SqliteProbe(path), push=False, rounds=100, joint=True
    )
