"""A quorum of three independent nodes passes the conformance suite, but for order of arrival and push."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import mode

import pytest

from leasehold.testing import Held, StoreUnderTest
from leasehold.testing.conformance import *  # noqa: F403
from leasehold.testing.handles import eventually
from servers.plugin import shared
from servers.redis import Redis

from .redis_probe import RedisProbe


class QuorumProbe:
    """What two of three nodes say."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.nodes = [RedisProbe(url) for url in urls]

    def names(self, namespace: str) -> Sequence[str]:
        return sorted({name for node in self.nodes for name in node.names(namespace)})

    def holders(self, namespace: str, name: str) -> Sequence[Held]:
        seen: dict[bytes, list[Held]] = {}
        for node in self.nodes:
            for attempt, held in node.attempts(namespace, name):
                seen.setdefault(attempt, []).append(held)
        return [
            Held(each[0].owner, mode(held.token for held in each), sorted(held.expires_in for held in each)[-2])
            for each in seen.values()
            if len(each) >= 2
        ]

    def waiters(self, namespace: str, name: str) -> int:
        return 0

    def wipe(self) -> None:
        for node in self.nodes:
            node.client.flushall()

    def age(self, namespace: str, name: str) -> None:
        """Not before each node has taken and given back what a majority has: the slowest would write it anew."""
        for node in self.nodes:
            key = node.key(namespace, name)
            eventually(lambda node=node, key=key: node.client.exists(key) and not node.client.hexists(key, "h"))
            node.age(namespace, name)


@pytest.fixture(scope="session")
def nodes() -> Iterator[list[str]]:
    with ExitStack() as stack:
        servers = [stack.enter_context(contextmanager(shared)(Redis)) for _ in range(3)]
        yield [server.url for server in servers]


@pytest.fixture
def store(nodes: list[str]) -> StoreUnderTest:
    probe = QuorumProbe(nodes)
    probe.wipe()
    url = "redlock://" + ",".join(node.partition("://")[2].partition("/")[0] for node in nodes)
    return StoreUnderTest(
        "redlock",
        url,
        probe,
        push=False,
        fair=False,
        lacks=("semaphore", "rwlock", "heir", "note"),
        wipe=probe.wipe,
        age=probe.age,
        rounds=200,
    )
