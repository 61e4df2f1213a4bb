"""``close()`` in a callback of the library's own does not wait for that callback."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time

import pytest

import leasehold
from leasehold import aio

pytestmark = pytest.mark.timeout(60)
QUICK = 3.0
"""Seconds. Whoever waits for itself waits for 5."""


def url() -> str:
    return f"memory://{secrets.token_hex(6)}"


def test_close_in_an_async_listener_ends_at_once() -> None:
    async def main() -> float:
        locks, took = aio.connect(url()), asyncio.get_running_loop().create_future()

        async def listener(event: aio.Event) -> None:
            if event.type == "acquired":
                began = time.monotonic()
                await locks.close()
                took.set_result(time.monotonic() - began)

        locks.on_event(listener)
        lease = await locks.lock("a").acquire()
        seconds: float = await took
        assert not lease.valid
        return seconds

    assert asyncio.run(main()) < QUICK


def test_close_in_a_task_that_an_async_listener_awaits_ends_at_once() -> None:
    async def main() -> float:
        locks, took = aio.connect(url()), asyncio.get_running_loop().create_future()

        async def listener(event: aio.Event) -> None:
            if event.type == "acquired":
                began = time.monotonic()
                async with asyncio.TaskGroup() as group:
                    group.create_task(locks.close())
                took.set_result(time.monotonic() - began)

        locks.on_event(listener)
        await locks.lock("a").acquire()
        seconds: float = await took
        return seconds

    assert asyncio.run(main()) < QUICK


def test_close_in_an_async_on_lost_callback_ends_at_once() -> None:
    async def main() -> float:
        where = url()
        locks, took = aio.connect(where), asyncio.get_running_loop().create_future()

        async def lost(lease: aio.Lease) -> None:
            began = time.monotonic()
            await locks.close()
            took.set_result(time.monotonic() - began)

        lease = await locks.lock("a", on_lost=lost).acquire()
        async with aio.connect(where) as other:
            await other.break_lease("a", force=True)
        seconds: float = await took
        assert not lease.valid
        return seconds

    assert asyncio.run(main()) < QUICK


def test_close_in_callbacks_of_threads_ends_at_once() -> None:
    where = url()
    for kind in ("event", "lost"):
        locks, took, done = leasehold.connect(where), [0.0], threading.Event()

        def close(_: object, locks: leasehold.Locks = locks, took: list[float] = took, done: threading.Event = done):  # type: ignore[no-untyped-def]
            began = time.monotonic()
            locks.close()
            took[0] = time.monotonic() - began
            done.set()

        if kind == "event":
            locks.on_event(close)
        lease = locks.lock("a", on_lost=close if kind == "lost" else None).acquire()
        with leasehold.connect(where) as other:
            other.break_lease("a", force=True)
        assert done.wait(20)
        assert took[0] < QUICK
        assert not lease.valid
