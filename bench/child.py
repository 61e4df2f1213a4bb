"""A process that is one client of one peer, and does what it is told on its standard input, a JSON list a line.

Times are CLOCK_MONOTONIC, which is one clock for all processes of a machine.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
import time
from importlib import import_module
from typing import Any

from .peers.base import Base

HOLD = 0.01
"""How long the name is held when hand-offs are counted: the one who had it before waits again by then."""


def cpu() -> float:
    """Seconds of a core that this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def rss() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


class Client:
    """Each public method is a command."""

    def __init__(self, peer: Base) -> None:
        self._peer = peer
        self._held: dict[str, Any] = {}
        self._many: list[Any] = []
        self._loop = peer.new_loop()
        self._turning: set[asyncio.Task[Any]] = set()
        self._going, self._given = asyncio.Event(), 0

    def close(self) -> None:
        self._loop.run_until_complete(self._peer.aclose())
        self._loop.close()
        self._peer.close()

    def acquire(self, name: str, ttl: float = 30.0) -> float:
        self._held[name] = self._peer.acquire(name, ttl)
        return time.monotonic()

    def release(self, name: str) -> float:
        before = time.monotonic()
        self._peer.release(self._held.pop(name))
        return before

    def give(self, name: str) -> float:
        """Seconds of a release by itself."""
        before = self.release(name)
        return time.monotonic() - before

    def pairs(self, name: str, count: int) -> list[float]:
        """Seconds of each of ``count`` acquire+release pairs that nobody else contends for."""
        acquire, release, now, peer_name = self._peer.acquire, self._peer.release, time.perf_counter, name
        taken = []
        for _ in range(count):
            began = now()
            release(acquire(peer_name))
            taken.append(now() - began)
        return taken

    def apairs(self, name: str, count: int) -> list[float]:
        """The same in an event loop."""

        async def run() -> list[float]:
            acquire, release, now = self._peer.aacquire, self._peer.arelease, time.perf_counter
            taken = []
            for _ in range(count):
                began = now()
                await release(await acquire(name))
                taken.append(now() - began)
            return taken

        return self._loop.run_until_complete(run())

    def contend(self, name: str, begin: float, seconds: float) -> tuple[int, float]:
        """Take and give back from ``begin`` on, as often as possible: how often, and the longest wait."""
        acquire, release, now = self._peer.acquire, self._peer.release, time.monotonic
        time.sleep(max(0.0, begin - now()))
        end = begin + seconds
        count, worst = 0, 0.0
        while (asked := now()) < end:
            handle = acquire(name)
            worst = max(worst, now() - asked)
            release(handle)
            count += 1
        return count, worst

    def cpu_of_acquire(self, name: str) -> tuple[float, float]:
        """Wait for the name: seconds waited, and seconds of a core used for it."""
        began, used = time.monotonic(), cpu()
        self.acquire(name)
        return time.monotonic() - began, cpu() - used

    def crowd(self, tasks: int, names: int, seconds: float) -> tuple[list[int], float]:
        """So many tasks that contend for so many names: how often each had its own, and how long all took."""

        async def run() -> tuple[list[int], float]:
            counts = [0] * tasks
            began = time.monotonic()
            ends = began + seconds

            async def work(number: int) -> None:
                while time.monotonic() < ends:
                    handle = await self._peer.aacquire(f"crowd{number % names}")
                    counts[number] += 1
                    await self._peer.arelease(handle)

            await asyncio.gather(*(work(number) for number in range(tasks)))
            return counts, time.monotonic() - began

        return self._loop.run_until_complete(run())

    def queue(self, name: str, tasks: int) -> None:
        """So many tasks that have the name one after the other, once each."""

        async def once() -> None:
            await self._peer.arelease(await self._peer.aacquire(name))

        async def run() -> None:
            await asyncio.gather(*(once() for _ in range(tasks)))

        self._loop.run_until_complete(run())

    def line_up(self, name: str, tasks: int, seconds: float) -> None:
        """So many tasks that from now on take turns at the name, and come one after the other within so many seconds.
        Who has it keeps it until ``turns`` lets it go on. One more waits for another name all the while, so that the
        process does not stop and start to listen, however few take turns. It is to be killed in the end."""

        async def turn(number: int) -> None:
            await asyncio.sleep(number / tasks * seconds)
            while True:
                handle = await self._peer.aacquire(name)
                await asyncio.sleep(HOLD)
                await self._going.wait()
                self._given += 1
                await self._peer.arelease(handle)

        async def run() -> None:
            another = f"{name}-another"
            self._held[another] = await self._peer.aacquire(another)
            self._turning.add(asyncio.create_task(self._peer.aacquire(another)))
            self._turning.update(asyncio.create_task(turn(number)) for number in range(tasks))
            while await self._peer.waiters(name) < tasks - 1:  # noqa: ASYNC110  (the store cannot tell us)
                await asyncio.sleep(0.25)

        self._loop.run_until_complete(run())

    def turns(self, seconds: float) -> int:
        """Let the name be handed on for so long among those who have lined up: how often it was."""

        async def run() -> int:
            before = self._given
            self._going.set()
            await asyncio.sleep(seconds)
            self._going.clear()
            return self._given - before

        return self._loop.run_until_complete(run())

    def rest(self, seconds: float) -> None:
        """Do nothing, in an event loop."""
        self._loop.run_until_complete(asyncio.sleep(seconds))

    def fill(self, prefix: str, count: int) -> None:
        """Hold so many names for an hour, taken by several threads, for a store may take its time over each."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(8) as pool:
            held = pool.map(lambda number: self._peer.acquire(f"{prefix}{number}", 3600.0), range(count), chunksize=100)
            self._held.update((f"{prefix}{number}", handle) for number, handle in enumerate(held))

    def take_many(self, prefix: str, count: int) -> float:
        """Take so many, one after the other: bytes of memory for each."""
        self._peer.release(self._peer.acquire("warm"))
        gc.collect()
        before = rss()
        self._many = [self._peer.acquire(f"{prefix}{number}") for number in range(count)]
        gc.collect()
        return (rss() - before) / count

    def hold_many(self, seconds: float) -> tuple[float, int]:
        """Hold them for so long: the share of a core that it takes, and how many were lost."""
        began, used = time.monotonic(), cpu()
        time.sleep(seconds)
        share = (cpu() - used) / (time.monotonic() - began)
        return share, sum(not getattr(handle, "valid", True) for handle in self._many)


def main() -> None:
    module, target = sys.argv[1:]
    peer: Base = import_module(f"bench.peers.{module}").Peer(target)
    client = Client(peer)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        print(json.dumps(getattr(client, command)(*arguments)), flush=True)
    client.close()


if __name__ == "__main__":
    main()
