"""The model server of the simulation passes the suite that ZooKeeper passes, but for what needs other processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasehold.stores.zookeeper import sessions
from leasehold.testing import StoreUnderTest
from leasehold.testing.conformance import *  # noqa: F403
from simulation.zookeeper_real import Clockwork, ModelProbe


@pytest.fixture(scope="module")
def clockwork() -> Iterator[Clockwork]:
    clockwork = Clockwork()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "KazooClient", clockwork.client)
        yield clockwork
    clockwork.close()


@pytest.fixture
def store(clockwork: Clockwork) -> StoreUnderTest:
    probe = ModelProbe(clockwork.server)
    return StoreUnderTest(
        *("model of ZooKeeper", "model://", probe, "simulation.zookeeper_real:open_model"),
        **{"shared": False, "slack": 1.5, "rounds": 300, "wipe": clockwork.wipe, "age": probe.age, "joint": True},
    )
