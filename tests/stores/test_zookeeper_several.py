"""Several names in one step of ZooKeeper, where that is peculiar: each name's node is made anew."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from zookeeper_tools import Tree, relayed

import leasehold
from leasehold.testing.handles import eventually
from servers.zookeeper import ZooKeeper

Connect = Callable[..., leasehold.Locks]


@pytest.fixture
def connect(zookeeper_server: ZooKeeper, namespace: str) -> Iterator[Connect]:
    opened: list[leasehold.Locks] = []

    def connect(**options: Any) -> leasehold.Locks:
        opened.append(leasehold.connect(zookeeper_server.url, namespace=namespace, ttl=30, **options))
        return opened[-1]

    yield connect
    for locks in opened:
        locks.close()


@pytest.fixture
def client(zookeeper_server: ZooKeeper) -> Iterator[KazooClient]:
    client = KazooClient(zookeeper_server.url.partition("://")[2])
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def tree(client: KazooClient, namespace: str) -> Tree:
    return Tree(client, namespace)


def test_whoever_comes_next_is_behind(connect: Connect, client: KazooClient, tree: Tree) -> None:
    """The numbers of the names start anew, and go on from there."""
    locks, other = connect(), connect()
    for _ in range(3):
        assert locks.lock("a").acquire(20).release()
    lease = locks.all_of("a", "b").acquire(20)
    [mine] = client.get_children(tree.parent("a"))
    assert mine.endswith(".0000000000")
    served: list[leasehold.Lease] = []
    waiters = []
    for count in (1, 2):
        waiters.append(threading.Thread(target=lambda: served.append(other.lock("a").acquire(60))))
        waiters[-1].start()
        eventually(lambda: other.inspect("a").waiters == count)  # type: ignore[union-attr]  # noqa: B023
    numbers = sorted(child[-10:] for child in client.get_children(tree.parent("a")))
    assert numbers == ["0000000000", "0000000001", "0000000002"]
    assert lease.release()
    for count in (1, 2):
        eventually(lambda: len(served) == count)  # noqa: B023
        assert served[-1].release()
    assert lease.tokens["a"] < served[0].token < served[1].token
    for waiter in waiters:
        waiter.join(60)


def test_what_has_rested_is_not_in_the_way(zookeeper_server: ZooKeeper, namespace: str) -> None:
    """What min_hold kept taken is a node until somebody removes it."""
    with relayed(zookeeper_server, namespace, ttl=30) as (relay, locks):
        assert locks.all_of("a", "b", min_hold=0.5).acquire(20).release()
        several = locks.all_of("a", "b")
        assert eventually(several.try_acquire, 60).release()
        assert not any(request.what == "create" and "lock.1.1." in request.path for request in relay.requests)


def test_a_node_that_is_not_ours_is_passed_over(connect: Connect, client: KazooClient, tree: Tree) -> None:
    """It keeps the name's node from being made anew, and means nothing else: then in order, one by one."""
    locks = connect()
    assert locks.lock("a").acquire(20).release()
    client.create(f"{tree.parent('a')}/by hand")
    lease = locks.all_of("a", "b").try_acquire()
    assert lease is not None
    assert {info.name: info.token for info in locks.leases()} == lease.tokens
    assert lease.release()


def test_one_that_is_removed_at_once_leaves_nothing_of_the_others(
    zookeeper_server: ZooKeeper, namespace: str, tree: Tree
) -> None:
    """By force, before its holder knows that it has it."""
    with relayed(zookeeper_server, namespace, ttl=30) as (relay, locks):
        assert locks.all_of("a", "b").acquire(20).release()
        hold = relay.hold(lambda request: request.what == "get" and "lock.1.1." in request.path)
        removed = threading.Thread(target=remove_first, args=(hold, tree))
        removed.start()
        lease = locks.all_of("a", "b").acquire(20)
        removed.join(60)
        assert hold.arrived.is_set()
        assert {info.name: info.token for info in locks.leases()} == lease.tokens
        for name in "ab":
            assert len(tree.line(name)) == 1
        assert lease.release()
        assert not list(locks.leases())


def remove_first(hold: Any, tree: Tree) -> None:
    """The node that is about to be read."""
    assert hold.arrived.wait(30)
    tree.client.delete(eventually(lambda: tree.line("a"))[0].path)
    hold.let_go.set()


def test_more_than_fits_into_a_message(connect: Connect) -> None:
    """A server ends the connection over one of more than 1 MB: then in order, one by one."""
    locks = connect()
    lease = locks.all_of(*("🔒" * 500 + f"{number:02}" for number in range(60))).try_acquire()
    assert lease is not None
    assert len(lease.tokens) == len(list(locks.leases())) == 60
    assert lease.release()


def test_a_namespace_that_is_removed_is_made_anew(connect: Connect, client: KazooClient, namespace: str) -> None:
    locks = connect()
    first = locks.all_of("a", "b").acquire(20)
    tokens = dict(first.tokens)
    assert first.release()
    client.delete(f"/leasehold/{namespace}", recursive=True)
    second = locks.all_of("a", "b").try_acquire()
    assert second is not None
    assert all(second.tokens[name] > tokens[name] for name in "ab")
    assert second.release()
