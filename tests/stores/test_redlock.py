"""What is peculiar to a quorum of independent nodes: some of them dead, paused, slow, or back with nothing."""

import asyncio
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partialmethod
from typing import Any

import pytest
import redis
from redis_tools import Renewed, direct, renewal
from redlock_nodes import be_patient, behind_a_proxy, holders, url

import leasehold
from leasehold import aio
from leasehold.core.protocol import RENEWED
from leasehold.errors import LeaseLost, StoreNotReady, StoreUnavailable
from leasehold.stores.redis.transport_tasks import TaskTransport
from leasehold.stores.redis.transport_threads import ThreadTransport
from leasehold.stores.redlock.node import REST
from leasehold.testing.handles import in_time
from servers.proxy import Proxy
from servers.redis import Redis

PATIENCE = 3.0
"""What a node may take here, at a ttl of 30 s: on a machine that does other things too, half a second is soon over."""
WITHOUT_IT = 0.9 * PATIENCE
"""Whoever takes longer has waited for a node that does not answer."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch, PATIENCE)


@pytest.fixture
def nodes(start_server) -> list[Redis]:
    return [start_server(Redis) for _ in range(5)]


@pytest.fixture
def locks(nodes: list[Redis]) -> Iterator[leasehold.Locks]:
    with leasehold.connect(url(nodes)) as locks:
        yield locks


def pair(locks: leasehold.Locks, count: int = 40) -> float:
    """Median seconds of an acquire and release."""
    taken = []
    lock = locks.lock("pair")
    for _ in range(count):
        began = time.perf_counter()
        lock.acquire(timeout=10).release()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def eventually(true, within=60.0) -> None:
    ends = time.monotonic() + within
    while not true():
        assert time.monotonic() < ends, "not so in time"
        time.sleep(0.01)


def everywhere(nodes, name: str) -> None:
    """Wait until each node has granted it: a majority has when the lease is had, the others may yet be about to."""
    eventually(lambda: all(holders(node, name) for node in nodes))


def all_answer(locks: leasehold.Locks) -> bool:
    """Whether all nodes do; connections that have gone are noticed by it."""
    with suppress(StoreUnavailable):
        locks.inspect("elsewhere")
    return all(node.health._error is None for node in locks._core.driver._nodes)


def test_a_minority_may_be_dead(nodes, locks) -> None:
    before = locks.lock("a").acquire().token
    for node in nodes[:2]:
        node.kill()
    lease = locks.lock("b", ttl=60, renew_every=0.5, max_renew_failures=1000).acquire(timeout=20)
    eventually(Renewed([lease]))  # by the other three
    assert lease.valid
    assert lease.release() is True
    assert locks.lock("c").acquire(timeout=20).token > before


def test_a_majority_may_not(nodes, locks) -> None:
    lease = locks.lock("a", ttl=1.5).acquire()
    for node in nodes[:3]:
        node.kill()
    with pytest.raises(StoreUnavailable, match="3 of 5"):
        locks.lock("b", ttl=2).try_acquire()
    assert lease.lost.wait(20)
    for node in nodes[3:]:
        eventually(lambda node=node: holders(node, "b") is None)


def test_busy_is_not_away_when_a_minority_is_dead(nodes, locks) -> None:
    """A dead node's silence does not count as a refusal: the answer is that another holds it."""
    with leasehold.connect(url(nodes)) as other:
        held = other.lock("a", ttl=60).acquire()
        everywhere(nodes, "a")
        for node in nodes[:2]:
            node.kill()
        for _ in range(20):
            assert locks.lock("a").try_acquire() is None
        assert held.release() is True


def spoil(node: Redis, proxy: Proxy, fault: str) -> None:
    match fault:
        case "dead":
            node.kill()
        case "paused":
            node.pause()
        case "blackholed":
            proxy.blackhole()


@pytest.mark.parametrize("fault", ["dead", "paused", "blackholed"])
def test_one_bad_node_is_not_waited_for(nodes, fault: str) -> None:
    """B4."""
    with behind_a_proxy(nodes) as (address, proxy), leasehold.connect(address) as locks:
        pair(locks, 5)
        bad = locks._core.driver._nodes[0]

        def slowest() -> float:
            eventually(lambda: not bad.health.resting())  # it is asked again, and who waits for it takes as long
            return max(pair(locks, 1) for _ in range(20))

        spoil(nodes[0], proxy, fault)
        in_time(slowest, WITHOUT_IT)
        eventually(bad.jobs.empty)  # what it was asked meanwhile has failed, and does not pile up
        if fault == "paused":
            nodes[0].resume()


@pytest.mark.parametrize("fault", ["dead", "paused", "blackholed"])
async def test_one_bad_node_is_not_waited_for_by_tasks(nodes, fault: str) -> None:
    with behind_a_proxy(nodes) as (address, proxy):
        async with aio.connect(address) as locks:
            lock = locks.lock("pair")
            await (await lock.acquire()).release()
            bad = locks._core.driver._nodes[0]

            async def slowest() -> float:
                while bad.health.resting():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                taken = []
                for _ in range(20):
                    began = time.perf_counter()
                    await (await lock.acquire()).release()
                    taken.append(time.perf_counter() - began)
                return max(taken)

            spoil(nodes[0], proxy, fault)
            took = [await slowest()]
            while min(took) > WITHOUT_IT:  # as ``in_time``
                assert len(took) < 5, took
                took.append(await slowest())
            if fault == "paused":
                nodes[0].resume()


async def acquire(locks: aio.Locks) -> aio.Lease:
    return await locks.lock("a").acquire()


async def test_a_cancelled_acquire_leaves_nothing_on_any_node(nodes) -> None:
    async with aio.connect(url(nodes)) as locks:
        await (await locks.lock("warm").acquire()).release()
        for delay in range(40):
            task = asyncio.ensure_future(acquire(locks))
            await asyncio.sleep(delay / 10_000)
            task.cancel()
            try:
                await (await task).release()
            except asyncio.CancelledError:
                pass
        for node in nodes:
            await asyncio.to_thread(eventually, lambda node=node: holders(node, "a") is None)


def test_what_a_node_missed_comes_before_what_it_is_asked_next(nodes) -> None:
    """A release that one node did not take must not make that node refuse the next acquire."""
    with behind_a_proxy(nodes) as (address, proxy), leasehold.connect(address) as locks:
        lease = locks.lock("a", ttl=20).acquire()
        eventually(lambda: holders(nodes[0], "a") is not None)
        proxy.reset()
        assert lease.release() is True
        for node in nodes[1:3]:
            node.kill()  # from now on it takes all three of the others
        proxy.all_well()
        time.sleep(REST + 0.1)
        again = locks.lock("a", ttl=20).try_acquire()
        assert again is not None
        assert again.token > lease.token


def test_what_a_node_missed_is_made_up_for_when_nobody_asks(nodes) -> None:
    with behind_a_proxy(nodes) as (address, proxy), leasehold.connect(address) as locks:
        lease = locks.lock("a", ttl=20).acquire()
        eventually(lambda: holders(nodes[0], "a") is not None)
        proxy.reset()
        assert lease.release() is True
        time.sleep(0.1)
        assert holders(nodes[0], "a") is not None
        proxy.all_well()
        eventually(lambda: holders(nodes[0], "a") is None)


def test_one_who_stood_still_does_not_blame_the_nodes(nodes, locks) -> None:
    """All have failed a moment ago, as when this process was paused in the middle of a call: they are asked again."""
    locks.lock("warm").acquire().release()
    for node in nodes:
        node.pause()
    with pytest.raises(StoreUnavailable):
        locks.lock("a", ttl=2).try_acquire()
    for node in nodes:
        node.resume()
    assert locks.lock("b").try_acquire() is not None


def test_what_nobody_waits_for_any_more_is_not_begun(nodes, locks, monkeypatch) -> None:
    """Callers that come while a majority hangs leave no backlog: what they asked is forgotten when they have gone."""
    locks.lock("warm").acquire().release()
    for node in nodes[:3]:
        node.pause()
    be_patient(monkeypatch, 0.5)

    def work() -> None:
        with pytest.raises(StoreUnavailable):
            locks.lock("a", ttl=20).try_acquire()

    threads = [threading.Thread(target=work) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    # One alone may take 0.5 s, and each has asked twice: to do it all would take far longer.
    eventually(lambda: all(node.jobs.empty() for node in locks._core.driver._nodes), 15.0)
    be_patient(monkeypatch, PATIENCE)
    for node in nodes[:3]:
        node.resume()
    eventually(lambda: all(holders(node, "a") is None for node in nodes))
    assert locks.lock("a", ttl=20).try_acquire() is not None


@pytest.mark.parametrize("forgetful", [2, 3])
def test_the_last_node_decides_a_renewal(nodes, monkeypatch, forgetful: int) -> None:
    """Two have forgotten the lease, two renew it: it is up to the one that answers last."""
    be_patient(monkeypatch, 60.0)  # that one has as long as the whole call
    with behind_a_proxy(nodes) as (address, proxy), leasehold.connect(address) as locks:
        lease = locks.lock("a", ttl=600).acquire()
        everywhere(nodes, "a")
        for node in nodes[-forgetful:]:
            redis.Redis(port=node.port).flushall()
        proxy.delay(0.1)
        if forgetful == 2:
            lease.renew()
        else:
            with pytest.raises(LeaseLost):
                lease.renew()
        assert lease.valid == (forgetful == 2)
        proxy.all_well()


def test_tokens_rise_when_a_different_majority_grants(nodes, locks) -> None:
    """The highest token is written to a majority before the grant is returned: any later majority has seen it."""
    ahead = redis.Redis(port=nodes[0].port)
    future = 5 * 10**15  # one node's counter is far ahead of everybody's clock
    ahead.hset("leasehold:{:a}", mapping={"f": "1", "t": str(future)})
    nodes[3].pause()
    nodes[4].pause()
    first = locks.lock("a").acquire(timeout=20)
    first.release()
    nodes[3].resume()
    nodes[4].resume()
    nodes[0].kill()
    with leasehold.connect(url(nodes)) as other:
        second = other.lock("a").acquire(timeout=20)
    assert future < first.token < second.token


def test_a_node_that_comes_back_empty(nodes, locks) -> None:
    """One that has forgotten is not enough for anybody else; and a token is never given twice."""
    lease = locks.lock("a", ttl=60).acquire()
    everywhere(nodes, "a")
    nodes[0].kill()
    nodes[0].start()
    with leasehold.connect(url(nodes)) as other:
        for _ in range(5):
            assert other.lock("a").try_acquire() is None
        eventually(lambda: holders(nodes[0], "a") is None)
        lease.renew()
        assert lease.release() is True
        assert other.lock("a").acquire(timeout=20).token > lease.token


def test_the_known_violation_and_what_the_token_makes_of_it(nodes, locks) -> None:
    """If a majority forgets, two can hold it: the resource that compares tokens still refuses the older one."""
    lease = locks.lock("a", ttl=600).acquire()
    everywhere(nodes, "a")
    for node in nodes[:3]:
        node.kill()
        node.start()
    eventually(lambda: all_answer(locks))  # one that does not may have had it too
    with leasehold.connect(url(nodes)) as other:
        second = other.lock("a").acquire(timeout=20)
        assert lease.valid
        assert second.token > lease.token
        assert lease.release() is False  # two nodes still had it, but those are no majority
        assert holders(nodes[0], "a")  # and the other's is left alone


def test_what_a_slow_node_grants_late_is_given_back(nodes) -> None:
    with (
        behind_a_proxy(nodes) as (address, proxy),
        leasehold.connect(address) as locks,
        leasehold.connect(url(nodes)) as other,
    ):
        locks.lock("warm").acquire().release()
        held = other.lock("a").acquire()
        everywhere(nodes, "a")
        redis.Redis(port=nodes[0].port).flushall()  # it would grant
        proxy.delay(0.15)
        assert locks.lock("a").try_acquire() is None
        slow = redis.Redis(port=nodes[0].port)
        eventually(lambda: slow.hget("leasehold:{:a}", "t") is not None)  # it has granted
        eventually(lambda: holders(nodes[0], "a") is None)  # and heard that nobody wants it
        proxy.all_well()
        held.release()


def test_contenders_exclude_each_other(nodes) -> None:
    """B4."""
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


def test_a_holder_killed_is_replaced(nodes, locks) -> None:
    """A waiter that gets no time from the machine is late all the same: then once more."""
    ttl = 1.0
    in_time(lambda: until_replaced(nodes, locks, ttl), ttl + 1.0)


def until_replaced(nodes, locks: leasehold.Locks, ttl: float) -> float:
    """Seconds from the death of a holder until another has its lease."""
    code = (
        f"import leasehold, time; l = leasehold.connect({url(nodes)!r}).lock('a', ttl={ttl}).acquire(); "
        "print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.kill()
        killed = time.monotonic()
        with locks.lock("a").acquire(timeout=30):
            return time.monotonic() - killed


def test_fair_is_refused(locks) -> None:
    with pytest.raises(ValueError, match="fair=True"):
        locks.lock("a", fair=True)


def test_a_ttl_too_short_for_the_drift_is_refused(locks) -> None:
    """B5."""
    with pytest.raises(ValueError, match="too short"):
        locks.lock("a", ttl=1, drift=0.6)


# What has to be mended.


@pytest.mark.parametrize("side", ["threads", "asyncio"])
def test_what_a_majority_refuses_is_said_at_once(nodes, side: str) -> None:
    for node in nodes[:3]:
        redis.Redis(port=node.port).config_set("requirepass", "right")
    ours = url(nodes).replace("://", "://:wrong@")

    async def ask() -> None:
        async with aio.connect(ours) as locks:
            with pytest.raises(StoreNotReady, match="password"):
                await locks.lock("a").acquire(timeout=60)

    if side == "asyncio":
        return asyncio.run(ask())
    with leasehold.connect(ours) as locks, pytest.raises(StoreNotReady, match="password"):
        locks.lock("a").acquire(timeout=60)
    return None


def test_what_a_minority_refuses_is_no_matter(nodes) -> None:
    for node in nodes[:2]:
        redis.Redis(port=node.port).config_set("requirepass", "right")
    with leasehold.connect(url(nodes)) as locks:
        lease = locks.lock("a").acquire(timeout=20)
        lease.renew()
        assert lease.release()


@pytest.mark.parametrize("spoilt", [2, 3])
def test_a_node_that_cannot_read_a_record_has_no_vote(nodes, locks, spoilt: int) -> None:
    leases = [locks.lock(name, ttl=600).acquire(timeout=20) for name in "ab"]
    with direct(url(nodes)) as store:
        attempts = [store.run(store.store.inspect(lease.name))[0].attempt for lease in leases]
        batch = [renewal(lease.name, each, lease.token) for lease, each in zip(leases, attempts, strict=True)]
        for node in nodes[:spoilt]:
            redis.Redis(port=node.port).hset("leasehold:{:b}", "f", "2")
        first, second = store.run(store.store.renew(batch), 20.0)
    assert first == RENEWED
    if spoilt == 2:
        assert second == RENEWED
    else:
        assert isinstance(second, StoreUnavailable)
        assert "newer leasehold" in str(second)


@pytest.mark.parametrize("side", ["threads", "asyncio"])
def test_a_node_survives_whatever_a_call_ends_with(nodes, side: str, monkeypatch) -> None:
    """What nobody has foreseen, too: a node that is gone would be missed for ever."""
    failures = 0

    def fail(send, *args):
        nonlocal failures
        failures += 1
        if failures <= 10:
            raise TypeError("unheard of")
        return send(*args)

    async def ask() -> None:
        async with aio.connect(url(nodes)) as locks:
            assert await (await locks.lock("a").acquire(timeout=60)).release()

    kind: Any = ThreadTransport if side == "threads" else TaskTransport
    monkeypatch.setattr(kind, "do", partialmethod(lambda self, do, *args: fail(do, self, *args), kind.do))
    if side == "threads":
        with leasehold.connect(url(nodes)) as locks:
            assert locks.lock("a").acquire(timeout=60).release()
    else:
        asyncio.run(ask())
    assert failures > 10
