"""The leader is killed, cut off from the others, and stopped, ten times each, while leases are held and twenty wait."""

import time
from typing import Any

import pytest
from failover import NAMES, Crowd, Latecomer
from kazoo.client import KazooClient
from zookeeper_tools import Tree, expire

import leasehold
from leasehold.testing.handles import eventually
from servers.netns import Networks
from servers.zookeeper import ZooKeeper, ZooKeeperEnsemble

ROUNDS = 10
LATE = {2: "threads", 5: "asyncio"}
"""The rounds after which another comes, whose place in the queue expires."""
TTL = 6.0


def stand(url: str) -> str:
    """How things are: the nodes of the name, in the order of their numbers."""
    lines = []
    client = KazooClient(url.partition("://")[2])
    client.start(60)
    try:
        spaces = client.get_children("/leasehold/%")
        paths = [f"/leasehold/%/{space}/83/x" for space in spaces]
        for path in paths:
            for child in sorted(client.get_children(path), key=lambda child: child[-10:]):
                data, stat = client.get(f"{path}/{child}")
                owner = f"session {stat.ephemeralOwner:x}, version {stat.version}, {data[:40]!r}"
                lines.append(f"{child} {owner}")
    finally:
        client.stop()
        client.close()
    return "\n".join(lines)


def nodes_of(url: str, owner: str) -> list[Any]:
    """Where an owner holds or waits."""
    client = KazooClient(url.partition("://")[2])
    client.start(60)
    try:
        tree = Tree(client, "%")
        return [each for name in NAMES for each in tree.line(name) if each.record["owner"] == owner]
    finally:
        client.stop()
        client.close()


def place(locks: Any, url: str) -> Any:
    return next((each.path for each in nodes_of(url, locks.owner)), None)


def expire_sessions(locks: Any, url: str, server: ZooKeeper) -> None:
    """End the sessions of a Locks behind its back, as the server does when it has not heard of them."""
    expire(server, *{each.stat.ephemeralOwner for each in nodes_of(url, locks.owner)})


def play(ensemble: ZooKeeperEnsemble, fail: Any, mend: Any) -> None:
    crowd = Crowd(ensemble.url, TTL, turn=0.02)
    late = []
    try:
        with leasehold.connect(ensemble.url, ttl=25) as locks:
            kept = locks.lock("kept").acquire()
            for turn in range(ROUNDS):
                leader = ensemble.leader()
                before = len(crowd.terms)
                fail(leader)
                try:
                    ensemble.leader(other_than=leader)
                    ends = time.monotonic() + 60
                    while len(crowd.terms) < before + 5:
                        assert time.monotonic() < ends, f"nobody is served any more\n{stand(ensemble.url)}"
                        time.sleep(0.02)
                finally:
                    mend(leader)
                ensemble.leader()
                # One of three is away at a time: who leads next must not be harmed before this one follows it.
                eventually(lambda: all(member.answers() for member in ensemble.members), 60, "all three work as one")
                if turn in LATE:
                    late.append(
                        Latecomer(
                            *(crowd, LATE[turn], lambda locks: place(locks, ensemble.url)),
                            lambda locks: expire_sessions(locks, ensemble.url, ensemble.members[0]),
                        )
                    )
            assert kept.valid, f"a ttl of 25 s outlives an election: {kept.lost_reason}"
            assert kept.release()
        for each in late:
            each.finish()
        served = list(crowd.served)
        ends = time.monotonic() + 60
        while any(now <= then for now, then in zip(crowd.served, served, strict=True)):
            assert time.monotonic() < ends, f"everyone is served in the end\n{stand(ensemble.url)}"
            time.sleep(0.05)
        eventually(lambda: all(crowd.stayed.values()), 60, "somebody stays at each name")
    finally:
        crowd.finish()
    print(crowd)
    assert not crowd.wrongs()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_store_that_forgets_its_leases_is_found_out(start_server: Any) -> None:
    """The judge by itself: sessions that leases live by are ended behind their holders' backs."""
    server = start_server(ZooKeeper)
    crowd = Crowd(server.url, TTL, turn=0.02)
    try:
        eventually(lambda: {term.name for term in crowd.terms if term.ended == float("inf")} >= set(NAMES), 60)
        time.sleep(1.0)  # by now they are waited for
        for locks in crowd.locks:
            expire_sessions(locks, server.url, server)
        eventually(lambda: any(term.dropped for term in crowd.terms), 60)
    finally:
        crowd.finish()
    assert any("dropped" in wrong for wrong in crowd.wrongs())


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_leader_is_killed_ten_times(start_server: Any) -> None:
    ensemble = start_server(ZooKeeperEnsemble)
    play(ensemble, lambda leader: leader.kill(), lambda leader: leader.start())


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_leader_is_cut_off_ten_times() -> None:
    """It is still reached by its clients, and believes for a while that it leads."""
    with Networks(3) as networks:
        ensemble = ZooKeeperEnsemble(networks=networks)
        numbers = dict(zip(ensemble.members, networks.members, strict=True))
        try:
            ensemble.start()
            play(ensemble, lambda leader: networks.cut(numbers[leader]), lambda leader: networks.mend(numbers[leader]))
        finally:
            ensemble.close()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_leader_is_stopped_ten_times(start_server: Any) -> None:
    """Its connections stay and nobody answers: the others elect another, and it comes back late."""
    ensemble = start_server(ZooKeeperEnsemble)
    play(ensemble, lambda leader: leader.pause(), lambda leader: leader.resume())
