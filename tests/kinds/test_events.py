"""``on_event`` and ``metrics()``: what the conformance suite does not see on every store."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold import aio
from leasehold.testing.faults import Faults, install
from leasehold.testing.handles import eventually


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{request.node.name}" if request.param == "memory" else f"sqlite:///{tmp_path}/leases.db"


def check(told: list[Any], token: int) -> None:
    (event,) = [each for each in told if each.type == "taken_over"]
    assert (event.name, event.owner, event.token) == ("x", "second", token)
    assert event.reason.startswith("from first, whose lease expired ")
    assert "acquired" not in [each.type for each in told]


def test_metrics_count_expired_leases(url: str) -> None:
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


async def test_metrics_of_a_task_count_expired_leases(url: str) -> None:
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


def test_lease_released_before_its_min_hold_does_not_count_as_expired(url: str) -> None:
    """Nobody has let it expire: the metric is to alert on those who do."""
    with leasehold.connect(url) as locks:
        assert locks.lock("stands", min_hold=600).acquire().release()
        found = locks.metrics()
        assert (found.total, found.expired) == (1, 0)
        assert locks.lock("x", min_hold=0.2).acquire().release()  # which is over in a moment, or already
        eventually(lambda: locks.metrics().total == 1)
        assert locks.inspect("x") is None
        assert locks.metrics().expired == 0


def test_counters_work_while_the_store_is_away() -> None:
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


def test_metrics_have_the_renewal_success_rate() -> None:
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


async def test_counters_of_a_task_work_while_the_store_is_away() -> None:
    async with aio.connect("memory://counters") as locks:
        assert locks.counters() == aio.Counters(0, 0, 0)
        faults = install(locks)
        faults.lose_request()
        with pytest.raises(leasehold.StoreUnavailable):
            await locks.lock("y").try_acquire()
        assert locks.counters() == (0, 0, 1)
        faults.mend()
        assert (await locks.metrics())[-3:] == locks.counters()


def test_acquire_of_an_expired_lease_is_reported_as_taken_over(url: str) -> None:
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


def test_acquire_after_min_hold_is_not_reported_as_taken_over(url: str) -> None:
    """As by cron jobs on two hosts, every time: no reason to warn anybody."""
    told: list[Any] = []
    with leasehold.connect(url, owner="first") as first, leasehold.connect(url, owner="second") as second:
        second.on_event(told.append)
        assert first.lock("x", min_hold=0.2).acquire().release()
        assert second.lock("x").acquire(60).release()
        eventually(lambda: "released" in [each.type for each in told])
        assert "taken_over" not in [each.type for each in told]


def test_acquire_of_an_expired_lease_by_a_task_is_reported_as_taken_over(url: str) -> None:
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


def test_slow_listener_delays_no_renewal_and_reorders_nothing() -> None:
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
            renewals = locks.counters().renewals
            eventually(lambda: locks.counters().renewals > renewals, what="it is renewed")  # noqa: B023
        assert not slowly
        assert lease.release()
        gate.set()
        eventually(lambda: ours(told) == ["acquired", *CYCLE * 3, "released"])
        eventually(lambda: slowly[: len(told)] == told[: len(slowly)] and ours(slowly) == ours(told))


async def test_slow_async_listener_delays_itself_alone() -> None:
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
            renewals = locks.counters().renewals
            await settled(lambda: locks.counters().renewals > renewals)  # noqa: B023
        assert await lease.release()
        await settled(lambda: ours(told) == ["acquired", *CYCLE * 3, "released"])
        assert not slowly
        gate.set()
    assert slowly == told, "close waits for those who are being told"
    assert set(at_once) == {1}


async def test_failed_async_listener_is_called_with_the_next_event(caplog: pytest.LogCaptureFixture) -> None:
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
    assert sum("raised an error" in record.message for record in caplog.records) == 6


@pytest.mark.parametrize("more", [True, False])
async def test_cancelled_async_listener_is_called_with_the_rest_later(more: bool) -> None:
    """As by a framework that ends every task that it finds: with the next event, or by ``close``."""
    told: list[Any] = []
    tasks: list[Any] = []
    never = asyncio.Event()

    async def listener(event: Any) -> None:
        told.append(event)
        tasks.append(asyncio.current_task())
        if len(told) == 1:
            await never.wait()

    async with aio.connect("memory://cancelled-listener", ttl=60) as locks:
        locks.on_event(listener)
        lease = await locks.lock("x").acquire()
        await settled(lambda: told)
        assert await lease.release()
        tasks[0].cancel()
        await settled(tasks[0].done)
        if more:
            assert await (await locks.lock("x").acquire()).release()
            await settled(lambda: ours(told) == CYCLE * 2)
    assert ours(told) == CYCLE * (1 + more)


async def test_listener_whose_awaited_task_is_cancelled_is_called_with_the_rest_at_once() -> None:
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


class FailedReleases(logging.Filter):
    """A log filter that gives the keeper time, and notes how many releases have reached the network by then."""

    def __init__(self, network: Faults) -> None:
        super().__init__()
        self.network = network
        self.releases: list[int] = []

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, "lease_event", "") == "release_failed":
            ends = time.monotonic() + 0.3
            while self.network.calls["release"] < 2 and time.monotonic() < ends:
                time.sleep(0.01)
            self.releases.append(self.network.calls["release"])
        return True


@contextmanager
def failing_release(locks: Any) -> Iterator[FailedReleases]:
    """The next release gets no answer."""
    network = install(locks)
    network.lose_request("release", times=1)
    logger, watched = logging.getLogger("leasehold"), FailedReleases(network)
    logger.addFilter(watched)
    yield watched
    logger.removeFilter(watched)


TOLD = ["release_failed", "acquired", "released"]


def test_failed_release_is_reported_before_the_keeper_retries_it() -> None:
    """After the keeper's release the name may be another's, and what happens then is to be reported later."""
    told: list[Any] = []
    with leasehold.connect("memory://release-failed") as locks:
        lease = locks.lock("x").acquire()
        locks.on_event(told.append)
        with failing_release(locks) as failed:
            with pytest.raises(leasehold.StoreUnavailable):
                lease.release()
            assert locks.lock("x").acquire(60).release()
        eventually(lambda: ours(told) == TOLD)
    assert failed.releases == [1]


async def test_failed_release_in_a_task_is_reported_before_the_keeper_retries_it() -> None:
    told: list[Any] = []
    async with aio.connect("memory://release-failed-in-a-task") as locks:
        lease = await locks.lock("x").acquire()
        locks.on_event(told.append)
        with failing_release(locks) as failed:
            with pytest.raises(leasehold.StoreUnavailable):
                await lease.release()
            assert await (await locks.lock("x").acquire(60)).release()
        await settled(lambda: ours(told) == TOLD)
    assert failed.releases == [1]
