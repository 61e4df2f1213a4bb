"""How leases, waits and Locks of asyncio end when something comes in between. Each of these cases was wrong once."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

import leasehold
from leasehold import aio


async def extended(lease: aio.Lease) -> None:
    """Until a renewal has extended the lease: only that makes what remains of it grow."""
    least = lease.remaining
    while (remaining := lease.remaining) <= least:
        lease.check()
        least = remaining
        await asyncio.sleep(0.01)


async def test_keeper_survives_the_cancellation_of_every_task() -> None:
    async with aio.connect("memory://ends-cancel-all", ttl=5, renew_every=0.2) as locks:
        lease = await locks.lock("job").acquire()
        await asyncio.sleep(0.05)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await extended(lease)
        async with locks.lock("later") as later:
            await extended(later)
            await extended(lease)
        await lease.release()


async def test_keeper_that_is_cancelled_before_it_has_begun_comes_back() -> None:
    async with aio.connect("memory://ends-cancel-first", ttl=5, renew_every=0.2) as locks:
        lease = await locks.lock("job").acquire()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()  # nothing of it has run
        await extended(lease)
        await lease.release()


async def test_close_goes_on_when_its_caller_is_cancelled(tmp_path: Path) -> None:
    locks = aio.connect(f"sqlite:///{tmp_path}/leases.db", ttl=60)
    lease = await locks.lock("job").acquire()
    closing = asyncio.ensure_future(locks.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})
    await locks.close()
    assert not lease.valid
    async with aio.connect(f"sqlite:///{tmp_path}/leases.db") as others:
        assert await others.lock("job").try_acquire() is not None


async def test_dropped_locks_are_closed(tmp_path: Path) -> None:
    for _ in range(5):
        locks = aio.connect(f"sqlite:///{tmp_path}/leases.db")
        assert await locks.inspect("job") is None
        del locks
    for _ in range(2000):
        if not os.listdir(tmp_path / "leases.db-wake"):
            break
        await asyncio.sleep(0.01)
    assert os.listdir(tmp_path / "leases.db-wake") == []


async def test_block_of_an_expired_lease_is_not_entered() -> None:
    async with aio.connect("memory://ends-late") as locks:
        lock = locks.lock("job", ttl=1.0, renew=False, on_lost="cancel")
        lease = await lock.acquire()
        time.sleep(1.1)  # the loop is blocked, so nobody has been told
        entered = False

        async def enter() -> None:
            nonlocal entered
            async with lease:
                entered = True

        with pytest.raises(leasehold.LeaseLost):
            await enter()
        assert not entered
        await asyncio.sleep(0.01)  # no stray cancellation


async def test_acquire_can_be_run_as_a_task_and_entered_as_a_block() -> None:
    async with aio.connect("memory://ends-coroutine") as locks:
        lease = await asyncio.create_task(locks.lock("job").acquire())
        assert lease.valid
        await lease.release()
        async with locks.lock("job").acquire(timeout=1) as again:
            assert again.token > lease.token


async def test_task_that_outlives_its_block_does_not_find_the_outer_lease() -> None:
    async with aio.connect("memory://outlives") as locks, locks.lock("outer"):
        gate = asyncio.Event()

        async def late() -> None:
            await gate.wait()
            aio.current().check()

        async with locks.lock("inner"):
            task = asyncio.create_task(late())
        gate.set()
        with pytest.raises(leasehold.LeaseLost, match="inner"):
            await task
