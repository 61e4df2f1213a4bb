"""Redis: anybody can publish on our channels. No push is believed: at worst the store is asked."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

import leasehold
from leasehold import aio

pytestmark = [pytest.mark.server, pytest.mark.timeout(90)]
GARBAGE = [b"\xff\xfe", b" ", b"  granted 1 1", b"a" * 100_000, b"\x1b[2J granted", b"{attempt} granted x y"]


@pytest.fixture
def client(redis_server: Any) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


def forge(client: redis.Redis, queue: str) -> bool:
    """Tell all who wait that they hold the lease, or that they need not ask for long. False while nobody waits."""
    waiting = client.zrange(queue, 0, -1)
    channels = client.pubsub_channels("leasehold:session:*")
    seconds, micros = client.time()
    now = seconds * 1_000_000 + micros
    for channel in channels:
        for attempt in waiting:
            client.publish(channel, b"%b granted %d %d" % (attempt, now + 10**6, now))
            client.publish(channel, b"%b next %d" % (attempt, 10**15))
            for each in GARBAGE:
                client.publish(channel, each.replace(b"{attempt}", attempt))
    return bool(waiting and channels)


def test_forged_grant_is_not_believed_by_a_thread(redis_server: Any, client: redis.Redis) -> None:
    space, got = secrets.token_hex(6), []
    with (
        leasehold.connect(redis_server.url, namespace=space) as one,
        leasehold.connect(redis_server.url, namespace=space) as two,
    ):
        lease = one.lock("a").acquire()

        def wait() -> None:
            with two.lock("a").acquire(timeout=60) as theirs:
                got.append((theirs.token, lease.valid))

        waiter = threading.Thread(target=wait)
        waiter.start()
        told, ends = 0, time.monotonic() + 30
        while told < 5 and time.monotonic() < ends:
            told += forge(client, f"leasehold:{{{space}:a}}:queue")
            time.sleep(0.1)
        assert told == 5
        assert not got, f"SAFETY: two holders: {got}"
        token = lease.token
        lease.release()
        began = time.monotonic()
        waiter.join(60)
        assert time.monotonic() - began < 10, "it went on hearing"
    assert got[0][0] > token, f"SAFETY: tokens out of order: {token}, then {got}"
    assert not got[0][1], "SAFETY: two holders"


async def test_forged_grant_is_not_believed_by_a_task(redis_server: Any, client: redis.Redis) -> None:
    space = secrets.token_hex(6)
    async with (
        aio.connect(redis_server.url, namespace=space) as one,
        aio.connect(redis_server.url, namespace=space) as two,
    ):
        lease = await one.lock("a").acquire()
        waiter = asyncio.ensure_future(two.lock("a").acquire(timeout=60))
        told, ends = 0, time.monotonic() + 30
        while told < 5 and time.monotonic() < ends:
            told += await asyncio.to_thread(forge, client, f"leasehold:{{{space}:a}}:queue")
            await asyncio.sleep(0.1)
        assert told == 5
        assert not waiter.done(), "SAFETY: two holders"
        token = lease.token
        await lease.release()
        async with await asyncio.wait_for(waiter, 60) as theirs:
            assert theirs.token > token, "SAFETY: tokens out of order"
