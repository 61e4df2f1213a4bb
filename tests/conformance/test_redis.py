"""Redis and Valkey pass the conformance suite."""

import pytest

from leasehold.testing import StoreUnderTest
from leasehold.testing.conformance import *  # noqa: F403
from servers.base import Server
from servers.plugin import Given

from .redis_probe import RedisProbe


@pytest.fixture(params=["redis_server", "valkey_server"])
def store(request: pytest.FixtureRequest) -> StoreUnderTest:
    server: Server | Given = request.getfixturevalue(request.param)
    probe = RedisProbe(server.url)
    probe.client.flushall()
    return StoreUnderTest(
        request.param.partition("_")[0],
        server.url,
        probe,
        wipe=probe.client.flushall,
        age=probe.age,
        leftovers=probe.sessions,
        joint=True,
    )
