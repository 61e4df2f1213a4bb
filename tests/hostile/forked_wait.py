"""A process that is forked while it waits for a lease: ``forked_wait.py URL NAMESPACE SIDE``.

The child ends as programs do, by unwinding its stack, after the parent was granted the lease. It reports whether the
parent still has it then, and whether anybody else can acquire the name.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from typing import Any, NoReturn

import leasehold
from leasehold import aio

PATIENCE = 20.0
URL, NAMESPACE, SIDE = sys.argv[1:]


class Fork:
    """The child lives until the parent holds the lease, and ends by SystemExit wherever it is."""

    def __init__(self) -> None:
        read, self._held = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.read(read, 1)
            sys.exit(0)

    def end(self) -> None:
        """Let the child end."""
        os.write(self._held, b"1")
        os.waitpid(self.pid, 0)


def report(lease: Any, others: leasehold.Locks) -> NoReturn:
    taken = others.lock("name").try_acquire()
    print(json.dumps({"valid": lease.valid, "exclusive": taken is None}), flush=True)
    os._exit(0)


def threads() -> None:
    with leasehold.connect(URL, namespace=NAMESPACE, ttl=30) as others:
        forks: list[Fork] = []
        with leasehold.connect(URL, namespace=NAMESPACE, ttl=30) as locks:
            held = others.lock("name").acquire()
            signal.signal(signal.SIGUSR1, lambda number, frame: forks.append(Fork()))
            threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            threading.Timer(2.0, held.release).start()
            lease = locks.lock("name").acquire(timeout=PATIENCE)
            forks[0].end()
            report(lease, others)


async def tasks() -> None:
    with leasehold.connect(URL, namespace=NAMESPACE, ttl=30) as others:
        async with aio.connect(URL, namespace=NAMESPACE, ttl=30) as locks:
            held = others.lock("name").acquire()
            waiting = asyncio.create_task(locks.lock("name").acquire(timeout=PATIENCE))
            await asyncio.sleep(1.0)
            fork = Fork()
            held.release()
            lease = await waiting
            await asyncio.to_thread(fork.end)
            report(lease, others)


if SIDE == "threads":
    threads()
else:
    asyncio.run(tasks())
