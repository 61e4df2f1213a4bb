"""``on_event`` and ``metrics()``: what the conformance suite does not see on every store."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold import aio
from leasehold.testing.faults import install
from leasehold.testing.handles import eventually


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{request.node.name}" if request.param == "memory" else f"sqlite:///{tmp_path}/leases.db"


def check(told: list[Any], token: int) -> None:
    (event,) = [each for each in told if each.type == "taken_over"]
    assert (event.name, event.owner, event.token) == ("x", "second", token)
    assert event.reason.startswith("from first, expired for ")
    assert "acquired" not in [each.type for each in told]


def test_metrics_count_what_has_run_out(url: str) -> None:
    """D10: the expired ones too, apart from what is held; until another takes the name."""
    with leasehold.connect(url, owner="first") as first, leasehold.connect(url, owner="second") as second:
        held = second.lock("held", kind="node").acquire()
        gone = first.lock("x", ttl=0.2, renew=False).acquire()
        eventually(lambda: second.metrics().expired == 1)
        found = second.metrics()
        assert (found.total, dict(found.by_kind), dict(found.by_owner)) == (1, {"node": 1}, {"second": 1})
        assert found.average_hold == found.longest_hold > 0
        assert not gone.valid
        assert second.lock("x").acquire(60).release()
        assert second.metrics().expired == 0
        assert held.release()


async def test_metrics_count_what_has_run_out_in_a_task(url: str) -> None:
    async with aio.connect(url, owner="first") as first, aio.connect(url, owner="second") as second:
        held = await second.lock("held", kind="node").acquire()
        gone = await first.lock("x", ttl=0.2, renew=False).acquire()
        async with asyncio.timeout(60):
            while (found := await second.metrics()).expired != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (found.total, dict(found.by_kind), dict(found.by_owner)) == (1, {"node": 1}, {"second": 1})
        assert found.average_hold == found.longest_hold > 0
        assert not gone.valid
        assert await held.release()


def test_what_was_given_back_before_its_min_hold_has_not_run_out(url: str) -> None:
    """Nobody has let it expire: the metric is to alert on those who do."""
    with leasehold.connect(url) as locks:
        assert locks.lock("stands", min_hold=600).acquire().release()
        found = locks.metrics()
        assert (found.total, found.expired) == (1, 0)
        assert locks.lock("x", min_hold=0.2).acquire().release()  # which is over in a moment, or already
        eventually(lambda: locks.metrics().total == 1)
        assert locks.inspect("x") is None
        assert locks.metrics().expired == 0


def test_the_counters_are_there_when_the_store_is_away() -> None:
    with leasehold.connect("memory://counters") as locks:
        assert locks.counters() == leasehold.Counters(0, 0, 0)
        with locks.lock("x") as lease:
            lease.renew()
            faults = install(locks)
            faults.lose_request()
            with pytest.raises(leasehold.StoreUnavailable):
                locks.lock("y").try_acquire()
            with pytest.raises(leasehold.StoreUnavailable):
                locks.metrics()
            assert locks.counters() == (1, 0, 1)
            faults.mend()
            assert locks.metrics()[-3:] == locks.counters()


def test_the_share_of_renewals_that_succeed() -> None:
    """Seed B6: the renewal success rate is to be monitored."""
    with leasehold.connect("memory://rate", ttl=60) as locks:
        assert locks.metrics().renewal_success_rate == 1.0
        lease = locks.lock("x", renew_every=0.05).acquire()
        eventually(lambda: locks.counters().renewals >= 3)
        assert locks.metrics().renewal_success_rate == 1.0
        faults = install(locks)
        faults.lose_request("renew", times=1)
        eventually(lambda: locks.counters().renewal_failures)
        found = locks.metrics()
        assert 0.5 < found.renewal_success_rate < 1.0
        assert found.renewal_success_rate == found.renewals / (found.renewals + found.renewal_failures)
        assert lease.release()


async def test_the_counters_are_there_when_the_store_is_away_of_a_task() -> None:
    async with aio.connect("memory://counters") as locks:
        assert locks.counters() == aio.Counters(0, 0, 0)
        faults = install(locks)
        faults.lose_request()
        with pytest.raises(leasehold.StoreUnavailable):
            await locks.lock("y").try_acquire()
        assert locks.counters() == (0, 0, 1)
        faults.mend()
        assert (await locks.metrics())[-3:] == locks.counters()


def test_what_had_expired_is_told_as_taken_over(url: str) -> None:
    told: list[Any] = []
    with leasehold.connect(url, owner="first") as first, leasehold.connect(url, owner="second") as second:
        second.on_event(told.append)
        old = first.lock("x", ttl=0.2, renew=False).acquire()
        new = second.lock("x").acquire(60)
        eventually(lambda: told)
        check(told, new.token)
        assert not old.valid
        assert new.release()
        assert second.lock("x").acquire().release()
        # Its own ring, when it was its turn, may have had it renewed at once.
        ours = ("taken_over", "released", "acquired")
        eventually(
            lambda: [each.type for each in told if each.type in ours][1:] == ["released", "acquired", "released"]
        )


def test_what_was_given_back_before_its_min_hold_is_not_taken_over(url: str) -> None:
    """As by cron jobs on two hosts, every time: no reason to warn anybody."""
    told: list[Any] = []
    with leasehold.connect(url, owner="first") as first, leasehold.connect(url, owner="second") as second:
        second.on_event(told.append)
        assert first.lock("x", min_hold=0.2).acquire().release()
        assert second.lock("x").acquire(60).release()
        eventually(lambda: "released" in [each.type for each in told])
        assert "taken_over" not in [each.type for each in told]


def test_what_had_expired_is_told_as_taken_over_by_a_task(url: str) -> None:
    async def work() -> None:
        told: list[Any] = []
        async with aio.connect(url, owner="first") as first, aio.connect(url, owner="second") as second:
            second.on_event(told.append)
            old = await first.lock("x", ttl=0.2, renew=False).acquire()
            new = await second.lock("x").acquire(60)
            async with asyncio.timeout(60):
                while not told:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            check(told, new.token)
            assert not old.valid
            assert await new.release()

    asyncio.run(work())


# Listeners that are slow, fail or never end.

CYCLE = ["acquired", "released"]


async def settled(true: Any) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def ours(told: list[Any]) -> list[str]:
    """Without renewals, which come when they come."""
    return [each.type for each in told if each.type != "renewed"]


def test_a_slow_listener_holds_up_no_renewal_and_mixes_up_nothing() -> None:
    told: list[Any] = []
    slowly: list[Any] = []
    gate = threading.Event()

    def slow(event: Any) -> None:
        assert gate.wait(60)
        slowly.append(event)

    def failing(event: Any) -> None:
        raise ValueError(event.type)

    with leasehold.connect("memory://slow-listener", ttl=60) as locks:
        for listener in (failing, slow, told.append):
            locks.on_event(listener)
        lease = locks.lock("x", renew_every=0.05).acquire()
        for _ in range(3):
            assert locks.lock("y").acquire().release()
        for _ in range(3):
            renewed = lease._sent
            eventually(lambda: lease._sent > renewed, what="it is renewed")  # noqa: B023
        assert not slowly
        assert lease.release()
        gate.set()
        eventually(lambda: ours(told) == ["acquired", *CYCLE * 3, "released"])
        eventually(lambda: slowly[: len(told)] == told[: len(slowly)] and ours(slowly) == ours(told))


async def test_a_slow_async_listener_holds_up_itself_alone() -> None:
    """Neither renewals nor other listeners, and it is told everything in order, one after the other."""
    told: list[Any] = []
    slowly: list[Any] = []
    at_once: list[int] = []
    gate = asyncio.Event()
    inside = 0

    async def slow(event: Any) -> None:
        nonlocal inside
        inside += 1
        at_once.append(inside)
        await gate.wait()
        await asyncio.sleep(0 if len(slowly) % 2 else 0.01)  # the next one would be quicker
        slowly.append(event)
        inside -= 1

    async with aio.connect("memory://slow-async-listener", ttl=60) as locks:
        locks.on_event(slow)
        locks.on_event(told.append)
        lease = await locks.lock("x", renew_every=0.05).acquire()
        for _ in range(3):
            assert await (await locks.lock("y").acquire()).release()
        for _ in range(3):
            renewed = lease._sent
            await settled(lambda: lease._sent > renewed)  # noqa: B023
        assert await lease.release()
        await settled(lambda: ours(told) == ["acquired", *CYCLE * 3, "released"])
        assert not slowly
        gate.set()
    assert slowly == told, "close waits for those who are being told"
    assert set(at_once) == {1}


async def test_an_async_listener_that_fails_is_told_the_next_too(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Any] = []

    async def failing(event: Any) -> None:
        told.append(event)
        await asyncio.sleep(0)
        raise ValueError(event.type)

    async with aio.connect("memory://failing-async-listener", ttl=60) as locks:
        locks.on_event(failing)
        for _ in range(3):
            assert await (await locks.lock("x").acquire()).release()
        await settled(lambda: ours(told) == CYCLE * 3)
    assert sum("callback of leasehold failed" in record.message for record in caplog.records) == 6


@pytest.mark.parametrize("more", [True, False])
async def test_an_async_listener_that_is_cancelled_is_told_the_rest_later(more: bool) -> None:
    """As by a framework that ends every task that it finds: with the next event, or by ``close``."""
    told: list[Any] = []
    never = asyncio.Event()

    async def listener(event: Any) -> None:
        told.append(event)
        if len(told) == 1:
            await never.wait()

    async with aio.connect("memory://cancelled-listener", ttl=60) as locks:
        locks.on_event(listener)
        lease = await locks.lock("x").acquire()
        await settled(lambda: told)
        assert await lease.release()
        (at_it,) = (task for task in locks._core.tasks if "listener" in repr(task))
        at_it.cancel()
        await settled(at_it.done)
        if more:
            assert await (await locks.lock("x").acquire()).release()
            await settled(lambda: ours(told) == CYCLE * 2)
    assert ours(told) == CYCLE * (1 + more)


async def test_what_a_listener_waits_for_is_cancelled_and_it_is_told_the_rest_at_once() -> None:
    """That is no cancellation of the listener's."""
    told: list[Any] = []

    async def listener(event: Any) -> None:
        told.append(event)
        if len(told) == 1:
            cancelled = asyncio.ensure_future(asyncio.sleep(60))
            cancelled.cancel()
            await cancelled

    async with aio.connect("memory://cancelled-within", ttl=60) as locks:
        locks.on_event(listener)
        assert await (await locks.lock("x").acquire()).release()
        await settled(lambda: ours(told) == CYCLE)


class Failing:
    """The next release gets no answer. What is told, and when the keeper is given something to do, in order."""

    def __init__(self, locks: Any) -> None:
        self.order: list[str] = []
        core, settle = locks._core, locks._core.settle
        locks.on_event(lambda event: None)
        core.pass_on = lambda event: self.order.append(event.type)
        core.settle = lambda owed: (self.order.append("settle"), settle(owed))
        install(locks).lose_request("release", times=1)


TOLD = ["release_failed", "settle", "acquired", "released"]
"""Before the keeper gives it back: a moment later the name may be another's."""


def test_a_release_that_failed_is_told_before_what_comes_after_it() -> None:
    with leasehold.connect("memory://release-failed") as locks:
        lease = locks.lock("x").acquire()
        failing = Failing(locks)
        with pytest.raises(leasehold.StoreUnavailable):
            lease.release()
        assert locks.lock("x").acquire(60).release()
    assert failing.order == TOLD


async def test_a_release_that_failed_in_a_task_is_told_before_what_comes_after_it() -> None:
    async with aio.connect("memory://release-failed-in-a-task") as locks:
        lease = await locks.lock("x").acquire()
        failing = Failing(locks)
        with pytest.raises(leasehold.StoreUnavailable):
            await lease.release()
        assert await (await locks.lock("x").acquire(60)).release()
    assert failing.order == TOLD
