"""etcd passes the conformance suite."""

import pytest

from leasehold.testing import StoreUnderTest
from leasehold.testing.conformance import *  # noqa: F403
from servers.etcd import Etcd

from .etcd_probe import EtcdProbe


@pytest.fixture
def store(etcd_server: Etcd) -> StoreUnderTest:
    probe = EtcdProbe(lambda: [etcd_server.port])
    return StoreUnderTest(
        "etcd",
        etcd_server.url,
        probe,
        # Leases are of whole seconds, and one that has run out is noticed within another half.
        ttl=1.0,
        late=1.5,
        slack=1.0,
        rounds=300,
        wipe=probe.wipe,
        age=probe.age,
        leftovers=probe.leases,
        joint=True,
    )
