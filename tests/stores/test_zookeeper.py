"""What is peculiar to ZooKeeper: sessions and their lengths, nodes that vanish, ACLs, TLS, doctor."""

import asyncio
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_acl
from zookeeper_tools import Tree, Waiting, expire, queued, relayed

import leasehold
from leasehold import aio
from leasehold.core import timing
from leasehold.stores.common.findings import ERROR, OK, WARNING, Finding
from leasehold.stores.urls import find_store
from leasehold.stores.zookeeper import nodes
from leasehold.stores.zookeeper.doctor import doctor
from leasehold.testing.handles import eventually
from servers import ports
from servers.proxy import Proxy
from servers.tls import certificate
from servers.zookeeper import ZooKeeper, ZooKeeperEnsemble, word
from servers.zookeeper_relay import lists


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
def connect(server: ZooKeeper, space: str) -> Iterator[Callable[..., leasehold.Locks]]:
    """`connect(**options)` opens the test's own namespace; all are closed after it."""
    opened: list[leasehold.Locks] = []

    def connect(target: Any = None, **options: Any) -> leasehold.Locks:
        options.setdefault("namespace", space)
        opened.append(leasehold.connect(target or server.url, **options))
        return opened[-1]

    yield connect
    for locks in opened:
        locks.close()


Connect = Callable[..., leasehold.Locks]


# Looks that come late.


def test_a_look_that_comes_late_does_not_make_the_token_old(connect: Connect, server: ZooKeeper, space: str) -> None:
    """Between a create and the listing that was sent along with it, whoever was ahead may have held and gone: a server
    that is busy answers both in order, but nobody says how soon after each other."""
    first, second = connect(), connect()
    held = first.lock("x").acquire()
    waiter = Waiting(second)
    queued(first, "x", 1)
    with relayed(server, space) as (relay, late):
        late.lock("warm").acquire().release()
        hold = relay.hold(lists("x"))
        latest = Waiting(late)
        assert hold.arrived.wait(30)
        assert held.release()
        assert waiter.taken().release()
        hold.let_go.set()
        lease = latest.taken()
        assert lease.token > waiter.taken().token > held.token
        assert lease.release()


def test_a_look_that_comes_late_does_not_hide_that_the_name_is_in_use_otherwise(
    connect: Connect, server: ZooKeeper, space: str
) -> None:
    """It was in use as a semaphore when the lock's node was created. By the time of the look the permit ahead of it is
    gone, and the one behind it, which was given meanwhile, is still held."""
    locks = connect()
    first = locks.semaphore("x", limit=2).acquire()
    with relayed(server, space) as (relay, late):
        late.lock("warm").acquire().release()
        hold = relay.hold(lists("x"))
        latest = Waiting(late)
        assert hold.arrived.wait(30)
        second = locks.semaphore("x", limit=2).acquire(20)
        assert first.release()
        hold.let_go.set()
        assert latest.served.wait(60)
        assert "in use as a semaphore with limit 2" in str(latest.error)
        assert second.valid
        assert second.release()


# Sessions and their lengths.


def test_leases_of_about_the_same_ttl_share_a_session(connect: Connect, tree: Tree) -> None:
    locks = connect()
    leases = [locks.lock(f"n{ttl}", ttl=ttl).acquire() for ttl in (30, 28, 27, 60)]
    assert len({tree.holder(lease.name).stat.ephemeralOwner for lease in leases}) == 2
    assert all(lease.release() for lease in leases)


def test_a_ttl_longer_than_the_server_allows_is_refused(connect: Connect) -> None:
    locks = connect()
    with pytest.raises(
        leasehold.StoreNotReady, match=r"a session of 231 s, and the server allows 120 s.*103 s or less"
    ):
        locks.lock("x", ttl=200).acquire()
    lease = locks.lock("x", ttl=100).acquire()
    with pytest.raises(leasehold.StoreNotReady, match="maxSessionTimeout"):
        lease.renew(ttl=200)
    assert lease.valid
    assert lease.release()


def test_a_ttl_shorter_than_the_servers_sessions_is_said(start_server: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = start_server(ZooKeeper)
    config = server.command()[1]  # written anew by each start: so change what it starts from
    server.stop()
    server.command = lambda: [server.program, config]
    text = (server.folder / "zoo.cfg").read_text()
    (server.folder / "zoo.cfg").write_text(text.replace("minSessionTimeout=1000", "minSessionTimeout=20000"))
    server.start()
    with caplog.at_level(logging.WARNING, "leasehold"), leasehold.connect(server.url, ttl=10) as locks:
        for _ in range(3):
            assert locks.lock("x").acquire().release()
    said = [record.getMessage() for record in caplog.records if "minSessionTimeout" in record.getMessage()]
    assert len(said) == 1
    assert "a ttl of 10 s is shorter than the sessions" in said[0]
    assert "last at least 20 s" in said[0]


def test_renewal_for_longer_moves_the_node_to_a_longer_session(connect: Connect, tree: Tree) -> None:
    locks, other = connect(), connect(ttl=20)
    lease = locks.lock("x", ttl=20, data={"a": 1}).acquire()
    waiter = Waiting(other)
    eventually(lambda: tree.states("x") == ["held", "waiting"])
    before = tree.holder("x").stat.ephemeralOwner
    lease.renew(ttl=40)
    assert tree.holder("x").stat.ephemeralOwner != before
    info = other.inspect("x")
    assert info is not None
    assert (info.token, info.data) == (lease.token, {"a": 1})
    time.sleep(1)  # the waiter saw a node go
    eventually(lambda: tree.states("x") == ["held", "waiting"], what="it says again that it waits")
    assert not waiter.served.is_set(), "it is held, wherever its node is"
    assert lease.release()
    waiter.taken().release()


def test_renewals_that_fill_more_than_one_message_are_split(server: ZooKeeper, space: str) -> None:
    """The server ends the connection over a message of more than 1 MB; and then over the next, and the next."""
    with relayed(server, space, ttl=60) as (relay, locks):
        renewed: set[str] = set()
        locks.on_event(lambda event: renewed.add(event.name) if event.type == "renewed" else None)
        names = ["🔒" * 500 + f"{number:03}" for number in range(200)]
        held = [locks.lock(name, data="x" * 4000, renew_every=5).acquire() for name in names]
        eventually(lambda: len(renewed) == len(held), 60)
        assert all(lease.valid for lease in held)
        assert max(request.size for request in relay.requests) < 1_000_000
        assert max(len(request.parts) for request in relay.requests) > 20


# Nodes and sessions that vanish.


def watched(server: ZooKeeper, path: str) -> bool:
    """Whether the server knows of a watch on the node. For one that holds, this is known soon."""
    return path in word(server.port, "wchp")


def test_a_node_removed_by_hand_is_a_loss_that_is_told(connect: Connect, tree: Tree, server: ZooKeeper) -> None:
    locks = connect(ttl=60)
    lease = locks.lock("x").acquire()
    path = tree.holder("x").path
    eventually(lambda: watched(server, path))
    tree.client.delete(path)
    assert lease.lost.wait(15), "by the watch: the next renewal is in 20 s"
    assert "no longer holds" in str(lease.lost_reason)
    assert lease.release() is False


def test_a_waiter_whose_place_was_removed_queues_anew(
    connect: Connect, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "FALLBACK", 0.5)
    locks, other = connect(ttl=30), connect(ttl=30)
    lease = locks.lock("x").acquire()
    waiter = Waiting(other)
    eventually(lambda: tree.states("x") == ["held", "waiting"])
    removed = tree.line("x")[1].path
    tree.client.delete(removed)
    eventually(lambda: tree.states("x") == ["held", "waiting"])
    assert tree.line("x")[1].path != removed
    assert lease.release()
    assert waiter.taken().token > lease.token
    assert waiter.taken().release()


def test_a_lost_session_is_told_to_holders_and_noticed_by_waiters(
    connect: Connect, tree: Tree, server: ZooKeeper
) -> None:
    locks, other = connect(ttl=30), connect(ttl=30)
    kept = other.lock("kept").acquire()
    lease = locks.lock("mine").acquire()
    waiter = Waiting(locks, "kept")
    queued(other, "kept", 1)
    expire(server, tree.holder("mine").stat.ephemeralOwner)
    assert lease.lost.wait(20)
    taken = other.lock("mine").acquire(20)
    assert taken.token > lease.token
    queued(other, "kept", 1)
    assert kept.valid
    assert kept.release()
    assert waiter.taken().token > kept.token
    assert waiter.taken().release()
    assert taken.release()


async def test_a_lost_session_is_told_in_asyncio(server: ZooKeeper, client: KazooClient) -> None:
    async with aio.connect(server.url, namespace="lost-aio", ttl=30) as locks:
        lease = await locks.lock("x").acquire()
        owner = (await asyncio.to_thread(Tree(client, "lost-aio").holder, "x")).stat.ephemeralOwner
        await asyncio.to_thread(expire, server, owner)
        await asyncio.wait_for(lease.lost.wait(), 20)
        again = await locks.lock("x").acquire(timeout=20)
        assert again.token > lease.token
        assert await again.release()


def test_a_creation_that_comes_late_is_swept_up(server: ZooKeeper, client: KazooClient) -> None:
    """An acquire that gave up, whose request lay in the network until after that."""
    with (
        Proxy(server.port) as proxy,
        leasehold.connect(f"zookeeper://127.0.0.1:{proxy.port}", namespace="late") as locks,
    ):
        locks.lock("x", ttl=30).acquire().release()
        proxy.blackhole()
        with pytest.raises(leasehold.StoreUnavailable):
            locks.lock("x", ttl=30).acquire(timeout=1)
        proxy.all_well()
        with leasehold.connect(server.url, namespace="late") as other:
            other.lock("x", ttl=30).acquire(60).release()
            time.sleep(2)
            eventually(lambda: other.inspect("x") is None)  # before its session would end


def test_what_is_held_is_watched_anew_after_the_connection_was_lost(server: ZooKeeper, tree: Tree, space: str) -> None:
    with relayed(server, space, ttl=60) as (relay, locks):
        lease = locks.lock("x").acquire()
        path = tree.holder("x").path
        eventually(lambda: watched(server, path))
        relay.reset()
        eventually(lambda: not watched(server, path))
        time.sleep(0.5)
        relay.all_well()
        eventually(lambda: watched(server, path), 30)
        assert lease.valid
        tree.client.delete(path)
        assert lease.lost.wait(15), "by the watch: the next renewal is in 20 s"


def test_a_lost_connection_costs_each_of_many_leases_one_watch(server: ZooKeeper, space: str) -> None:
    """Once for each connection, and not once for each that is told of the loss."""
    with relayed(server, space, ttl=60) as (relay, locks):
        held = [locks.lock(f"x{number}").acquire() for number in range(100)]

        def set_again() -> int:
            return sum(each.watch and "/x" in each.path for each in list(relay.requests))

        eventually(lambda: set_again() >= len(held), 60, "all are watched")
        relay.reset()
        time.sleep(0.5)
        before, made = set_again(), sum(each.what == "connect" for each in relay.requests)
        relay.all_well()
        eventually(lambda: set_again() - before >= len(held), 60, "all are watched again")
        time.sleep(1)
        connections = sum(each.what == "connect" for each in relay.requests) - made
        assert set_again() - before <= connections * len(held)
        assert all(lease.valid for lease in held)


def test_what_is_held_is_renewed_as_soon_as_the_connection_is_back(server: ZooKeeper, space: str) -> None:
    with relayed(server, space, ttl=100, renew_every=90) as (relay, locks):
        renewed = threading.Event()
        locks.on_event(lambda event: renewed.set() if event.type == "renewed" else None)
        lease = locks.lock("x").acquire()
        relay.reset()
        time.sleep(0.5)
        assert not renewed.is_set()
        relay.all_well()
        assert renewed.wait(60), "the next renewal is in 90 s"
        assert lease.release()


@pytest.mark.parametrize("ttl", [8, 100])
def test_a_connection_that_hangs_is_dropped(start_server: Any, ttl: float) -> None:
    """kazoo counts its own requests as signs of life, and never notices while there are any. However long the session:
    a sign of life is due every tenth of it, and its answer within two seconds."""

    def goes_on() -> bool:
        try:
            lease.renew()
        except leasehold.LeaseLost:
            locks.lock("x").acquire(60)
        except leasehold.StoreUnavailable:
            return False  # the one that hangs was the leader, and the others have yet to elect another
        return True

    def served_by() -> Any:
        """The member that has the session of the lease on one of its connections."""
        for member in ensemble.members:
            if f"0x{owner:x}" in word(member.port, "cons"):
                return member
        return None

    ensemble = start_server(ZooKeeperEnsemble)
    client = KazooClient(ensemble.url.partition("://")[2])
    client.start(60)
    try:
        with leasehold.connect(ensemble.url, ttl=ttl, namespace="hangs") as locks:
            lease = locks.lock("x").acquire()
            owner = Tree(client, "hangs").holder("x").stat.ephemeralOwner
            member = eventually(served_by, 30)
            member.pause()
            try:
                eventually(goes_on, 90, "it goes on with another")
            finally:
                member.resume()
    finally:
        client.stop()
        client.close()


async def test_a_server_that_hangs_does_not_block_the_loop(server: ZooKeeper) -> None:
    """Neither what is asked on a connection that hangs, nor the making of another, nor the end."""
    ticks = beats = 0
    over = threading.Event()

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    def beat() -> None:
        """As often as the machine lets anybody do something."""
        nonlocal beats
        while not over.wait(0.01):
            beats += 1

    with Proxy(server.port) as proxy:
        async with aio.connect(f"zookeeper://127.0.0.1:{proxy.port}", namespace="hangs", ttl=5) as locks:
            lease = await locks.lock("x").acquire(timeout=20)
            proxy.blackhole()
            ticking = asyncio.ensure_future(tick())
            beating = threading.Thread(target=beat)
            beating.start()
            try:
                with pytest.raises(leasehold.StoreUnavailable):
                    await locks.lock("y").acquire(timeout=4)
            finally:
                over.set()
            assert ticks > beats / 10, "it stood still"
            await asyncio.wait_for(lease.lost.wait(), 20)
            before = ticks
        ticking.cancel()
        assert ticks > before
        proxy.all_well()


def orphan(tree: Tree, name: str) -> str:
    """A node of an attempt that never says that it waits: it is created as held, by one who does not know yet."""
    record = tree.holder(name).record
    data = nodes.Record("held", "nobody", record["kind"], None, record["ttl"]).encode()
    parent = tree.parent(name)
    path: str = tree.client.create(f"{parent}/{'e' * 32}.lock.1.1.", data, None, True, True)
    return path


def test_a_node_is_never_taken_for_held_before_its_turn(connect: Connect, tree: Tree) -> None:
    locks, other = connect(ttl=30), connect(ttl=30)
    lease = locks.lock("x").acquire()
    path = orphan(tree, "x")
    info = other.inspect("x")
    assert info is not None
    assert (info.token, info.waiters) == (lease.token, 1)
    assert len(list(other.leases())) == 1
    assert other.break_lease("x")
    assert tree.states("x") == ["broken", "held"], "the holder was told, and nobody else"
    assert lease.lost.wait(20)
    lease.release()
    tree.client.delete(path)
    assert other.lock("x").acquire(20).release()


def test_one_that_died_before_it_said_that_it_waits_holds_up_nobody(connect: Connect, tree: Tree) -> None:
    """Its node says that it is held, and its session lives on: here that of another client."""
    locks, other = connect(ttl=30), connect(ttl=30)
    lease = locks.lock("x").acquire()
    path = orphan(tree, "x")
    waiter = Waiting(other)
    eventually(lambda: tree.states("x") == ["held", "held", "waiting"])
    time.sleep(0.5)
    assert tree.client.exists(path), "only one that could hold and does not is removed"
    assert lease.release()
    assert waiter.taken(8).token > lease.token
    assert not tree.client.exists(path)
    assert waiter.taken().release()


def test_a_member_that_is_killed_has_failed_and_has_not_left(connect: Connect, server: ZooKeeper, space: str) -> None:
    """Its node is there for as long as its session, which is longer than its beats may be missing."""
    locks = connect(owner="watching")
    group = locks.group("g", heartbeat=2, look=0.1)
    told: list[tuple[str, str]] = []
    for what in ("joined", "left", "failed"):
        getattr(group, f"on_{what}")(lambda member, what=what: told.append((what, member.owner)))
    script = (
        "import leasehold, sys, time\n"
        "locks = leasehold.connect(sys.argv[1], namespace=sys.argv[2], owner='child')\n"
        "locks.group('g', heartbeat=2).join()\n"
        "time.sleep(600)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script, server.url, space])
    try:
        eventually(lambda: told == [("joined", "child")], 60)
        child.kill()
        eventually(lambda: len(told) > 1, 40)
    finally:
        child.kill()
        child.wait()
    assert told == [("joined", "child"), ("failed", "child")]


def test_names_that_nobody_uses_are_tidied_up(connect: Connect, server: ZooKeeper, tree: Tree) -> None:
    """By the times that the server gives its nodes: here all are young, and stay."""
    locks = connect()
    held, first = locks.lock("held").acquire(), locks.lock("free").acquire()
    assert first.release()
    opened = find_store(server.url, tree.namespace)
    driver = opened.threads()
    try:
        for _ in range(3):
            driver.run(opened.store.tidy(), 60)
    finally:
        driver.close()
    assert tree.client.exists(tree.parent("held"))
    assert tree.client.exists(tree.parent("free"))
    tree.client.delete(tree.parent("free"))  # as tidying does, a day later
    again = locks.lock("free").acquire()
    assert again.token > first.token
    assert again.release()
    assert held.release()


def test_only_one_who_has_not_claimed_is_taken_for_dead(connect: Connect) -> None:
    """A holder whose node was written since (another ttl, broken) is not: who waits goes on waiting."""
    locks, other = connect(ttl=30), connect(ttl=30)
    for write in (lambda lease: lease.renew(ttl=32), lambda lease: other.break_lease("x")):
        lease = locks.lock("x").acquire()
        write(lease)
        waiter = Waiting(other)
        time.sleep(2.5 * timing.FIRST_TERM)
        assert not waiter.served.is_set()
        lease.release()
        assert waiter.taken().token > lease.token
        assert waiter.taken().release()


# Who may, and where.


def test_another_users_nodes_are_refused(server: ZooKeeper, connect: Connect) -> None:
    mine = f"zookeeper://me:s3cret@{server.address}/private"
    with leasehold.connect(mine) as locks:
        lease = locks.lock("x").acquire()
        for other in (f"zookeeper://me:wr0ng@{server.address}/private", f"zookeeper://{server.address}/private"):
            with (
                leasehold.connect(other) as stranger,
                pytest.raises(leasehold.StoreNotReady, match="ACL does not allow") as caught,
            ):
                stranger.lock("x").acquire()
            assert "wr0ng" not in str(caught.value)
            assert [f.message for f in doctor(other) if f.level == ERROR and "ACL" in f.message]
        assert lease.release()


def test_what_a_transaction_is_refused_for_is_said(connect: Connect, tree: Tree) -> None:
    """The ACL of the name was changed, so that nodes can go there and not come: to a longer session, to rest."""
    locks = connect()
    lease = locks.lock("x", ttl=20, min_hold=60).acquire()
    path, name = tree.holder("x").path, tree.parent("x")
    tree.client.set_acls(name, [make_acl("world", "anyone", read=True, write=True, delete=True, admin=True)])
    with pytest.raises(leasehold.StoreNotReady, match="ACL does not allow"):
        lease.renew(ttl=40)
    assert lease.valid
    with pytest.raises(leasehold.StoreNotReady, match="ACL does not allow"):
        lease.release()
    assert tree.client.exists(path), "it was not given back"
    tree.client.set_acls(name, OPEN_ACL_UNSAFE)
    eventually(lambda: not tree.client.exists(path), 30, "it is, later")


def take_and_pass_on(locks: leasehold.Locks, other: leasehold.Locks) -> None:
    """What needs calls, a watch and a renewal."""
    lease = locks.lock("x").acquire(20)
    waiter = Waiting(other)
    queued(locks, "x", 1)
    lease.renew()
    assert lease.release()
    assert waiter.taken().release()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # kazoo closes no socket of a handshake
def test_tls_with_a_certificate_of_our_own(start_server: Any, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    both = tmp_path / "both.pem"
    both.write_bytes(key.read_bytes() + cert.read_bytes())
    port = ports.take()
    start_server(
        ZooKeeper,
        **{
            "secureClientPort": port,
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": both,
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": cert,
            "ssl.trustStore.type": "PEM",
        },
    )
    url = f"zookeeper://127.0.0.1:{port}"
    good = f"{url}?ca={cert}&certfile={cert}&keyfile={key}&check_hostname=true"
    with leasehold.connect(good) as locks, leasehold.connect(good) as other:
        take_and_pass_on(locks, other)
    assert not [finding for finding in doctor(good) if finding.level == ERROR]
    (tmp_path / "other").mkdir()
    other_ca, _ = certificate(tmp_path / "other")
    wrong = f"{url}?ca={other_ca}&certfile={cert}&keyfile={key}"
    # We trust another, we trust nobody, the file is not there; we show no certificate, no TLS.
    for bad in (wrong, f"{url}?use_ssl=true&certfile={cert}&keyfile={key}", good.replace("ca=", "ca=/not")):
        with leasehold.connect(bad) as locks, pytest.raises(leasehold.StoreNotReady, match="TLS connection failed"):
            locks.lock("x").acquire(timeout=30)
    told_in_the_handshake = leasehold.StoreNotReady  # by TLS 1.2; by 1.3 only after it
    with leasehold.connect(f"{url}?ca={cert}") as locks:
        with pytest.raises((told_in_the_handshake, leasehold.StoreUnavailable)):
            locks.lock("x").acquire(timeout=1)
    with leasehold.connect(url) as locks, pytest.raises(leasehold.StoreUnavailable):
        locks.lock("x").acquire(timeout=1)
    ports.give_back(port)


def test_sasl(start_server: Any, tmp_path: Path) -> None:
    """DIGEST-MD5, by a client of the user's; the server refuses whoever has the wrong password."""
    users = tmp_path / "jaas.conf"
    users.write_text(
        'Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_me="s3cret"; };\n', encoding="ascii"
    )
    provider = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
    server = start_server(ZooKeeper, f"-Djava.security.auth.login.config={users}", **{"authProvider.1": provider})

    def client(password: str) -> KazooClient:
        who = {"mechanism": "DIGEST-MD5", "username": "me", "password": password}
        acl = [make_acl("sasl", "me", all=True)]
        return KazooClient(server.address, sasl_options=who, default_acl=acl)

    with leasehold.connect(client("s3cret")) as locks, leasehold.connect(client("s3cret")) as other:
        take_and_pass_on(locks, other)
        with leasehold.connect(server.url) as stranger, pytest.raises(leasehold.StoreNotReady, match="ACL"):
            stranger.lock("x").acquire(timeout=30)
    with (
        leasehold.connect(client("wr0ng")) as locks,
        pytest.raises(leasehold.StoreNotReady, match="authentication failed") as caught,
    ):
        locks.lock("x").acquire(timeout=30)
    assert "wr0ng" not in str(caught.value)


def test_a_chroot_is_created_and_kept_to(server: ZooKeeper, client: KazooClient) -> None:
    with leasehold.connect(f"zookeeper://{server.address}/apps/billing") as locks:
        with locks.lock("a/b.c"):
            assert client.exists("/apps/billing/leasehold")
            assert locks.inspect("a/b.c") is not None
        with leasehold.connect(f"zookeeper://{server.address}/apps/other") as other:
            assert other.inspect("a/b.c") is None


def test_a_client_of_the_users_is_left_alone(server: ZooKeeper, client: KazooClient) -> None:
    client.ensure_path("/theirs")
    client = KazooClient(f"{server.address}/theirs", timeout=60)
    client.start()
    session = client.client_id
    with leasehold.connect(client, ttl=30) as locks, locks.lock("x") as lease:
        assert lease.valid
        assert client.exists("/leasehold")
    assert client.connected
    assert client.client_id == session
    client.stop()
    client.close()
    with pytest.raises(TypeError, match="KazooClient"):
        leasehold.connect(client.Lock("/x"))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("zookeeper://", "host:port"),
        ("zookeeper://h:port", "the port of host 1 is not a number"),
        ("zookeeper://user@h", "user:password"),
        ("zookeeper://h/../x", "not a valid path"),
        ("zookeeper://h?colour=red", "unknown option 'colour'"),
        ("zookeeper://h?acl=mine", "acl must be"),
        ("zookeeper://h?use_ssl=perhaps", "true or false"),
        ("zookeeper://h?certfile=x", "both certfile and keyfile"),
        ("zookeeper://h?check_hostname=true&verify_certs=false", "needs verify_certs"),
    ],
)
def test_bad_urls(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        leasehold.connect(url)


def test_no_quorum(start_server: Any) -> None:
    ensemble = start_server(ZooKeeperEnsemble)
    with leasehold.connect(ensemble.url, ttl=3) as locks:
        lease = locks.lock("x").acquire()
        for member in ensemble.members[:2]:
            member.kill()
        with pytest.raises(leasehold.StoreUnavailable, match=r"quorum|connection|ConnectionLoss|session"):
            locks.lock("y").acquire(timeout=1.5)
        assert lease.lost.wait(20)
        found: list[Finding] = []

        def said() -> bool:  # the one that is left needs a moment to notice
            found[:] = doctor(ensemble.url)
            return any(finding.message == "has no quorum" for finding in found)

        eventually(said, 60)
        assert all(finding.advice for finding in found if finding.level in (WARNING, ERROR))
        for member in ensemble.members[:2]:
            member.launch()
        assert locks.lock("y", ttl=30).acquire(timeout=60).release()


def test_doctor(server: ZooKeeper) -> None:
    found = doctor(server.url)
    assert [f.subject for f in found if f.level == WARNING] == ["ensemble", "authentication"]
    assert not [f for f in found if f.level == ERROR]
    assert any(f.level == OK and f.message.startswith("last 1 to 120 s") for f in found)
    assert any("3." in f.message and "standalone" in f.message for f in found)


def said_of_users(url: str) -> Finding:
    [finding] = [finding for finding in doctor(url) if finding.subject == "authentication"]
    assert bool(finding.advice) == (finding.level != OK)
    assert "s3cret" not in finding.message + finding.advice
    return finding


@pytest.mark.parametrize(
    ("login", "level", "said"),
    [
        ("{}/public", WARNING, "in /public/leasehold/%; this client has no user"),
        ("me:s3cret@{}/public", WARNING, "in /public/leasehold/%; this client is digest:me"),
        ("me:s3cret@{}/guarded", OK, "this client is digest:me"),
        ("{}/guarded", OK, "this client has no user"),
        ("me:s3cret@{}/shared?acl=open", WARNING, "this client is digest:me"),
    ],
)
def test_doctor_says_whom_the_nodes_are_open_to(server: ZooKeeper, login: str, level: str, said: str) -> None:
    """Where the servers let everybody in, the ACL of the namespace tells."""
    makers = {"{}/guarded": "me:s3cret@{}/guarded", "me:s3cret@{}/public": "{}/public"}
    if login in makers:  # the ACL is that of whoever made the nodes
        said_of_users("zookeeper://" + makers[login].format(server.address))
    finding = said_of_users("zookeeper://" + login.format(server.address))
    assert finding.level == level
    assert finding.message.startswith("off: " if level == WARNING else "on: the servers accept every client")
    assert finding.message.endswith(said)


def test_servers_that_let_in_only_who_authenticates(start_server: Any) -> None:
    """Whoever does not is told at once, and doctor says so."""
    switches = ("enforce.auth.enabled=true", "enforce.auth.schemes=digest")
    server = start_server(ZooKeeper, *(f"-Dzookeeper.{switch}" for switch in switches))
    with leasehold.connect(server.url) as locks:
        with pytest.raises(leasehold.StoreNotReady, match="require authentication"):
            locks.lock("x").acquire()
    finding = said_of_users(server.url)
    assert finding.level == ERROR
    assert finding.message.startswith("on: the servers require authentication, and this client gives no credentials")
    mine = f"zookeeper://me:s3cret@{server.address}"
    with leasehold.connect(mine) as locks, leasehold.connect(mine) as other:
        take_and_pass_on(locks, other)
    finding = said_of_users(mine)
    assert finding.level == OK
    assert finding.message == "on: the servers require authentication; this client is digest:me"
