"""The leader is killed, and cut off from the others, again and again, while leases are held and twenty wait."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from failover import NAMES, Crowd, Latecomer

import leasehold
from leasehold.stores.etcd import wire
from leasehold.stores.etcd.endpoints import Endpoints
from leasehold.stores.etcd.threads import ThreadTransport
from leasehold.stores.etcd.url import parse
from leasehold.testing.handles import eventually
from servers.base import NotReady, Server
from servers.etcd import Etcd, EtcdCluster, ask, b64
from servers.netns import Networks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ROUNDS = 10
LATE = {2: "threads", 5: "asyncio"}
"""The rounds after which another comes, whose place in the queue expires."""
TTL = 4.0
PAUSES = 5


def history(cluster: EtcdCluster) -> list[str]:
    """What has become of the holders' keys, revision by revision."""
    stream = ThreadTransport(Endpoints(parse(cluster.url))).watch(5)
    since = wire.text(1, b"leasehold/") + wire.text(2, b"leasehold0") + wire.number(3, 1) + wire.number(7, 1)
    stream.send([wire.text(1, since)])
    found = []
    while (told := stream.read(1.0)) is not None:
        for message in told:
            for event in wire.read(message).get(11, ()):
                fields = wire.read(event)
                key = wire.read_key(fields[2][0])
                what = "delete" if wire.first(fields, 1) else f"put, lease {key.lease:x}"
                found.append(f"{key.mod} {key.key.decode()!r} {what}")
    stream.close()
    return found


def judge(crowd: Crowd, cluster: EtcdCluster) -> None:
    print(crowd)
    if wrongs := crowd.wrongs():
        pytest.fail("\n".join((*wrongs, *history(cluster))))


def place(cluster: EtcdCluster, locks: Any) -> Any:
    """The key of the one that waits."""
    for member in cluster.members:
        with contextlib.suppress(OSError, NotReady):
            found = ask(
                member.port,
                "kv/range",
                {"key": b64("leasehold//w/"), "range_end": b64("leasehold//w0")},
                host=member.host,
            )
            for key in found.get("kvs", []):
                if json.loads(base64.b64decode(key["value"]))[2] == locks.owner:
                    return key
    return None


def expire_place(cluster: EtcdCluster, locks: Any) -> None:
    """End the lease that its waiters live by."""

    def revoked() -> bool:
        found = place(cluster, locks)
        member = cluster.members[0]
        try:
            ask(member.port, "lease/revoke", {"ID": found["lease"]}, host=member.host)
        except (OSError, NotReady) as error:
            return "not found" in str(error)
        return True

    eventually(revoked, 60)


def suffer(cluster: EtcdCluster, harm: Callable[[Server], None], mend: Callable[[Server], None], more: int = 3) -> None:
    """Ten times: harm the leader, wait until there is another and so many more were served, mend."""
    crowd = Crowd(cluster.url, TTL, turn=0.1)
    held = leasehold.connect(cluster.url, ttl=20)
    late = []
    try:
        kept = [held.lock(f"kept{number}").acquire(20) for number in range(5)]
        for turn in range(ROUNDS):
            leader = cluster.leader()
            served = len(crowd.terms)
            harm(leader)
            try:
                cluster.leader(other_than=leader)
                ends = time.monotonic() + 60
                while len(crowd.terms) < served + more:
                    assert time.monotonic() < ends, "nobody is served any more"
                    time.sleep(0.02)
            finally:
                mend(leader)
            time.sleep(1.0)
            if turn in LATE:
                late.append(
                    Latecomer(
                        crowd,
                        LATE[turn],
                        lambda locks: place(cluster, locks),
                        lambda locks: expire_place(cluster, locks),
                    )
                )
        assert all(lease.valid for lease in kept), "a ttl of 20 s outlives an election"
        for each in late:
            each.finish()
        eventually(lambda: all(crowd.stayed.values()), 60, "somebody stays at each name")
    finally:
        crowd.finish()
        held.close()
    judge(crowd, cluster)


def test_a_store_that_forgets_its_leases_is_found_out(start_server: Any) -> None:
    """The judge by itself: leases that are held, and waited for, are revoked behind their holders' backs."""
    server = start_server(Etcd)
    crowd = Crowd(server.url, TTL, turn=0.1)
    try:
        eventually(lambda: {term.name for term in crowd.terms if term.ended == float("inf")} >= set(NAMES), 60)
        time.sleep(1.0)  # by now they are waited for
        for lease in ask(server.port, "lease/leases", {})["leases"]:
            with contextlib.suppress(NotReady):  # it has ended meanwhile
                ask(server.port, "lease/revoke", {"ID": lease["ID"]})
        eventually(lambda: any(term.dropped for term in crowd.terms), 60)
    finally:
        crowd.finish()
    assert any("dropped" in wrong for wrong in crowd.wrongs())


def test_the_leader_is_killed_ten_times(start_server: Any) -> None:
    cluster: EtcdCluster = start_server(EtcdCluster)

    def harm(leader: Server) -> None:
        leader.kill()

    def mend(leader: Server) -> None:
        leader.start()

    suffer(cluster, harm, mend)


def test_the_leader_is_cut_off_ten_times() -> None:
    """It is still reached by its clients, and believes for a while that it leads."""
    with Networks(3) as networks:
        cluster = EtcdCluster(networks=networks)
        numbers = dict(zip(cluster.members, networks.members, strict=True))
        try:
            cluster.start()
            suffer(cluster, lambda leader: networks.cut(numbers[leader]), lambda leader: networks.mend(numbers[leader]))
        finally:
            cluster.close()


def test_a_leader_that_was_paused_harms_nobody(start_server: Any) -> None:
    """It comes back as one who thinks that it leads, with what its clients had sent it before.

    After less than a ttl: one that slept for longer takes it that all leases have run out, and etcd 3.5.30 may let it
    revoke some that are alive (see the page)."""
    cluster: EtcdCluster = start_server(EtcdCluster)
    suffer(cluster, lambda leader: leader.pause(), lambda leader: leader.resume(), more=0)


def test_a_leader_that_was_paused_for_longer_than_a_ttl(start_server: Any) -> None:
    """What the page says it can't. It comes back taking it that all leases have run out, and may revoke some that are
    alive: their names are granted to others under the eyes of their holders. That is seen in most runs, not in all;
    what holds in each is that the later grant has the higher token, that a holder is told, and that all goes on."""
    cluster: EtcdCluster = start_server(EtcdCluster)
    crowd = Crowd(cluster.url, TTL, turn=0.1)
    try:
        for _ in range(PAUSES):
            leader = cluster.leader()
            leader.pause()
            try:
                cluster.leader(other_than=leader)
                time.sleep(TTL + 1.0)
            finally:
                leader.resume()
            served = len(crowd.terms)
            eventually(lambda served=served: len(crowd.terms) >= served + 10, 60, "it goes on")
        eventually(lambda: all(crowd.served), 60, "everybody is served")
    finally:
        crowd.finish()
    known = ("a live lease was dropped", "both held it")
    wrongs = crowd.wrongs()
    print(f"{crowd}; {[sum(wrong.startswith(sign) for wrong in wrongs) for sign in known]} times {known}")
    assert not [wrong for wrong in wrongs if not wrong.startswith(known)]
