"""``drain`` where it gets tight: what fails on the way is logged and stops nothing."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import leasehold
from leasehold import aio, policy
from leasehold.testing.handles import eventually


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return f"memory://{request.node.name}"


def fail() -> None:
    raise RuntimeError("a callback of somebody's")


def logged(caplog: pytest.LogCaptureFixture, event: str) -> list[logging.LogRecord]:
    return [each for each in caplog.records if getattr(each, "lease_event", "") == event]


def check(gave_up: list[str], lost: list[str], caplog: pytest.LogCaptureFixture) -> None:
    assert gave_up == ["a", "b"]
    assert sorted(lost) == ["a", "b"], "each is told, though the first callback failed"
    assert any("failed, which does not stop it" in each.getMessage() for each in caplog.records)
    (left,) = logged(caplog, "drain_left")
    assert "could not give back a, b" in left.getMessage()
    assert left.levelno == logging.WARNING
    assert logged(caplog, "drained")


def test_errors_on_the_way_are_logged_and_do_not_stop_it(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """D9: a callback that fails, a body that does not hear, a store that is away."""
    caplog.set_level(logging.INFO, "leasehold")
    monkeypatch.setattr(policy, "CALL_LIMIT", 0.3)
    lost: list[str] = []

    def on_lost(lease: Any) -> None:
        lost.append(lease.name)
        fail()

    with leasehold.connect(url, ttl=600) as locks:  # the keeper has nothing to renew for minutes
        held = [locks.lock(name, on_lost=on_lost).acquire() for name in ("a", "b")]
        locks._core.on_drain.append(fail)
        run = locks._core.driver.run

        def away(steps: Any, limit: float) -> Any:
            raise leasehold.StoreUnavailable("away")

        locks._core.driver.run = away  # type: ignore[method-assign]
        gave_up = locks.drain(0.1)
        locks._core.driver.run = run  # type: ignore[method-assign]
        eventually(lambda: len(lost) == 2)
        check(gave_up, lost, caplog)
        assert not any(lease.valid for lease in held)
        with leasehold.connect(url) as other:
            assert other.all_of("a", "b").acquire(60).release(), "the keeper goes on trying, and soon"


async def test_errors_on_the_way_are_logged_and_do_not_stop_a_task(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "leasehold")
    monkeypatch.setattr(policy, "CALL_LIMIT", 0.3)
    lost: list[str] = []

    async def on_lost(lease: Any) -> None:
        lost.append(lease.name)
        fail()

    async with aio.connect(url, ttl=600) as locks:
        held = [await locks.lock(name, on_lost=on_lost).acquire() for name in ("a", "b")]
        locks._core.on_drain.append(fail)
        driver: Any = locks._core.driver
        run = driver.run

        async def away(steps: Any, limit: float) -> Any:
            await asyncio.sleep(0)
            raise leasehold.StoreUnavailable("away")

        driver.run = away
        gave_up = await locks.drain(0.1)
        driver.run = run
        async with asyncio.timeout(60):
            while len(lost) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        check(gave_up, lost, caplog)
        assert not any(lease.valid for lease in held)
        async with aio.connect(url) as other:
            assert await (await other.all_of("a", "b").acquire(60)).release()


class Away:
    """A store that refuses at once, and counts."""

    def __init__(self) -> None:
        self.calls = 0

    def run(self, steps: Any, limit: float) -> Any:
        self.calls += 1
        raise leasehold.StoreUnavailable("away")

    async def run_in_task(self, steps: Any, limit: float) -> Any:
        return self.run(steps, limit)


STORM = 50
"""In the second or less that each of these takes. A few calls for each of what is owed are enough."""


@pytest.mark.parametrize("how", ["drain", "close"])
def test_a_store_that_is_away_is_not_stormed(how: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be given back is tried again in a while, not as fast as it can be refused."""
    monkeypatch.setattr(policy, "CALL_LIMIT", 1.0)
    locks, away = leasehold.connect(url, ttl=60), Away()
    held = [locks.lock(name).acquire() for name in ("a", "b")]
    locks._core.driver.run = away.run  # type: ignore[method-assign]
    if how == "drain":
        locks.drain(0)
    else:
        locks._core.close(1.0)
    assert 2 <= away.calls < STORM
    assert not any(lease.valid for lease in held)
    locks._core.unsettled.clear()
    locks.close()


@pytest.mark.parametrize("how", ["drain", "close", "at exit"])
def test_a_store_that_is_away_is_not_stormed_by_a_task(how: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "CALL_LIMIT", 1.0)
    away = Away()
    kept: list[Any] = []

    async def work() -> None:
        locks = aio.connect(url, ttl=60)
        kept.extend([locks, await locks.lock("a").acquire(), await locks.lock("b").acquire()])
        driver: Any = locks._core.driver
        driver.run, driver.run_at_exit = away.run_in_task, away.run
        if how == "drain":
            await locks.drain(0)
        elif how == "close":
            await locks._core.close(1.0)

    asyncio.run(work())
    if how == "at exit":
        kept[0]._core.at_exit(0.5)
    assert 2 <= away.calls < STORM
    assert not any(lease.valid for lease in kept[1:])
    kept[0]._core.unsettled.clear()
    kept[0]._core.at_exit(0.5)
