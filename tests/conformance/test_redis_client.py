"""With a client that the user has made, whatever it does to replies, the conformance suite passes."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

from leasehold.testing import StoreUnderTest
from leasehold.testing.conformance import *  # noqa: F403
from servers.base import Server
from servers.plugin import Given

from .redis_probe import RedisProbe

# The loop that a client of asyncio lived in is closed when the test ends, and the client is not ours to close.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:unclosed:ResourceWarning"
)


@pytest.fixture
def store(redis_server: Server | Given) -> Iterator[StoreUnderTest]:
    probe = RedisProbe(redis_server.url)
    probe.client.flushall()
    made: list[Any] = []

    def client(side: str) -> Any:
        kind = redis.Redis if side == "threads" else redis.asyncio.Redis
        made.append(kind.from_url(redis_server.url, decode_responses=True, protocol=3, socket_timeout=1))
        return made[-1]

    yield StoreUnderTest(
        "client",
        redis_server.url,
        probe,
        client=client,
        wipe=probe.client.flushall,
        age=probe.age,
        count_files=False,
        joint=True,
    )
    for each in made:
        if isinstance(each, redis.Redis):
            each.close()
