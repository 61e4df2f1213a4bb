"""ZooKeeper passes the conformance suite."""

from collections.abc import Iterator

import pytest

from leasehold.testing import StoreUnderTest
from leasehold.testing.conformance import *  # noqa: F403
from servers.base import Server
from servers.plugin import Given

from .zookeeper_probe import ZooKeeperProbe


@pytest.fixture(scope="module")
def probe(zookeeper_server: Server | Given) -> Iterator[ZooKeeperProbe]:
    probe = ZooKeeperProbe(zookeeper_server.url.partition("://")[2])
    yield probe
    probe.close()


@pytest.fixture
def store(zookeeper_server: Server | Given, probe: ZooKeeperProbe) -> StoreUnderTest:
    """A killed holder is replaced when its session is over, which is a little longer than its ttl."""
    return StoreUnderTest(
        "zookeeper", zookeeper_server.url, probe, slack=1.5, rounds=300, wipe=probe.wipe, age=probe.age, joint=True
    )
