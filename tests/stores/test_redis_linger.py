"""Staying awake while a server answers: only where it pays, and without keeping others from anything."""

import asyncio
import gc
import weakref

import pytest

import leasehold
from leasehold import aio
from leasehold.stores.redis import pool_tasks, pool_threads
from leasehold.stores.redis.linger import IN_VAIN, MOST, PROBE, Linger, a_turn
from servers.proxy import Proxy
from servers.redis import Redis

FAR = 0.005
"""Seconds that an answer takes longer: nobody stays awake for so long."""


def test_it_is_given_up_when_it_does_not_pay_and_tried_again_now_and_then() -> None:
    linger = Linger()
    for _ in range(MOST // IN_VAIN):
        assert linger.worth_it()
        linger.went(False)
    assert [linger.worth_it() for _ in range(2 * PROBE)].count(True) == 2, "tried again, and in vain"
    while not linger.worth_it():
        pass
    linger.went(True)
    assert all(linger.worth_it() for _ in range(PROBE)), "it pays again"


def test_it_is_given_up_unless_it_pays_most_of_the_time() -> None:
    linger = Linger()
    for _ in range(MOST):
        linger.went(True)
        linger.went(False)
    assert not linger.worth_it()


def test_nobody_stays_awake_for_a_server_that_is_far(
    redis_server: Redis, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_threads, "FRESH", 3600.0)  # a line that was not used for a moment is looked at first
    with Proxy(redis_server.port) as proxy:
        with leasehold.connect(f"redis://127.0.0.1:{proxy.port}", namespace=namespace) as locks:
            lock = locks.lock("far")
            lock.acquire().release()
            proxy.delay(FAR)
            for _ in range(MOST):
                assert lock.acquire().release()
            (line,) = locks._core.driver._link._idle
            assert not line._linger.worth_it()


def test_who_is_not_alone_sleeps(redis_server: Redis, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process, one thread that is awake keeps others from running."""
    awake = []

    def stay_awake(line: pool_threads.Line) -> None:
        awake.append(line)

    with leasehold.connect(redis_server.url, namespace=namespace) as locks:
        locks.inspect("x")  # one call, and no lease that a keeper would look after meanwhile
        monkeypatch.setattr(pool_threads, "FRESH", 3600.0)
        monkeypatch.setattr(pool_threads.Line, "_stay_awake", stay_awake)
        locks.inspect("x")
        assert len(awake) == 1
        pool = locks._core.driver._link
        busy = pool._idle[-1]
        another = pool_threads.Line(pool._make)
        pool._alive.add(weakref.ref(another))  # another thread has taken one
        locks.inspect("x")
        assert len(awake) == 1
        assert pool._idle == [busy]


async def test_no_task_stays_awake_for_a_server_that_is_far(redis_server: Redis, namespace: str) -> None:
    with Proxy(redis_server.port) as proxy:
        async with aio.connect(f"redis://127.0.0.1:{proxy.port}", namespace=namespace) as locks:
            lock = locks.lock("far")
            await (await lock.acquire()).release()
            proxy.delay(FAR)
            for _ in range(MOST):
                assert await (await lock.acquire()).release()
            (line,) = locks._core.driver._link._idle
            assert not line.linger.worth_it()


@pytest.mark.parametrize("arrives", [True, False], ids=["granted", "on its way"])
async def test_who_is_cancelled_while_it_stays_awake_leaves_nothing(
    redis_server: Redis, namespace: str, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    """Promise 4; and the event loop goes on meanwhile."""
    monkeypatch.setattr(pool_tasks, "AWAKE", 3600.0)
    async with aio.connect(redis_server.url, namespace=namespace) as others:
        with Proxy(redis_server.port) as proxy:
            async with aio.connect(f"redis://127.0.0.1:{proxy.port}", namespace=namespace) as locks:
                await (await locks.lock("warm").acquire()).release()
                (line,) = locks._core.driver._link._idle
                if arrives:
                    proxy.only("to_server")
                else:
                    proxy.blackhole()
                asking = asyncio.ensure_future(locks.lock("cancelled", ttl=300).acquire())
                while line.due == 0 or (arrives and not await others.lock("cancelled").locked()):
                    await a_turn()
                asking.cancel()
                proxy.all_well()
                with pytest.raises(asyncio.CancelledError):
                    await asking
        assert await others.lock("cancelled").try_acquire(60) is not None, "long before it expires"


async def test_a_limit_that_ends_while_one_stays_awake_is_seen_though_it_is_cancelled(
    redis_server: Redis, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio would complain of an error that nobody has looked at."""
    monkeypatch.setattr(pool_tasks, "AWAKE", 3600.0)
    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context["message"]))
    with Proxy(redis_server.port) as proxy:
        async with aio.connect(f"redis://127.0.0.1:{proxy.port}", namespace=namespace) as locks:
            await (await locks.lock("warm").acquire()).release()
            (line,) = locks._core.driver._link._idle
            proxy.blackhole()
            asking = asyncio.ensure_future(locks.lock("limit").acquire())
            while line.due == 0:
                await a_turn()
            line._inflow._waiter.set_exception(TimeoutError())  # as its alarm does
            asking.cancel()
            proxy.all_well()
            with pytest.raises(asyncio.CancelledError):
                await asking
            del asking
    gc.collect()
    assert complaints == []
