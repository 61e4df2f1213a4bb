"""What a waiter reports: for whom it waits, that it waits for itself, that the store is away and for how long."""

from __future__ import annotations

import asyncio
import logging
import queue
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import leasehold
from leasehold import aio
from leasehold.testing.handles import eventually


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return f"memory://{request.node.name}"


@pytest.fixture(autouse=True)
def _all_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "leasehold")


@pytest.fixture
def another_thread() -> Iterator[None]:
    """A thread that could release what another has acquired."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    yield
    over.set()
    thread.join()


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [each.getMessage() for each in caplog.records if getattr(each, "lease_event", None) == event]


# Waiting.

HELD = re.compile(
    r"waiting for 'x': held by holder \(this thread itself\) since 20\S+ \(1.*? s\), token \d+, 1 waiter ahead"
)


def test_wait_of_more_than_a_second_is_told_once(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with leasehold.connect(url, owner="holder") as holder, leasehold.connect(url, owner="second") as locks:
        lease = holder.lock("x").acquire()
        first = threading.Thread(target=lambda: holder.lock("x").acquire().release())
        first.start()
        eventually(lambda: locks.inspect("x").waiters == 1)  # type: ignore[union-attr]
        assert locks.lock("x").try_acquire(timeout=2.5) is None
        assert lease.release()
        first.join()
    [record] = [vars(each) for each in caplog.records if vars(each).get("lease_ahead") == 1]
    assert HELD.fullmatch(record["message"])
    assert (record["levelname"], record["lease_name"], record["lease_holder"]) == ("INFO", "x", "holder")


async def test_wait_of_a_task_of_more_than_a_second_is_told_once(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with aio.connect(url, owner="holder") as holder, aio.connect(url) as locks:
        lease = await holder.lock("x").acquire()
        assert await locks.lock("x").try_acquire(timeout=2.5) is None
        assert await lease.release()
    [line] = lines(caplog, "waiting")
    assert re.match(
        r"waiting for 'x': held by holder \(this .*\) since 20\S+ \(1.*? s\), token \d+, 0 waiters ahead", line
    )


def test_short_wait_is_not_told(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with leasehold.connect(url) as locks, leasehold.connect(url) as other, locks.lock("x"):
        assert other.lock("x").try_acquire(timeout=0.5) is None
    assert not lines(caplog, "waiting")


# Waiting for oneself.


def test_thread_that_waits_inside_its_own_block_is_warned_at_once(
    url: str, caplog: pytest.LogCaptureFixture, another_thread: None
) -> None:
    """Through another ``Locks`` of the process, too."""
    with leasehold.connect(url) as locks, leasehold.connect(url) as other:
        for inner in (locks.lock("x"), other.lock("x"), other.rlock("x"), locks.all_of("w", "x")):
            with locks.lock("x") as lease, pytest.raises(leasehold.AcquireTimeout, match="this thread itself"):
                inner.acquire(timeout=0.1)
            assert lines(caplog, "self_wait") == [
                f"this thread waits for a lock that it holds itself ('x', token {lease.token}): unless another thread "
                "releases it, it waits until its timeout, or until the lease expires; "
                "a lock that is entered again is an rlock"
            ]
            caplog.clear()
        with locks.lock("x"), pytest.raises(leasehold.AcquireTimeout, match=r"busy: held by .* \(this thread itself\)"):
            locks.lock("x").acquire(timeout=0)
        assert not lines(caplog, "self_wait"), "it did not wait"


async def test_task_that_waits_inside_its_own_block_is_warned_at_once(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with aio.connect(url) as locks, aio.connect(url) as other:
        for inner in (locks.lock("x"), other.lock("x"), other.rlock("x")):
            async with locks.lock("x"):
                with pytest.raises(leasehold.AcquireTimeout, match="this task itself"):
                    await inner.acquire(timeout=0.1)
            assert len(lines(caplog, "self_wait")) == 1
            caplog.clear()


def test_thread_that_waits_for_a_lease_that_it_acquired_is_warned(
    url: str, caplog: pytest.LogCaptureFixture, another_thread: None
) -> None:
    """Once, when the wait has timed out or is no longer short: until then it may be another thread's to release."""
    with leasehold.connect(url) as locks, leasehold.connect(url) as other:
        lease = locks.lock("x").acquire()
        for seconds in (0.1, 1.5):
            with pytest.raises(leasehold.AcquireTimeout, match="this thread itself"):
                other.lock("x").acquire(timeout=seconds)
            [line] = lines(caplog, "self_wait")
            assert f"holds itself ('x', token {lease.token}): unless another thread releases it" in line
            caplog.clear()
        assert lease.release()


async def test_task_that_waits_for_a_lease_that_it_acquired_is_warned(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with aio.connect(url) as locks:
        another = asyncio.create_task(asyncio.sleep(30))
        lease = await locks.lock("x").acquire()
        for seconds in (0.1, 1.5):
            with pytest.raises(leasehold.AcquireTimeout, match="this task itself"):
                await locks.lock("x").acquire(timeout=seconds)
            [line] = lines(caplog, "self_wait")
            assert f"holds itself ('x', token {lease.token}): unless another task releases it" in line
            caplog.clear()
        assert await lease.release()
        another.cancel()


def test_lease_of_a_thread_that_has_ended_is_not_another_threads(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Not even of one that has got its id."""
    leases: list[leasehold.Lease] = []
    with leasehold.connect(url) as locks:
        for work in (
            lambda: leases.append(locks.lock("x").acquire()),
            lambda: locks.lock("x").try_acquire(timeout=0.1),
        ):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            assert not lines(caplog, "self_wait")
        assert leases.pop().release()


Case = Callable[[Any, Any, ExitStack], object]


def enter_again(locks: Any, other: Any, stack: ExitStack) -> None:
    lock = locks.rlock("x")
    with lock, lock:
        pass


def handed_to_another_thread(locks: Any, other: Any, stack: ExitStack) -> None:
    leases: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def release() -> None:
        with leases.get():
            pass

    thread = threading.Thread(target=release)
    thread.start()
    stack.callback(thread.join)
    lease = locks.lock("x").acquire()
    threading.Timer(0.2, leases.put, (lease,)).start()
    del lease
    locks.lock("x").acquire(timeout=30).release()


def released_by_another_thread(locks: Any, other: Any, stack: ExitStack) -> None:
    with locks.lock("x") as lease:
        thread = threading.Thread(target=lease.release)
        thread.start()
        thread.join()
        locks.lock("x").acquire(timeout=30).release()


def held_by_another_thread(locks: Any, other: Any, stack: ExitStack) -> None:
    held = threading.Event()

    def hold() -> None:
        with locks.lock("x"):
            held.set()
            threading.Event().wait(0.2)

    thread = threading.Thread(target=hold)
    thread.start()
    stack.callback(thread.join)
    assert held.wait(30)
    locks.lock("x").acquire(timeout=30).release()


def soon_expired(locks: Any, other: Any, stack: ExitStack) -> None:
    """A lease that nobody renews, as one uses it for a pause."""
    with locks.lock("x", ttl=0.5, renew=False, on_lost="log"):
        locks.lock("x").acquire(timeout=30).release()


def a_permit_that_another_thread_releases(locks: Any, other: Any, stack: ExitStack) -> None:
    """One thread acquires all permits, its workers release them."""
    timer = threading.Timer(1.3, locks.semaphore("x", limit=1).acquire().release)
    timer.start()
    stack.callback(timer.join)
    locks.semaphore("x", limit=1).acquire(timeout=30).release()


def handed_over(locks: Any, other: Any, stack: ExitStack) -> None:
    """To another process, which may take the lease over while this thread waits."""
    lease = locks.lock("x").acquire()
    lease.transfer()
    assert locks.lock("x").try_acquire(timeout=0.1) is None


def another_name_and_namespace(locks: Any, other: Any, stack: ExitStack) -> None:
    with leasehold.connect(locks.url, namespace="other") as elsewhere, elsewhere.lock("x"), locks.lock("y"):
        held_by_another_thread(locks, other, stack)


def a_permit_of_two(locks: Any, other: Any, stack: ExitStack) -> None:
    """The other permit is another thread's: that one may come back."""
    semaphore = locks.semaphore("x", limit=2)
    with semaphore:
        held = threading.Event()

        def hold() -> None:
            with semaphore:
                held.set()
                threading.Event().wait(0.2)

        thread = threading.Thread(target=hold)
        thread.start()
        stack.callback(thread.join)
        assert held.wait(30)
        semaphore.acquire(timeout=30).release()


def a_second_reader(locks: Any, other: Any, stack: ExitStack) -> None:
    with locks.rwlock("x").read(), locks.rwlock("x").read():
        pass


@pytest.mark.parametrize(
    "case",
    [
        *(enter_again, handed_to_another_thread, released_by_another_thread, held_by_another_thread),
        *(another_name_and_namespace, a_permit_of_two, a_second_reader),
        *(soon_expired, a_permit_that_another_thread_releases, handed_over),
    ],
)
def test_wait_that_others_can_end_is_not_called_a_wait_for_itself(
    case: Case, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with leasehold.connect(url) as locks, leasehold.connect(url) as other, ExitStack() as stack:
        locks.url = url  # type: ignore[attr-defined]
        case(locks, other, stack)
    assert "itself" not in caplog.text


@pytest.mark.parametrize("how", ["all permits", "writer of a reader"])
def test_wait_for_more_than_others_hold_is_a_wait_for_itself(
    how: str, url: str, caplog: pytest.LogCaptureFixture, another_thread: None
) -> None:
    with leasehold.connect(url) as locks:
        if how == "all permits":
            with locks.semaphore("x", limit=2), locks.semaphore("x", limit=2):
                assert locks.semaphore("x", limit=2).try_acquire(timeout=0.1) is None
        else:
            with locks.rwlock("x").read():
                assert locks.rwlock("x").write().try_acquire(timeout=0.1) is None
    [line] = lines(caplog, "self_wait")
    assert "rlock" not in line


async def test_child_task_that_waits_for_its_parent_is_another_task(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """It inherits the parent's open blocks, which are not its own."""

    async def wait(locks: Any) -> None:
        async with locks.lock("x").acquire(timeout=30):
            pass

    async with aio.connect(url) as locks:
        async with locks.lock("x"):
            child = asyncio.create_task(wait(locks))
            await asyncio.sleep(1.2)
        await child
    assert len(lines(caplog, "waiting")) == 1
    assert "itself" not in caplog.text


async def test_lease_handed_to_another_task_is_not_the_tasks_own(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def work(lease: Any) -> None:
        async with lease:
            await asyncio.sleep(1.2)

    async with aio.connect(url) as locks:
        working = asyncio.create_task(work(await locks.lock("x").acquire()))
        async with locks.lock("x").acquire(timeout=30):
            pass
        await working
    assert len(lines(caplog, "waiting")) == 1
    assert "itself" not in caplog.text
