"""A test child that forks: the grandchild uses the ``Locks`` that it inherited."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from typing import Any

from .api import PATIENCE
from .handles import Locks


def both_sides(side: str, work: Callable[[Callable[..., Awaitable[Any]]], Awaitable[Any]]) -> Any:
    """Run ``work(call)`` in the grandchild, where ``await call(function, …)`` calls leasehold, of either side."""

    async def call(function: Callable[..., Any], *args: Any) -> Any:
        found = function(*args)
        return found if side == "threads" else await found

    async def run() -> Any:
        return await work(call)

    return asyncio.run(run())


def fork_and_use(locks: Locks, name: str, other: str, ttl: float) -> dict[str, Any]:
    """Hold ``name`` and fork; the grandchild reports what it sees of it, and what it can do with the same ``Locks``."""
    lease = locks.lock(name, ttl=ttl).acquire()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:

        async def look(call: Callable[..., Awaitable[Any]]) -> dict[str, Any]:
            seen = {"valid": lease.valid, "lost": lease.lost_reason, "released": await call(lease.real.release)}
            mine = await call(locks.real.lock(other, ttl=ttl).acquire, PATIENCE)
            await call(mine.renew)
            seen |= {"used": await call(mine.release), "owner": locks.owner}
            await call(locks.real.close)
            return seen

        try:
            seen = both_sides(locks.api.side, look)
        except BaseException as error:
            seen = {"error": repr(error)}
        os.write(write, json.dumps(seen).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        seen = json.load(file)
    os.waitpid(pid, 0)
    lease.renew()
    return {"child": seen, "valid": lease.valid, "owner": lease.owner, "released": lease.release()}


class Outliving:
    """A grandchild that acquires ``first`` with the inherited ``Locks``, and ``second`` after the parent closed it."""

    def __init__(self, locks: Locks, first: str, second: str) -> None:
        locks.lock(first).acquire().release()  # so that there is something to inherit
        told, self._go = os.pipe(), os.pipe()
        if os.fork() == 0:
            os.close(self._go[1])  # if the parent dies, this one ends too

            async def live(call: Callable[..., Awaitable[Any]]) -> None:
                leases = []
                for name in (first, second):
                    leases.append(await call(locks.real.lock(name, ttl=30).acquire, PATIENCE))
                    os.write(told[1], b"+")
                    os.read(self._go[0], 1)
                for lease in leases:
                    os.write(told[1], b"+" if await call(lease.release) else b"-")
                await call(locks.real.close)

            try:
                both_sides(locks.api.side, live)
            finally:
                os._exit(0)
        os.close(told[1])
        self._told = told[0]
        self._read(1)
        locks.close()
        os.write(self._go[1], b"1")
        self._read(1)

    def end(self) -> str:
        """Release both and end: "+" for each lease that was still held."""
        os.write(self._go[1], b"1")
        released = self._read(2)
        os.wait()
        return released

    def _read(self, count: int) -> str:
        found = os.read(self._told, count)
        while len(found) < count and (more := os.read(self._told, count - len(found))):
            found += more
        if len(found) < count:
            raise AssertionError("the grandchild has failed")
        return found.decode()
