"""``on_event`` and ``metrics()``: what the conformance suite does not see on every store."""

from __future__ import annotations

import asyncio
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
