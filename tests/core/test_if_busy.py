"""``if_busy``: what a decorated call does while another holder has the name."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from test_decorator_names import KINDS, NAMES

import leasehold
from leasehold import aio
from leasehold.testing.handles import eventually


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return f"memory://{request.node.name}"


@pytest.fixture
def other(url: str) -> Iterator[leasehold.Locks]:
    with leasehold.connect(url, owner="api-7") as locks:
        yield locks


def taken(other: leasehold.Locks, kind: str, name: str) -> list[leasehold.Lease]:
    """Leases that leave no room for another one of this kind."""
    if kind == "read":
        return [other.rwlock(name).write().acquire()]
    return [NAMES[kind](other, name).acquire() for _ in range(2 if kind == "semaphore" else 1)]


@KINDS
def test_busy_call_is_skipped_at_once_and_says_who_has_the_name(
    url: str, other: leasehold.Locks, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "leasehold")
    with leasehold.connect(url, timeout=30) as locks:
        calls = []

        @NAMES[kind](locks, "report:{page}", if_busy="skip")
        def report(page: int) -> str:
            calls.append(page)
            return "done"

        leases = taken(other, kind, "report:1")
        began = time.monotonic()
        assert report(1) is None
        assert time.monotonic() - began < 20, "the timeout given to connect is for locks that wait"
        assert report(2) == "done"
        assert [lease.release() for lease in leases]
        assert report(1) == "done"
    assert calls == [2, 1]
    [line] = [each for each in caplog.records if getattr(each, "lease_event", "") == "skipped"]
    assert line.levelno == logging.INFO
    assert "'report:1' skipped" in line.getMessage()
    assert "held by api-7" in line.getMessage()
    assert "report was not called" in line.getMessage()


@KINDS
async def test_busy_call_of_a_task_is_skipped_at_once(
    url: str, other: leasehold.Locks, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "leasehold")
    async with aio.connect(url, timeout=30) as locks:

        @NAMES[kind](locks, "report:{page}", if_busy="skip")
        async def report(page: int) -> str:
            aio.current().check()
            return "done"

        leases = taken(other, kind, "report:1")
        assert await asyncio.wait_for(report(1), 20) is None
        assert await report(2) == "done"
        assert [lease.release() for lease in leases]
        assert await report(1) == "done"
    [line] = [each for each in caplog.records if getattr(each, "lease_event", "") == "skipped"]
    assert "held by api-7" in line.getMessage()


def test_skipped_call_is_an_event(url: str, other: leasehold.Locks) -> None:
    events: list[leasehold.Event] = []
    with leasehold.connect(url) as locks:
        locks.on_event(events.append)
        with other.lock("a"):
            assert locks.lock("a", if_busy="skip")(lambda: 5)() is None
    eventually(lambda: [event.type for event in events] == ["refused", "skipped"])


@pytest.mark.parametrize("if_busy", ["skip", "raise"])
def test_timeout_says_how_long_a_call_waits_before(url: str, other: leasehold.Locks, if_busy: Any) -> None:
    with leasehold.connect(url) as locks, other.lock("a"):
        lock = locks.lock("a", timeout=0.3, if_busy=if_busy)
        began = time.monotonic()
        if if_busy == "skip":
            assert lock(lambda: 5)() is None
        else:
            with pytest.raises(leasehold.AcquireTimeout):
                lock(lambda: 5)()
        assert time.monotonic() - began >= 0.3


def test_busy_call_raises_at_once(url: str, other: leasehold.Locks) -> None:
    with leasehold.connect(url, timeout=30) as locks, other.lock("a"):
        began = time.monotonic()
        lock = locks.lock("a", if_busy="raise")
        for use in (lock(lambda: 5), lock.acquire, lock.__enter__):
            with pytest.raises(leasehold.AcquireTimeout, match="held by api-7"):
                use()
        assert time.monotonic() - began < 20


async def test_busy_call_of_a_task_raises_at_once(url: str, other: leasehold.Locks) -> None:
    async with aio.connect(url) as locks:

        @locks.lock("a", if_busy="raise")
        async def work() -> int:
            return 5

        with other.lock("a"), pytest.raises(leasehold.AcquireTimeout, match="held by api-7"):
            await work()
        assert await work() == 5


@KINDS
def test_block_and_acquire_on_a_lock_that_skips_are_refused(url: str, kind: str) -> None:
    with leasehold.connect(url) as locks:
        lock = NAMES[kind](locks, "a", if_busy="skip")
        uses: list[Callable[[], object]] = [lock.acquire, lambda: lock.acquire(timeout=5), lock.__enter__]
        for use in uses:
            with pytest.raises(TypeError, match=r"try_acquire\(\)"):
                use()
        with pytest.raises(TypeError, match=r"try_acquire\(\)"), lock:
            pass
        lease = lock.try_acquire()
        assert lease is not None
        assert (kind == "semaphore") != lock.locked()
        assert lease.release()
        assert lock.name == "a"
        assert "'a'" in repr(lock)


@KINDS
async def test_block_and_acquire_of_a_task_on_a_lock_that_skips_are_refused(url: str, kind: str) -> None:
    async with aio.connect(url) as locks:
        lock = NAMES[kind](locks, "a", if_busy="skip")
        with pytest.raises(TypeError, match=r"try_acquire\(\)"):
            await lock.acquire()
        with pytest.raises(TypeError, match=r"try_acquire\(\)"):
            async with lock:
                pass
        lease = await lock.try_acquire()
        assert lease is not None
        assert (kind == "semaphore") != await lock.locked()
        assert await lease.release()


def test_body_that_times_out_by_itself_is_not_skipped(url: str, other: leasehold.Locks) -> None:
    with leasehold.connect(url) as locks, other.lock("inner"):

        @locks.lock("a", if_busy="skip")
        def work() -> None:
            locks.lock("inner").acquire(timeout=0)

        with pytest.raises(leasehold.AcquireTimeout, match="inner"):
            work()


def test_loss_is_loud_in_a_call_that_would_have_been_skipped(url: str, other: leasehold.Locks) -> None:
    with leasehold.connect(url) as locks:

        @locks.lock("a", if_busy="skip")
        def work() -> None:
            lease = leasehold.current()
            assert isinstance(lease, leasehold.Lease)
            other.break_lease("a")
            assert lease.lost.wait(30)

        with pytest.raises(leasehold.LeaseLost):
            work()


@pytest.mark.parametrize("timeout", [False, "", []])
def test_timeout_of_a_lock_that_does_not_wait_is_checked(url: str, timeout: Any) -> None:
    with leasehold.connect(url) as locks, pytest.raises((TypeError, ValueError), match=r"timeout"):
        locks.lock("a", if_busy="skip", timeout=timeout)


async def test_try_acquire_does_not_wait_for_ever(url: str) -> None:
    with leasehold.connect(url) as locks:
        for lock in (locks.lock("a"), locks.all_of("a", "b"), locks.lock("a", if_busy="skip")):
            with pytest.raises(TypeError, match=r"use acquire\(\)"):
                lock.try_acquire(None)  # type: ignore[arg-type]
    async with aio.connect(url) as tasks:
        with pytest.raises(TypeError, match=r"use acquire\(\)"):
            await tasks.lock("a").try_acquire(None)  # type: ignore[arg-type]


def test_if_busy_is_checked_and_belongs_to_locks(url: str) -> None:
    with leasehold.connect(url) as locks:
        with pytest.raises(ValueError, match="if_busy must be"):
            locks.lock("a", if_busy="skipp")  # type: ignore[call-overload]
        for make in (locks.once, locks.election, locks.rwlock):
            with pytest.raises(TypeError, match="if_busy"):
                make("a", if_busy="skip")  # type: ignore[operator]
        with locks.lock("a") as lease, pytest.raises(TypeError, match="if_busy"):
            locks.accept(lease.transfer(), if_busy="skip")  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="async"):

            @locks.lock("a", if_busy="skip")
            async def work() -> None: ...
