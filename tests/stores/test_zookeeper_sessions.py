"""Leases of ZooKeeper that live by different sessions: moved from one to another, renewed while one of them is ill,
left to an heir when all are closed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.client import KazooClient
from zookeeper_tools import Tree, relayed

import leasehold
from leasehold import StoreNotReady, StoreUnavailable, aio
from leasehold.core import timing
from leasehold.stores.zookeeper import nodes
from leasehold.stores.zookeeper.guard import RETRY, Pulse
from leasehold.testing.handles import eventually
from servers.zookeeper import ZooKeeper, word
from servers.zookeeper_relay import Request, ZooKeeperRelay, moves

Connect = Callable[..., leasehold.Locks]
Relayed = tuple[ZooKeeperRelay, leasehold.Locks]


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeper]:
    with ZooKeeper() as server:
        yield server


@pytest.fixture
def client(server: ZooKeeper) -> Iterator[KazooClient]:
    client = KazooClient(server.address)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def space(request: pytest.FixtureRequest) -> str:
    """The test's own namespace."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:60]


@pytest.fixture
def tree(client: KazooClient, space: str) -> Tree:
    return Tree(client, space)


@pytest.fixture
def connect(server: ZooKeeper, space: str) -> Iterator[Connect]:
    """`connect(**options)` opens the test's own namespace; all are closed after it."""
    opened: list[leasehold.Locks] = []

    def connect(**options: Any) -> leasehold.Locks:
        opened.append(leasehold.connect(server.url, namespace=space, **options))
        return opened[-1]

    yield connect
    for locks in opened:
        locks.close()


@pytest.fixture
def both(server: ZooKeeper, space: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relayed]:
    """A ``Locks`` behind a relay, whose calls may take a second."""
    monkeypatch.setattr(timing, "CALL_LIMIT", 2.0)
    with relayed(server, space, renew=False) as (relay, locks):
        yield relay, locks


def session_length(server: ZooKeeper, session: int) -> float:
    """In seconds, as the server has agreed to."""
    [line] = [line for line in word(server.port, "cons").splitlines() if f"sid=0x{session:x}," in line]
    return int(line.partition(",to=")[2].partition(",")[0]) / 1000


def renew_in_vain(relay: ZooKeeperRelay, lease: leasehold.Lease, ttl: float) -> Any:
    """A renewal for longer, whose request to move the node lies in the network."""
    hold = relay.hold(moves)
    with pytest.raises(StoreUnavailable):
        lease.renew(ttl=ttl)
    assert hold.arrived.wait(30)
    return hold


def moved_unheard(relay: ZooKeeperRelay, lease: leasehold.Lease, ttl: float, tree: Tree) -> None:
    """The node is moved, and its owner does not hear of that."""
    path = tree.holder("x").path
    hold = relay.hold(moves)
    renewing = threading.Thread(target=goes_on, args=(lease, ttl))
    renewing.start()
    assert hold.arrived.wait(30)
    relay.only("to_server")
    hold.let_go.set()
    # Read while it moves, the line may be empty: its old node is gone, and the new one was not listed yet.
    eventually(lambda: (line := tree.line("x")) and line[0].path != path)
    relay.reset()
    renewing.join(60)
    relay.all_well()


def goes_on(lease: leasehold.Lease, ttl: float) -> bool:
    """Renewed, now that the connections are back."""
    try:
        lease.renew(ttl=ttl)
    except StoreUnavailable:
        return False
    return True


# Moves.


def test_a_move_that_comes_too_late_moves_nothing(both: Relayed, tree: Tree, server: ZooKeeper) -> None:
    """S1: a renewal got no answer; the next one has, for longer, and its term is trusted. Then the first arrives, and
    would take the node to the shorter session."""
    relay, locks = both
    lease = locks.lock("x", ttl=20).acquire()
    lease.renew(ttl=30)
    hold = renew_in_vain(relay, lease, 45)
    lease.renew(ttl=90)
    trusted = tree.holder("x")
    assert session_length(server, trusted.stat.ephemeralOwner) > 100
    hold.let_go.set()
    time.sleep(1)
    assert (tree.holder("x").path, tree.holder("x").stat.ephemeralOwner) == (trusted.path, trusted.stat.ephemeralOwner)
    assert goes_on(lease, 90)
    assert lease.release()


def test_a_move_that_comes_late_is_made_void_by_the_next_renewal(both: Relayed, tree: Tree) -> None:
    """Though that asks for no more than the session has that it is in."""
    relay, locks = both
    lease = locks.lock("x", ttl=20).acquire()
    hold = renew_in_vain(relay, lease, 45)
    before = tree.holder("x").path
    lease.renew(ttl=20)
    hold.let_go.set()
    time.sleep(1)
    assert tree.holder("x").path == before
    assert goes_on(lease, 20)
    assert lease.release()


def test_two_move_it_at_once(connect: Connect, tree: Tree, server: ZooKeeper) -> None:
    """Whichever is first, and whichever hears of it first: it ends in the session that is long enough for both."""
    locks = connect(renew=False)
    for number in range(5):
        lease = locks.lock("x", ttl=20).acquire()
        ttls = (60, 90) if number % 2 else (90, 60)
        threads = [threading.Thread(target=lease.renew, kwargs={"ttl": ttl}) for ttl in ttls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(tree.line("x")) == 1
        assert session_length(server, tree.holder("x").stat.ephemeralOwner) > 100
        assert lease.valid
        assert lease.release()
        assert tree.line("x") == []


@pytest.mark.parametrize("rest", [0, 2])
def test_a_release_finds_what_was_moved_unheard(both: Relayed, tree: Tree, rest: int) -> None:
    relay, locks = both
    lease = locks.lock("x", ttl=20, min_hold=rest).acquire()
    moved_unheard(relay, lease, 45, tree)
    eventually(lambda: released(lease), 30)
    eventually(lambda: tree.line("x") == [], 30)  # a release that failed is the keeper's
    assert locks.lock("x", ttl=20).acquire(20).release()


def released(lease: leasehold.Lease) -> bool:
    try:
        return lease.release() or not lease.valid
    except StoreUnavailable:
        return False


def test_what_was_moved_unheard_is_renewed_and_watched(both: Relayed, tree: Tree, server: ZooKeeper) -> None:
    relay, locks = both
    lease = locks.lock("x", ttl=20).acquire()
    moved_unheard(relay, lease, 45, tree)
    path = tree.holder("x").path
    eventually(lambda: goes_on(lease, 20), 15)
    assert tree.holder("x").path == path
    eventually(lambda: path in word(server.port, "wchp"), what="the server knows of the watch")
    tree.client.delete(path)
    assert lease.lost.wait(15), "by the watch"
    assert "no longer holds" in str(lease.lost_reason)


def test_what_was_moved_unheard_is_gone_when_it_is_over(both: Relayed, tree: Tree) -> None:
    """Its process removes what it knows of, and looks for the rest."""
    relay, locks = both
    lease = locks.lock("x", ttl=8).acquire()
    moved_unheard(relay, lease, 45, tree)
    eventually(lambda: not tree.line("x"), 40, "its session would last for a minute")
    assert not lease.valid


def test_one_that_is_broken_while_it_moves_stays_broken(both: Relayed, connect: Connect, tree: Tree) -> None:
    relay, locks = both
    lease = locks.lock("x", ttl=20).acquire()
    moved_unheard(relay, lease, 45, tree)
    assert connect().break_lease("x")
    with pytest.raises(leasehold.LeaseLost):
        eventually(lambda: goes_on(lease, 20), 15)
    lease.release()
    assert locks.lock("x").acquire(20).release()


def test_a_path_is_never_used_again() -> None:
    path = "/a/b.lock.1.1.0000000007"
    once = nodes.moved(path, 1)
    again = nodes.moved(once, 2)
    assert (once, again) == ("/a/b.lock.1.1.m1.0000000007", "/a/b.lock.1.1.m2.0000000007")
    assert [nodes.mark(each) for each in (path, once, again)] == [0, 1, 2]
    assert {nodes.sequence(each) for each in (path, once, again)} == {7}
    look = nodes.view([path.rpartition("/")[2], again.replace("7", "8").rpartition("/")[2]], 0)
    assert [node.sequence for node in (*look.holders, *look.waiting)] == [7, 8]
    assert nodes.moved("/a/b.lock.1.1.-2147483648", 3) == "/a/b.lock.1.1.m3.-2147483648"


# Sessions that are ill.


def renews(name: str) -> Callable[[Request], bool]:
    return lambda request: any(part.what in ("check", "set") and f"/{name}/" in part.path for part in request.parts)


@pytest.mark.parametrize("side", ["threads", "asyncio"])
async def test_a_session_that_hangs_costs_no_other_its_leases(server: ZooKeeper, space: str, side: str) -> None:
    """Its connection carries nothing any more, with renewals on it; a batch is of both."""
    with ZooKeeperRelay(server.port) as relay:
        url, renewed = f"zookeeper://127.0.0.1:{relay.port}", []

        def note(event: Any) -> None:
            if event.type == "renewed":
                renewed.append(event.name)

        options = {"namespace": space, "renew_every": 1.0}
        if side == "threads":
            with leasehold.connect(url, **options) as locks:
                locks.on_event(note)
                ill, well = locks.lock("a", ttl=40).acquire(), locks.lock("b", ttl=12).acquire()
                hold = relay.hold(renews("a"))
                assert hold.arrived.wait(30)
                renewed.clear()
                time.sleep(11)
                hold.let_go.set()
                assert well.valid
                assert renewed.count("b") > 1
                assert ill.valid
            return
        async with aio.connect(url, **options) as tasks:
            tasks.on_event(note)
            ill_one, well_one = await tasks.lock("a", ttl=40).acquire(), await tasks.lock("b", ttl=12).acquire()
            hold = relay.hold(renews("a"))
            await asyncio.to_thread(hold.arrived.wait, 30)
            renewed.clear()
            await asyncio.sleep(11)
            hold.let_go.set()
            assert well_one.valid
            assert renewed.count("b") > 1
            assert ill_one.valid


def test_one_that_cannot_be_moved_fails_alone(connect: Connect) -> None:
    """No session is as long as it asks for."""
    locks = connect(ttl=60)
    leases = [locks.lock(name).acquire() for name in "ab"]
    with pytest.raises(StoreNotReady, match="maxSessionTimeout"):
        leases[0].renew(ttl=200)
    leases[1].renew()
    leases[0].renew()
    assert all(lease.release() for lease in leases)


def test_a_connection_on_which_something_is_answered_is_not_dropped() -> None:
    """However long the sign of life has to wait behind other requests."""
    hung_up: list[float] = []
    for heard in (0.0, 7.5):
        handler = SimpleNamespace(heard=heard, connection=None, hang_up=partial(hung_up.append, heard))
        session: Any = SimpleNamespace(agreed=30.0, up=True, over=False, connections=1, handler=handler)
        pulse = Pulse(session)
        pulse.touched, pulse.connections, pulse.unanswered = 1.0, 1, True
        assert pulse.beat(9.0) == (9.5 if heard else 9.0 + RETRY)
    assert hung_up == [0.0]


@pytest.fixture
def sasl_server(start_server: Any, tmp_path: Path) -> ZooKeeper:
    """Its user is ``me``, with the password ``s3cret``."""
    users = tmp_path / "jaas.conf"
    users.write_text(
        'Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_me="s3cret"; };\n', encoding="ascii"
    )
    provider = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
    options = {"authProvider.1": provider}
    found: ZooKeeper = start_server(ZooKeeper, f"-Djava.security.auth.login.config={users}", **options)
    return found


def with_password(relay: ZooKeeperRelay, password: str) -> KazooClient:
    who = {"mechanism": "DIGEST-MD5", "username": "me", "password": password}
    return KazooClient(f"127.0.0.1:{relay.port}", sasl_options=who)


def test_a_session_that_has_ended_for_good_is_replaced(sasl_server: ZooKeeper) -> None:
    """kazoo takes a server that hangs up during SASL for one that refuses us, and tries no more."""
    with ZooKeeperRelay(sasl_server.port) as relay, leasehold.connect(with_password(relay, "s3cret")) as locks:
        lease = locks.lock("x").acquire()
        hold = relay.hold(lambda request: request.what == "sasl")
        relay.reset()
        time.sleep(0.3)
        relay.all_well()
        assert hold.arrived.wait(30)
        relay.reset()
        hold.let_go.set()
        time.sleep(0.3)
        relay.all_well()
        assert lease.lost.wait(60)
        again = acquired_at_last(locks, "y")
        assert again.token > lease.token
        assert again.release()


def acquired_at_last(locks: leasehold.Locks, name: str) -> leasehold.Lease:
    def acquired() -> leasehold.Lease | None:
        try:
            return locks.lock(name).acquire(10)
        except StoreNotReady:
            return None  # asked within the second in which the old session ended

    found: leasehold.Lease = eventually(acquired, 60)
    return found


def test_who_is_refused_is_told_at_once_and_not_tried_at_each_attempt(sasl_server: ZooKeeper) -> None:
    with ZooKeeperRelay(sasl_server.port) as relay, leasehold.connect(with_password(relay, "wr0ng")) as locks:
        began = time.monotonic()
        for _ in range(5):
            with pytest.raises(StoreNotReady, match="authentication failed"):
                locks.lock("x").acquire(60)
        took = time.monotonic() - began
        made = sum(request.what == "connect" for request in relay.requests)
        assert made <= 2 + took


# What is left to another.


def test_what_was_offered_runs_out_if_nobody_comes(connect: Connect) -> None:
    """When its session is over, which nobody keeps any more. What else was there is gone at once."""
    locks, other = connect(ttl=6), connect(ttl=30)
    offered, beside = locks.lock("x").acquire(), locks.lock("y").acquire()
    offered.transfer()
    locks.close()
    assert other.inspect("x") is not None
    assert other.inspect("y") is None
    assert not beside.valid
    assert other.lock("x").acquire(60).release()


def test_an_offer_that_is_taken_back_leaves_no_session(connect: Connect, tree: Tree, server: ZooKeeper) -> None:
    locks = connect(ttl=30)
    lease = locks.lock("x").acquire()
    session = f"0x{tree.holder('x').stat.ephemeralOwner:x}"
    assert session in word(server.port, "dump")
    lease.transfer()
    assert lease.release()
    locks.close()
    eventually(lambda: session not in word(server.port, "dump"), 10)
