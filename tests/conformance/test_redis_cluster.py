"""A cluster of three masters passes the conformance suite."""

import pytest
import redis

from leasehold.testing import StoreUnderTest
from leasehold.testing.conformance import *  # noqa: F403
from servers.redis_ensembles import RedisCluster

from .redis_probe import RedisProbe


@pytest.fixture
def store(redis_cluster: RedisCluster) -> StoreUnderTest:
    client = redis.RedisCluster(host="127.0.0.1", port=redis_cluster.members[0].port)

    def wipe() -> None:
        client.flushall(target_nodes=redis.RedisCluster.PRIMARIES)

    wipe()
    probe = RedisProbe("", client)
    return StoreUnderTest("cluster", redis_cluster.url, probe, wipe=wipe, age=probe.age)
