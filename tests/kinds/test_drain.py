"""``drain`` when something goes wrong: errors are logged and do not stop it. A store that is away is not stormed."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold import aio
from leasehold.core import timing
from leasehold.testing.handles import eventually
from leasehold.testing.leases import Leases

from .seams import Away, AwayTasks, connect


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return f"memory://{request.node.name}"


@pytest.fixture
def failing_filter(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A log filter that fails when a leader is to be told that its term is over."""

    def fail(record: logging.LogRecord) -> bool:
        if getattr(record, "lease_event", "") == "term_over":
            raise RuntimeError("a log filter that fails")
        return True

    caplog.set_level(logging.INFO, "leasehold")
    logger = logging.getLogger("leasehold")
    logger.addFilter(fail)
    yield
    logger.removeFilter(fail)


def logged(caplog: pytest.LogCaptureFixture, event: str) -> list[logging.LogRecord]:
    return [each for each in caplog.records if getattr(each, "lease_event", "") == event]


def check(gave_up: list[str], lost: list[str], caplog: pytest.LogCaptureFixture) -> None:
    assert gave_up == ["a", "b", "leader"]
    assert sorted(lost) == ["a", "b"], "each is told, though the first callback failed"
    assert any("raised an error; the drain continues" in each.getMessage() for each in caplog.records)
    (left,) = logged(caplog, "drain_left")
    assert "could not release 'a', 'b', 'leader'" in left.getMessage()
    assert left.levelno == logging.WARNING
    assert logged(caplog, "drained")


@pytest.mark.usefixtures("failing_filter")
def test_drain_logs_errors_and_goes_on(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """D9: a callback that fails, a leader that cannot be told, a body that does not stop, a store that is away."""
    monkeypatch.setattr(timing, "CALL_LIMIT", 0.3)
    lost: list[str] = []
    leads, go_on = threading.Event(), threading.Event()

    def on_lost(lease: Any) -> None:
        lost.append(lease.name)
        raise RuntimeError("a callback that fails")

    def lead(term: object) -> None:
        leads.set()
        go_on.wait(60)

    store = Away()
    with connect(url, ttl=600, driver=store) as locks:
        held = [locks.lock(name, on_lost=on_lost).acquire() for name in ("a", "b")]
        leader = threading.Thread(target=locks.election("leader", ttl=600).run, args=(lead,))
        leader.start()
        assert leads.wait(60)
        store.away = True
        gave_up = locks.drain(0.1)
        store.away = False
        eventually(lambda: len(lost) == 2)
        check(gave_up, lost, caplog)
        assert not any(lease.valid for lease in held)
        go_on.set()
        leader.join(60)
        with leasehold.connect(url) as other:  # the keeper has nothing to renew for minutes
            assert other.all_of("a", "b").acquire(60).release(), "the keeper goes on trying, and soon"


@pytest.mark.usefixtures("failing_filter")
async def test_drain_by_a_task_logs_errors_and_goes_on(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(timing, "CALL_LIMIT", 0.3)
    lost: list[str] = []
    leads, go_on = asyncio.Event(), asyncio.Event()

    async def on_lost(lease: Any) -> None:
        lost.append(lease.name)
        raise RuntimeError("a callback that fails")

    async def lead(term: object) -> None:
        leads.set()
        await go_on.wait()

    store = AwayTasks()
    async with connect(url, "asyncio", ttl=600, driver=store) as locks:
        held = [await locks.lock(name, on_lost=on_lost).acquire() for name in ("a", "b")]
        leader = asyncio.create_task(locks.election("leader", ttl=600).run(lead))
        await asyncio.wait_for(leads.wait(), 60)
        store.away = True
        gave_up = await locks.drain(0.1)
        store.away = False
        async with asyncio.timeout(60):
            while len(lost) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        check(gave_up, lost, caplog)
        assert not any(lease.valid for lease in held)
        go_on.set()
        await asyncio.wait_for(leader, 60)
        async with aio.connect(url) as other:
            assert await (await other.all_of("a", "b").acquire(60)).release()


STORM = 50
"""In the second or less that each of these takes. A few calls for each lease are enough."""
SECOND = 1.0
HOURS = 10_000.0
"""Longer than anything is tried."""


@pytest.mark.parametrize("how", ["drain", "close"])
def test_store_that_is_away_is_not_stormed(how: str, url: str, monkeypatch: pytest.MonkeyPatch, leases: Leases) -> None:
    """What cannot be released is tried again in a while, not as fast as it can be refused."""
    monkeypatch.setattr(timing, "CALL_LIMIT", SECOND)
    store = Away()
    locks = connect(url, ttl=60, driver=store)
    held = [locks.lock(name).acquire() for name in ("a", "b")]
    store.away = True
    if how == "drain":
        locks.drain(0)
    else:
        closing = threading.Thread(target=locks.close)
        closing.start()
        time.sleep(SECOND)
    assert 2 <= store.calls < STORM
    assert not any(lease.valid for lease in held)
    if how == "close":
        leases.pause(HOURS)
        closing.join(60)
    store.away = False
    locks.close()


@pytest.mark.parametrize("how", ["drain", "close"])
async def test_store_that_is_away_is_not_stormed_by_a_task(
    how: str, url: str, monkeypatch: pytest.MonkeyPatch, leases: Leases
) -> None:
    monkeypatch.setattr(timing, "CALL_LIMIT", SECOND)
    store = AwayTasks()
    locks = connect(url, "asyncio", ttl=60, driver=store)
    held = [await locks.lock(name).acquire() for name in ("a", "b")]
    store.away = True
    if how == "drain":
        await locks.drain(0)
    else:
        closing = asyncio.create_task(locks.close())
        await asyncio.sleep(SECOND)
    assert 2 <= store.calls < STORM
    assert not any(lease.valid for lease in held)
    if how == "close":
        await leases.apause(HOURS)
        await asyncio.wait_for(closing, 60)
    store.away = False
    await locks.close()


def test_store_that_is_away_is_not_stormed_at_exit() -> None:
    """Of a process whose event loop has ended before."""
    folder = Path(__file__).parents[1]
    child = subprocess.run(
        [sys.executable, "-m", "kinds.at_exit"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert child.returncode == 0, child.stderr
    calls, valid = map(int, child.stdout.split())
    assert 2 <= calls < STORM
    assert not valid
