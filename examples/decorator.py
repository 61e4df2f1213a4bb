"""Functions that run under a lease, each call for itself; threads and asyncio."""

import asyncio
import threading
import time

import leasehold
from leasehold import aio

locks = leasehold.connect()
alocks = aio.connect()
running = most = 0


@locks.lock("report", timeout=10)
def report(number: int) -> None:
    global running, most
    running += 1
    most = max(most, running)
    leasehold.current().check()  # the lease of this call
    time.sleep(0.02)
    running -= 1


@alocks.lock("mail")
async def send_mail(number: int) -> int:
    await asyncio.sleep(0.01)
    return leasehold.current().token


async def send_all() -> None:
    async with alocks:
        tokens = await asyncio.gather(*(send_mail(number) for number in range(3)))
    assert len(set(tokens)) == 3
    print("three mails were sent, one after the other")


threads = [threading.Thread(target=report, args=(number,)) for number in range(5)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(f"of five calls, at most {most} ran at the same time")
assert most == 1
locks.close()

asyncio.run(send_all())
