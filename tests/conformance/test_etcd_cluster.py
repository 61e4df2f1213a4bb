"""A cluster of three passes the conformance suite, whichever member is asked."""

from collections.abc import Iterator

import pytest

from leasehold.testing import StoreUnderTest
from leasehold.testing.conformance import *  # noqa: F403
from servers.etcd import EtcdCluster
from servers.plugin import shared

from .etcd_probe import EtcdProbe


@pytest.fixture(scope="session")
def etcd_cluster() -> Iterator[EtcdCluster]:
    yield from shared(EtcdCluster)


@pytest.fixture
def store(etcd_cluster: EtcdCluster) -> StoreUnderTest:
    probe = EtcdProbe(lambda: [member.port for member in etcd_cluster.members])
    # See test_etcd.py.
    return StoreUnderTest(
        "etcd_cluster",
        etcd_cluster.url,
        probe,
        ttl=1.0,
        late=1.5,
        slack=1.0,
        rounds=200,
        wipe=probe.wipe,
        age=probe.age,
        leftovers=probe.leases,
        joint=True,
    )
