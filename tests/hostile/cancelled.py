"""A program whose tasks are cancelled again and again, at random moments, and whose other tasks go on.

`cancelled.py URL NAMESPACE SECONDS`: the twin of `interrupted.py` for asyncio.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import random
import sys
import time

from leasehold import aio

TTL = 3.0
NAMES = 5
TASKS = 4


async def work(locks: aio.Locks) -> None:
    name = f"name-{random.randrange(NAMES)}"
    match random.randrange(3):
        case 0:
            await (await locks.lock(name).acquire(timeout=TTL + 2)).release()
        case 1:
            async with locks.lock(name, timeout=TTL + 2):
                await asyncio.sleep(0)
        case _:
            if lease := await locks.lock(name).try_acquire():
                await lease.release()


async def contend(rival: aio.Locks, ends: float) -> None:
    """Take what the others want, so that they wait, and hand it over."""
    while time.monotonic() < ends:
        lease = await rival.lock(f"name-{random.randrange(NAMES)}").try_acquire(timeout=0.05)
        await asyncio.sleep(random.uniform(0, 0.004))
        if lease is not None:
            await lease.release()


async def watch(lease: aio.Lease, ends: float) -> float:
    """The least that was left of it."""
    least = TTL
    while time.monotonic() < ends:
        least = min(least, lease.remaining)
        await asyncio.sleep(0.01)
    return least


async def cancel_again_and_again(locks: aio.Locks, ends: float) -> int:
    count = 0
    while time.monotonic() < ends:
        task = asyncio.create_task(work(locks))
        await asyncio.sleep(random.uniform(0, 0.003))
        count += task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and task.exception():
            raise task.exception()  # type: ignore[misc]
    return count


async def main(url: str, namespace: str, seconds: float) -> None:
    faulthandler.dump_traceback_later(seconds + 45, exit=True)
    async with (
        aio.connect(url, namespace=namespace, ttl=TTL) as locks,
        aio.connect(url, namespace=namespace, ttl=TTL) as other,
    ):
        held = await locks.lock("held").acquire()
        ends = time.monotonic() + seconds
        least, _, *counts = await asyncio.gather(
            watch(held, ends), contend(other, ends), *(cancel_again_and_again(locks, ends) for _ in range(TASKS))
        )
        lost = held.lost_reason
        longest = 0.0
        for number in range(NAMES):
            begun = time.monotonic()
            await (await locks.lock(f"name-{number}").acquire(timeout=TTL + 20)).release()
            longest = max(longest, time.monotonic() - begun)
        renewed = before = (await locks.metrics()).renewals
        ends = time.monotonic() + 2 * TTL
        while renewed <= before and time.monotonic() < ends:
            await asyncio.sleep(0.05)
            renewed = (await locks.metrics()).renewals
        ends = time.monotonic() + TTL + 5
        left = ["?"]
        while left and time.monotonic() < ends:
            left = sorted({info.name async for info in other.leases()} - {"held"})
            await asyncio.sleep(0.05)
        released = await held.release()
    print(
        json.dumps(
            {
                "interrupts": sum(counts),
                "ttl": TTL,
                "least": least,
                "lost": lost,
                "longest": longest,
                "renews": renewed > before,
                "left": left,
                "released": released,
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
