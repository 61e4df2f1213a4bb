"""A Redis cluster whose nodes fail over, hand slots on, hang and leave: for threads and asyncio alike."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot
from redis.exceptions import AskError, MovedError, NoPermissionError, RedisError, ResponseError
from redis_tools import renewal

from leasehold.core import clock, timing
from leasehold.core.protocol import RENEWED, run_steps
from leasehold.errors import StoreNotReady, StoreUnavailable
from leasehold.stores.redis import cluster as slots
from leasehold.stores.redis import limits
from leasehold.stores.redis.errors import translate
from leasehold.stores.redis.requests import RoundTrip
from leasehold.stores.redis.store import RedisStore
from leasehold.testing.api import Api
from leasehold.testing.handles import Lease, Locks, eventually, make_ask
from servers.redis_ensembles import ClusterNode, RedisCluster, follows

PAGE = Path(__file__).parents[2] / "docs" / "stores" / "redis.md"


Connect = Callable[..., Locks]


def client(node: ClusterNode) -> redis.Redis:
    return redis.Redis(port=node.port, decode_responses=True)


def identity(node: ClusterNode) -> str:
    return str(client(node).execute_command("CLUSTER", "MYID"))


def slot_of(name: str) -> int:
    return key_slot(f"leasehold:{{:{name}}}".encode())


def name_at(cluster: RedisCluster, number: int, start: str = "n") -> str:
    """A name whose slot the master of this number has."""
    share = 16384 // len(cluster.masters) + 1
    return next(name for name in (f"{start}{count}" for count in range(10_000)) if slot_of(name) // share == number)


def renewals_of(locks: Locks) -> int:
    return int(locks.real.counters().renewals)


def redirections(node: ClusterNode) -> int:
    """How often the node has said that it does not have a slot."""
    return int(client(node).info("errorstats").get("errorstat_MOVED", {"count": 0})["count"])


def batch_of(locks: Locks, *leases: Lease) -> Any:
    """What its keeper would ask for."""
    return [renewal(each.name, locks.run(locks.store.inspect(each.name))[0].attempt, each.token) for each in leases]


def renew(locks: Locks, limit: float, batch: Any) -> Any:
    return locks.run(locks.store.renew(batch), limit)


class Migration:
    """The slot of a name is on its way from one master to another."""

    def __init__(self, cluster: RedisCluster, name: str, source: int, target: int) -> None:
        self.slot, self.key = slot_of(name), f"leasehold:{{:{name}}}"
        self.source, self.target = cluster.masters[source], cluster.masters[target]
        client(self.target).execute_command("CLUSTER", "SETSLOT", self.slot, "IMPORTING", identity(self.source))
        client(self.source).execute_command("CLUSTER", "SETSLOT", self.slot, "MIGRATING", identity(self.target))

    def move_keys(self) -> None:
        port = self.target.port
        client(self.source).execute_command("MIGRATE", "127.0.0.1", port, "", 0, 5000, "KEYS", self.key)

    def end(self) -> None:
        for node in self.target, self.source:
            client(node).execute_command("CLUSTER", "SETSLOT", self.slot, "NODE", identity(self.target))

    def told_to_try_again(self) -> int:
        """How often."""
        errors = [client(node).info("errorstats") for node in (self.source, self.target)]
        return sum(each.get("errorstat_TRYAGAIN", {"count": 0})["count"] for each in errors)


def fail_over(cluster: RedisCluster) -> tuple[ClusterNode, ClusterNode]:
    """As before an upgrade: the first master and its replica change places. The new master and the old."""
    old, new = cluster.masters[0], cluster.followed[0]
    asked = 0.0

    def done() -> bool:
        nonlocal asked
        if time.monotonic() > asked + 6 and client(new).role()[0] == "slave":  # they give it up after five seconds
            client(new).execute_command("CLUSTER", "FAILOVER")
            asked = time.monotonic()
        return follows(old, new)

    eventually(done, within=60)
    return new, old


def given_back(lease: Lease) -> bool:
    """One that was handed over begins with a first term, which is soon over for a machine that stands still."""
    return lease.release() or lease.ran_out()


@pytest.mark.parametrize("options", ["", "?replicas=1"])
def test_a_failover_in_the_middle(start_server, connect: Connect, caplog, options: str) -> None:
    cluster = start_server(RedisCluster, masters=1, followed=[0])
    url = cluster.url + options
    ours, theirs = (connect(url, ttl=120, max_renew_failures=1000) for _ in range(2))
    kept, first = ours.lock("kept", renew_every=0.5).acquire(), ours.lock("a").acquire()
    waiting = theirs.lock("a").start()
    eventually(lambda: ours.inspect("a").waiters == 1)

    _, old = fail_over(cluster)

    kept.renew()
    renewals = renewals_of(ours)
    eventually(lambda: renewals_of(ours) > renewals, what="its keeper renews it, too")
    ours.lock("b").acquire(timeout=60).release()
    assert first.release()
    second = waiting.lease(60)
    assert second.token > first.token
    assert kept.valid
    assert given_back(second)

    def has_learnt(locks: Locks) -> bool:
        locks.inspect("a")  # whoever was told that the slot has moved asks before its next call
        before = redirections(old)
        locks.inspect("a")
        return redirections(old) == before

    for locks in ours, theirs:
        eventually(lambda locks=locks: has_learnt(locks), what="it has learnt who is the master")
    assert "failed unexpectedly" not in caplog.text


def test_what_a_node_has_not_done_its_replicas_do_not_confirm(start_server, connect: Connect) -> None:
    """The slot has gone to a master without replicas: that the old one has some is no longer of interest."""
    cluster = start_server(RedisCluster, masters=2, followed=[0])
    name = name_at(cluster, 0)
    ours, plain = connect(f"{cluster.url}?replicas=1"), connect(cluster.url)
    for locks in ours, plain:
        locks.lock(name).acquire(timeout=60).release()
    kept = ours.lock(name, ttl=600, renew=False).acquire()
    batch = batch_of(ours, kept)
    moving = Migration(cluster, name, 0, 1)
    moving.move_keys()
    with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
        renew(ours, 6.0, batch)  # by way of ASK
    moving.end()
    with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
        renew(ours, 6.0, batch)  # by way of MOVED
    assert kept.release()
    with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
        ours.lock(name, ttl=20).try_acquire()
    eventually(lambda: plain.inspect(name) is None, what="it was given back")
    plain.lock(name).acquire(timeout=60).release()
    before = redirections(cluster.masters[0])
    plain.inspect(name)
    assert redirections(cluster.masters[0]) == before


def test_a_master_that_hangs_is_no_matter_of_the_leases_on_others(start_server, connect: Connect) -> None:
    cluster = start_server(RedisCluster)
    locks = connect(cluster.url)
    often = {"renew_every": 0.5, "max_renew_failures": 1000}  # all of them together
    leases = [
        locks.lock(name_at(cluster, number), ttl=ttl, **often).acquire(timeout=60)
        for number, ttl in enumerate((60, 60, 8))
    ]
    cluster.masters[2].pause()
    paused = renewals_of(locks)
    try:
        assert leases[2].wait_lost(60)
        renewals = renewals_of(locks)
        assert renewals >= paused + 4, "renewed while the other was not yet given up"
        assert [lease.valid for lease in leases] == [True, True, False]
        eventually(lambda: renewals_of(locks) >= renewals + 2)
        assert [lease.valid for lease in leases] == [True, True, False]
        with pytest.raises(StoreUnavailable):
            locks.lock(name_at(cluster, 2, "other")).try_acquire()
        locks.lock(name_at(cluster, 0, "other")).acquire(timeout=60).release()
    finally:
        cluster.masters[2].resume()


def test_of_a_batch_those_are_unknown_whose_node_hangs(start_server, connect: Connect) -> None:
    cluster = start_server(RedisCluster)
    locks = connect(cluster.url, ttl=600)
    leases = [locks.lock(name_at(cluster, number)).acquire(timeout=60) for number in range(3)]
    batch = batch_of(locks, *leases)
    cluster.masters[1].pause()
    try:
        first, second, third = renew(locks, 8.0, batch)
        assert (first, third) == (RENEWED, RENEWED)
        assert isinstance(second, StoreUnavailable)
        with pytest.raises(StoreUnavailable):
            renew(locks, 1.0, batch[1:2])
    finally:
        cluster.masters[1].resume()


def test_a_listener_leaves_with_its_node(start_server, connect: Connect, monkeypatch) -> None:
    """That goes on answering, but hears nothing of what is published at the others."""
    monkeypatch.setattr(limits, "HEARTBEAT", 0.5)
    monkeypatch.setattr(slots, "MAP_EVERY", 1)
    cluster = start_server(RedisCluster, masters=2)
    gone, stays = cluster.masters
    name = name_at(cluster, 1)
    ours, theirs = connect(cluster.url), connect(cluster.url)
    held = ours.lock(name, ttl=600).acquire(timeout=60)
    waiting = theirs.lock(name).start()
    eventually(lambda: len(client(gone).pubsub_channels("leasehold:*")) == 2, what="both listen at the first master")

    client(gone).flushall()
    client(stays).execute_command("CLUSTER", "FORGET", identity(gone))
    client(gone).execute_command("CLUSTER", "RESET", "SOFT")
    client(stays).execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 8192)
    eventually(lambda: client(stays).execute_command("CLUSTER INFO")["cluster_state"] == "ok", within=60)

    eventually(lambda: len(client(stays).pubsub_channels("leasehold:*")) == 2, within=60)
    eventually(lambda: not client(gone).pubsub_channels("leasehold:*"))
    assert held.release()
    assert given_back(waiting.lease(60))


def test_a_listener_stays_while_its_node_does(start_server, connect: Connect, monkeypatch) -> None:
    monkeypatch.setattr(limits, "HEARTBEAT", 2.0)  # which is also how long it waits for an answer
    monkeypatch.setattr(slots, "MAP_EVERY", 1)
    cluster = start_server(RedisCluster, masters=1, followed=[0])
    locks = connect(cluster.url)
    locks.lock("a").acquire(timeout=60).release()
    first, replica = cluster.masters[0], cluster.followed[0]
    eventually(lambda: client(first).pubsub_channels("leasehold:*"))
    [listener] = client(first).client_list(_type="pubsub")

    def asked() -> int:
        stats = [client(node).info("commandstats") for node in cluster.members]
        return sum(each.get("cmdstat_cluster|slots", {"calls": 0})["calls"] for each in stats)

    before = asked()
    eventually(lambda: asked() >= before + 3, within=60, what="it asks now and then who belongs to the cluster")
    assert [each["id"] for each in client(first).client_list(_type="pubsub")] == [listener["id"]]
    assert not client(replica).pubsub_channels("leasehold:*")


def test_while_a_slot_migrates_calls_wait_for_its_end(start_server, connect: Connect, api: Api, monkeypatch) -> None:
    """A name that nobody waits for has no queue, and Redis takes that for a key that has gone before the other."""
    monkeypatch.setattr(timing, "CALL_LIMIT", 60.0)  # they wait for as long as the test takes
    cluster = start_server(RedisCluster, masters=2)
    name = name_at(cluster, 0)
    locks, other = connect(cluster.url), connect(cluster.url)
    for each in locks, other:
        each.lock(name_at(cluster, 0, "elsewhere")).acquire(timeout=60).release()
    lease = locks.lock(name, ttl=600, renew=False).acquire(timeout=60)

    moving = Migration(cluster, name, 0, 1)
    releasing = api.start(lease.real.release)
    eventually(moving.told_to_try_again)
    moving.move_keys()
    looking, taking = api.start(other.real.inspect, name), other.lock(name).start(60)
    told = moving.told_to_try_again()
    eventually(lambda: moving.told_to_try_again() > told + 3)
    assert not any(job.done() for job in (releasing, looking, taking))
    moving.end()

    assert releasing.result(60) is True
    looking.result(60)
    second = taking.lease(60)
    assert second.token > lease.token
    assert given_back(second)


def test_the_documented_user_may_follow_a_slot_on_its_way(start_server, connect: Connect) -> None:
    found = re.search(r"^ACL SETUSER (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert found is not None
    user, *rules = found[1].split()
    cluster = start_server(RedisCluster, masters=2)
    for node in cluster.members:
        client(node).execute_command("ACL", "SETUSER", user, *rules)
    locks = connect(cluster.url.replace("://", f"://{user}:password@"))
    name = name_at(cluster, 0)
    lease = locks.lock(name, renew=False).acquire(timeout=60)
    moving = Migration(cluster, name, 0, 1)
    moving.move_keys()
    lease.renew()
    moving.end()
    assert lease.release()


# Its answers, one by one.

MAP = [[0, 16383, [b"n1", 1, b"id"], [b"n2", 2, b"id"]]]
STORE = RedisStore("redis", "", clustered=True)
INSPECT = next(STORE.inspect("a"))
ACQUIRE_IT = next(STORE.acquire(make_ask("a", "attempt", 30)))


def deliver(answer: Callable[[RoundTrip], Any], replicas: int = 0) -> Any:
    """What becomes of a call, as its caller is told, when nodes answer so."""
    known = slots.SlotMap([("start", 7)])

    def handle(request: Any) -> Any:
        if isinstance(request, RoundTrip):
            return [MAP]
        return [answer(trip) for trip in request]

    call = ACQUIRE_IT if replicas else INSPECT
    [reply] = run_steps(slots.deliver(known, [call], clock.now() + 5.0, replicas), handle)
    return translate(reply, "redis") if isinstance(reply, RedisError) else reply


def test_a_call_that_is_sent_on_and_on() -> None:
    asked = []

    def answer(trip: RoundTrip) -> Any:
        asking = trip.commands[0] == (b"ASKING",)
        asked.append((trip.node, asking))
        to = ("n1:1", "n2:2")[len(asked) % 2]
        return [b"OK"] * asking + [AskError(f"1 {to}") if trip.node == ("n2", 2) else MovedError(f"1 {to}")]

    assert isinstance(deliver(answer), StoreUnavailable)
    assert asked[:3] == [(("n1", 1), False), (("n2", 2), False), (("n1", 1), True)]
    assert len(asked) == slots.HOPS


def test_one_that_does_not_know_its_address_means_itself() -> None:
    def answer(trip: RoundTrip) -> Any:
        return [MovedError("1 :9")] if trip.node == ("n1", 1) else [f"done at {trip.node}"]

    assert deliver(answer) == "done at ('n1', 9)"


def test_what_cannot_be_confirmed() -> None:
    refusal = ResponseError("WAIT cannot be used with replica instances.")
    assert isinstance(deliver(lambda trip: ["done", refusal], replicas=1), StoreUnavailable)
    assert isinstance(deliver(lambda trip: ["done", NoPermissionError("wait")], replicas=1), StoreNotReady)
    assert isinstance(deliver(lambda trip: ["done", 0], replicas=1), StoreUnavailable)
    assert deliver(lambda trip: ["done", 1], replicas=1) == "done"
