"""Waiting on Redis: how few commands that takes when many wait in a process; nothing is overlooked."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from redis_tools import direct, scripts_run

import leasehold
from leasehold import aio
from leasehold.core import timing
from leasehold.core.protocol import SECOND, Ask
from leasehold.core.timing import FALLBACK
from leasehold.stores.redis import limits
from leasehold.stores.redis.scripts import LOOK_FOR
from leasehold.testing.handles import in_time
from servers.redis import Redis
from servers.redis_ensembles import RedisCluster


def ask_of(attempt: str, name: str = "") -> Ask:
    """For the name that is the attempt's last letter."""
    return Ask(name or attempt[-1], attempt, "me", "lock", None, 30 * SECOND, queue=True)


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """No listener gives up a server that is slow to answer: whoever waits would ask again."""
    monkeypatch.setattr(limits, "HEARTBEAT", 600.0)


@pytest.fixture
def client(redis_server: Any) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(redis_server.url)
    client.flushall()
    yield client
    client.flushall()  # what is not leasehold's would be in the way of others
    client.close()


def eventually(true: Callable[[], object], within: float = 60.0) -> None:
    ends = time.monotonic() + within
    while not true():
        assert time.monotonic() < ends, "not so in time"
        time.sleep(0.01)


async def soon(true: Callable[[], object], within: float = 60.0) -> None:
    ends = time.monotonic() + within
    while not true():
        assert time.monotonic() < ends, "not so in time"
        await asyncio.sleep(0.01)


def all_known(count: int, *clients: redis.Redis) -> bool:
    """So many wait, and each has looked for the first time: none of them is new."""
    came = [
        score
        for client in clients
        for queue in client.scan_iter("leasehold:*:queue")
        for _, score in client.zrange(queue, 0, -1, withscores=True)
    ]
    seconds, micros = clients[0].time()
    return len(came) == count and all(seconds * SECOND + micros - score > SECOND for score in came)


@contextmanager
def listening(target: Any) -> Iterator[leasehold.Locks]:
    """Its listener is up before anybody waits: it has all who wait ask again when it comes up, at any time after."""
    with leasehold.connect(target) as locks:
        driver: Any = locks._core.driver
        driver.listen("", None)
        eventually(lambda: driver.listener.up)
        yield locks


def often(monkeypatch: pytest.MonkeyPatch, seconds: float = 1.0) -> None:
    """Checks come so often."""
    monkeypatch.setattr(timing, "FALLBACK", seconds)


class Waiting:
    """Threads that wait for a lease, and give it back."""

    def __init__(self, locks: leasehold.Locks, names: Sequence[str]) -> None:
        self.served: list[str] = []
        self._threads = [threading.Thread(target=self._wait, args=(locks, name)) for name in names]
        for thread in self._threads:
            thread.start()

    def _wait(self, locks: leasehold.Locks, name: str) -> None:
        with locks.lock(name).acquire():
            self.served.append(name)

    def end(self, within: float = 60.0) -> None:
        ends = time.monotonic() + within
        for thread in self._threads:
            thread.join(max(0.0, ends - time.monotonic()))
            assert not thread.is_alive()


NAMES = ["a"] * 6 + ["b", "b", "c", "d"]
PERIODS = 4


def check_idle(sent: int, periods: float) -> None:
    """Each by itself would have sent one command per period."""
    assert sent <= len(NAMES) * periods / 2


def test_many_idle_threads_send_as_little_as_one(start_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a server of their own: what others may have left is not counted."""
    often(monkeypatch)
    server = start_server(Redis)
    with (
        redis.Redis(port=server.port) as client,
        leasehold.connect(server.url) as ours,
        listening(server.url) as theirs,
    ):
        leases = [ours.lock(name, ttl=600, renew=False).acquire() for name in "abcd"]
        waiting = Waiting(theirs, NAMES)
        eventually(lambda: all_known(len(NAMES), client))
        began, before = time.monotonic(), scripts_run(client)
        time.sleep(PERIODS)
        sent = scripts_run(client) - before
        check_idle(sent, time.monotonic() - began)
        for lease in leases:
            lease.release()
        waiting.end()
        assert sorted(waiting.served) == NAMES


async def wait_in_task(locks: aio.Locks, name: str) -> None:
    async with locks.lock(name):
        pass


async def wait_in_tasks(locks: aio.Locks, *clients: redis.Redis) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(wait_in_task(locks, name)) for name in NAMES]
    await soon(lambda: all_known(len(NAMES), *clients))
    return tasks


async def test_many_idle_tasks_send_as_little_as_one(start_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    often(monkeypatch)
    server = start_server(Redis)
    with redis.Redis(port=server.port) as client:
        async with aio.connect(server.url) as ours, aio.connect(server.url) as theirs:
            leases = [await ours.lock(name, ttl=600, renew=False).acquire() for name in "abcd"]
            tasks = await wait_in_tasks(theirs, client)
            began, before = time.monotonic(), scripts_run(client)
            await asyncio.sleep(PERIODS)
            sent = scripts_run(client) - before
            check_idle(sent, time.monotonic() - began)
            for lease in leases:
                await lease.release()
            await asyncio.wait_for(asyncio.gather(*tasks), 60)


@pytest.mark.parametrize("side", ["threads", "tasks"])
def test_in_a_cluster_they_send_one_look_per_slot(
    redis_cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    often(monkeypatch)
    nodes = [redis.Redis(port=member.port) for member in redis_cluster.members]
    for node in nodes:
        node.flushall()
    url = redis_cluster.url

    async def in_tasks() -> tuple[int, float]:
        async with aio.connect(url) as theirs:
            tasks = await wait_in_tasks(theirs, *nodes)
            began, before = time.monotonic(), scripts_run(*nodes)
            await asyncio.sleep(PERIODS)
            sent = scripts_run(*nodes) - before, time.monotonic() - began
            await asyncio.to_thread(give_back)
            await asyncio.wait_for(asyncio.gather(*tasks), 60)
            return sent

    def in_threads() -> tuple[int, float]:
        with listening(url) as theirs:
            waiting = Waiting(theirs, NAMES)
            eventually(lambda: all_known(len(NAMES), *nodes))
            began, before = time.monotonic(), scripts_run(*nodes)
            time.sleep(PERIODS)
            sent = scripts_run(*nodes) - before, time.monotonic() - began
            give_back()
            waiting.end()
            return sent

    def give_back() -> None:
        for lease in leases:
            lease.release()

    with leasehold.connect(url) as ours:
        leases = [ours.lock(name, ttl=600, renew=False).acquire() for name in "abcd"]
        sent, seconds = asyncio.run(in_tasks()) if side == "tasks" else in_threads()
    # In slots "a" and "b" one of several looks for all; those of the others are alone.
    assert sent <= 4 * (seconds + 1) + len(NAMES)
    for node in nodes:
        node.close()


@pytest.mark.slow
def test_an_idle_waiter_costs_less_than_a_command_in_five_seconds(redis_server: Any, client: redis.Redis) -> None:
    """By the clock that users have, with all that their process sends."""
    with leasehold.connect(redis_server.url) as ours, listening(redis_server.url) as theirs:
        leases = [ours.lock(name, ttl=600, renew=False).acquire() for name in "abcd"]
        waiting = Waiting(theirs, NAMES)
        eventually(lambda: all_known(len(NAMES), client))
        began, before = time.monotonic(), scripts_run(client)
        places = client.zrange("leasehold:{:a}:queue", 0, -1)
        time.sleep(4 * FALLBACK + 1)
        sent, seconds = scripts_run(client) - before, time.monotonic() - began
        assert client.zrange("leasehold:{:a}:queue", 0, -1) == places  # a place lasts 15 s without a sign of life
        for lease in leases:
            lease.release()
        waiting.end()
    assert sent <= 2 * (seconds / FALLBACK + 1)
    assert (sent + seconds / 2.5) / seconds / len(NAMES) <= 0.2, sent


AGE = """
local waiter = cmsgpack.unpack(redis.call('HGET', KEYS[1], ARGV[1]))
waiter[9] = waiter[9] - ARGV[2] * 1000000
redis.call('HSET', KEYS[1], ARGV[1], cmsgpack.pack(waiter))
"""
LEFT = """
local clock = redis.call('TIME')
return cmsgpack.unpack(redis.call('HGET', KEYS[1], ARGV[1]))[9] - clock[1] * 1000000 - clock[2]
"""


def age(client: redis.Redis, attempts: Sequence[str], seconds: float = 8.0) -> None:
    for attempt in attempts:
        client.eval(AGE, 1, "leasehold:{:a}", f"w{attempt}", str(seconds))


def left(client: redis.Redis, attempt: str) -> float:
    return int(client.eval(LEFT, 1, "leasehold:{:a}", f"w{attempt}")) / SECOND  # type: ignore[arg-type]


@pytest.mark.parametrize("lost", ["queue", "everything"])
def test_a_place_that_was_lost_is_had_anew(
    redis_server: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    often(monkeypatch)
    with leasehold.connect(redis_server.url) as ours, listening(redis_server.url) as theirs:
        lease = ours.lock("a", ttl=600).acquire()
        waiting = Waiting(theirs, "aaaa")
        eventually(lambda: all_known(4, client))
        if lost == "queue":
            client.delete("leasehold:{:a}:queue")
            eventually(lambda: client.zcard("leasehold:{:a}:queue") == 4)
            lease.release()
        else:
            client.flushall()
        waiting.end()
        assert len(waiting.served) == 4


def test_a_dead_holder_is_replaced_in_time(redis_server: Any, client: redis.Redis) -> None:
    """A waiter that gets no time from the machine is late all the same: then once more."""
    ttl = 1.0
    in_time(lambda: until_replaced(redis_server.url, ttl, client), ttl + 0.25)


def until_replaced(url: str, ttl: float, client: redis.Redis) -> float:
    """Seconds from the death of a holder until one of several that wait in another process has its lease; of one that
    stood still and lost it before that says nothing."""
    code = f"import leasehold, time; l = leasehold.connect({url!r}).lock('a', ttl={ttl}).acquire(); " \
        "print('held', flush=True); time.sleep(120)"  # fmt: skip
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    taken: list[float] = []

    def wait() -> None:
        with theirs.lock("a").acquire():
            taken.append(time.monotonic())

    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with leasehold.connect(url) as ours, listening(url) as theirs:
            other = ours.lock("b", ttl=600).acquire()
            waiting = Waiting(theirs, "bb")
            threads = [threading.Thread(target=wait) for _ in range(4)]
            for thread in threads:
                thread.start()
            eventually(lambda: taken or all_known(6, client))
            time.sleep(1.5 * ttl)  # by now one has looked for all
            holder.kill()
            killed = time.monotonic()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive()
            other.release()
            waiting.end()
        return min(taken) - killed if min(taken) > killed else float("inf")
    finally:
        holder.kill()
        holder.wait()
        if holder.stdout is not None:
            holder.stdout.close()


@pytest.mark.slow
@pytest.mark.parametrize("side", ["threads", "tasks"])
def test_each_who_waits_is_told_once_that_the_store_is_away(
    start_server: Any, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    """And ends when it has been for long enough, whoever looks for all meanwhile."""
    often(monkeypatch)
    master = start_server(Redis, "--repl-diskless-sync-delay", "0")
    replica = start_server(Redis, "--replicaof", "127.0.0.1", str(master.port))
    with redis.Redis(port=master.port) as client:
        eventually(lambda: client.info("replication").get("slave0", {}).get("state") == "online")
    url = f"{master.url}?replicas=1"
    told: list[str] = []
    failed: list[str] = []

    def tell(event: leasehold.Event) -> None:
        if event.type == "unavailable":
            told.append(event.name)

    def away() -> None:
        monkeypatch.setattr(timing, "UNAVAILABLE_LIMIT", 6.0)
        replica.pause()

    async def in_tasks() -> None:
        async def wait(name: str) -> None:
            try:
                await theirs.lock(name).acquire()
            except leasehold.StoreUnavailable:
                failed.append(name)

        async with aio.connect(url) as theirs:
            theirs.on_event(tell)
            tasks = [asyncio.create_task(wait(name)) for name in NAMES]
            await soon(lambda: all_known(len(NAMES), client))
            away()
            await asyncio.wait_for(asyncio.gather(*tasks), 100)

    def in_threads() -> None:
        def wait(name: str) -> None:
            try:
                theirs.lock(name).acquire()
            except leasehold.StoreUnavailable:
                failed.append(name)

        with listening(url) as theirs:
            theirs.on_event(tell)
            threads = [threading.Thread(target=wait, args=(name,), daemon=True) for name in NAMES]
            for thread in threads:
                thread.start()
            eventually(lambda: all_known(len(NAMES), client))
            away()
            for thread in threads:
                thread.join(100)

    with leasehold.connect(master.url) as ours:
        leases = [ours.lock(name, ttl=600, renew=False).acquire() for name in "abcd"]
        asyncio.run(in_tasks()) if side == "tasks" else in_threads()
        eventually(lambda: len(told) >= len(NAMES))
        assert sorted(told) == sorted(failed) == NAMES
        for lease in leases:
            lease.release()


def test_something_else_in_the_way_of_one_name_is_told_to_who_waits_for_it_alone(
    redis_server: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    often(monkeypatch)
    failed: list[str] = []

    def wait(name: str) -> None:
        try:
            with theirs.lock(name).acquire():
                pass
        except leasehold.StoreError:
            failed.append(name)

    with leasehold.connect(redis_server.url) as ours, listening(redis_server.url) as theirs:
        leases = [ours.lock(name, ttl=600, renew=False).acquire() for name in "abcd"]
        threads = [threading.Thread(target=wait, args=(name,)) for name in "aabbccdd"]
        for thread in threads:
            thread.start()
        eventually(lambda: all_known(8, client))
        client.set("leasehold:{:b}", "a text")
        client.hset("leasehold:{:c}", "f", "2")
        client.hset("leasehold:{:d}", "h", b"\xc1")  # nothing in msgpack
        eventually(lambda: sorted(failed) == ["b", "b", "c", "c", "d", "d"])
        leases[0].release()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        client.delete("leasehold:{:b}", "leasehold:{:c}", "leasehold:{:d}")  # what is to be given back can be
    assert sorted(failed) == ["b", "b", "c", "c", "d", "d"]


def test_waiters_are_served_also_when_all_calls_get_lost(
    redis_server: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The push seems to be up, and is deaf."""
    often(monkeypatch)
    with leasehold.connect(redis_server.url) as ours, listening(redis_server.url) as theirs:
        driver: Any = theirs._core.driver
        lease = ours.lock("a", ttl=600).acquire()
        waiting = Waiting(theirs, "aaa")
        eventually(lambda: all_known(3, client))
        driver.listener.hear = lambda payload: False
        lease.release()
        waiting.end()
        assert driver.listener.up


HOLDER_TTL = """
local holders = cmsgpack.unpack(redis.call('HGET', KEYS[1], 'h'))
local clock = redis.call('TIME')
holders[1][9] = clock[1] * 1000000 + clock[2] + ARGV[1] * 1000000
redis.call('HSET', KEYS[1], 'h', cmsgpack.pack(holders))
"""


def test_when_the_queue_is_to_move_up_a_look_says_so(redis_server: Any, client: redis.Redis) -> None:
    keys = "leasehold:{:a}", "leasehold:{:a}:queue"
    with direct(redis_server.url) as core:
        shape = {"shape": "semaphore", "limit": 3}
        for ask in (
            ask_of("1a")._replace(weight=2, queue=False, **shape),
            ask_of("2a")._replace(weight=2, **shape),
            ask_of("3a")._replace(weight=1, **shape),
        ):
            core.run(core.store.acquire(ask), 5.0)

        def moves() -> int:
            (reply,) = client.eval(LOOK_FOR.text, 2, *keys, 3, "2a", "3a", "9a")  # type: ignore[misc]
            _, moves, places, *holder = reply
            assert places == [0, 1, -1]
            assert [holder[0], holder[-1]] == [b"1a", 2]
            return int(moves)

        (reply,) = client.eval(LOOK_FOR.text, 2, *keys, 3, "2a", "3a", "9a")  # type: ignore[misc]
        assert reply[2] == [-2, -3, -1]  # who has just come is not told that it is next, and looks once more soon
        came = client.zscore(keys[1], "2a")
        assert came is not None
        for ago, new in ((0.45, True), (0.6, False), (-0.45, True), (-0.6, False)):  # ahead: the clock was set back
            client.zadd(keys[1], {"2a": came - ago * SECOND})
            (reply,) = client.eval(LOOK_FOR.text, 2, *keys, 1, "2a")  # type: ignore[misc]
            assert (reply[2][0] < -1) is new, ago
        client.zadd(keys[1], {"2a": came})
        for attempt in ("2a", "3a"):
            client.zincrby(keys[1], -5 * SECOND, attempt)
        assert moves() == 0  # there is room, but not for who is next
        client.eval(HOLDER_TTL, 1, keys[0], "-1")
        assert moves() == 1
        client.eval(HOLDER_TTL, 1, keys[0], "60")
        assert moves() == 0
        age(client, ["2a"], 60.0)
        (reply,) = client.eval(LOOK_FOR.text, 2, *keys, 1, "3a")  # type: ignore[misc]
        assert reply[1:3] == [1, [1]]  # who is next has died, and there is room for another
        age(client, ["2a"], -60.0)
        client.hdel(keys[0], "h")
        (reply,) = client.eval(LOOK_FOR.text, 2, *keys, 2, "2a", "3a")  # type: ignore[misc]
        assert reply[1:] == [1, [0, 1]]
        for attempt in ("1a", "2a", "3a"):
            core.run(core.store.abandon("a", attempt), 5.0)


async def test_the_listener_comes_back_when_every_task_was_cancelled(redis_server: Redis, namespace: str) -> None:
    """As some frameworks do when they shut down, and go on all the same."""

    async def until(condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async with (
        aio.connect(redis_server.url, namespace=namespace, ttl=60) as locks,
        aio.connect(redis_server.url, namespace=namespace, ttl=60) as others,
    ):
        driver: Any = locks._core.driver
        theirs = await others.lock("name").acquire()
        for _ in range(2):
            waiter = asyncio.ensure_future(locks.lock("name", timeout=60).acquire())
            await until(lambda: driver.listener.up)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.wait([waiter])
            assert not await driver.listen("", None), "one that ends is not to be relied upon"
        waiter = asyncio.ensure_future(locks.lock("name", timeout=60).acquire())
        await until(lambda: driver.listener.up)
        await theirs.release()
        await (await waiter).release()


def test_who_gives_up_soon_after_it_has_come_is_told_who_holds_the_name(redis_server: Any, client: redis.Redis) -> None:
    """Though it is then that all who have just come look."""
    told: list[str | None] = []

    def wait(timeout: float) -> None:
        try:
            theirs.lock("a").acquire(timeout=timeout)
        except leasehold.AcquireTimeout as error:
            told.append(error.holder and error.holder.owner)

    with leasehold.connect(redis_server.url) as ours, listening(redis_server.url) as theirs:
        with ours.lock("a", ttl=600):
            threads = [threading.Thread(target=wait, args=(0.78 + number / 1000,)) for number in range(40)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        assert told == [ours.owner] * 40
