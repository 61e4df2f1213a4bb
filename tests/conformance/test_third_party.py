"""A store that ``connect`` does not know is tested by the same suite: this one comes in by its opener."""

from pathlib import Path

import pytest

from leasehold.testing import StoreUnderTest
from leasehold.testing.conformance import (  # noqa: F401
    scene,
    test_a_killed_holder_is_replaced,
    test_a_lease_stands_in_the_store_while_it_is_held,
    test_op_queue_has_places,
)

from .probes import SqliteProbe


@pytest.fixture
def store(tmp_path: Path) -> StoreUnderTest:
    path = tmp_path / "leases.db"
    return StoreUnderTest(
        "theirs", f"theirs:///{path}", SqliteProbe(path), opener="leasehold.stores.sqlite:open_url", joint=True
    )
