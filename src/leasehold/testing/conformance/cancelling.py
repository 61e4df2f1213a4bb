"""What only tasks do: cancellation at every await, ``on_lost="cancel"``, and a loop that is blocked."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator
from typing import Any

import pytest

from ... import aio
from ...core.claim import EXPIRED
from ...errors import LeaseLost
from ..handles import eventually
from ..inside import end
from ..scene import Scene

MOST_AWAITS = 60
SOON = 10.0
"""Well below the ttl of 30 s, and the 15 s of a place in the queue: what is gone by then was given back."""


class Walk:
    """Awaits something and cancels its own task at the n-th thing that it waits for.

    With ``arrived`` the cancellation comes together with the result: it is there, and nobody sees it.
    """

    def __init__(self, work: Awaitable[Any], cancel_at: Collection[int], arrived: bool) -> None:
        self.work = work
        self.cancel_at = cancel_at
        self.arrived = arrived
        self.steps = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self.work.__await__()
        thrown: BaseException | None = None
        task = asyncio.current_task()
        assert task is not None
        while True:
            try:
                waited = next(inner) if thrown is None else inner.throw(thrown)
            except StopIteration as stop:
                return stop.value
            self.steps += 1
            if self.steps in self.cancel_at:
                if self.arrived and asyncio.isfuture(waited):
                    waited.add_done_callback(lambda _: task.cancel())
                else:
                    task.cancel()
            thrown = None
            try:
                yield waited
            except BaseException as error:
                thrown = error


async def walk(
    scene: Scene,
    prepare: Callable[[], Coroutine[Any, Any, tuple[Awaitable[Any], Awaitable[Any]]]],
    after: Callable[[Any], Coroutine[Any, Any, None]],
) -> int:
    """Do the same thing again and again, cancelled one await later each time, until it is through uncancelled.

    ``prepare`` returns the thing and what goes on beside it; ``after`` is given its result (None: it was cancelled).
    """
    longest = 0
    for arrived in (False, True):
        for twice in (False, True):
            for at in range(1, MOST_AWAITS):
                work, beside = await prepare()
                steps = Walk(work, {at, at + 1} if twice else {at}, arrived)
                task = asyncio.ensure_future(_await(steps))
                companion = asyncio.ensure_future(_await(beside))
                result = (await asyncio.gather(task, return_exceptions=True))[0]
                await companion
                cancelled = isinstance(result, asyncio.CancelledError)
                assert cancelled or not isinstance(result, BaseException), result
                await after(None if cancelled else result)
                longest = max(longest, steps.steps)
                if steps.steps < at:
                    break
            else:
                raise AssertionError("it never comes to an end")
    return longest


async def _await(work: Awaitable[Any]) -> Any:
    return await work


async def _nothing() -> None:
    return None


async def _free(scene: Scene, name: str) -> None:
    ends = time.monotonic() + SOON
    while scene.held(name) or scene.waiters(name):
        assert time.monotonic() < ends, f"{name}: {scene.held(name)}, {scene.waiters(name)} waiting"
        await asyncio.sleep(0.005)


@pytest.mark.slow
def test_an_acquire_cancelled_at_any_await_leaves_nothing(tasks: Scene) -> None:
    """Promise 4, L5, S4: cancelled before, during and after each call to the store, once and twice."""
    locks = tasks.connect(ttl=30)
    names: list[str] = []

    async def prepare() -> tuple[Awaitable[Any], Awaitable[Any]]:
        names.append(tasks.name())
        return locks.real.lock(names[-1]).acquire(), _nothing()

    async def after(lease: Any) -> None:
        if lease is not None:
            await lease.release()
        await _free(tasks, names[-1])

    tasks.loop.run(walk(tasks, prepare, after))


@pytest.mark.slow
def test_a_waiting_acquire_cancelled_at_any_await_leaves_nothing(tasks: Scene) -> None:
    """Promise 4, L5, S4: the same for one that waits, is woken, and claims what was granted to it."""
    locks, other = tasks.connect(ttl=30), tasks.connect(ttl=30)
    names: list[str] = []

    async def prepare() -> tuple[Awaitable[Any], Awaitable[Any]]:
        names.append(tasks.name())
        held = await other.real.lock(names[-1]).acquire()

        async def release() -> None:
            ends = time.monotonic() + 0.1
            while not tasks.waiters(names[-1]) and time.monotonic() < ends:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            await held.release()

        return locks.real.lock(names[-1]).acquire(), release()

    async def after(lease: Any) -> None:
        if lease is not None:
            await lease.release()
        await _free(tasks, names[-1])

    assert tasks.loop.run(walk(tasks, prepare, after)) >= 1


def test_a_release_cancelled_at_any_await_gives_back(tasks: Scene) -> None:
    """Promise 4, L5: whoever cancels the release, the store hears of it."""
    locks = tasks.connect(ttl=30)
    names: list[str] = []

    async def prepare() -> tuple[Awaitable[Any], Awaitable[Any]]:
        names.append(tasks.name())
        lease = await locks.real.lock(names[-1]).acquire()
        return lease.release(), _nothing()

    async def after(released: Any) -> None:
        assert released in (True, None)
        await _free(tasks, names[-1])

    tasks.loop.run(walk(tasks, prepare, after))


def test_a_block_cancelled_at_any_await_gives_back(tasks: Scene) -> None:
    """Promise 4, L5: entering, in the body, and leaving."""
    locks = tasks.connect(ttl=30)
    names: list[str] = []

    async def block(name: str) -> bool:
        async with locks.real.lock(name) as lease:
            await asyncio.sleep(0.001)
            assert lease.valid
        return True

    async def prepare() -> tuple[Awaitable[Any], Awaitable[Any]]:
        names.append(tasks.name())
        return block(names[-1]), _nothing()

    async def after(result: Any) -> None:
        await _free(tasks, names[-1])

    assert tasks.loop.run(walk(tasks, prepare, after)) >= 1


def test_an_acquire_that_is_thrown_away_leaves_nothing(tasks: Scene) -> None:
    """L5: a coroutine that is closed in the middle (its loop has gone, a framework drops it)."""
    locks, other = tasks.connect(ttl=30), tasks.connect(ttl=30)
    name = tasks.name()
    lease = other.lock(name).acquire()

    async def drop() -> None:
        async def acquire() -> None:
            await locks.real.lock(name).acquire()

        waiting = asyncio.ensure_future(acquire())
        while not tasks.waiters(name):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        coroutine = waiting.get_coro()
        assert coroutine is not None
        coroutine.close()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)  # what is closed cannot be run any more

    tasks.loop.run(drop())
    eventually(lambda: tasks.waiters(name) == 0, SOON)
    lease.release()
    tasks.until_free(name, SOON)


def test_on_lost_cancel_ends_the_body(tasks: Scene) -> None:
    """Reference: on_lost="cancel": the body is cancelled, and LeaseLost comes out; of a block and a decorator."""
    locks = tasks.connect()

    async def block() -> None:
        async with locks.real.lock(tasks.name(), renew=False, on_lost="cancel"):
            await asyncio.sleep(30)

    async def body() -> None:
        lease = aio.current()
        assert lease.valid or lease.lost_reason == EXPIRED
        await asyncio.sleep(30)

    decorated = locks.real.lock(tasks.name(), ttl=tasks.steady, renew=False, on_lost="cancel")(body)

    async def run(work: Callable[[], Coroutine[Any, Any, None]]) -> int:
        with pytest.raises(LeaseLost) as caught:
            await work()
        assert caught.value.reason
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    for work in (block, decorated):
        assert tasks.loop.run(run(work)) == 0, "the task is not marked as cancelled any more"


@pytest.mark.parametrize("first", ["outside", "loss"])
def test_a_cancellation_from_outside_wins(tasks: Scene, first: str) -> None:
    """Reference: on_lost="cancel": a cancellation from outside wins, whichever of the two came first."""
    locks = tasks.connect(ttl=30)
    name = tasks.name()

    async def body(entered: asyncio.Future[Any]) -> None:
        async with locks.real.lock(name, on_lost="cancel") as lease:
            entered.set_result(lease)
            await asyncio.sleep(30)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        entered = loop.create_future()
        task = asyncio.ensure_future(body(entered))
        lease = await entered
        if first == "outside":
            task.cancel()
            end(lease, "it was lost for the test")
        else:
            end(lease, "it was lost for the test")
            loop.call_soon(task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    tasks.loop.run(run())
    tasks.until_free(name, SOON)


@pytest.mark.slow
def test_a_blocked_loop_loses_its_lease_and_is_told(tasks: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """Promise 6, L4: right at any moment, since it is computed; the next await raises; the log says how long, where."""
    locks = tasks.connect()
    ttl = 4 * tasks.steady  # so that it is not lost before the loop is blocked, by a machine that stands still
    lock = locks.real.lock(tasks.name(), ttl=ttl, on_lost="cancel")
    blocked: list[Any] = []
    seen: list[bool] = []
    reached: list[str] = []

    async def body() -> None:
        async with lock as lease:
            await asyncio.sleep(0.1 * tasks.steady)
            blocked.append(lease)
            while not seen:
                time.sleep(0.01)
            reached.append("after the blocking call")
            await asyncio.sleep(30)
            reached.append("after the next await")

    def said() -> list[logging.LogRecord]:
        return [each for each in caplog.records if "blocked" in each.getMessage()]

    job = tasks.api.start(body)
    try:
        (lease,) = eventually(lambda: list(blocked))
        left = lease.remaining
        deadline = time.monotonic() + left
        late = False
        while lease.valid:
            assert not late, "it is computed"
            late = time.monotonic() >= deadline
        assert lease.lost.is_set()
        assert lease.lost_reason
        eventually(said)
        assert not reached, "the loop was still blocked, or this shows nothing"
    finally:
        seen.append(True)
    assert isinstance(job.error(), LeaseLost)
    assert reached == ["after the blocking call"]
    (record,) = said()
    assert record.__dict__["lease_blocked_for"] > 0
    assert __file__ in record.getMessage()
    assert "body" in record.getMessage()
    assert lease.name in record.getMessage()
