"""A loss is loud in asyncio: the task that entered the block is cancelled, and LeaseLost comes out of the block."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import AsyncIterator
from typing import Any

import pytest
from loud import ALL_KINDS, KINDS, broken, for_ever, lost_lines, marks

import leasehold
from leasehold import aio
from leasehold.testing.faults import install


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return f"memory://{request.node.name}"


@pytest.fixture
async def locks(url: str) -> AsyncIterator[aio.Locks]:
    async with aio.connect(url) as locks:
        yield locks


@ALL_KINDS
@pytest.mark.parametrize("on_lost", [None, "cancel", lambda lease: None])
async def test_body_is_cancelled_and_lease_lost_comes_out(locks: aio.Locks, url: str, kind: str, on_lost: Any) -> None:
    with pytest.raises(leasehold.LeaseLost, match="broken by an operator"):  # noqa: PT012
        async with KINDS[kind](locks, on_lost=on_lost):
            broken(url)
            await for_ever()
    assert marks() == 0
    async with KINDS[kind](locks, on_lost=on_lost) as lease:
        lease.check()


@ALL_KINDS
async def test_block_of_an_acquire_and_decorated_call_are_cancelled(locks: aio.Locks, url: str, kind: str) -> None:
    with pytest.raises(leasehold.LeaseLost):  # noqa: PT012
        async with KINDS[kind](locks).acquire(timeout=30):
            broken(url)
            await for_ever()

    @KINDS[kind](locks)
    async def work() -> None:
        broken(url)
        await for_ever()

    with pytest.raises(leasehold.LeaseLost):
        await work()
    assert marks() == 0


@ALL_KINDS
async def test_body_is_left_alone_if_a_loss_is_raised_at_the_end_or_only_logged(
    locks: aio.Locks, url: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with KINDS[kind](locks, on_lost="log") as lease:
        broken(url)
        await lease.lost.wait()
        await asyncio.sleep(0.05)
    assert any("lost" in line for line in lost_lines(caplog))
    with pytest.raises(leasehold.LeaseLost):  # noqa: PT012
        async with KINDS[kind](locks, on_lost="raise") as lease:
            broken(url)
            await lease.lost.wait()
            await asyncio.sleep(0.05)
    assert marks() == 0


async def test_task_with_a_bare_lease_is_not_cancelled(locks: aio.Locks, url: str) -> None:
    lease = await locks.lock("a").acquire()
    broken(url)
    await lease.lost.wait()
    await asyncio.sleep(0.05)
    assert not await lease.release()


async def test_task_that_entered_is_cancelled_and_not_the_one_that_acquired(locks: aio.Locks, url: str) -> None:
    taken: asyncio.Future[aio.Lease] = asyncio.get_running_loop().create_future()

    async def acquire() -> str:
        taken.set_result(await locks.lock("a").acquire())
        await asyncio.sleep(0.2)
        return "done"

    acquiring = asyncio.create_task(acquire())
    with pytest.raises(leasehold.LeaseLost):  # noqa: PT012
        async with await taken:
            broken(url)
            await for_ever()
    assert await acquiring == "done"


async def test_reraised_and_wrapped_cancellations_become_lease_lost(locks: aio.Locks, url: str) -> None:
    cleaned = []
    with pytest.raises(leasehold.LeaseLost) as caught:  # noqa: PT012
        async with locks.lock("a"):
            broken(url)
            try:
                await for_ever()
            except asyncio.CancelledError:
                await asyncio.sleep(0.01)  # clean-up that awaits
                cleaned.append(1)
                raise
    assert cleaned
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    with pytest.raises(leasehold.LeaseLost):  # noqa: PT012
        async with locks.lock("a"):
            broken(url)
            try:
                await for_ever()
            except asyncio.CancelledError as error:
                raise asyncio.CancelledError("another one") from error
    assert marks() == 0


@pytest.mark.parametrize("how", ["task group", "by hand"])
async def test_cancellation_that_the_body_dealt_with_before_the_loss_does_not_win(
    locks: aio.Locks, url: str, how: str
) -> None:
    """The task group of Python 3.11 and 3.12 leaves its own cancellation on the task."""

    async def fail() -> None:
        await asyncio.sleep(0.01)
        raise KeyError

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        async with locks.lock("a"):
            try:
                if how == "by hand":
                    task.cancel()
                    await for_ever()
                async with asyncio.TaskGroup() as group:
                    group.create_task(fail())
            except (asyncio.CancelledError, BaseExceptionGroup):
                pass
            broken(url)
            await for_ever()

    with pytest.raises(leasehold.LeaseLost, match="broken by an operator"):
        await asyncio.create_task(work())


async def test_body_that_swallows_the_cancellation_ends_with_lease_lost(locks: aio.Locks, url: str) -> None:
    with pytest.raises(leasehold.LeaseLost):  # noqa: PT012
        async with locks.lock("a"):
            broken(url)
            try:
                await for_ever()
            except asyncio.CancelledError:
                pass
    assert marks() == 0
    with pytest.raises(leasehold.LeaseLost):  # noqa: PT012
        async with locks.lock("a"):
            broken(url)
            try:
                await for_ever()
            except asyncio.CancelledError:
                task = asyncio.current_task()
                assert task is not None
                task.uncancel()  # it says that it has dealt with it
    assert marks() == 0


async def test_block_in_a_cancelled_task_takes_back_only_its_own_cancellation(locks: aio.Locks, url: str) -> None:
    """The task's clean-up is a block, and the body of that takes the second cancellation back by itself."""
    left: list[int] = []

    async def work() -> None:
        try:
            await for_ever()
        finally:
            with pytest.raises(leasehold.LeaseLost):  # noqa: PT012
                async with locks.lock("a"):
                    broken(url)
                    try:
                        await for_ever()
                    except asyncio.CancelledError:
                        task.uncancel()
            left.append(marks())

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left == [1]


async def test_error_of_the_body_comes_out_with_the_loss_as_its_context(locks: aio.Locks, url: str) -> None:
    with pytest.raises(KeyError) as caught:  # noqa: PT012
        async with locks.lock("a"):
            broken(url)
            try:
                await for_ever()
            except asyncio.CancelledError:
                raise KeyError("of the body") from None
    assert marks() == 0
    first: BaseException | None = caught.value
    while first is not None and not isinstance(first, leasehold.LeaseLost):
        first = first.__context__
    assert isinstance(first, leasehold.LeaseLost)


async def test_block_that_does_not_await_ends_with_lease_lost(locks: aio.Locks) -> None:
    with pytest.raises(leasehold.LeaseLost, match="expired"):  # noqa: PT012
        async with locks.lock("a", ttl=0.2, renew=False) as lease:
            while lease.valid:  # the loop is blocked
                time.sleep(0.01)
    assert marks() == 0
    await asyncio.sleep(0.05)  # whatever was on its way has come


async def test_loss_in_the_moment_the_block_ends_cancels_nothing_afterwards(locks: aio.Locks, url: str) -> None:
    """The body ends some turns of the loop after the break, before or after the news."""
    outcomes = set()
    for turns in range(40):
        try:
            async with locks.lock("a"):
                broken(url)
                for _ in range(turns):
                    await asyncio.sleep(0)
            outcomes.add("ended")
        except leasehold.LeaseLost:
            outcomes.add("lost")
        assert marks() == 0
        for _ in range(5):
            await asyncio.sleep(0)
    assert "lost" in outcomes


@pytest.mark.parametrize("what", ["release", "transfer", "taken over"])
async def test_lease_that_its_holder_gave_up_cancels_nobody(locks: aio.Locks, url: str, what: str) -> None:
    async with aio.connect(url) as other, locks.lock("a") as lease:
        if what == "release":
            assert await lease.release()
        else:
            text = await lease.transfer()
        if what == "taken over":
            heir = await other.accept(text)
            await asyncio.wait_for(lease.lost.wait(), 30)
            await heir.release()
        await asyncio.sleep(0.1)
    assert not lease.valid


@pytest.mark.parametrize("how", ["two leases", "two entries"])
async def test_nested_blocks_that_are_lost_together_end_once(locks: aio.Locks, url: str, how: str) -> None:
    outer, inner = (locks.lock("a"), locks.lock("b")) if how == "two leases" else (locks.rlock("a"),) * 2
    with pytest.raises(leasehold.LeaseLost, match="'a'") as caught:  # noqa: PT012
        async with outer, inner:
            broken(url)
            if how == "two leases":
                broken(url, "b")
            await for_ever()
    assert marks() == 0
    text = "".join(traceback.format_exception(caught.value))
    if how == "two leases":
        assert "lease 'b' is lost" in text
    assert "lease 'a' is lost" in text


async def test_inner_block_that_is_lost_leaves_the_outer_one(locks: aio.Locks, url: str) -> None:
    async with locks.lock("outer") as outer:
        with pytest.raises(leasehold.LeaseLost, match="'a'"):  # noqa: PT012
            async with locks.lock("a"):
                broken(url)
                await for_ever()
        outer.check()
        await asyncio.sleep(0.05)
    assert marks() == 0


async def test_lost_outer_block_stops_the_inner_one(locks: aio.Locks, url: str) -> None:
    with pytest.raises(leasehold.LeaseLost, match="'a'"):  # noqa: PT012
        async with locks.lock("a"), locks.lock("inner"):
            broken(url)
            await for_ever()
    assert await locks.inspect("inner") is None
    assert marks() == 0


async def test_lost_lease_begins_no_block(locks: aio.Locks, url: str) -> None:
    lease = await locks.lock("a").acquire()
    broken(url)
    await lease.lost.wait()
    with pytest.raises(leasehold.LeaseLost):
        async with lease:
            pytest.fail("the body ran")
    with pytest.raises(LookupError):
        aio.current()
    assert marks() == 0
    async with locks.lock("a", timeout=20):  # it was released
        pass


@ALL_KINDS
@pytest.mark.parametrize("on_lost", [None, "log"])
@pytest.mark.parametrize("how", ["released", "block has ended", "lost"])
async def test_lease_that_is_no_longer_held_begins_no_block(
    locks: aio.Locks, url: str, kind: str, on_lost: Any, how: str
) -> None:
    lease = await KINDS[kind](locks, on_lost=on_lost).acquire()
    if how == "released":
        await lease.release()
    elif how == "block has ended":
        async with lease:
            pass
    else:
        broken(url)
        await asyncio.wait_for(lease.lost.wait(), 30)
    with pytest.raises(leasehold.LeaseLost, match="broken" if how == "lost" else "it was released"):
        async with lease:
            pytest.fail("the body ran")
    with pytest.raises(LookupError):
        aio.current()
    assert marks() == 0


@ALL_KINDS
async def test_block_of_a_lost_lease_does_not_wait_for_a_store_that_hangs(
    locks: aio.Locks, url: str, kind: str
) -> None:
    faults, began = install(locks), 0.0
    with pytest.raises(leasehold.LeaseLost):  # noqa: PT012
        async with KINDS[kind](locks, ttl=2):
            faults.lose_request("*", noticed_after=30)
            try:
                await for_ever()
            finally:
                began = time.monotonic()
    took = time.monotonic() - began
    faults.mend()
    assert took < 0.5
    async with asyncio.timeout(20), KINDS[kind](locks):  # the keeper has released it
        pass


async def test_close_in_the_block_is_finished_and_the_block_ends_with_lease_lost(url: str) -> None:
    locks = aio.connect(url)
    closed = []
    with pytest.raises(leasehold.LeaseLost, match="closed"):  # noqa: PT012
        async with locks.lock("a"):
            await locks.close()
            closed.append(1)
    assert closed
    assert marks() == 0


async def test_drain_in_the_block_is_finished_and_the_block_ends_with_lease_lost(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    drained = []
    async with aio.connect(url) as locks, aio.connect(url) as other:
        bare = await locks.lock("bare").acquire()
        with pytest.raises(leasehold.LeaseLost, match="drain"):  # noqa: PT012
            async with locks.lock("a"):
                drained.append(await locks.drain(0.3))
                assert [info async for info in other.leases()] == []
        assert not bare.valid
    assert drained == [["a", "bare"]]
    assert marks() == 0
    [line] = [each for each in caplog.records if getattr(each, "lease_event", "") == "drain_in_own_block"]
    assert "own block of 'a'" in line.getMessage()


async def test_close_from_elsewhere_cancels_the_body(url: str) -> None:
    locks = aio.connect(url)
    entered = asyncio.Event()

    async def work() -> None:
        async with locks.lock("a"):
            entered.set()
            await for_ever()

    working = asyncio.create_task(work())
    await entered.wait()
    await locks.close()
    with pytest.raises(leasehold.LeaseLost, match="closed"):
        await working


async def test_work_of_a_leader_and_a_membership_are_not_blocks_of_the_caller(locks: aio.Locks, url: str) -> None:
    terms: list[int] = []

    async def lead(term: aio.Term) -> str:
        terms.append(term.token)
        if len(terms) == 1:
            broken(url, "leader")
            await for_ever()
        return "led"

    assert await locks.election("leader").run(lead) == "led"
    assert len(terms) == 2
    async with await locks.group("g").join() as membership:
        broken(url, "g")
        await membership.lost.wait()
        await asyncio.sleep(0.05)
    assert marks() == 0
