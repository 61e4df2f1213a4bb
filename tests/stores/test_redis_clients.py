"""Connections that are lent by a client of the user's, and what a stalled or closed transport does."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis
import redis.asyncio
from redis_tools import renewal

import leasehold
from leasehold import aio
from leasehold.core import clock
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis.requests import OneServer, PlainCommand, find_keys
from leasehold.stores.redis.store import RedisStore
from leasehold.stores.redis.transport_tasks import TaskTransport, connect
from leasehold.stores.redis.transport_threads import ThreadTransport
from leasehold.testing.handles import eventually
from servers.proxy import Proxy
from servers.redis import Redis

PING = PlainCommand((b"PING",))


@pytest.fixture(autouse=True)
def clean(redis_server: Redis) -> Iterator[None]:
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
        yield


async def test_a_cancelled_call_that_stalls_holds_up_only_an_abandon(redis_server: Redis) -> None:
    with Proxy(redis_server.port) as proxy:
        ports = [proxy.port]

        async def make(node: object, limit: float) -> Any:
            port = ports.pop() if ports else redis_server.port
            return await connect(redis.asyncio.Connection(host="127.0.0.1", port=port, protocol=2))

        transport, store = TaskTransport(OneServer(), make), RedisStore("redis", "")
        assert await transport.do(PING, clock.now() + 20) == b"PONG"
        proxy.blackhole()
        stalled = asyncio.ensure_future(transport.do(PING, clock.now() + 60))
        await asyncio.sleep(0.2)
        stalled.cancel()
        with suppress(asyncio.CancelledError):
            await stalled
        for steps in store.renew([renewal("a", "x", 1)]), store.release("a", "x", 1, None):
            await transport.do(next(steps), clock.now() + 20)
        with pytest.raises(redis.TimeoutError):
            await transport.do(next(store.abandon("a", "x")), clock.now() + 0.3)
        proxy.all_well()
        assert await transport.do(next(store.abandon("a", "x")), clock.now() + 20) == 0
        await transport.close()


def test_a_pool_that_waits_gets_back_what_it_lent(redis_server: Redis) -> None:
    """The waiter's listener waits inside the pool for a second connection, of which there is none."""
    pool = redis.BlockingConnectionPool.from_url(redis_server.url, max_connections=1, timeout=None)
    client = redis.Redis(connection_pool=pool)
    locks = leasehold.connect(client)
    lease = locks.lock("a", ttl=60).acquire()
    with pytest.raises(leasehold.AcquireTimeout):
        locks.lock("a").acquire(timeout=0.5)
    assert lease.valid
    locks.close()
    answers: list[Any] = []
    ping = threading.Thread(target=lambda: answers.append(client.ping()), daemon=True)
    ping.start()
    ping.join(20)
    assert answers == [True]
    client.close()


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_a_client_keeps_its_time_limits(redis_server: Redis, timeout: float | None) -> None:
    client = redis.Redis.from_url(redis_server.url, socket_timeout=timeout, socket_connect_timeout=timeout)
    with leasehold.connect(client) as locks:
        locks.lock("a").acquire().release()
    connection = client.connection_pool.get_connection()
    assert (connection.socket_timeout, connection.socket_connect_timeout) == (timeout, timeout)
    client.connection_pool.release(connection)
    client.close()


async def test_a_client_of_asyncio_keeps_its_time_limit(redis_server: Redis) -> None:
    client = redis.asyncio.Redis.from_url(redis_server.url, socket_timeout=7.0)
    async with aio.connect(client) as locks:
        await (await locks.lock("a").acquire()).release()
    connection = await client.connection_pool.get_connection()
    assert connection.socket_timeout == 7.0
    await client.connection_pool.release(connection)
    await client.aclose()


def test_a_connection_that_cannot_be_made_anew_goes_back(redis_server: Redis) -> None:
    broken = [False]

    class Flaky(redis.Connection):
        tries = 0

        def connect(self) -> None:
            self.tries += 1
            if broken[0] and self.tries % 2 == 0:
                raise redis.ConnectionError("cannot connect")
            super().connect()

        def disconnect(self, *args: Any) -> None:
            super().disconnect(*args)

    options = {"host": "127.0.0.1", "port": redis_server.port, "socket_timeout": None, "max_connections": 3}
    client = redis.Redis(connection_pool=redis.ConnectionPool(connection_class=Flaky, **options))
    with leasehold.connect(client) as locks:
        broken[0] = True
        for _ in range(8):
            with suppress(StoreUnavailable):
                locks.lock("a").try_acquire(timeout=0.2)
        broken[0] = False
        eventually(client.ping)
        locks.lock("b").acquire(timeout=20).release()
    client.close()


async def test_a_check_that_is_cancelled_loses_no_connection(redis_server: Redis) -> None:
    """Some parsers of redis-py wait while they check."""
    slow, lent = [False], [0]

    class Slow(redis.asyncio.Connection):
        async def can_read(self) -> bool:
            if slow[0]:
                await asyncio.sleep(60)
            return False

        can_read_destructive = can_read

    class Counting(redis.asyncio.ConnectionPool):
        async def get_connection(self, *args: Any, **options: Any) -> Any:
            found = await super().get_connection(*args, **options)
            lent[0] += 1
            return found

        async def release(self, connection: Any) -> None:
            lent[0] -= 1
            await super().release(connection)

    pool = Counting(connection_class=Slow, host="127.0.0.1", port=redis_server.port, max_connections=8)
    transport = aio.connect(redis.asyncio.Redis(connection_pool=pool))
    async with transport as locks:
        await (await locks.lock("a").acquire()).release()
        await asyncio.sleep(0.1)
        slow[0] = True
        task = asyncio.ensure_future(locks.inspect("a"))
        await asyncio.sleep(0.1)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        slow[0] = False
    assert lent[0] == 0
    await pool.aclose()


def test_listings_leave_the_reserved_connections_alone() -> None:
    assert next(find_keys(b"*", clock.now() + 1)).first is False


async def test_a_closed_transport_connects_no_more(redis_server: Redis) -> None:
    made: list[str] = []

    def make(node: object, limit: float) -> Any:
        made.append("thread")
        return redis.Connection(host="127.0.0.1", port=redis_server.port)

    async def make_in_task(node: object, limit: float) -> Any:
        made.append("task")
        return await connect(redis.asyncio.Connection(host="127.0.0.1", port=redis_server.port))

    threads, tasks = ThreadTransport(OneServer(), make), TaskTransport(OneServer(), make_in_task)
    threads.close()
    await tasks.close()
    for ask in (
        lambda: asyncio.to_thread(threads.do, PING, clock.now() + 5),
        lambda: asyncio.to_thread(threads.subscribe, "leasehold:session:x", 5),
        lambda: tasks.do(PING, clock.now() + 5),
        lambda: tasks.subscribe("leasehold:session:x", 5),
    ):
        with pytest.raises(redis.ConnectionError, match="closed"):
            await ask()
    assert made == []
