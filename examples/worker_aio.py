"""A worker in asyncio whose body is cancelled when its lease is lost.

An operator breaks the lease while the worker is at it; a network that is away for longer than the ttl, or a
blocked event loop, would end it the same way.
"""

import asyncio

from leasehold import LeaseLost, aio


async def work(locks: aio.Locks, begun: asyncio.Event) -> None:
    try:
        async with locks.lock("queue:7", ttl=5) as lease:
            print("working under the lease")
            begun.set()
            for _ in range(1000):
                await asyncio.sleep(0.05)  # a piece of work
            print(f"done with token {lease.token}")  # not reached here
    except LeaseLost as error:
        print(f"stopped in mid-work: {error}")


async def main() -> None:
    async with aio.connect() as locks, aio.connect() as operator:
        begun = asyncio.Event()
        worker = asyncio.create_task(work(locks, begun))
        await begun.wait()
        await operator.break_lease("queue:7")
        await worker


asyncio.run(main())
