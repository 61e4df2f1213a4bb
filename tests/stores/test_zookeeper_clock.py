"""ZooKeeper has no clock that can be read, only the times of what was written. That of a client's own machine is not to
matter, also not to a Locks that has not written anything yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl
from zookeeper_tools import Tree, relayed

import leasehold
from leasehold import aio
from leasehold.core import clock
from leasehold.testing.handles import eventually
from servers.zookeeper import ZooKeeper

Connect = Callable[..., leasehold.Locks]


@pytest.fixture
def connect(zookeeper_server: ZooKeeper, namespace: str) -> Iterator[Connect]:
    opened: list[leasehold.Locks] = []

    def connect(**options: Any) -> leasehold.Locks:
        opened.append(leasehold.connect(zookeeper_server.url, namespace=namespace, ttl=60, **options))
        return opened[-1]

    yield connect
    for locks in opened:
        locks.close()


@pytest.fixture(params=[-3600, 3600], ids=["behind", "ahead"])
def skewed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's wall clock is wrong by an hour."""
    monkeypatch.setattr(clock, "wall_us", lambda: time.time_ns() // 1000 + request.param * 1_000_000)


def left(info: leasehold.LeaseInfo) -> float:
    """In seconds. Its times follow from how long it is until then, by a clock that is right."""
    return (info.expires - datetime.now(UTC)).total_seconds()


@pytest.mark.usefixtures("skewed")
def test_what_rests_is_not_taken_by_all_of(connect: Connect) -> None:
    assert connect().lock("a", min_hold=100).acquire(20).release()
    assert connect().all_of("a", "b").try_acquire() is None
    assert connect().inspect("a") is not None, "it is still there"


@pytest.mark.usefixtures("skewed")
def test_what_has_rested_is_taken_by_all_of(connect: Connect, zookeeper_server: ZooKeeper, namespace: str) -> None:
    assert connect().lock("a", min_hold=0.5).acquire(20).release()
    with relayed(zookeeper_server, namespace, ttl=60) as (relay, locks):
        assert eventually(locks.all_of("a", "b").try_acquire, 60).release()
        one_by_one = [each for each in relay.requests if each.what == "create" and "lock.1.1." in each.path]
        assert not one_by_one, "they were to be taken in one step"


@pytest.mark.usefixtures("skewed")
def test_listings_tell_when_a_permit_and_a_rest_end(connect: Connect) -> None:
    locks = connect()
    permit = locks.semaphore("s", limit=2).acquire(20)
    assert locks.lock("x", min_hold=100).acquire(20).release()
    for _ in range(2):
        found = {info.name: info for info in connect().leases()}
        assert 20 < left(found["s"]) < 70
        assert 20 < left(found["x"]) < 110
        assert found["s"].acquired > datetime.now(UTC) - timedelta(seconds=100)
    assert permit.release()


@pytest.mark.usefixtures("skewed")
def test_an_heir_keeps_what_is_left_of_min_hold(connect: Connect) -> None:
    offer = connect().lock("x", min_hold=100).acquire(20).transfer()
    assert connect().accept(offer).release()
    info = connect().inspect("x")
    assert info is not None
    assert 20 < left(info) < 110


@pytest.mark.usefixtures("skewed")
async def test_in_asyncio(zookeeper_server: ZooKeeper, namespace: str) -> None:
    def connect() -> aio.Locks:
        return aio.connect(zookeeper_server.url, namespace=namespace, ttl=60)

    async with connect() as locks, connect() as other, connect() as observer:
        lease = await locks.lock("a", min_hold=100).acquire(20)
        assert await lease.release()
        assert await other.all_of("a", "b").try_acquire() is None
        info = await observer.inspect("a")
        assert info is not None
        assert 20 < left(info) < 110


def test_who_may_not_write_asks_once(connect: Connect, zookeeper_server: ZooKeeper, namespace: str) -> None:
    """And believes its own clock."""
    locks = connect()
    lease = locks.lock("x").acquire(20)
    client = KazooClient(zookeeper_server.url.partition("://")[2])
    client.start()
    try:
        client.set_acls(
            Tree(client, namespace).root, [make_acl("world", "anyone", read=True, create=True, delete=True, admin=True)]
        )
    finally:
        client.stop()
        client.close()
    with relayed(zookeeper_server, namespace) as (relay, observer):
        for _ in range(2):
            info = observer.inspect("x")
            assert info is not None
            assert info.token == lease.token
        assert sum(request.what == "set" for request in relay.requests) == 1
    assert lease.release()
