"""A service as a plain script, with asyncio: ``script_aio.py URL GRACE HOW``."""

import asyncio
import sys

from work import NAMESPACE, draining, fork_and_tell, handle_by_raising, start_tasks, take_for_one

from leasehold import aio

url, grace, how = sys.argv[1:]


if how == "raises":
    handle_by_raising()
elif how == "together":
    take_for_one()


async def main() -> None:
    async with aio.connect(url, namespace=NAMESPACE) as locks:
        locks.drain_on_signals(grace=float(grace))
        if how == "again":
            locks.drain_on_signals(grace=0)
        tasks = start_tasks(locks, stubborn=how == "stubborn")
        if how == "returns":
            while not draining.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            return
        if how == "forks":
            fork_and_tell()
        await asyncio.gather(*tasks)
        await asyncio.Event().wait()


asyncio.run(main())
