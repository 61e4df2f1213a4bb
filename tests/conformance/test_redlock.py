"""A quorum of three independent nodes keeps the contract, but for order of arrival and push."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import mode

import pytest

from leasehold.testing import Held, StoreUnderTest
from leasehold.testing.conformance import *  # noqa: F403
from servers.plugin import shared
from servers.redis import Redis

from .redis_probe import RedisProbe

QUEUES = (
    "test_op_abandon_undoes_an_attempt",
    "test_min_hold_reaches_one_who_already_waits",
    "test_inspect_shows_the_holder",
    "test_the_deadline_of_a_hand_off_is_not_later_than_the_store_says",
    "test_break_serves_the_queue",
    "test_a_waiting_acquire_is_served_when_the_name_becomes_free",
    "test_expiry_reaches_the_waiter",
    "test_a_cancelled_waiter_leaves_nothing",
    "test_a_waiter_that_timed_out_leaves_nothing",
    "test_cancelling_just_as_it_is_granted_leaves_nothing",
    "test_a_dead_waiter_holds_up_nobody",
    "test_dead_waiters_hold_up_nobody_when_the_holder_dies_too",
    "test_unfair_locks_are_served_too",
    "test_close_ends_a_waiting_acquire",
    "test_a_waiter_whose_answer_was_lost_queues_once",
    "test_a_waiter_that_gives_up_in_an_outage_leaves_nothing_once_it_is_over",
)


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
            Held(each[0].owner, mode(held.token for held in each), min(held.expires_in for held in each))
            for each in seen.values()
            if len(each) >= 2
        ]

    def waiters(self, namespace: str, name: str) -> int:
        return 0

    def wipe(self) -> None:
        for node in self.nodes:
            node.client.flushall()

    def age(self, namespace: str, name: str) -> None:
        for node in self.nodes:
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
        wipe=probe.wipe,
        age=probe.age,
        rounds=200,
        notes=dict.fromkeys(QUEUES, "it has no queue: whoever waits looks again by itself"),
    )
