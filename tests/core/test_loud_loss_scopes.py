"""A loss beside the other cancellations of a program: timeouts, task groups, anyio's cancel scopes, async generators.

A cancellation from outside wins, and none is left over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import anyio
import pytest
from loud import broken, for_ever, marks

import leasehold
from leasehold import aio


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return f"memory://{request.node.name}"


@pytest.fixture
async def locks(url: str) -> AsyncIterator[aio.Locks]:
    async with aio.connect(url) as locks:
        yield locks


# asyncio.timeout


@pytest.mark.parametrize("where", ["around", "inside"])
async def test_loss_before_a_timeout_is_a_loss(locks: aio.Locks, url: str, where: str) -> None:
    around, inside = (30, None) if where == "around" else (None, 30)
    with pytest.raises(leasehold.LeaseLost):  # noqa: PT012
        async with asyncio.timeout(around), locks.lock("a"), asyncio.timeout(inside):
            broken(url)
            await asyncio.Event().wait()
    assert marks() == 0


@pytest.mark.parametrize("where", ["around", "inside"])
async def test_timeout_without_a_loss_is_a_timeout(locks: aio.Locks, where: str) -> None:
    around, inside = (0.05, None) if where == "around" else (None, 0.05)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(around), locks.lock("a"), asyncio.timeout(inside):
            await asyncio.Event().wait()
    assert marks() == 0
    assert await locks.inspect("a") is None


async def test_timeout_around_the_block_wins_over_a_loss(locks: aio.Locks, url: str) -> None:
    with pytest.raises(TimeoutError):  # noqa: PT012
        async with asyncio.timeout(None) as around, locks.lock("a"):
            broken(url)
            await both_at_once(lambda: around.reschedule(0))
    assert marks() == 0


async def test_loss_wins_over_a_timeout_inside_the_block(locks: aio.Locks, url: str) -> None:
    with pytest.raises(leasehold.LeaseLost):  # noqa: PT012
        async with locks.lock("a"), asyncio.timeout(None) as inside:
            broken(url)
            await both_at_once(lambda: inside.reschedule(0))
    assert marks() == 0


async def both_at_once(cancel: Callable[[], object]) -> None:
    """Sleep until the loss cancels this; then cancel it a second time, in its clean-up."""
    try:
        await asyncio.Event().wait()
    finally:
        cancel()
        await asyncio.sleep(0.02)


# TaskGroup


async def test_loss_in_a_task_of_a_group_ends_the_group_with_it(locks: aio.Locks, url: str) -> None:
    ended = []

    async def sibling() -> None:
        try:
            await for_ever()
        finally:
            ended.append("sibling")

    async def work() -> None:
        async with locks.lock("a"):
            broken(url)
            await for_ever()

    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with asyncio.TaskGroup() as group:
            group.create_task(sibling())
            group.create_task(work())
    assert [type(error) for error in caught.value.exceptions] == [leasehold.LeaseLost]
    assert ended == ["sibling"]  # (Python 3.11's TaskGroup leaves its own cancellation of this task behind)


async def test_loss_cancels_a_group_of_tasks_inside_the_block(locks: aio.Locks, url: str) -> None:
    ended = []

    async def child() -> None:
        try:
            await for_ever()
        finally:
            ended.append("child")

    with pytest.raises(leasehold.LeaseLost):  # noqa: PT012
        async with locks.lock("a"), asyncio.TaskGroup() as group:
            group.create_task(child())
            await asyncio.sleep(0)
            broken(url)
    assert ended == ["child"]
    assert marks() == 0


async def test_error_of_a_group_inside_the_block_comes_out_as_it_is(locks: aio.Locks, url: str) -> None:
    async def child() -> None:
        try:
            await for_ever()
        finally:
            raise KeyError("in its clean-up")

    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with locks.lock("a"), asyncio.TaskGroup() as group:
            group.create_task(child())
            await asyncio.sleep(0)
            broken(url)
    assert caught.group_contains(KeyError)
    await asyncio.sleep(0.01)  # no cancellation is left
    assert marks() == 0


async def test_error_of_a_sibling_wins_over_a_loss(locks: aio.Locks, url: str) -> None:
    async def work() -> None:
        async with locks.lock("a"):
            broken(url)
            try:
                await for_ever()
            finally:
                failed.set()
                await asyncio.sleep(0.05)

    async def sibling() -> None:
        await failed.wait()
        raise KeyError

    failed = asyncio.Event()
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with asyncio.TaskGroup() as group:
            working = group.create_task(work())
            group.create_task(sibling())
    assert [type(error) for error in caught.value.exceptions] == [KeyError]
    assert working.cancelled()


# anyio


async def test_loss_inside_and_around_anyios_scopes_is_a_loss(locks: aio.Locks, url: str) -> None:
    with pytest.raises(leasehold.LeaseLost):  # noqa: PT012
        with anyio.fail_after(30):
            async with locks.lock("a"):
                with anyio.fail_after(30):
                    broken(url)
                    await anyio.sleep_forever()
    assert marks() == 0


async def test_loss_cancels_an_anyio_group_inside_the_block(locks: aio.Locks, url: str) -> None:
    ended = []

    async def child() -> None:
        try:
            await anyio.sleep(30)
        finally:
            ended.append("child")

    with pytest.raises(leasehold.LeaseLost):  # noqa: PT012
        async with locks.lock("a"), anyio.create_task_group() as group:
            group.start_soon(child)
            await asyncio.sleep(0)
            broken(url)
    assert ended == ["child"]
    assert marks() == 0


async def test_loss_in_a_task_of_an_anyio_group_ends_the_group_with_it(locks: aio.Locks, url: str) -> None:
    async def work() -> None:
        async with locks.lock("a"):
            broken(url)
            await anyio.sleep(30)

    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            group.start_soon(anyio.sleep, 30)
    assert [type(error) for error in caught.value.exceptions] == [leasehold.LeaseLost]
    assert marks() == 0


async def test_anyio_scope_that_is_cancelled_without_a_loss_ends_the_block(locks: aio.Locks) -> None:
    with anyio.move_on_after(0.05) as scope:
        async with locks.lock("a"):
            await anyio.sleep(30)
    assert scope.cancelled_caught
    assert marks() == 0
    async with asyncio.timeout(5):
        while await locks.inspect("a") is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("first", ["loss", "scope"])
async def test_anyio_scope_around_the_block_wins_over_a_loss(locks: aio.Locks, url: str, first: str) -> None:
    with anyio.CancelScope() as scope:
        async with locks.lock("a") as lease:
            broken(url)
            if first == "scope":
                scope.cancel()
                await until_lost_uncancelled(lease)
            try:
                await anyio.sleep(30)
            finally:
                scope.cancel()
                await asyncio.sleep(0.02)  # the clean-up of a body takes a while
    assert scope.cancelled_caught
    assert marks() == 0
    await asyncio.sleep(0.01)


async def until_lost_uncancelled(lease: aio.Lease) -> None:
    """The loss comes while the scope's cancellation is held off."""
    with anyio.CancelScope(shield=True), contextlib.suppress(asyncio.CancelledError):
        await anyio.sleep(30)
    assert not lease.valid


@pytest.mark.parametrize("first", ["loss", "scope"])
async def test_loss_wins_over_an_anyio_scope_inside_the_block(locks: aio.Locks, url: str, first: str) -> None:
    with pytest.raises(leasehold.LeaseLost):  # noqa: PT012
        async with locks.lock("a") as lease:
            with anyio.CancelScope() as scope:
                broken(url)
                if first == "scope":
                    scope.cancel()
                    await until_lost_uncancelled(lease)
                try:
                    await anyio.sleep(30)
                finally:
                    scope.cancel()
            await anyio.sleep(30)
    assert marks() == 0


# Async generators, and blocks that end elsewhere.


async def test_consumer_of_an_async_generator_is_cancelled(locks: aio.Locks, url: str) -> None:
    async def rows() -> AsyncIterator[int]:
        async with locks.lock("a"):
            yield 1
            yield 2

    with pytest.raises(leasehold.LeaseLost):  # noqa: PT012
        async with contextlib.aclosing(rows()) as found:
            async for _ in found:
                broken(url)
                await for_ever()
    assert marks() == 0
    async with locks.lock("a", timeout=5):
        pass


async def test_async_context_manager_that_yields_in_a_block_ends_with_lease_lost(locks: aio.Locks, url: str) -> None:
    @contextlib.asynccontextmanager
    async def held() -> AsyncIterator[aio.Lease]:
        async with locks.lock("a") as lease:
            yield lease

    with pytest.raises(leasehold.LeaseLost):  # noqa: PT012
        async with held():
            broken(url)
            await for_ever()
    assert marks() == 0


@pytest.mark.parametrize("entering", ["has ended", "goes on"])
async def test_block_that_ends_in_another_task_raises(locks: aio.Locks, url: str, entering: str) -> None:
    """The task that entered is cancelled if it still runs; the task in which the block ends gets LeaseLost."""
    block = locks.lock("a")
    entered, entered_lease = asyncio.Event(), list[aio.Lease]()

    async def enter() -> None:
        entered_lease.append(await block.__aenter__())
        entered.set()
        if entering == "goes on":
            await for_ever()

    task = asyncio.create_task(enter())
    await entered.wait()
    if entering == "has ended":
        await task
    lease = entered_lease.pop()
    broken(url)
    await lease.lost.wait()
    with pytest.raises(leasehold.LeaseLost):
        await block.__aexit__(None, None, None)
    if entering == "goes on":
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelling() == 1, "only the task itself takes its cancellation back"
    assert marks() == 0
    async with locks.lock("a", timeout=20):  # it was released
        pass
