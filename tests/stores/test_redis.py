"""What is peculiar to Redis: scripts, pushes, failures of the server, bad input."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

import leasehold
from leasehold import aio
from leasehold.errors import AcquireTimeout, LeaseLost, StoreNotReady, StoreUnavailable
from servers.clock import FakeClock
from servers.redis import Redis, Valkey
from servers.redis_ensembles import RedisCluster, SentinelSetup

SECRET = "s3cret-pa55"


@pytest.fixture
def client(redis_server) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(redis_server.url)
    client.flushall()
    yield client
    client.close()


@pytest.fixture
def locks(redis_server, client) -> Iterator[leasehold.Locks]:
    with leasehold.connect(redis_server.url) as locks:
        yield locks


def eventually(true, within=5.0):
    ends = time.monotonic() + within
    while not true():
        assert time.monotonic() < ends, "not so in time"
        time.sleep(0.01)


def listening(client, count=1) -> bool:
    return len(client.pubsub_channels("leasehold:session:*")) >= count


# Stored shape.


@pytest.mark.parametrize("name", ["}", "}{", "a}b", "{x}", "*", "a?[b]\\", "ns:name", "é🔒", "x" * 512])
def test_all_keys_of_a_name_share_a_slot(redis_cluster: RedisCluster, name: str) -> None:
    with (
        leasehold.connect(redis_cluster.url, namespace="}n:s") as locks,
        leasehold.connect(redis_cluster.url, namespace="}n:s") as other,
    ):
        with locks.lock(name):
            assert other.lock(name).try_acquire(timeout=0.05) is None  # queues: uses both keys in one script
            assert [lease.name for lease in other.leases(name)] == [name]


def test_namespaces_are_never_glued(redis_server, client) -> None:
    with (
        leasehold.connect(redis_server.url, namespace="a") as one,
        leasehold.connect(redis_server.url, namespace="a:b") as other,
    ):
        with one.lock("b:c"):
            lease = other.lock("c").acquire(timeout=1)
            assert [seen.name for seen in other.leases()] == [lease.name]


def test_a_record_outlives_its_last_use_by_a_day(locks, client) -> None:
    locks.lock("a", ttl=30).acquire().release()
    day = 24 * 3600
    assert day - 10 < client.ttl("leasehold:{:a}") <= day
    lease = locks.lock("a", ttl=60).acquire()
    assert day + 50 < client.ttl("leasehold:{:a}") <= day + 60
    lease.release()


def test_a_newer_format_is_refused(locks, client) -> None:
    client.hset("leasehold:{:a}", "f", "2")
    with pytest.raises(StoreNotReady, match="newer leasehold"):
        locks.lock("a").try_acquire()


def test_one_round_trip_each(locks, client) -> None:
    lock = locks.lock("a")
    lock.acquire().release()
    before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    lock.acquire().release()
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] - before == 2


# The server forgets, restarts, fails.


def test_scripts_survive_script_flush(locks, client) -> None:
    with locks.lock("a") as lease:
        client.script_flush()
        lease.renew()
        client.script_flush()
        assert lease.release() is True


def test_a_restart_without_persistence_is_survived(start_server) -> None:
    server = start_server(Redis)
    with leasehold.connect(server.url, ttl=1.5) as locks:
        lease = locks.lock("a").acquire()
        before = time.monotonic()
        server.kill()
        server.start()
        assert lease.lost.wait(3)
        assert time.monotonic() - before <= 1.5
        again = locks.lock("a").acquire(timeout=5)
        assert again.token > lease.token
        with pytest.raises(LeaseLost):
            lease.check()


def test_flushall_is_noticed_by_the_deadline(locks, client) -> None:
    lease = locks.lock("a", ttl=1.2).acquire()
    begun = time.monotonic()
    client.flushall()
    assert lease.lost.wait(2)
    assert time.monotonic() - begun <= 1.2
    assert locks.lock("a").acquire(timeout=5).token > lease.token


def test_a_holder_killed_is_replaced_within_ttl(redis_server, client, locks) -> None:
    ttl = 1.0
    code = f"import leasehold, time; l = leasehold.connect({redis_server.url!r}).lock('a', ttl={ttl}).acquire(); " \
        "print('held', flush=True); time.sleep(60)"  # fmt: skip
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        killed = threading.Timer(0.4, lambda: holder.send_signal(signal.SIGKILL))
        began = time.monotonic()
        killed.start()
        with locks.lock("a", timeout=10):
            took = time.monotonic() - began - 0.4
        assert took <= ttl + 0.25
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def test_a_dropped_listener_is_replaced(redis_server, client, locks) -> None:
    with leasehold.connect(redis_server.url) as other:
        lease = locks.lock("a").acquire()
        waiter = threading.Thread(target=lambda: other.lock("a").acquire(timeout=20).release())
        waiter.start()
        eventually(lambda: listening(client, 2))
        for each in client.client_list(_type="pubsub"):
            client.client_kill_filter(_id=each["id"])
        eventually(lambda: listening(client, 2))
        lease.release()
        waiter.join(2)
        assert not waiter.is_alive()


def test_a_wait_longer_than_the_socket_timeout(redis_server, client) -> None:
    given = redis.Redis.from_url(redis_server.url, socket_timeout=0.3)
    with leasehold.connect(given) as locks, leasehold.connect(redis_server.url) as other:
        lease = other.lock("a").acquire()
        release = threading.Timer(1.2, lease.release)
        release.start()
        with locks.lock("a", timeout=5):
            pass
    assert given.ping() is True, "the user's client is not closed"
    given.close()


async def test_a_cancelled_acquire_leaves_nothing(redis_server, client) -> None:
    async with aio.connect(redis_server.url) as locks:
        await (await locks.lock("warm").acquire()).release()
        for delay in range(0, 40):
            task = asyncio.ensure_future(locks.lock("a").acquire()._acquire)
            await asyncio.sleep(delay / 20_000)
            task.cancel()
            try:
                await (await task).release()
            except asyncio.CancelledError:
                pass
        await asyncio.sleep(0.2)
        assert client.hget("leasehold:{:a}", "h") is None
        assert client.zcard("leasehold:{:a}:queue") == 0


# Waiting in numbers.

WAITERS = """
import sys, threading, time
import leasehold
url, count, first = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
locks = leasehold.connect(url)
done = []
def wait(number):
    lease = locks.lock("hot", ttl=30).acquire()
    print("got", number, flush=True)
    lease.release()
threads = []
for number in range(count):
    sys.stdin.readline()
    thread = threading.Thread(target=wait, args=(first + number,))
    thread.start()
    threads.append(thread)
for thread in threads:
    thread.join()
locks.close()
"""


def serve(url: str, client: redis.Redis, processes: int, count: int) -> tuple[list[int], float, int, float]:
    """Order of service, script calls per hand-off, connections per process, commands per idle waiter and second."""
    each = count // processes
    with leasehold.connect(url) as locks:
        lease = locks.lock("hot").acquire()
        eventually(lambda: listening(client))
        before = len(client.client_list())
        started = [
            subprocess.Popen(
                [sys.executable, "-c", WAITERS, url, str(each), str(number * each)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(processes)
        ]
        key = "leasehold:{:hot}:queue"
        try:
            expected = []
            for number in range(each):
                for place, process in enumerate(started):
                    process.stdin.write("\n")
                    process.stdin.flush()
                    expected.append(place * each + number)
                    eventually(lambda: client.zcard(key) == len(expected), 20)
            eventually(lambda: listening(client, processes + 1))
            time.sleep(6)  # the first look of everybody is over
            idle = client.info("commandstats")["cmdstat_evalsha"]["calls"]
            time.sleep(5)
            idle = client.info("commandstats")["cmdstat_evalsha"]["calls"] - idle
            connections = len(client.client_list()) - before
            calls = client.info("commandstats")["cmdstat_evalsha"]["calls"]
            lease.release()
            served = []
            for process in started:
                process.stdin.close()
            lines = [line for process in started for line in process.stdout]
            served = lines
            for process in started:
                process.wait(30)
            calls = client.info("commandstats")["cmdstat_evalsha"]["calls"] - calls
        finally:
            for process in started:
                process.kill()
                process.wait()
                process.stdout.close()
    assert len(served) == count
    return expected, calls / count, connections // processes, idle / 5 / count


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_two_hundred_waiters_in_four_processes(redis_server, client) -> None:
    """Commands per hand-off do not grow with the waiters; one connection more per process; idle ones hardly ask."""
    costs = {}
    for processes, count in ((1, 1), (4, 20), (4, 200)):
        client.flushall()
        _, costs[count], connections, idle = serve(redis_server.url, client, processes, count)
        assert connections <= 2, "one for calls, one that listens"
        assert idle <= 0.2 * 1.1, f"{idle} commands per second and waiter"
    assert max(costs[20], costs[200]) <= 1.2 * min(costs[20], costs[200])
    assert costs[200] <= 1.2 * max(costs[1], 1.0)


def test_waiters_are_served_in_order_of_arrival(redis_server, client, locks) -> None:
    served: list[int] = []
    with leasehold.connect(redis_server.url) as one, leasehold.connect(redis_server.url) as two:

        def wait(number: int) -> None:
            with (one, two)[number % 2].lock("hot").acquire(timeout=30):
                served.append(number)

        lease = locks.lock("hot").acquire()
        threads = []
        for number in range(40):
            threads.append(threading.Thread(target=wait, args=(number,)))
            threads[-1].start()
            eventually(lambda: client.zcard("leasehold:{:hot}:queue") == len(threads))
        lease.release()
        for thread in threads:
            thread.join(30)
    assert served == list(range(40))


def test_many_leases_are_renewed_in_batches(redis_server, client) -> None:
    with leasehold.connect(redis_server.url, ttl=2.0) as locks:
        held = [locks.lock(f"many-{number}").acquire() for number in range(600)]
        time.sleep(1.0)
        before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        time.sleep(2.0)
        calls = client.info("commandstats")["cmdstat_evalsha"]["calls"] - before
        assert all(lease.valid for lease in held)
        assert 3 <= calls <= 40, "600 leases, 200 in a batch, three times in two seconds"
        assert locks.metrics().renewals >= 600


# Replicas, Sentinel.


def test_without_enough_replicas_nothing_is_granted(start_server) -> None:
    primary = start_server(Redis)
    with leasehold.connect(f"{primary.url}?replicas=1") as locks:
        with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
            locks.lock("a", ttl=2).try_acquire()
    with leasehold.connect(primary.url) as locks:
        assert locks.lock("a").try_acquire(timeout=2) is not None, "given back"


@pytest.mark.slow
@pytest.mark.parametrize("side", ["threads", "asyncio"])
def test_a_failover_in_the_middle(start_server, side: str) -> None:
    setup = start_server(SentinelSetup)
    url = f"{setup.url}?replicas=1"
    primary = next(member for member in setup.members if setup.leads(member))
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
            locks.lock("a", ttl=2).try_acquire()
    assert SECRET not in f"{caught.value!r} {caught.value} {caught.value.__cause__} {locks!r}"

    async def ask() -> None:
        async with aio.connect(url) as locks:
            with pytest.raises(error, match=match) as caught:
                await locks.lock("a", ttl=2).try_acquire()
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
                locks.lock("a").acquire(timeout=5).release()
            except StoreNotReady as error:
                refused += "redis+cluster://" in str(error)
    assert refused == 2, "two of three do not have the slot"


def test_tls_to_a_plain_port(redis_server) -> None:
    refuses(redis_server.url.replace("redis://", f"rediss://:{SECRET}@"), StoreNotReady, "TLS")


def test_a_read_only_replica(start_server) -> None:
    primary = start_server(Redis)
    replica = start_server(Redis, "--replicaof", "127.0.0.1", str(primary.port))
    eventually(lambda: redis.Redis(port=replica.port).info("replication")["master_link_status"] == "up", 15)
    refuses(replica.url, StoreNotReady, "read-only replica")


def test_a_key_of_the_wrong_type(redis_server, client) -> None:
    client.set("leasehold:{:a}", "mine")
    refuses(redis_server.url, StoreNotReady, "not leasehold's")
    assert client.get("leasehold:{:a}") == b"mine"


def test_out_of_memory(start_server) -> None:
    server = start_server(Redis)
    redis.Redis(port=server.port).config_set("maxmemory", "1")
    refuses(server.url, StoreNotReady, "memory")


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("redis://h:port/0", "host:port"),
        ("redis://h/x", "number of the database"),
        ("redis://h1,h2/0", "one host"),
        ("redis+sentinel://h1", "names the primary"),
        ("redis+cluster://h/3", "only database 0"),
        ("redis://h?replicas=x", "replicas"),
        ("redis://h?db=x", "option"),
        ("redis+unix://host", "Unix socket"),
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


def test_a_cluster_client_of_the_users_own(redis_cluster: RedisCluster) -> None:
    given = redis.RedisCluster(host="127.0.0.1", port=redis_cluster.members[0].port, decode_responses=True)
    with leasehold.connect(given) as locks, leasehold.connect(redis_cluster.url) as other:
        held = [locks.lock(f"c-{number}", ttl=1).acquire() for number in range(20)]
        time.sleep(1.2)
        assert all(lease.valid for lease in held)
        assert len(list(locks.leases("c-"))) == 20
        threading.Timer(0.3, held[0].release).start()
        other.lock("c-0").acquire(timeout=5).release()
        with pytest.raises(AcquireTimeout, match=locks.owner):
            other.lock("c-1").acquire(timeout=0.2)
    given.close()


async def test_a_cluster_client_of_asyncio(redis_cluster: RedisCluster) -> None:
    given = redis.asyncio.RedisCluster(host="127.0.0.1", port=redis_cluster.members[0].port)
    async with aio.connect(given) as locks:
        held = [await locks.lock(f"d-{number}", ttl=1).acquire() for number in range(20)]
        await asyncio.sleep(1.2)
        assert all(lease.valid for lease in held)
        assert len([lease async for lease in locks.leases("d-")]) == 20
    await given.aclose()


def test_valkey_serves_both_sides(valkey_server) -> None:
    with leasehold.connect(valkey_server.url.replace("redis://", "valkey://")) as locks:
        assert locks.lock("v").acquire().release() is True


def test_a_fork_owns_nothing(locks) -> None:
    lease = locks.lock("a").acquire()
    pid = os.fork()
    if pid == 0:
        ok = not lease.valid and locks.lock("b").acquire(timeout=5).release() and locks.lock("a").try_acquire() is None
        os._exit(0 if ok else 1)
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
            lease = locks.lock("a").acquire(timeout=5)
            tokens.append(lease.token)
            lease.release()
    assert tokens == sorted(set(tokens))


def test_what_was_acknowledged_survives_a_restart_with_persistence(start_server) -> None:
    server = start_server(Redis, "--appendfsync", "always", append_only=True)
    with leasehold.connect(server.url) as locks, leasehold.connect(server.url) as other:
        lease = locks.lock("a").acquire()
        server.kill()
        server.start()
        assert other.lock("a").try_acquire() is None
        lease.renew()
        assert lease.release() is True
        assert other.lock("a").acquire(timeout=5).token > lease.token
