"""What is peculiar to Redis: scripts, pushes, failures of the server, bad input."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
import redis
import redis.asyncio
from redis_tools import Renewed, direct, listening, renewal, scripts_run

import leasehold
from leasehold import aio
from leasehold.core import timing
from leasehold.core.protocol import RENEWED, Busy
from leasehold.core.timing import FALLBACK, FIRST_TERM
from leasehold.errors import LeaseLost, StoreNotReady, StoreUnavailable
from leasehold.stores.redis import limits
from leasehold.stores.redis.transport_threads import ThreadTransport
from leasehold.stores.urls import find_store
from leasehold.testing.handles import in_time, make_ask, times_out
from servers.clock import FakeClock
from servers.proxy import Proxy
from servers.redis import Redis, Valkey
from servers.redis_ensembles import RedisCluster, SentinelSetup

SECRET = "s3cret-pa55"


@pytest.fixture
def client(redis_server) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(redis_server.url)
    client.flushall()
    yield client
    client.flushall()  # what is not leasehold's would be in the way of others
    client.close()


@pytest.fixture
def locks(redis_server, client) -> Iterator[leasehold.Locks]:
    with leasehold.connect(redis_server.url) as locks:
        yield locks


def eventually(true, within=60.0):
    ends = time.monotonic() + within
    while not true():
        assert time.monotonic() < ends, "not so in time"
        time.sleep(0.01)


@pytest.fixture
def seldom(monkeypatch) -> float:
    """Waiters hardly look by themselves: whoever is served before half of that time was called, also when the machine
    is busy. It is shorter than a place in the queue lasts."""
    seconds = 14.0
    monkeypatch.setattr(timing, "FALLBACK", seconds)
    return seconds


# Stored shape.


@pytest.mark.parametrize("name", ["}", "}{", "a}b", "{x}", "*", "a?[b]\\", "ns:name", "é🔒", "x" * 512])
def test_all_keys_of_a_name_share_a_slot(redis_cluster: RedisCluster, name: str) -> None:
    """B7."""
    with (
        leasehold.connect(redis_cluster.url, namespace="}n:s") as locks,
        direct(redis_cluster.url, namespace="}n:s") as other,
    ):
        with locks.lock(name):
            ask = make_ask(name, "other", 30, queue=True)
            assert isinstance(other.run(other.store.acquire(ask), 20.0), Busy)  # uses both keys in one script
            assert other.run(other.store.abandon(name, ask.attempt), 20.0) is True
            assert [lease.name for lease in locks.leases(name)] == [name]


def test_namespaces_are_never_glued(redis_server, client) -> None:
    with (
        leasehold.connect(redis_server.url, namespace="a") as one,
        leasehold.connect(redis_server.url, namespace="a:b") as other,
    ):
        with one.lock("b:c"):
            lease = other.lock("c").acquire(timeout=10)
            assert [seen.name for seen in other.leases()] == [lease.name]


def test_a_record_outlives_its_last_use_by_a_day(locks, client) -> None:
    locks.lock("a", ttl=30).acquire().release()
    day = 24 * 3600
    assert day - 10 < client.ttl("leasehold:{:a}") <= day + 2 * 3600 + 30
    lease = locks.lock("a", ttl=60).acquire()
    assert client.ttl("leasehold:{:a}") > day + 50
    lease.release()


def test_a_record_outlives_its_last_use_by_a_day_though_its_expiry_is_not_set_each_time(locks, client) -> None:
    key, hour, day = "leasehold:{:a}", 3600, 24 * 3600
    locks.lock("a", ttl=30).acquire().release()
    long = locks.lock("a", ttl=3 * hour).acquire()
    assert client.ttl(key) >= day + 3 * hour
    long.release()
    client.expire(key, day)
    client.hset(key, "t", client.time()[0] * 1_000_000 - hour * 1_000_000)  # its last grant was in another hour
    locks.lock("a", ttl=30).acquire().release()
    assert client.ttl(key) >= day + hour, "what is left of this hour needs no more"


def test_a_newer_format_is_refused(locks, client) -> None:
    client.hset("leasehold:{:a}", "f", "2")
    with pytest.raises(StoreNotReady, match="newer leasehold"):
        locks.lock("a").try_acquire()


def test_a_record_outlives_all_that_is_held_in_it(locks, client) -> None:
    """Also when a permit is renewed that is far shorter than another, and when that was the last use in its hour."""
    key, day = "leasehold:{:s}", 24 * 3600
    long = locks.semaphore("s", limit=2, ttl=10 * day, renew=False).acquire()
    short = locks.semaphore("s", limit=2, ttl=60, renew=False).acquire()
    short.renew()
    assert client.ttl(key) > 11 * day
    assert short.release()
    assert long.release()
    lease = locks.lock("a", ttl=30).acquire()
    lease.renew()
    with locks.all_of("b", "c"):
        for name in "abc":
            assert client.ttl(f"leasehold:{{:{name}}}") > day + 3600, "who takes it in this hour does not set it anew"


def spoil(client, how: str | bytes) -> None:
    """The record of "b" can't be read any more."""
    key = "leasehold:{:b}"
    if how == "newer":
        client.hset(key, "f", "2")
    elif how == "foreign":
        client.set(key, "mine")  # in its place: it must not be gone in between
    else:
        client.hset(key, "h", how)


@pytest.mark.parametrize("how", ["newer", "foreign", b"\xc1", b"\x91\x07"])
def test_a_record_that_cannot_be_read_is_no_matter_of_the_other_leases(redis_server, locks, client, how) -> None:
    leases = [locks.lock(name, ttl=600).acquire() for name in "abc"]
    with direct(redis_server.url) as store:
        attempts = [store.run(store.store.inspect(name))[0].attempt for name in "abc"]
        spoil(client, how)
        batch = [renewal(*each) for each in zip("abc", attempts, (lease.token for lease in leases), strict=True)]
        first, second, third = store.run(store.store.renew(batch), 20.0)
    assert (first, third) == (RENEWED, RENEWED)
    assert isinstance(second, StoreUnavailable)
    assert "record of 'b'" in str(second)
    with pytest.raises(StoreNotReady, match="record of 'b'"):
        leases[1].renew()
    client.flushall()  # or it could not be given back


def test_one_round_trip_each(start_server) -> None:
    """On a server of its own: what others may have left is not counted."""
    server = start_server(Redis)
    with redis.Redis(port=server.port) as client, leasehold.connect(server.url, ttl=600) as locks:
        lock = locks.lock("a")
        lock.acquire().release()
        eventually(lambda: listening(client))
        time.sleep(0.3)  # with nothing held, the keeper that hears of the listener has nothing to look at
        before = scripts_run(client)
        lock.acquire().release()
        assert scripts_run(client) - before == 2


# The server forgets, restarts, fails.


def test_scripts_survive_script_flush(locks, client) -> None:
    with locks.lock("a") as lease:
        client.script_flush()
        lease.renew()
        client.script_flush()
        assert lease.release() is True


def test_a_restart_without_persistence_is_survived(start_server) -> None:
    server = start_server(Redis)
    ttl = 30.0  # much longer than it takes to be refused: a machine that stands still for a while is in time, too
    with leasehold.connect(server.url, ttl=ttl, renew_every=0.5, max_renew_failures=1000) as locks:
        lease = locks.lock("a").acquire()
        server.kill()
        before = time.monotonic()  # whatever was renewed, was before
        server.start()
        assert lease.lost.wait(2 * ttl)
        assert time.monotonic() - before <= ttl
        again = locks.lock("a").acquire(timeout=20)
        assert again.token > lease.token
        with pytest.raises(LeaseLost):
            lease.check()


def test_flushall_is_noticed_by_the_deadline(locks, client) -> None:
    ttl = 30.0
    lease = locks.lock("a", ttl=ttl, renew_every=0.4, max_renew_failures=1000).acquire()
    client.flushall()
    begun = time.monotonic()
    assert lease.lost.wait(2 * ttl)
    assert time.monotonic() - begun <= ttl
    assert locks.lock("a").acquire(timeout=20).token > lease.token


def test_a_holder_killed_is_replaced_within_ttl(redis_server, client, locks) -> None:
    """A waiter that gets no time from the machine is late all the same: then once more."""
    ttl = 1.0
    in_time(lambda: until_replaced(redis_server.url, locks, ttl), ttl + 0.25)


def until_replaced(url: str, locks: leasehold.Locks, ttl: float) -> float:
    """Seconds from the death of a holder until another has its lease; of one that stood still and lost it before that
    says nothing."""
    code = f"import leasehold, time; l = leasehold.connect({url!r}).lock('a', ttl={ttl}).acquire(); " \
        "print('held', flush=True); time.sleep(60)"  # fmt: skip
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    killed: list[float] = []

    def kill() -> None:
        holder.kill()
        holder.wait()
        killed.append(time.monotonic())

    try:
        assert holder.stdout.readline() == "held\n"
        killer = threading.Timer(0.4, kill)
        killer.start()
        with locks.lock("a", timeout=30):
            taken = time.monotonic()
        killer.join()
        return taken - killed[0] if taken > killed[0] else float("inf")
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def test_a_dropped_listener_is_replaced(redis_server, client, locks, seldom: float) -> None:
    with leasehold.connect(redis_server.url) as other:
        lease = locks.lock("a").acquire()
        waiter = threading.Thread(target=lambda: other.lock("a").acquire(timeout=20).release())
        waiter.start()
        eventually(lambda: listening(client, 2))
        for each in client.client_list(_type="pubsub"):
            client.client_kill_filter(_id=each["id"])
        eventually(lambda: listening(client, 2))
        lease.release()
        waiter.join(seldom / 2)
        assert not waiter.is_alive()


@pytest.mark.parametrize("side", ["threads", "asyncio"])
def test_an_outage_is_told_once(start_server, caplog, monkeypatch, side: str) -> None:
    monkeypatch.setattr(limits, "HEARTBEAT", 600.0)  # a server that is slow to answer is no outage
    monkeypatch.setattr(limits, "LATER", 0.05)
    server = start_server(Redis)

    def told() -> int:
        """Of this server: listeners that other tests have left may tell of theirs."""
        messages = [record.getMessage() for record in caplog.records]
        return sum("listener failed" in message and f":{server.port}:" in message for message in messages)

    def through_two_outages() -> None:
        for outage in (1, 2):
            with redis.Redis(port=server.port) as client:
                eventually(lambda client=client: listening(client))
                time.sleep(0.5)  # it knows
            server.kill()
            eventually(lambda outage=outage: told() == outage)
            time.sleep(1)  # it has tried again, more than once
            server.start()
        assert told() == 2

    if side == "threads":
        with leasehold.connect(server.url, ttl=600) as locks:
            locks.lock("a").acquire()
            through_two_outages()
        return

    async def scenario() -> None:
        async with aio.connect(server.url, ttl=600) as locks:
            await locks.lock("a").acquire()
            await asyncio.to_thread(through_two_outages)

    asyncio.run(scenario())


@pytest.mark.parametrize("side", ["threads", "asyncio"])
def test_each_call_has_a_limit_of_its_own(start_server, side: str) -> None:
    """A server that hangs: a short limit counts after a long one, and for a new connection too."""
    server = start_server(Redis)
    patience = 20.0

    opened = find_store(server.url, "")

    def run(limit: float):
        steps = opened.store.inspect("a")
        if side == "threads":
            return driver.run(steps, limit)
        return loop.run_until_complete(driver.run(steps, limit))

    loop = asyncio.new_event_loop()
    driver = opened.threads() if side == "threads" else opened.tasks()
    try:
        assert run(2 * patience) == []
        server.pause()
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(StoreUnavailable):
                run(0.3)
            assert 0.2 < time.monotonic() - began < patience
        server.resume()
        assert run(patience) == []
    finally:
        server.resume()
        if side == "threads":
            driver.close()
        else:
            loop.run_until_complete(driver.close())
        loop.close()


def test_what_was_published_before_we_listened_is_not_missed(redis_server, client, monkeypatch) -> None:
    subscribe, published = ThreadTransport.subscribe, threading.Event()

    def late(*args):
        published.wait(60)
        return subscribe(*args)

    with leasehold.connect(redis_server.url) as locks, leasehold.connect(redis_server.url) as other:
        monkeypatch.setattr(ThreadTransport, "subscribe", late)
        lease = locks.lock("a", ttl=600).acquire()
        assert other.break_lease("a") is True
        published.set()
        assert lease.lost.wait(60)


def test_a_wait_longer_than_the_socket_timeout(redis_server, client) -> None:
    given = redis.Redis.from_url(redis_server.url, socket_timeout=0.3)
    with leasehold.connect(given) as locks, leasehold.connect(redis_server.url) as other:
        lease = other.lock("a").acquire()
        release = threading.Timer(1.2, lease.release)
        release.start()
        with locks.lock("a", timeout=20):
            pass
        release.join()  # what it has asked for may not be answered yet
    assert given.ping() is True, "the user's client is not closed"
    given.close()


async def test_who_waits_for_a_connection_is_not_overtaken(redis_server) -> None:
    async with aio.connect(redis.asyncio.Redis.from_url(redis_server.url, max_connections=3)) as locks:
        served: list[str] = []

        async def ask(name: str, times: int) -> None:
            for _ in range(times):
                await locks.inspect(name)
                served.append(name)

        await asyncio.gather(ask("greedy", 200), *(ask("modest", 1) for _ in range(10)))
    assert served[-100:] == ["greedy"] * 100


async def acquire(locks):
    return await locks.lock("a").acquire()


async def test_a_cancelled_acquire_leaves_nothing(redis_server, client) -> None:
    async with aio.connect(redis_server.url) as locks:
        await (await locks.lock("warm").acquire()).release()
        for delay in range(0, 40):
            task = asyncio.ensure_future(acquire(locks))
            await asyncio.sleep(delay / 20_000)
            task.cancel()
            try:
                await (await task).release()
            except asyncio.CancelledError:
                pass
        async with asyncio.timeout(60):
            while client.hexists("leasehold:{:a}", "h") or client.zcard("leasehold:{:a}:queue"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


# Waiting in numbers.

WAITERS = """
import sys, threading, time
import leasehold
from leasehold.core.protocol import Busy
url, count, first = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
locks = leasehold.connect(url)
store = locks._core.store
looks, ask_store = [], store.acquire
def acquire(ask):
    steps, sent, answer = ask_store(ask), [], None
    try:
        while True:
            request = steps.send(answer)
            sent.append(time.monotonic())
            answer = yield request
    except StopIteration as stop:
        looks.extend(sent if isinstance(stop.value, Busy) else sent[:-1])
        return stop.value
    finally:
        steps.close()
store.acquire = acquire
def wait(number):
    lease = locks.lock("hot", ttl=30).acquire()
    token = lease.token
    lease.release()
    served.append((token, number))  # to print it here would mix up the lines of several threads
served, threads = [], []
for number in range(count):
    sys.stdin.readline()
    thread = threading.Thread(target=wait, args=(first + number,))
    thread.start()
    threads.append(thread)
for thread in threads:
    thread.join()
for line in served:
    print(*line)
print("looks", *looks)
counted = locks.counters()
print("renewals", counted.renewals + counted.renewal_failures, flush=True)
locks.close()
"""


class Service(NamedTuple):
    """How waiters were served."""

    came: list[int]
    served: list[int]
    calls: float
    """Scripts per hand-off."""
    listeners: int
    """Connections that listen, besides that of the holder."""
    idle: int
    """Commands of clients while all waited for ``QUIET``."""


QUIET = 11.5


def asked(client: redis.Redis) -> tuple[int, int]:
    """Scripts, and all commands, that clients have sent; not what the scripts call."""
    stats = client.info("commandstats")
    scripts, pings = (stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "ping"))
    return scripts, scripts + pings


def serve(url: str, client: redis.Redis, processes: int, count: int) -> Service:
    each = count // processes
    key = "leasehold:{:hot}:queue"
    with leasehold.connect(url) as locks, ExitStack() as stack:
        lease = locks.lock("hot", ttl=600, renew=False).acquire()
        eventually(lambda: listening(client))
        started = []
        for number in range(processes):
            arguments = [sys.executable, "-c", WAITERS, url, str(each), str(number * each)]
            process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            started.append(process)
        came: list[int] = []
        for number in range(each):
            for place, process in enumerate(started):
                process.stdin.write("\n")
                process.stdin.flush()
                came.append(place * each + number)
                eventually(lambda: client.zcard(key) == len(came))
        eventually(lambda: listening(client, processes + 1))
        time.sleep(FALLBACK + 1)  # each has looked once since it began to listen
        before = asked(client)
        time.sleep(QUIET)
        idle = asked(client)[1] - before[1]
        listeners = len(client.client_list(_type="pubsub")) - 1
        calls, began = asked(client)[0], time.monotonic()
        lease.release()
        lines = [line.split() for process in started for line in process.stdout]
        calls = asked(client)[0] - calls - 1  # the last release hands it to nobody
    # What goes by the clock is no part of a hand-off: looks of those who still wait, renewals of who was held up.
    looks = sum(float(at) > began for word, *times in lines if word == "looks" for at in times)
    looks += sum(int(number) for word, number in (line for line in lines if line[0] == "renewals"))
    lines = [line for line in lines if line[0].isdigit()]
    served = [int(number) for _, number in sorted(lines, key=lambda line: int(line[0]))]
    return Service(came, served, (calls - looks) / count, listeners, idle)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_hundred_waiters_in_four_processes(redis_server, client) -> None:
    """Served in order of arrival; a hand-off costs the same; one connection listens; idle ones hardly ask."""
    costs = {}
    for processes, count in ((1, 1), (4, 20), (4, 200)):
        client.flushall()
        found = serve(redis_server.url, client, processes, count)
        assert found.served == found.came
        assert found.listeners == processes
        # A waiter looks twice in this time at most; a listener (the holder has one too) asks for a sign of life.
        assert found.idle <= 2 * count + (processes + 1) * (QUIET / limits.HEARTBEAT + 1)
        costs[count] = found.calls
    assert found.idle / QUIET / count <= 0.2
    assert max(costs.values()) <= 1.2 * min(costs.values()), costs


def test_waiters_are_served_in_order_of_arrival(redis_server, client, locks) -> None:
    served: list[tuple[int, float]] = []
    with leasehold.connect(redis_server.url) as one, leasehold.connect(redis_server.url) as two:

        def wait(number: int) -> None:
            with (one, two)[number % 2].lock("hot").acquire(timeout=60):
                served.append((number, time.monotonic()))

        lease = locks.lock("hot").acquire()
        threads = []
        for number in range(40):
            threads.append(threading.Thread(target=wait, args=(number,)))
            threads[-1].start()
            eventually(lambda: client.zcard("leasehold:{:hot}:queue") == len(threads))
        before = time.monotonic()
        lease.release()
        for thread in threads:
            thread.join(60)
    assert sorted(number for number, _ in served) == list(range(40))
    due, late = list(range(40)), set()
    for number, at in served:
        overtaken = [] if number in late else due[: due.index(number)]
        # Each of them has let a first term pass, since whoever was before them has had its lease.
        assert at - before >= FIRST_TERM * len(overtaken), served
        late.update(overtaken)
        due, before = [each for each in due if each != number and each not in late], at


def take_turns(redis_server, rounds: int, between) -> None:
    """Two who hand a name to each other."""
    with leasehold.connect(redis_server.url) as one, leasehold.connect(redis_server.url) as two:

        def take(locks: leasehold.Locks) -> None:
            for _ in range(rounds):
                with locks.lock("hot").acquire(timeout=30):
                    between()

        threads = [threading.Thread(target=take, args=(locks,)) for locks in (one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()


def test_dropped_listener_costs_a_waiter_no_more_than_time(redis_server, client, seldom: float) -> None:
    """Its waiter loses nothing but time: long before the fallback it has been called another way."""
    began = time.monotonic()
    drops = iter([None] * 4)
    countdown = iter(range(1, 10_000))

    def drop() -> None:
        if next(countdown) % 40 == 0 and next(drops, 0) is None:
            client.client_kill_filter(_type="pubsub")

    take_turns(redis_server, 100, drop)
    assert time.monotonic() - began < 4 * seldom


def test_several_waiters_of_one_process_are_all_called(redis_server, client, locks) -> None:
    counts = [0] * 3
    began = time.monotonic()

    def take(number: int) -> None:
        for _ in range(100):
            with locks.lock("hot").acquire(timeout=30):
                counts[number] += 1

    threads = [threading.Thread(target=take, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert counts == [100] * 3
    assert time.monotonic() - began < 50, "they were called, or would have looked every 5 s"


@pytest.mark.parametrize("connected", [True, False])
async def test_a_cancellation_is_not_lost_in_the_users_client(redis_server, connected: bool) -> None:
    """Wherever it comes. redis-py sends by ``asyncio.wait_for``, which forgets it if it comes as the sending ends."""
    client = redis.asyncio.Redis.from_url(redis_server.url, protocol=3, socket_timeout=20)
    control = redis.Redis.from_url(redis_server.url)

    def kill_all_but(control: redis.Redis) -> None:
        control.client_kill_filter(_type="normal", skipme=True)
        time.sleep(0.02)

    async with aio.connect(client) as locks:
        turns, cancelled = 0, True
        assert await (await locks.lock("a").acquire()).release()
        while cancelled:
            if not connected:
                await asyncio.to_thread(kill_all_but, control)
            task = asyncio.create_task(locks.lock("a").acquire(30))
            for _ in range(turns):
                await asyncio.sleep(0)
            cancelled, turns = task.cancel(), turns + 1
            await asyncio.wait({task})
            assert task.cancelled() == cancelled, f"after {turns} turns of the loop"
        assert turns > 4, "it was never under way"
    await client.aclose()


def test_the_first_living_waiter_behind_dead_ones_is_told_when_to_look(
    redis_server, client, locks, seldom: float
) -> None:
    """L2: six waiters have died. Nobody hears that the second is next, so the seventh is told, and each of the dead
    costs it a first term, not the time until it would look by itself."""
    lease = locks.lock("a").acquire()
    with direct(redis_server.url) as dead:
        for number in range(6):
            assert isinstance(dead.run(dead.store.acquire(make_ask("a", f"dead{number}", 600, queue=True))), Busy)
    with leasehold.connect(redis_server.url) as alive:
        taken: list[float] = []

        def wait() -> None:
            alive.lock("a").acquire(timeout=60).release()
            taken.append(time.monotonic())

        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: client.zcard("leasehold:{:a}:queue") == 7)
        time.sleep(1)  # from now on it looks seldom
        released = time.monotonic()
        lease.release()
        thread.join(60)
    assert taken[0] - released < seldom / 2


@pytest.mark.parametrize(("age", "old"), [(0.0, False), (1.0, False), (0.0, True)])
def test_who_is_next_is_told_if_it_does_not_look_soon_by_itself(
    redis_server, client, locks, seldom: float, age: float, old: bool
) -> None:
    """A waiter dies; the one behind it has come before, just now, or is of leasehold 0.1, which does not look so soon.
    It need not wait for its fallback."""
    lease = locks.lock("a").acquire()
    with direct(redis_server.url) as dead, leasehold.connect(redis_server.url) as alive:
        assert isinstance(dead.run(dead.store.acquire(make_ask("a", "dead", 600, queue=True))), Busy)
        pushes = client.pubsub()
        pushes.psubscribe("leasehold:session:*")
        taken: list[float] = []

        def wait() -> None:
            alive.lock("a").acquire(timeout=30).release()
            taken.append(time.monotonic())

        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: client.zcard("leasehold:{:a}:queue") == 2)
        time.sleep(age)
        [(waiter, came)] = client.zrange("leasehold:{:a}:queue", 1, 1, withscores=True)
        if old:
            client.zadd("leasehold:{:a}:queue", {waiter: int(came)})
        released = time.monotonic()
        lease.release()
        stored = client.time()
        thread.join(30)
    said = b""
    while (message := pushes.get_message(timeout=0.2)) is not None:
        said += message["data"] if message["type"] == "pmessage" else b""
    pushes.close()
    if age or stored[0] * 1e6 + stored[1] - came < 300_000:  # else the machine was too slow for a word on it
        assert (b" next " in said) == (age > 0 or old), said
    assert taken[0] - released < seldom / 2


def test_many_leases_are_renewed_in_batches(start_server) -> None:
    """On a server of its own: what others may have left is not counted."""
    server = start_server(Redis)
    options = {"ttl": 60.0, "renew_every": 0.67, "max_renew_failures": 1000}  # a machine that stands still loses none
    with redis.Redis(port=server.port) as client, leasehold.connect(server.url, **options) as locks:

        def count() -> tuple[int, int, int]:
            """Renewals before and after the look at how many scripts were run: some may come in between."""
            return locks.counters().renewals, scripts_run(client), locks.counters().renewals

        held = [locks.lock(f"many-{number}").acquire() for number in range(600)]
        eventually(Renewed(held))
        begun = count()
        eventually(lambda: locks.counters().renewals >= begun[2] + 1800)
        ended = count()
        calls, least, most = ended[1] - begun[1], ended[0] - begun[2], ended[2] - begun[0]
        assert all(lease.valid for lease in held)
        # 600 leases, 200 in a batch; those that are not due together go in smaller ones. What one has run and not
        # counted yet may be at the beginning or at the end.
        assert calls + 1 >= least / 200
        assert calls <= 40 * (most + locks.counters().renewal_failures) / 1800 + 1


def test_many_leases_are_given_back_in_batches(start_server) -> None:
    """On a server of its own, by the packets that it gets: a batch is sent in one go."""
    server = start_server(Redis)
    with redis.Redis(port=server.port) as client, Proxy(server.port) as proxy:
        locks = leasehold.connect(server.url.replace(str(server.port), str(proxy.port)), ttl=600)
        held = [locks.lock(f"many-{number}").acquire() for number in range(500)]
        before = client.info("stats")["total_reads_processed"]
        locks.close()
        reads = client.info("stats")["total_reads_processed"] - before
        assert reads <= 100, "200 in a batch of some 35 kB, which comes in parts; in batches of 3 there would be 167"
        assert all(lease.lost_reason for lease in held)
        assert client.hget("leasehold:{:many-7}", "h") is None


def test_one_that_cannot_be_given_back_holds_up_no_other(redis_server, client) -> None:
    locks = leasehold.connect(redis_server.url)
    held = [locks.lock(f"many-{number}").acquire() for number in range(50)]
    client.delete("leasehold:{:many-7}")
    client.set("leasehold:{:many-7}", "not ours")
    locks.close()
    assert len(held) == 50
    left = [number for number in range(50) if number != 7 and client.hexists(f"leasehold:{{:many-{number}}}", "h")]
    assert left == []


# Replicas, Sentinel.


def test_without_enough_replicas_nothing_is_granted(start_server) -> None:
    """B6: `replicas=n` is the consistency level that the user chooses."""
    primary = start_server(Redis)
    with leasehold.connect(f"{primary.url}?replicas=1") as locks:
        with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
            locks.lock("a", ttl=600).try_acquire()
    with leasehold.connect(primary.url) as locks:
        assert locks.lock("a").try_acquire(timeout=20) is not None, "given back"


@pytest.mark.slow
@pytest.mark.parametrize("side", ["threads", "asyncio"])
def test_a_failover_in_the_middle(start_server, side: str) -> None:
    setup = start_server(SentinelSetup)
    url = f"{setup.url}?replicas=1"
    primary = setup.leader()
    if side == "threads":
        with leasehold.connect(url, ttl=10) as locks:
            first = locks.lock("a").acquire()
            kept = locks.lock("b", ttl=20).acquire()
            primary.kill()
            second = locks.lock("c").acquire(timeout=25)
            kept.renew()
            assert kept.valid
            assert first.release() in (True, False)
            assert locks.lock("a").acquire(timeout=15).token > first.token
            second.release()
        return

    async def scenario() -> None:
        async with aio.connect(url, ttl=10) as locks:
            first = await locks.lock("a").acquire()
            kept = await locks.lock("b", ttl=20).acquire()
            await asyncio.to_thread(primary.kill)
            await locks.lock("c").acquire(timeout=25)
            await kept.renew()
            assert kept.valid
            await first.release()
            assert (await locks.lock("a").acquire(timeout=15)).token > first.token

    asyncio.run(scenario())


# Bad input.


def refuses(url: str, error: type[Exception], match: str) -> None:
    """Both sides say so, clearly and without the secret, and leave nothing behind."""
    threads = threading.active_count()
    with leasehold.connect(url) as locks:
        with pytest.raises(error, match=match) as caught:
            locks.lock("a").try_acquire()
    assert SECRET not in f"{caught.value!r} {caught.value} {caught.value.__cause__} {locks!r}"

    async def ask() -> None:
        async with aio.connect(url) as locks:
            with pytest.raises(error, match=match) as caught:
                await locks.lock("a").try_acquire()
        assert SECRET not in f"{caught.value!r} {caught.value} {caught.value.__cause__}"

    asyncio.run(ask())
    eventually(lambda: threading.active_count() <= threads + 1)  # the timer stays


def test_wrong_password(start_server) -> None:
    server = start_server(Redis)
    redis.Redis(port=server.port).config_set("requirepass", "right")
    address = server.url.partition("://")[2]
    refuses(f"redis://:{SECRET}@{address}", StoreNotReady, "password")
    refuses(server.url, StoreNotReady, "password")
    with leasehold.connect(f"redis://:right@{address}") as locks:
        locks.lock("a").acquire().release()


def test_wrong_database(redis_server) -> None:
    refuses(redis_server.url[:-1] + "99", StoreNotReady, "database")


def test_unreachable() -> None:
    refuses(f"redis://u:{SECRET}@127.0.0.1:1", StoreUnavailable, "127.0.0.1:1")


def test_a_host_without_a_name() -> None:
    refuses(f"redis://u:{SECRET}@no-such-host.invalid", StoreUnavailable, "no-such-host")


def test_a_node_of_a_cluster(redis_cluster: RedisCluster) -> None:
    refused = 0
    for member in redis_cluster.members:
        with leasehold.connect(f"redis://{member.address}/0") as locks:
            try:
                locks.lock("a").acquire(timeout=20).release()
            except StoreNotReady as error:
                refused += "redis+cluster://" in str(error)
    assert refused == 2, "two of three do not have the slot"


def test_tls_to_a_plain_port(redis_server, monkeypatch) -> None:
    """That it speaks no TLS is seen by a question that comes after the handshake was given up: it has time for that."""
    monkeypatch.setattr(limits, "PLAIN_LIMIT", 20.0)
    monkeypatch.setattr(timing, "CALL_LIMIT", 8.0)
    refuses(redis_server.url.replace("redis://", f"rediss://:{SECRET}@"), StoreNotReady, "TLS")


def test_a_read_only_replica(start_server) -> None:
    primary = start_server(Redis)
    replica = start_server(Redis, "--replicaof", "127.0.0.1", str(primary.port))
    eventually(lambda: redis.Redis(port=replica.port).info("replication")["master_link_status"] == "up", 60)
    refuses(replica.url, StoreNotReady, "read-only replica")


def test_a_key_of_the_wrong_type(redis_server, client) -> None:
    client.set("leasehold:{:a}", "mine")
    refuses(redis_server.url, StoreNotReady, "another program wrote a key")
    assert client.get("leasehold:{:a}") == b"mine"


def test_out_of_memory(start_server) -> None:
    server = start_server(Redis)
    redis.Redis(port=server.port).config_set("maxmemory", "1")
    refuses(server.url, StoreNotReady, "memory")


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("redis://h:port/0", "host:port"),
        ("redis://h/x", "number of a database"),
        ("redis://h1,h2/0", "one host"),
        ("redis+sentinel://h1", "names the primary"),
        ("redis+cluster://h/3", "only database 0"),
        ("redis://h?replicas=x", "replicas"),
        ("redis://h?db=x", "option"),
        ("redis+unix://host", "Unix socket"),
        ("redis://h?replica=1", "unknown option 'replica'"),
        ("redis+cluster://h?replica=1", "unknown option 'replica'"),
        ("redis+sentinel://h/m?replica=1", "unknown option 'replica'"),
        ("redlock://h1,h2,h3?replica=1", "unknown option 'replica'"),
        ("redis://h?ssl_ca_certs=/x", "'ssl_ca_certs'.*rediss"),
        ("rediss://h?ssl_cert_reqs=perhaps", "option"),
        ("redlock://h1,h2", "three or more"),
        ("redlock://h1,h1,h2", "different"),
    ],
)
def test_bad_urls(url: str, what: str) -> None:
    with pytest.raises(ValueError, match=what) as caught:
        leasehold.connect(url.replace("://", f"://u:{SECRET}@"))
    assert SECRET not in str(caught.value)


def test_clients_are_for_their_own_side(redis_server) -> None:
    with pytest.raises(TypeError, match="asyncio"):
        aio.connect(redis.Redis.from_url(redis_server.url))
    with pytest.raises(TypeError, match=r"leasehold\.aio"):
        leasehold.connect(redis.asyncio.Redis.from_url(redis_server.url))


def test_a_unix_socket(start_server, tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    start_server(Redis, "--unixsocket", str(path))
    with leasehold.connect(f"redis+unix://{path}?db=3") as locks:
        with locks.lock("a"):
            assert locks.inspect("a") is not None


OFTEN = {"ttl": 60, "renew_every": 0.5, "max_renew_failures": 1000}
"""Renewed soon, and not lost when that fails a few times, be it for want of a processor."""


def test_a_cluster_client_of_the_users_own(redis_cluster: RedisCluster) -> None:
    given = redis.RedisCluster(host="127.0.0.1", port=redis_cluster.members[0].port, decode_responses=True)
    with leasehold.connect(given) as locks, leasehold.connect(redis_cluster.url) as other:
        held = [locks.lock(f"c-{number}", **OFTEN).acquire() for number in range(20)]
        eventually(Renewed(held))
        assert len(list(locks.leases("c-"))) == 20
        release = threading.Timer(0.3, held[0].release)
        release.start()
        other.lock("c-0").acquire(timeout=20).release()
        release.join()
        error = times_out(lambda: other.lock("c-1").acquire(timeout=2))  # to connect to a node may take as long
        assert locks.owner in str(error)
    given.close()


async def test_a_cluster_client_of_asyncio(redis_cluster: RedisCluster) -> None:
    given = redis.asyncio.RedisCluster(host="127.0.0.1", port=redis_cluster.members[0].port)
    async with aio.connect(given) as locks:
        held = [await locks.lock(f"d-{number}", **OFTEN).acquire() for number in range(20)]
        renewed = Renewed(held)
        while not renewed():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert len([lease async for lease in locks.leases("d-")]) == 20
    await given.aclose()


async def test_what_is_borrowed_of_a_client_goes_back(redis_server, client) -> None:
    pool = CountingPool.from_url(redis_server.url, max_connections=8)
    given = redis.asyncio.Redis(connection_pool=pool)

    async def pair(number: int) -> None:
        await (await locks.lock(f"pair-{number}").acquire()).release()

    async with aio.connect(given) as locks:
        await asyncio.gather(*(pair(number) for number in range(20)))
        assert 0 < pool.lent <= 6, "five for calls, one that listens"
        assert await given.ping() is True
        client.client_kill_filter(_type="normal", skipme=True)
        await pair(0)
        assert pool.lent <= 6
    assert pool.lent == 0
    assert await given.ping() is True, "it is not ours to close"
    await pool.aclose()


class CountingPool(redis.asyncio.ConnectionPool):
    lent = 0

    async def get_connection(self, *args, **options):
        found = await super().get_connection(*args, **options)
        self.lent += 1
        return found

    async def release(self, connection):
        self.lent -= 1
        return await super().release(connection)


def test_a_loop_ends_though_a_client_swallows_that_the_listener_was_cancelled(redis_server, client) -> None:
    """redis-py does so while it subscribes. In a process of its own: nothing is closed here."""
    code = """
import asyncio, sys
import redis.asyncio
from leasehold import aio

async def pair(later):
    locks = aio.connect(redis.asyncio.Redis.from_url(sys.argv[1]))
    await (await locks.lock("a").acquire()).release()
    await asyncio.sleep(later)

for later in range(20):
    asyncio.run(pair(later / 2000))
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, redis_server.url], check=True, timeout=100)


def test_valkey_serves_both_sides(valkey_server) -> None:
    with leasehold.connect(valkey_server.url.replace("redis://", "valkey://")) as locks:
        assert locks.lock("v").acquire().release() is True


def test_a_fork_owns_nothing(locks) -> None:
    lease = locks.lock("a").acquire()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:  # whatever happens, it must not go on as a second pytest
            if not lease.valid and locks.lock("b").acquire(timeout=20).release():
                code = 0 if locks.lock("a").try_acquire() is None else 1
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    lease.renew()
    assert lease.release() is True


def test_the_servers_clock_is_set_back(start_server) -> None:
    """S1 and S5: tokens rise all the same, while the record is there."""
    clock = FakeClock()
    server = start_server(Valkey, env=clock.env)
    with leasehold.connect(server.url) as locks:
        tokens = []
        for step in (0, 300, -300, 0):
            clock.step(step)
            time.sleep(0.01)
            lease = locks.lock("a").acquire(timeout=20)
            tokens.append(lease.token)
            lease.release()
    assert tokens == sorted(set(tokens))


def test_the_known_violation_when_the_servers_clock_is_set_ahead(start_server) -> None:
    """Documented: what was granted is over for the server, and its holder does not know. The later token is higher."""
    clock = FakeClock()
    server = start_server(Valkey, env=clock.env)
    with leasehold.connect(server.url, ttl=600) as ours, leasehold.connect(server.url, ttl=600) as theirs:
        lease = ours.lock("a", renew=False).acquire()  # nothing tells it meanwhile
        clock.step(3600)
        second = theirs.lock("a").acquire(timeout=60)
        assert lease.valid
        assert second.valid
        assert second.token > lease.token
        with pytest.raises(LeaseLost):
            lease.renew()


def test_what_was_acknowledged_survives_a_restart_with_persistence(start_server) -> None:
    server = start_server(Redis, "--appendfsync", "always", append_only=True)
    with leasehold.connect(server.url) as locks, leasehold.connect(server.url) as other:
        lease = locks.lock("a").acquire()
        server.kill()
        server.start()
        assert other.lock("a").try_acquire() is None
        lease.renew()
        assert lease.release() is True
        assert other.lock("a").acquire(timeout=20).token > lease.token


def test_one_that_is_interrupted_while_it_connects_leaves_no_socket(redis_server, monkeypatch) -> None:
    """redis-py tidies up after its own errors alone."""
    interrupts, left = [KeyboardInterrupt()], []
    kind = redis.connection.AbstractConnection
    what = "on_connect_check_health" if hasattr(kind, "on_connect_check_health") else "on_connect"  # redis-py 5
    greet = getattr(kind, what)

    def interrupted(self, *args, **options):
        if interrupts and threading.current_thread() is here:
            left.append(self)
            raise interrupts.pop()
        return greet(self, *args, **options)

    here = threading.current_thread()
    monkeypatch.setattr(kind, what, interrupted)
    with leasehold.connect(redis_server.url) as locks:
        with pytest.raises(KeyboardInterrupt):
            locks.lock("interrupted").acquire()
        assert [connection.is_connected for connection in left] == [False]
        assert locks.lock("interrupted").acquire().release()
