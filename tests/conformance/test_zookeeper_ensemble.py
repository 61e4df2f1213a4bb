"""Three servers of ZooKeeper pass the conformance suite, whichever of them one is connected to."""

from collections.abc import Iterator

import pytest

from leasehold.testing import StoreUnderTest
from leasehold.testing.conformance import *  # noqa: F403
from servers.plugin import shared
from servers.zookeeper import ZooKeeperEnsemble

from .zookeeper_probe import ZooKeeperProbe


@pytest.fixture(scope="module")
def ensemble() -> Iterator[ZooKeeperEnsemble]:
    yield from shared(ZooKeeperEnsemble)


@pytest.fixture(scope="module")
def probe(ensemble: ZooKeeperEnsemble) -> Iterator[ZooKeeperProbe]:
    probe = ZooKeeperProbe(ensemble.url.partition("://")[2])
    yield probe
    probe.close()


@pytest.fixture
def store(ensemble: ZooKeeperEnsemble, probe: ZooKeeperProbe) -> StoreUnderTest:
    return StoreUnderTest(
        "zookeeper ×3", ensemble.url, probe, slack=1.5, rounds=300, wipe=probe.wipe, age=probe.age, joint=True
    )
