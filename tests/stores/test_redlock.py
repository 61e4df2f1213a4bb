"""What is peculiar to a quorum of independent nodes: some of them dead, paused, slow, or back with nothing."""

import statistics
import threading
import time
from collections.abc import Iterator

import pytest
import redis

import leasehold
from leasehold.errors import StoreUnavailable
from servers.proxy import Proxy
from servers.redis import Redis


@pytest.fixture
def nodes(start_server) -> list[Redis]:
    return [start_server(Redis) for _ in range(5)]


@pytest.fixture
def locks(nodes: list[Redis]) -> Iterator[leasehold.Locks]:
    with leasehold.connect(url(nodes)) as locks:
        yield locks


def url(nodes) -> str:
    return "redlock://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


def pair(locks: leasehold.Locks, count: int = 40) -> float:
    """Median seconds of an acquire and release."""
    taken = []
    lock = locks.lock("pair")
    for _ in range(count):
        began = time.perf_counter()
        lock.acquire(timeout=10).release()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def holders(node: Redis, name: str) -> bytes | None:
    return redis.Redis(port=node.port).hget(f"leasehold:{{:{name}}}", "h")


def eventually(true, within=5.0) -> None:
    ends = time.monotonic() + within
    while not true():
        assert time.monotonic() < ends, "not so in time"
        time.sleep(0.01)


def test_a_minority_may_be_dead(nodes, locks) -> None:
    before = locks.lock("a").acquire().token
    for node in nodes[:2]:
        node.kill()
    lease = locks.lock("b", ttl=2).acquire(timeout=5)
    time.sleep(1.5)
    assert lease.valid, "renewed by the other three"
    assert lease.release() is True
    eventually(lambda: locks.lock("a").try_acquire() is not None or True)
    assert locks.lock("c").acquire(timeout=5).token > before


def test_a_majority_may_not(nodes, locks) -> None:
    lease = locks.lock("a", ttl=1.5).acquire()
    for node in nodes[:3]:
        node.kill()
    with pytest.raises(StoreUnavailable, match="3 of 5"):
        locks.lock("b", ttl=2).try_acquire()
    assert lease.lost.wait(2)
    for node in nodes[3:]:
        eventually(lambda node=node: holders(node, "b") is None)


@pytest.mark.parametrize("fault", ["dead", "paused", "blackholed"])
def test_one_bad_node_does_not_slow_it_down(nodes, fault: str) -> None:
    proxy = Proxy(nodes[0].port)
    proxy.start()
    try:
        addresses = f"127.0.0.1:{proxy.port}," + url(nodes[1:]).partition("://")[2]
        with leasehold.connect(f"redlock://{addresses}") as locks:
            pair(locks, 10)
            healthy = pair(locks)
            match fault:
                case "dead":
                    nodes[0].kill()
                case "paused":
                    nodes[0].pause()
                case "blackholed":
                    proxy.blackhole()
            pair(locks, 5)
            slow = pair(locks)
            assert slow <= 1.5 * healthy + 0.001
    finally:
        if fault == "paused":
            nodes[0].resume()
        proxy.close()


def test_tokens_rise_when_a_different_majority_grants(nodes, locks) -> None:
    """The highest token is written to a majority before the grant is returned: any later majority has seen it."""
    ahead = redis.Redis(port=nodes[0].port)
    future = 5 * 10**15  # one node's counter is far ahead of everybody's clock
    ahead.hset("leasehold:{:a}", mapping={"f": "1", "t": str(future)})
    nodes[3].pause()
    nodes[4].pause()
    first = locks.lock("a").acquire(timeout=5)
    first.release()
    nodes[3].resume()
    nodes[4].resume()
    nodes[0].kill()
    with leasehold.connect(url(nodes)) as other:
        second = other.lock("a").acquire(timeout=5)
    assert future < first.token < second.token


def test_a_node_that_comes_back_empty(nodes, locks) -> None:
    """One that has forgotten is not enough for anybody else; and a token is never given twice."""
    lease = locks.lock("a", ttl=20).acquire()
    nodes[0].kill()
    nodes[0].start()
    with leasehold.connect(url(nodes)) as other:
        assert other.lock("a").try_acquire(timeout=0.3) is None
        eventually(lambda: holders(nodes[0], "a") is None)
        lease.renew()
        assert lease.release() is True
        assert other.lock("a").acquire(timeout=5).token > lease.token


def test_the_known_violation_and_what_the_token_makes_of_it(nodes, locks) -> None:
    """If a majority forgets, two can hold it: the resource that compares tokens still refuses the older one."""
    lease = locks.lock("a", ttl=20).acquire()
    for node in nodes[:3]:
        node.kill()
        node.start()
    with leasehold.connect(url(nodes)) as other:
        second = other.lock("a").acquire(timeout=5)
        assert lease.valid
        assert second.token > lease.token


def test_what_a_slow_node_grants_late_is_given_back(nodes) -> None:
    proxy = Proxy(nodes[0].port)
    proxy.start()
    try:
        addresses = f"127.0.0.1:{proxy.port}," + url(nodes[1:]).partition("://")[2]
        with leasehold.connect(f"redlock://{addresses}") as locks, leasehold.connect(url(nodes)) as other:
            locks.lock("warm").acquire().release()
            held = other.lock("a").acquire()
            redis.Redis(port=nodes[0].port).flushall()  # it would grant
            proxy.delay(0.15)
            assert locks.lock("a").try_acquire() is None
            eventually(lambda: holders(nodes[0], "a") is None)
            proxy.all_well()
            held.release()
    finally:
        proxy.close()


def test_contenders_exclude_each_other(nodes) -> None:
    value = 0
    tokens: list[int] = []

    def work() -> None:
        nonlocal value
        with leasehold.connect(url(nodes)) as locks:
            for _ in range(10):
                with locks.lock("a", timeout=60) as lease:
                    seen = value
                    time.sleep(0.001)
                    value = seen + 1
                    tokens.append(lease.token)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert value == 40
    assert tokens == sorted(tokens)
    assert len(set(tokens)) == 40


def test_fair_is_refused(locks) -> None:
    with pytest.raises(ValueError, match="fair=True"):
        locks.lock("a", fair=True)


def test_a_ttl_too_short_for_the_drift_is_refused(locks) -> None:
    with pytest.raises(ValueError, match="too short"):
        locks.lock("a", ttl=1, drift=0.6)
