"""Through Sentinels, with a replica that has to confirm every grant, the conformance suite passes."""

import pytest

from leasehold.testing import StoreUnderTest
from leasehold.testing.conformance import *  # noqa: F403
from servers.redis_ensembles import SentinelSetup

from .redis_probe import RedisProbe


@pytest.fixture
def store(redis_sentinels: SentinelSetup) -> StoreUnderTest:
    primary = redis_sentinels.leader()
    probe = RedisProbe(primary.url)
    probe.client.flushall()
    return StoreUnderTest(
        "sentinel",
        f"{redis_sentinels.url}?replicas=1",
        probe,
        wipe=probe.client.flushall,
        age=probe.age,
        leftovers=probe.sessions,
        joint=True,
    )
