"""What is peculiar to ZooKeeper: sessions and their lengths, nodes that vanish, ACLs, late writes."""

import asyncio
import copy
import logging
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.states import EventType, KazooState, WatchedEvent
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

import leasehold
from leasehold import aio
from leasehold.core import timing
from leasehold.core.lease import state_of
from leasehold.core.protocol import Ask, Busy, Missing, Renewal
from leasehold.stores.common.findings import ERROR, OK, WARNING, Finding
from leasehold.stores.zookeeper import access as zk_access
from leasehold.stores.zookeeper import link as zk_link
from leasehold.stores.zookeeper import nodes, watching
from leasehold.stores.zookeeper import store as zk_store
from leasehold.stores.zookeeper import threads as zk_threads
from leasehold.stores.zookeeper.doctor import doctor
from leasehold.stores.zookeeper.requests import Multi
from leasehold.stores.zookeeper.stake import Stake, Turn
from leasehold.stores.zookeeper.store import OLD
from leasehold.stores.zookeeper.url import parse
from leasehold.testing.handles import eventually
from servers import ports
from servers.proxy import Proxy
from servers.tls import certificate
from servers.zookeeper import ZooKeeper, ZooKeeperEnsemble, end_session, word


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
def connect(
    server: ZooKeeper, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., leasehold.Locks]]:
    """`connect(**options)` opens the test's own namespace; all are closed after it."""
    # A server that has no processor to itself for some seconds hangs as little as its clients do.
    monkeypatch.setattr(zk_link, "DEAD_AFTER", (60.0, 60.0))
    opened: list[leasehold.Locks] = []

    def connect(target: Any = None, **options: Any) -> leasehold.Locks:
        options.setdefault("namespace", request.node.name[:60])
        opened.append(leasehold.connect(target or server.url, **options))
        return opened[-1]

    yield connect
    for locks in opened:
        locks.close()


def link_of(locks: leasehold.Locks) -> zk_link.Link:
    return locks._core.driver.link  # type: ignore[attr-defined, no-any-return]


def node_of(locks: leasehold.Locks, lease: leasehold.Lease) -> str:
    path = link_of(locks).stakes[state_of(lease).claim.attempt].path
    assert path is not None
    return path


def turn_of(stake: Stake) -> Turn:
    """What it knows as one who waits; as if it had just come, when it holds."""
    return stake.turn or Turn()


def stakes_of(locks: leasehold.Locks) -> list[Stake]:
    """A copy, made in one go: others come and go in other threads meanwhile."""
    return list(link_of(locks).stakes.values())


def lists(call: Any, name: str) -> bool:
    """Whether a call lists the nodes of a name. The keeper, which tidies up when it likes, lists those of a bucket."""
    return getattr(call, "method", "") == "get_children_async" and call.args[0].endswith(f"/{name}")


# Tokens.


def elsewhere(call: Callable[[], Any]) -> Any:
    """What another process does meanwhile: a thread that is inside the driver may not call the library."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(60)


def test_a_look_that_comes_late_does_not_make_the_token_old(connect: Callable[..., leasehold.Locks]) -> None:
    """Between a create and the listing that was sent along with it, whoever was ahead may have held and gone: a server
    that is busy answers both in order, but nobody says how soon after each other."""
    first, second, late = connect(), connect(), connect()
    late.lock("warm").acquire().release()
    held = first.lock("x").acquire()
    waited: list[leasehold.Lease] = []
    waiter = threading.Thread(target=lambda: waited.append(second.lock("x").acquire(timeout=60)))
    waiter.start()
    eventually(lambda: (seen := first.inspect("x")) is not None and seen.waiters == 1)
    driver: Any = late._core.driver
    submit = zk_link.Session.submit

    def slowly(session: zk_link.Session, call: Any) -> Any:
        if session.link is driver.link and lists(call, "x") and not waited:
            elsewhere(held.release)
            waiter.join(60)
            assert elsewhere(waited[0].release)
        return submit(session, call)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zk_link.Session, "submit", slowly)
        lease = late.lock("x").acquire(timeout=20)
    assert lease.token > waited[0].token > held.token
    assert lease.release()


def test_a_look_that_comes_late_does_not_hide_that_the_name_is_in_use_otherwise(
    connect: Callable[..., leasehold.Locks],
) -> None:
    """It was in use as a semaphore when the lock's node was created. By the time of the look the permit ahead of it is
    gone, and the one behind it, which was given meanwhile, is still held."""
    locks, late = connect(), connect()
    late.lock("warm").acquire().release()
    permits = [locks.semaphore("x", limit=2).acquire()]
    driver: Any = late._core.driver
    submit = zk_link.Session.submit

    def slowly(session: zk_link.Session, call: Any) -> Any:
        if session.link is driver.link and lists(call, "x") and len(permits) == 1:
            permits.append(elsewhere(lambda: locks.semaphore("x", limit=2).acquire(20)))
            assert elsewhere(permits[0].release)
        return submit(session, call)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zk_link.Session, "submit", slowly)
        with pytest.raises(ValueError, match="in use as a semaphore with limit 2"):
            late.lock("x").acquire(timeout=20)
    assert permits[1].valid
    assert permits[1].release()


# Sessions and their lengths.


def test_leases_of_about_the_same_ttl_share_a_session(connect: Callable[..., leasehold.Locks]) -> None:
    locks = connect()
    leases = [locks.lock(f"n{ttl}", ttl=ttl).acquire() for ttl in (30, 28, 27, 60)]
    assert len(link_of(locks).sessions) == 2
    assert all(lease.release() for lease in leases)


def test_a_ttl_longer_than_the_server_allows_is_refused(connect: Callable[..., leasehold.Locks]) -> None:
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


def test_renewal_for_longer_moves_the_node_to_a_longer_session(
    connect: Callable[..., leasehold.Locks], client: KazooClient
) -> None:
    locks, other = connect(), connect(ttl=20)
    lease = locks.lock("x", ttl=20, data={"a": 1}).acquire()
    waiter = threading.Thread(target=lambda: other.lock("x").acquire().release())
    waiter.start()
    # It is in the queue before it watches whoever is ahead: moved until then, the node is as good as where it was.
    [place] = eventually(lambda: [stake for stake in stakes_of(other) if turn_of(stake).next])
    before = client.exists(node_of(locks, lease)).ephemeralOwner
    lease.renew(ttl=40)
    after = client.exists(node_of(locks, lease))
    assert after.ephemeralOwner != before
    info = other.inspect("x")
    assert info is not None
    assert (info.token, info.data) == (lease.token, {"a": 1})
    # The waiter took it for a release, and claimed along with its look; it has to say again that it waits.
    eventually(lambda: client.exists(place.path).version == 3)
    assert nodes.decode(client.get(place.path)[0]).state == nodes.WAITING
    assert waiter.is_alive(), "it is held, wherever its node is"
    assert lease.release()
    waiter.join(60)
    assert not waiter.is_alive()


def test_renewals_that_fill_more_than_one_message_are_split(connect: Callable[..., leasehold.Locks]) -> None:
    """The server ends the connection over a message of more than 1 MB; and then over the next, and the next."""
    locks = connect(ttl=60)
    held = [locks.lock("🔒" * 500 + f"{number:03}", data="x" * 4000).acquire() for number in range(200)]
    for ttl in (60_000_000, 61_000_000):  # checked; written
        asks = [Renewal(lease.name, state_of(lease).claim.attempt, lease.token, ttl) for lease in held]
        assert set(locks._core.driver.run(locks._core.store.renew(asks), 60)) == {"renewed"}  # type: ignore[attr-defined]
    assert all(lease.valid for lease in held)


def test_a_renewal_is_not_tried_once_more_for_each_that_is_released_meanwhile(
    connect: Callable[..., leasehold.Locks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that runs after whoever gives back leases, one after the other, keeps all others waiting."""
    locks = connect(ttl=60)
    *released, kept = [locks.lock(f"x{number}").acquire() for number in range(20)]
    asks = [Renewal(lease.name, state_of(lease).claim.attempt, lease.token, 60_000_000) for lease in (*released, kept)]
    sent: list[int] = []
    submit = zk_link.Session.submit

    def meanwhile(session: zk_link.Session, call: Any) -> Any:
        ours = threading.current_thread().name == "leasehold-main"  # not the keeper's
        if isinstance(call, Multi) and session.link is link_of(locks) and ours:
            sent.append(len(call.parts))
            if len(sent) == 1:
                assert elsewhere(lambda: all(lease.release() for lease in released))
        return submit(session, call)

    monkeypatch.setattr(zk_link.Session, "submit", meanwhile)
    outcomes = locks._core.driver.run(locks._core.store.renew(asks), 60)  # type: ignore[attr-defined]
    assert list(outcomes) == ["gone"] * len(released) + ["renewed"]
    assert sent == [20, 1]


# Nodes and sessions that vanish.


def expire(locks: leasehold.Locks, server: ZooKeeper) -> None:
    """End the sessions of a Locks behind its back, as the server does when it has not heard of them."""
    for session in link_of(locks).sessions:
        eventually(partial(end_session, server.port, *session.client.client_id))


def test_a_node_removed_by_hand_is_a_loss_that_is_told(
    connect: Callable[..., leasehold.Locks], client: KazooClient, server: ZooKeeper
) -> None:
    locks = connect(ttl=60)
    lease = locks.lock("x").acquire()
    path = node_of(locks, lease)
    eventually(lambda: path in word(server.port, "wchp"), what="the server knows of the watch")
    client.delete(path)
    assert lease.lost.wait(15), "by the watch: the next renewal is in 20 s"
    assert "no longer holds" in str(lease.lost_reason)
    assert lease.release() is False


def test_a_waiter_whose_place_was_removed_queues_anew(
    connect: Callable[..., leasehold.Locks], client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "FALLBACK", 0.5)
    locks, other = connect(ttl=30), connect(ttl=30)
    lease = locks.lock("x").acquire()
    served: list[leasehold.Lease] = []
    waiter = threading.Thread(target=lambda: served.append(other.lock("x").acquire()))
    waiter.start()
    [stake] = eventually(lambda: [stake for stake in stakes_of(other) if stake.version])
    client.delete(stake.path)
    eventually(lambda: [again for again in stakes_of(other) if again is not stake and again.version])
    assert lease.release()
    waiter.join(60)
    assert served[0].token > lease.token
    assert served[0].release()


def test_a_lost_session_is_told_to_holders_and_noticed_by_waiters(
    connect: Callable[..., leasehold.Locks], server: ZooKeeper
) -> None:
    locks, other = connect(ttl=30), connect(ttl=30)
    kept = other.lock("kept").acquire()
    lease = locks.lock("mine").acquire()
    served: list[leasehold.Lease] = []
    waiter = threading.Thread(target=lambda: served.append(locks.lock("kept").acquire()))
    waiter.start()
    eventually(lambda: other.inspect("kept").waiters == 1)  # type: ignore[union-attr]
    expire(locks, server)
    assert lease.lost.wait(20)
    taken = other.lock("mine").acquire(20)
    assert taken.token > lease.token
    eventually(lambda: other.inspect("kept").waiters == 1, what="it queues anew")  # type: ignore[union-attr]
    assert kept.valid
    assert kept.release()
    waiter.join(60)
    assert served[0].token > kept.token
    assert served[0].release()
    assert taken.release()


def test_a_session_that_is_lost_between_two_lines_leads_nowhere(connect: Callable[..., leasehold.Locks]) -> None:
    """kazoo's thread takes note of a new session at any moment. No path is made of what that has yet to find."""
    locks = connect()
    assert locks.lock("x").acquire().release()
    [session] = link_of(locks).sessions
    lost = copy.copy(session)  # in the session itself the keeper, which tidies up when it likes, may find the root anew
    session.root = lost.root = None
    for path in (locks._core.store._parent, locks._core.store._note):  # type: ignore[attr-defined]
        with pytest.raises(leasehold.StoreUnavailable, match="the session was lost"):
            path(lost, "x")
    assert locks.lock("x").acquire(20).release()


async def test_a_lost_session_is_told_in_asyncio(server: ZooKeeper) -> None:
    async with aio.connect(server.url, namespace="lost-aio", ttl=30) as locks:
        lease = await locks.lock("x").acquire()
        await asyncio.to_thread(expire, locks, server)
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


def lose_the_first_listing(link: zk_link.Link, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer, and with that the only sweep there is."""
    submit, lost = zk_link.Session.submit, []

    def losing(session: zk_link.Session, call: Any) -> Any:
        if session.link is not link or not lists(call, name) or lost:
            return submit(session, call)
        lost.append(session.client.handler.async_result())
        lost[0].set_exception(ConnectionLoss())
        return lost[0]

    monkeypatch.setattr(zk_link, "SWEEPS", (0.1,))
    monkeypatch.setattr(zk_link.Session, "submit", losing)


def test_a_sweep_spares_what_the_same_attempt_holds_since(
    connect: Callable[..., leasehold.Locks], client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first creation was given up as lost, and it was asked for again; then the first comes after all. And the
    connection breaks just as it is looked for."""
    locks = connect(ttl=30)
    lease = locks.lock("x").acquire()
    mine = node_of(locks, lease)
    stake = link_of(locks).stakes[state_of(lease).claim.attempt]
    late = client.create(f"{mine[:-10]}", stake.record.encode(), None, True, True)
    assert late != mine
    lose_the_first_listing(link_of(locks), "x", monkeypatch)
    ask = Ask("x", stake.attempt, "me", "lock", None, 30_000_000)
    given_up = Stake(ask, stake.session, stake.parent, stake.record)
    given_up.unsure = True
    link_of(locks).drop(given_up)
    eventually(lambda: not client.exists(late))
    eventually(lambda: not link_of(locks).sweeps, 30)
    assert client.exists(mine)
    lease.renew()
    assert lease.release()


def test_what_is_held_is_watched_anew_after_the_connection_was_lost(server: ZooKeeper, client: KazooClient) -> None:
    with (
        Proxy(server.port) as proxy,
        leasehold.connect(f"zookeeper://127.0.0.1:{proxy.port}", namespace="rearm", ttl=60) as locks,
    ):
        lease = locks.lock("x").acquire()
        path = node_of(locks, lease)
        [session] = link_of(locks).sessions
        eventually(lambda: path in session.client._data_watchers)
        proxy.reset()
        eventually(lambda: not session.up)
        time.sleep(0.5)  # the guard has tried
        proxy.all_well()
        eventually(lambda: word(server.port, "wchp").find(path) >= 0, 30, "the server knows of the watch")
        assert lease.valid
        client.delete(path)
        assert lease.lost.wait(15), "by the watch: the next renewal is in 20 s"


def test_a_lost_connection_costs_each_of_many_leases_one_watch_and_no_renewal_waits_behind_all(
    connect: Callable[..., leasehold.Locks], server: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kazoo tells the loss to every watch, one by one: if each of these were taken as news of all leases, ten thousand
    would mean a hundred million. And ten thousand watches asked for at once are seconds that renewals have to wait."""
    monkeypatch.setattr(zk_link, "LOOKS", 10)
    locks = connect(ttl=60)
    link = link_of(locks)
    held = [locks.lock(f"x{number}").acquire() for number in range(100)]
    [session] = link.sessions
    eventually(lambda: len(session.client._data_watchers) == len(held), 60, "all are watched")
    under_way: set[Any] = set()
    most: list[int] = []
    called: list[str] = []
    submit, call = zk_link.Session.submit, watching.Watching.call

    def counted(session: zk_link.Session, request: Any) -> Any:
        result = submit(session, request)
        if session.link is link and getattr(request, "method", "") == "exists_async" and request.args[1] is not None:
            under_way.difference_update([each for each in list(under_way) if each.ready()])
            under_way.add(result)
            most.append(len(under_way))
        return result

    def noted(watches: watching.Watching, attempt: str, gone: bool = False) -> None:
        called.append(attempt)
        call(watches, attempt, gone)

    monkeypatch.setattr(zk_link.Session, "submit", counted)
    monkeypatch.setattr(watching.Watching, "call", noted)
    suspended = threading.Event()
    session.client.add_listener(lambda state: suspended.set() if state == KazooState.SUSPENDED else None)
    session.drop_connection()
    assert suspended.wait(30)
    eventually(lambda: session.up and len(session.client._data_watchers) == len(held), 60, "all are watched again")
    times = called.count(held[0]._claim.attempt)  # more than one if the connection was lost more than once
    assert 1 <= times < 10
    assert len(called) <= (times + 1) * len(held)
    assert max(most) <= 10
    assert all(lease.valid for lease in held)


def test_the_guard_does_not_go_through_all_leases_for_each_that_comes(connect: Callable[..., leasehold.Locks]) -> None:
    locks = connect(ttl=60)
    locks.lock("warm").acquire().release()
    link = link_of(locks)
    gone_through: list[float] = []

    class Noted(dict[str, Any]):
        def values(self) -> Any:
            gone_through.append(time.monotonic())
            return super().values()

    link.stakes = Noted(link.stakes)
    began = time.monotonic()
    held = []
    [session] = link.sessions
    for number in range(20):
        held.append(locks.lock(f"x{number}").acquire())
        path = node_of(locks, held[-1])  # not how many there are: "warm" may be among them
        eventually(lambda: path in session.client._data_watchers, 30, "the guard has watched it")  # noqa: B023
    # One that asks could be over after 15 s, so that there is a look at all of them then.
    assert len(gone_through) <= 2 + 2 * (time.monotonic() - began) / timing.WAITER_TTL


def test_a_connection_on_which_something_is_answered_is_not_dropped() -> None:
    """However long the sign of life has to wait behind other requests."""
    link = zk_link.Link(parse("zookeeper://127.0.0.1:1"))
    dropped: list[float] = []
    for heard in (0.0, 7.5):
        session: Any = SimpleNamespace(
            agreed=30.0,
            up=True,
            touching=True,
            touched=1.0,
            heard=heard,
            drop_connection=partial(dropped.append, heard),
        )
        assert link._touch(session, 9.0) == (9.5 if heard else 9.0 + zk_link.RETRY)
    assert dropped == [0.0]


def test_what_is_held_is_renewed_as_soon_as_the_connection_is_back(server: ZooKeeper) -> None:
    with (
        Proxy(server.port) as proxy,
        leasehold.connect(f"zookeeper://127.0.0.1:{proxy.port}", namespace="back", ttl=100, renew_every=90) as locks,
    ):
        lease = locks.lock("x").acquire()
        [session] = link_of(locks).sessions
        proxy.reset()
        eventually(lambda: not session.up)
        assert not locks._core.renewals
        proxy.all_well()
        eventually(lambda: locks._core.renewals, 60, "the next renewal is in 90 s")
        assert lease.release()


def peer(session: zk_link.Session) -> int | None:
    """The port of the server that it is connected to; None while kazoo is about to close that, or to make another."""
    try:
        return int(session.client._connection._socket.getpeername()[1])
    except (OSError, AttributeError):
        return None


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

    ensemble = start_server(ZooKeeperEnsemble)
    with leasehold.connect(ensemble.url, ttl=ttl) as locks:
        lease = locks.lock("x").acquire()
        [session] = link_of(locks).sessions
        port = eventually(lambda: peer(session))
        [member] = [member for member in ensemble.members if member.port == port]
        member.pause()
        try:
            eventually(lambda: session.up and peer(session) not in (None, port), 60, "it moved on")
            eventually(goes_on, 60, "it goes on there")
        finally:
            member.resume()


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


def test_a_node_is_never_taken_for_held_before_its_turn(
    connect: Callable[..., leasehold.Locks], client: KazooClient
) -> None:
    """It is created as held, by one who does not know yet whether it will be; here it never comes to say that."""
    locks, other = connect(ttl=30), connect(ttl=30)
    lease = locks.lock("x").acquire()
    parent = node_of(locks, lease).rpartition("/")[0]
    ask = Ask("x", "e" * 32, "nobody", "lock", None, 30_000_000)
    path = client.create(f"{parent}/{nodes.prefix(ask)}", nodes.record(ask, nodes.HELD).encode(), None, True, True)
    info = other.inspect("x")
    assert info is not None
    assert (info.token, info.waiters) == (lease.token, 1)
    assert len(list(other.leases())) == 1
    assert other.break_lease("x")
    assert nodes.decode(client.get(path)[0]).state == nodes.HELD, "the holder was told, and nobody else"
    store, driver = other._core.store, other._core.driver
    token = link_of(other).sessions[0].base + client.exists(path).mzxid
    heir = ask._replace(attempt="f" * 32, heir=(ask.attempt, token))
    assert isinstance(driver.run(store.acquire(heir), 60), Missing)  # type: ignore[attr-defined]
    assert lease.lost.wait(20)
    lease.release()
    client.delete(path)
    assert other.lock("x").acquire(20).release()


def test_one_that_died_before_it_said_that_it_waits_holds_up_nobody(
    connect: Callable[..., leasehold.Locks], client: KazooClient
) -> None:
    """Its node says that it is held, and its session lives on: here that of another client."""
    locks, other = connect(ttl=30), connect(ttl=30)
    lease = locks.lock("x").acquire()
    ask = Ask("x", "e" * 32, "nobody", "lock", None, 30_000_000)
    path = f"{node_of(locks, lease).rpartition('/')[0]}/{nodes.prefix(ask)}"
    path = client.create(path, nodes.record(ask, nodes.HELD).encode(), None, True, True)
    served: list[leasehold.Lease] = []
    waiter = threading.Thread(target=lambda: served.append(other.lock("x").acquire(100)))
    waiter.start()
    eventually(lambda: other.inspect("x").waiters == 2)  # type: ignore[union-attr]
    eventually(lambda: [stake for stake in stakes_of(other) if turn_of(stake).late])
    assert client.exists(path), "only one that could hold and does not is removed"
    assert lease.release()
    waiter.join(60)
    assert not client.exists(path)
    assert served[0].token > lease.token
    assert served[0].release()


def test_a_member_that_is_killed_has_failed_and_has_not_left(
    connect: Callable[..., leasehold.Locks], server: ZooKeeper, request: pytest.FixtureRequest
) -> None:
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
    child = subprocess.Popen([sys.executable, "-c", script, server.url, request.node.name[:60]])
    try:
        eventually(lambda: told == [("joined", "child")], 60)
        child.kill()
        eventually(lambda: len(told) > 1, 40)
    finally:
        child.kill()
        child.wait()
    assert told == [("joined", "child"), ("failed", "child")]


def test_names_that_nobody_uses_are_tidied_up(
    connect: Callable[..., leasehold.Locks], client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = connect()
    held = locks.lock("held").acquire()
    first = locks.lock("free").acquire()
    assert first.release()
    link = link_of(locks)
    store = locks._core.store
    [session] = link.sessions
    paths = [f"{session.root}/{nodes.bucket(name)}/{name}" for name in ("held", "free")]
    locks._core.driver.run(store.tidy_names(session, paths), 60.0)  # type: ignore[attr-defined]
    assert client.exists(paths[1]), "it is not old"
    link.saw(link.leader_ms() + OLD + 1000)
    locks._core.driver.run(store.tidy_names(session, paths), 60.0)  # type: ignore[attr-defined]
    assert client.exists(paths[0])
    assert not client.exists(paths[1])
    again = locks.lock("free").acquire()
    assert again.token > first.token
    assert again.release()
    assert held.release()


@pytest.mark.parametrize("at_once", [True, False])
def test_tidying_goes_on_where_it_was(
    connect: Callable[..., leasehold.Locks], client: KazooClient, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """Behind those that are in use, in the next bucket too, and the next time if there was no time."""
    monkeypatch.setattr(zk_store, "TIDIED", 3)
    monkeypatch.setattr(zk_store, "TIDYING", 60.0 if at_once else 0.0, raising=False)
    locks = connect()
    assert locks.inspect("x") is None
    store: Any = locks._core.store
    root = store.link.sessions[0].root
    used = [f"{root}/ff/a{number}" for number in range(4)]
    free = [f"{root}/{bucket}/{name}" for bucket in ("ff", "00") for name in ("b", "c", "d", "e")]
    for path in (*free, *(f"{path}/child" for path in used)):
        client.ensure_path(path)
    store.link.saw(store.link.leader_ms() + OLD + 60_000)
    store._tidied = (255, "")
    for _ in range(1 if at_once else 5):
        assert any(map(client.exists, free))
        locks._core.driver.run(store.tidy(), 60.0)  # type: ignore[attr-defined]
    assert not any(map(client.exists, free))
    assert all(map(client.exists, used))


def test_only_one_who_has_not_claimed_is_taken_for_dead(connect: Callable[..., leasehold.Locks]) -> None:
    """A holder whose node was written since (another ttl, broken) is not: who waits goes on waiting."""
    locks, other = connect(ttl=30), connect(ttl=30)
    for write in (lambda lease: lease.renew(ttl=32), lambda lease: other.break_lease("x")):
        lease = locks.lock("x").acquire()
        write(lease)
        served: list[leasehold.Lease] = []
        waiter = threading.Thread(target=lambda: served.append(other.lock("x").acquire()))  # noqa: B023
        waiter.start()
        time.sleep(2.5 * timing.FIRST_TERM)
        assert not served
        lease.release()
        waiter.join(60)
        assert served[0].token > lease.token
        assert served[0].release()


# Who may, and where.


def test_another_users_nodes_are_refused(server: ZooKeeper, connect: Callable[..., leasehold.Locks]) -> None:
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


def test_what_a_transaction_is_refused_for_is_said(
    connect: Callable[..., leasehold.Locks], client: KazooClient
) -> None:
    """The ACL of the name was changed, so that nodes can go there and not come: to a longer session, to rest."""
    locks = connect()
    lease = locks.lock("x", ttl=20, min_hold=60).acquire()
    path = node_of(locks, lease)
    name = path.rpartition("/")[0]
    client.set_acls(name, [make_acl("world", "anyone", read=True, write=True, delete=True, admin=True)])
    with pytest.raises(leasehold.StoreNotReady, match="ACL does not allow"):
        lease.renew(ttl=40)
    assert lease.valid
    with pytest.raises(leasehold.StoreNotReady, match="ACL does not allow"):
        lease.release()
    assert client.exists(path), "it was not given back"
    client.set_acls(name, OPEN_ACL_UNSAFE)
    eventually(lambda: not client.exists(path), 30, "it is, later")


def take_and_pass_on(locks: leasehold.Locks, other: leasehold.Locks) -> None:
    """What needs calls, a watch and a renewal."""
    lease = locks.lock("x").acquire(20)
    waiter = threading.Thread(target=lambda: other.lock("x").acquire(20).release())
    waiter.start()
    eventually(lambda: locks.inspect("x").waiters == 1)  # type: ignore[union-attr]
    lease.renew()
    assert lease.release()
    waiter.join(60)
    assert not waiter.is_alive()


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


@pytest.mark.parametrize("question", [zk_access._WhoAmI.type, 999], ids=["known", "unknown"])
def test_doctor_says_whom_the_nodes_are_open_to(
    server: ZooKeeper, question: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the servers let everybody in, the ACL of the namespace tells. Those before 3.7 do not say who one is."""
    monkeypatch.setattr(zk_access._WhoAmI, "type", question)
    anybody, me = server.address, f"me:s3cret@{server.address}"
    for login, level, said in (
        (f"{anybody}/public", WARNING, "in /public/leasehold/%; this client has no user"),
        (f"{me}/public", WARNING, "in /public/leasehold/%; this client is digest:me"),
        (f"{me}/guarded", OK, "this client is digest:me"),
        (f"{anybody}/guarded", OK, "this client has no user"),
        (f"{me}/shared?acl=open", WARNING, "this client is digest:me"),
    ):
        finding = said_of_users(f"zookeeper://{login}")
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


# Crowds.


@pytest.mark.parametrize("ahead", [0, 1, 4])
@pytest.mark.parametrize("dead", [1, 2])
def test_dead_waiters_hold_up_nobody_until_somebody_looks_by_itself(
    connect: Callable[..., leasehold.Locks], ahead: int, dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 5, also where the dead are not the first when they die, and whoever is behind them has waited since they
    were far back: it hears of those ahead. Nobody looks by itself here, and no place expires."""
    monkeypatch.setattr(timing, "FALLBACK", 1000.0)
    monkeypatch.setattr(timing, "WAITER_TTL", 1000.0)
    everybody = [connect(ttl=100) for _ in range(ahead + dead + 2)]
    lease = everybody[0].lock("x").acquire()
    served: list[int] = []
    threads: dict[int, threading.Thread] = {}

    def have(locks: leasehold.Locks, number: int) -> None:
        with locks.lock("x").acquire():
            served.append(number)

    for number, locks in enumerate(everybody[1:]):
        if ahead <= number < ahead + dead:
            driver, store = locks._core.driver, locks._core.store
            ask = Ask("x", f"{number:032}", "dead", "lock", None, 100_000_000, queue=True)
            assert isinstance(driver.run(store.acquire(ask), 60.0), Busy)
        else:
            threads[number] = threading.Thread(target=have, args=(locks, number))
            threads[number].start()
            eventually(
                lambda locks=locks: any(t.watching or t.near for t in map(turn_of, stakes_of(locks)))
            )  # it waits, and listens
        assert everybody[0].inspect("x").waiters == number + 1  # type: ignore[union-attr]
    assert lease.release()
    for thread in threads.values():
        thread.join(60)
        assert not thread.is_alive(), "it was not served"
    assert served == list(threads), "not in the order of arrival"


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked because time goes by, however slow the machine is, and nobody is taken for dead."""
    for name in ("FALLBACK", "WAITER_TTL", "FIRST_TERM"):
        monkeypatch.setattr(timing, name, 1000.0)
    monkeypatch.setattr(watching, "SOON", 1000.0)
    monkeypatch.setattr(zk_link, "WATCH_AFTER", 1000.0)


def queue_up(locks: leasehold.Locks, attempt: str) -> Stake:
    """Wait for "x" from now on, without anybody who looks again."""
    ask = Ask("x", attempt * 32, "nobody", "lock", None, 20_000_000, queue=True)
    assert isinstance(locks._core.driver.run(locks._core.store.acquire(ask), 60.0), Busy)  # type: ignore[attr-defined]
    return link_of(locks).stakes[ask.attempt]


def wait_in_thread(locks: leasehold.Locks, served: list[leasehold.Lease]) -> threading.Thread:
    """One that waits for "x" and listens."""
    waiter = threading.Thread(target=lambda: served.append(locks.lock("x").acquire()))
    waiter.start()
    eventually(lambda: any(turn.next or turn.followed[1] for turn in map(turn_of, stakes_of(locks))))
    return waiter


def knows_that_it_is_next(locks: leasehold.Locks) -> None:
    """It has seen that the one ahead has claimed. One that is called before that looks before it claims."""
    eventually(lambda: any(turn_of(stake).next for stake in stakes_of(locks)))


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("ahead", [0, 1, 4])
def test_a_hand_off_takes_one_round_trip(
    connect: Callable[..., leasehold.Locks], ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the waiter's, once it is called: the look and the claim are sent together. Until then it asks for nothing,
    however many had their turn before it."""
    first, *others = everybody = [connect(ttl=30) for _ in range(ahead + 2)]
    served = [first.lock("x").acquire()]
    threads = [wait_in_thread(locks, served) for locks in others]
    asked: list[Any] = []
    begin = zk_threads.begin

    def noted(link: zk_link.Link, request: Any) -> list[Any]:
        if threading.current_thread() is threads[-1]:
            asked.append(request)
        return begin(link, request)

    monkeypatch.setattr(zk_threads, "begin", noted)
    for number, thread in enumerate(threads):
        knows_that_it_is_next(others[number])
        assert served[number].release()
        thread.join(60)
        assert served[number + 1].token > served[number].token
    assert len(asked) == 1
    assert len(served) == len(everybody)
    assert served[-1].release()


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize(("waiters", "requests"), [(1, 7), (2, 8), (10, 8)])
def test_a_turn_takes_as_many_requests_however_many_wait(
    connect: Callable[..., leasehold.Locks], waiters: int, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From one release to the next, with the asking of the one who gave it back: of all, in sessions of their own."""
    everybody = [connect(ttl=100) for _ in range(waiters + 1)]
    served = [everybody[0].lock("x").acquire()]
    waiting = everybody[1:]
    threads = [wait_in_thread(locks, served) for locks in waiting]
    sent: list[Any] = []
    submit = zk_link.Session.submit

    def noted(session: zk_link.Session, call: Any) -> Any:
        if "/x" in repr(call):
            sent.append(call)
        return submit(session, call)

    monkeypatch.setattr(zk_link.Session, "submit", noted)
    for number in range(5):
        knows_that_it_is_next(waiting[number])
        assert served[number].release()
        threads[number].join(60)
        waiting.append(everybody[number % len(everybody)])
        threads.append(wait_in_thread(waiting[-1], served))
        eventually(lambda: len(sent) >= (number + 1) * requests)  # noqa: B023
    assert len(sent) == 5 * requests, sent
    for number, thread in enumerate(threads[5:], 5):
        assert served[number].release()
        thread.join(60)
    assert [lease.token for lease in served] == sorted(lease.token for lease in served)
    assert served[-1].release()


@pytest.mark.usefixtures("unhurried")
def test_who_goes_before_it_is_watched_is_heard_of(
    connect: Callable[..., leasehold.Locks], client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No lost wake-up: two were ahead when the waiter looked, and are gone by the time that it asks to hear of that."""
    locks, other = connect(ttl=30), connect(ttl=30)
    lease = locks.lock("x").acquire()
    gone = [node_of(locks, lease), str(queue_up(locks, "e").path)]
    submit = zk_link.Session.submit
    read: list[Any] = []

    def late(session: zk_link.Session, call: Any) -> Any:
        if getattr(call, "method", "") == "watch_all":
            assert list(call.args[0]) == gone
            for result in read:
                result.wait(60)
            for path in gone:
                client.delete(path)
        read.append(submit(session, call))
        return read[-1]

    monkeypatch.setattr(zk_link.Session, "submit", late)
    served: list[leasehold.Lease] = []
    waiter = threading.Thread(target=lambda: served.append(other.lock("x").acquire()))
    waiter.start()
    waiter.join(60)
    assert served, "it did not hear of it"
    assert served[0].token > lease.token
    assert served[0].release()


@pytest.mark.usefixtures("unhurried")
def test_who_is_behind_three_that_give_up_does_not_take_that_for_its_turn(
    connect: Callable[..., leasehold.Locks], client: KazooClient
) -> None:
    """If it claimed along with its look, and died before it had said again that it waits, it would be taken for one
    that holds when its turn comes."""
    locks, other = connect(ttl=30), connect(ttl=30)
    lease = locks.lock("x").acquire()
    ahead = [queue_up(locks, attempt) for attempt in "abcd"]
    served: list[leasehold.Lease] = []
    waiter = wait_in_thread(other, served)
    [place] = stakes_of(other)
    for stake in ahead[1:]:
        client.delete(stake.path)
    eventually(lambda: len(turn_of(place).near) == 2)
    assert client.exists(place.path).version == 1
    assert nodes.decode(client.get(place.path)[0]).state == nodes.WAITING
    client.delete(ahead[0].path)
    assert lease.release()
    waiter.join(60)
    assert served[0].token > lease.token
    assert served[0].release()


def test_who_is_told_to_look_is_not_told_after_that_that_it_need_not() -> None:
    """kazoo has one thread for answers and one for events: what the one ahead has claimed is read while it goes."""
    link = zk_link.Link(parse("zookeeper://127.0.0.1:1"))
    ask = Ask("x", "a", "owner", "lock", None, 30)
    read = SimpleNamespace(
        value=(nodes.record(ask, nodes.HELD).encode(), None), exception=None, successful=lambda: True
    )
    read.rawlink = lambda found: found(read)
    session: Any = SimpleNamespace(up=True, submit=lambda call: read, link=link)
    stake = Stake(ask, session, "/x", nodes.record(ask, nodes.WAITING))
    link.stakes["a"] = stake
    link.watching.follow(stake, turn_of(stake), ("/x/holder",))
    news: list[Busy | None] = []
    goes = threading.Thread(
        target=link.watching.event, args=[WatchedEvent(EventType.DELETED, "CONNECTED", "/x/holder")]
    )

    def on_ring(attempt: str, busy: Busy | None = None) -> None:
        if busy is not None:
            goes.start()
            goes.join(0.5)  # it goes in this moment
        news.append(busy)

    link.on_ring = on_ring
    link.watching.event(WatchedEvent(EventType.CHANGED, "CONNECTED", "/x/holder"))
    goes.join()
    assert news == [Busy(None, 0, None), None]
    assert turn_of(stake).called
    assert not link.watching._followers


def test_one_that_has_ended_watches_and_follows_nobody() -> None:
    """Its session was lost while it was about to."""
    link = zk_link.Link(parse("zookeeper://127.0.0.1:1"))
    ask = Ask("x", "a", "owner", "lock", None, 30)
    stake = Stake(ask, SimpleNamespace(link=link), "/x", nodes.record(ask, nodes.WAITING))
    link.stakes["a"] = stake
    link.drop(stake)
    link.watching.follow(stake, turn_of(stake), ("/x/holder",))
    link.watching.watch(stake, turn_of(stake), "/x/holder")
    assert not link.watching._followers
    assert not link.watching._watchers


def test_one_that_holds_has_nothing_left_of_its_wait(connect: Callable[..., leasehold.Locks]) -> None:
    """There may be ten thousand of them. Also what comes late from a thread of kazoo's that knew it as waiting."""
    locks, other = connect(), connect()
    lease = locks.lock("x").acquire()
    queue_up(locks, "d")
    served: list[leasehold.Lease] = []
    waiter = wait_in_thread(other, served)
    [stake] = stakes_of(other)
    turn = turn_of(stake)
    assert lease.release()
    waiter.join(60)
    link_of(other).watching.follow(stake, turn, ("/x/holder",))
    link_of(other).watching.watch(stake, turn, "/x/holder")
    assert stake.turn is None
    assert not link_of(other).watching._followers
    assert not link_of(other).watching._watchers
    assert served[0].release()


def test_one_that_comes_to_hold_watches_and_follows_nobody() -> None:
    """Nothing of what it waited for has happened: it was let in by a look."""
    link = zk_link.Link(parse("zookeeper://127.0.0.1:1"))
    ask = Ask("x", "a", "owner", "lock", None, 30)
    session: Any = SimpleNamespace(link=link, unwatched=deque())
    stake = Stake(ask, session, "/x", nodes.record(ask, nodes.WAITING))
    link.stakes["a"] = stake
    link.watching.follow(stake, turn_of(stake), ("/x/holder",))
    link.watching.watch(stake, turn_of(stake), "/x/holder")
    assert link.hold(stake, zk_link.clock.now(), 30_000_000)
    assert not link.watching._followers
    assert not link.watching._watchers


@pytest.mark.usefixtures("unhurried")
def test_nobody_looks_while_those_ahead_claim(connect: Callable[..., leasehold.Locks]) -> None:
    """However long they hold: who has come further ahead is to be looked at soon, until its claim is heard of."""
    locks, *others = [connect(ttl=30) for _ in range(4)]
    served = [locks.lock("x").acquire()]
    threads = [wait_in_thread(each, served) for each in others]
    told: list[list[float | None]] = [[], []]
    for each, news in zip(others[1:], told, strict=True):
        link_of(each).on_ring = lambda attempt, *busy, news=news: news.extend(one.expires_in for one in busy)
    assert served[0].release()
    threads[0].join(60)
    eventually(lambda: told == [[watching.SOON, None]] * 2)
    for each in others[1:]:
        link_of(each).on_ring = each._core.rung
    for number, thread in enumerate(threads[1:], 1):
        assert served[number].release()
        thread.join(60)
    assert served[-1].release()


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("first", [nodes.HELD, nodes.WAITING])
def test_what_looks_like_a_claim_is_made_sure_of(
    connect: Callable[..., leasehold.Locks], client: KazooClient, first: str
) -> None:
    """One that has just come may say that it waits when its turn has come; or it may have claimed too early, and say
    again that it waits. Then whoever is behind it sees that it has not claimed."""
    locks, other = connect(ttl=30), connect(ttl=30)
    lease = locks.lock("x").acquire()
    ahead = queue_up(locks, "e")
    waiter = wait_in_thread(other, [])
    [place] = stakes_of(other)
    assert ahead.path in turn_of(place).near
    client.delete(node_of(locks, lease))
    client.set(ahead.path, ahead.record._replace(state=first).encode())
    eventually(lambda: ahead.path in turn_of(place).watching)
    if first == nodes.HELD:
        [session] = link_of(other).sessions
        eventually(lambda: ahead.path in session.client._data_watchers, what="it was read, and is watched")
        assert not turn_of(place).suspects
        client.set(ahead.path, ahead.record._replace(state=nodes.WAITING).encode())
    eventually(lambda: turn_of(place).suspects)
    client.delete(ahead.path)
    waiter.join(60)
    assert not waiter.is_alive()


@pytest.mark.usefixtures("unhurried")
def test_those_ahead_are_watched_once_on_each_connection(
    connect: Callable[..., leasehold.Locks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looks by itself has no need to ask for it again, unless the connection was lost, and the watches with it."""
    locks, other = connect(ttl=30), connect(ttl=30)
    lease = locks.lock("x").acquire()
    queue_up(locks, "d")
    watched: list[Any] = []
    submit = zk_link.Session.submit

    def noted(session: zk_link.Session, call: Any) -> Any:
        if getattr(call, "method", "") == "watch_all":
            watched.append(call)
        return submit(session, call)

    monkeypatch.setattr(zk_link.Session, "submit", noted)
    for _ in range(3):
        stake = queue_up(other, "e")
    assert len(watched) == 1
    stake.session.drop_connection()
    eventually(lambda: stake.session.connections == 2)
    for _ in range(3):
        assert queue_up(other, "e") is stake
    assert len(watched) == 2
    assert lease.release()
    eventually(lambda: len(turn_of(stake).near) == 1, what="it hears of it on the new connection")


def test_who_is_let_in_has_a_whole_first_term_whatever_went_before(
    connect: Callable[..., leasehold.Locks], client: KazooClient
) -> None:
    """Whoever is behind it hears that the holder's node has gone, which was only moved, long before its turn comes."""
    locks, one, two = connect(), connect(ttl=20), connect(ttl=20)
    lease = locks.lock("x", ttl=20).acquire()
    first, second = queue_up(one, "e"), queue_up(two, "f")
    assert turn_of(second).near == (node_of(locks, lease), first.path)
    lease.renew(ttl=40)
    eventually(lambda: turn_of(second).near == (first.path,))
    time.sleep(1.5 * timing.FIRST_TERM)
    assert lease.release()
    assert queue_up(two, "f") is second
    assert client.exists(first.path), "its turn has only just come"


@pytest.mark.usefixtures("unhurried")
def test_the_work_of_a_hand_off_does_not_grow_with_the_waiters(
    start_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No herd: what the server is asked for each of 20 hand-offs, with 20 and with 200 who wait."""
    monkeypatch.setattr(timing, "CALL_LIMIT", 100.0)
    monkeypatch.setattr(zk_link, "TOUCHES", 1)
    monkeypatch.setattr(zk_link, "DEAD_AFTER", (100.0, 100.0))
    server = start_server(ZooKeeper)

    def asked() -> int:
        return int(word(server.port, "srvr").partition("Received: ")[2].split()[0])

    def per_hand_off(crowd: int) -> float:
        with leasehold.connect(server.url, ttl=100, renew_every=90) as locks:
            turns = threading.Semaphore(0)
            served: list[int] = []

            def wait(number: int) -> None:
                with locks.lock(f"x{crowd}").acquire():
                    served.append(number)
                    turns.acquire()

            lease = locks.lock(f"x{crowd}").acquire()
            threads = [threading.Thread(target=wait, args=(number,)) for number in range(crowd)]
            for number, thread in enumerate(threads, 1):
                thread.start()
                eventually(
                    lambda: sum(stake.version == 1 for stake in stakes_of(locks)) == number,  # noqa: B023
                    60,
                )
            time.sleep(0.5)
            before = asked()
            lease.release()
            for count in range(1, 21):
                eventually(lambda: len(served) >= count, 60)  # noqa: B023
                if count < 20:
                    turns.release()
            spent = (asked() - before) / 20
            for _ in threads:
                turns.release()
            for thread in threads:
                thread.join(60)
            assert served == list(range(crowd)), "in the order of arrival"
            return spent

    few, many = per_hand_off(20), per_hand_off(200)
    assert many <= few * 1.3 + 2, (few, many)
    assert many < 30


# The rule who holds, by itself.


def child(attempt: str, sequence: int, weight: int = 1, limit: int = 1, shape: str = "lock") -> str:
    ask = Ask("n", attempt, "o", "k", None, 1, shape=shape, limit=limit, weight=weight)
    return f"{nodes.prefix(ask)}{sequence:010d}"


def test_who_holds_follows_from_the_listing() -> None:
    look = nodes.view([child("b", 2), child("a", 1), child("c", 3)], 0)
    assert [node.attempt for node in look.holders] == ["a"]
    assert [node.attempt for node in look.waiting] == ["b", "c"]
    rw = {"limit": 10, "shape": "rw"}
    look = nodes.view([child("r1", 1, **rw), child("w", 2, weight=10, **rw), child("r2", 3, **rw)], 0)
    assert [node.attempt for node in look.holders] == ["r1"], "nobody overtakes the one who waits"
    look = nodes.view([child("a", 5), child("s", 6, limit=3, shape="semaphore")], 0)
    assert [node.attempt for node in look.strays] == ["s"]


def test_who_has_not_claimed() -> None:
    created = nodes.record(Ask("n", "a", "o", "k", None, 1), nodes.HELD)
    assert created.unclaimed(new=True), "it was seen to wait, and has written nothing since it was created"
    assert not created.unclaimed(new=False)
    assert created._replace(state=nodes.WAITING).unclaimed(new=False)
    assert not created._replace(token=5).unclaimed(new=True), "its node is new, because it was moved"


def test_the_servers_counter_goes_round() -> None:
    look = nodes.view([child("new", -(2**31)), child("old", 2**31 - 1), child("older", 2**31 - 9)], 0)
    assert [node.attempt for node in (*look.holders, *look.waiting)] == ["older", "old", "new"]
    look = nodes.view([child("new", -(2**31), limit=3, shape="semaphore"), child("old", 2**31 - 1)], 0)
    assert look.others_behind(look.holders[0])
    assert not look.others_behind(look.strays[0])


def test_what_rests_takes_part_until_its_time() -> None:
    rest = nodes.rest_child(1000, "lock", 1, 1, "gone")
    assert nodes.view([child("a", 1), rest], 999).holders == []
    look = nodes.view([child("a", 1), rest], 1000)
    assert [node.attempt for node in look.holders] == ["a"]
    assert [each.child for each in look.over] == [rest]


@pytest.mark.parametrize("text", ["", ".", "..", "a/b", "%", "é🔒", "\ue000", " x ", "a.b", "x" * 512])
def test_any_text_is_a_component_of_a_path(text: str, client: KazooClient) -> None:
    part = nodes.component(text)
    assert part
    assert "/" not in part
    assert part.isascii()
    assert nodes.plain(part) == text
    client.ensure_path(f"/components/{part}")
