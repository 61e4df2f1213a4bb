"""Leases of ZooKeeper that live by different sessions: moved from one to another, renewed while one of them is ill,
left to an heir when all are closed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError
from kazoo.protocol.connection import ConnectionHandler

import leasehold
from leasehold import StoreNotReady, StoreUnavailable, aio
from leasehold.core import clock
from leasehold.core.lease import state_of
from leasehold.core.protocol import SECOND, Renewal
from leasehold.stores.zookeeper import link as zk_link
from leasehold.stores.zookeeper import nodes
from leasehold.stores.zookeeper import session as zk_session
from leasehold.stores.zookeeper.requests import Each, Multi
from leasehold.stores.zookeeper.threads import begin
from leasehold.testing.handles import eventually
from servers.zookeeper import ZooKeeper, word

Connect = Callable[..., leasehold.Locks]


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
def connect(server: ZooKeeper, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    """`connect(**options)` opens the test's own namespace; all are closed after it."""
    # A server that has no processor to itself for some seconds hangs as little as its clients do.
    monkeypatch.setattr(zk_link, "DEAD_AFTER", (60.0, 60.0))
    opened: list[leasehold.Locks] = []

    def connect(**options: Any) -> leasehold.Locks:
        opened.append(leasehold.connect(server.url, namespace=request.node.name[:60], **options))
        return opened[-1]

    yield connect
    for locks in opened:
        locks.close()


class Held:
    """A lease whose renewals are carried out by hand, call by call.

    The guard, which watches its node, sees that it is moved, and would have the keeper look for it: it calls nobody."""

    def __init__(self, locks: leasehold.Locks, ttl: float) -> None:
        self.store: Any = locks._core.store
        self.driver: Any = locks._core.driver
        self.link: zk_link.Link = self.driver.link
        self.driver.on_ring = lambda attempt, *news: None
        self.lease = locks.lock("x", ttl=ttl, renew=False).acquire()

    @property
    def stake(self) -> Any:
        return self.link.stakes[state_of(self.lease).claim.attempt]

    def renewal(self, ttl: float) -> Renewal:
        return Renewal("x", state_of(self.lease).claim.attempt, self.lease.token, int(ttl * SECOND))

    def renew(self, ttl: float) -> Any:
        return self.driver.run(self.store.renew([self.renewal(ttl)]), 60)

    def up_to_the_move(self, ttl: float) -> tuple[Any, Any]:
        """A renewal, and the request that moves its node, which is not sent yet."""
        steps = self.store.renew([self.renewal(ttl)])
        request = next(steps)
        while not any(isinstance(call, Multi) for call in getattr(only(request), "calls", ())):
            request = steps.send(self.answer(request))
        return steps, request

    def answer(self, request: Any) -> Any:
        ends = clock.now() + 60
        if isinstance(request, Each):
            return self.driver._each(request, ends)
        return self.driver._answer(request, begin(self.link, request), ends)

    def finish(self, steps: Any, answer: Any) -> Any:
        """The end of a renewal, from this answer on."""
        try:
            while True:
                answer = self.answer(steps.send(answer))
        except StopIteration as over:
            return over.value


def only(request: Any) -> Any:
    return request.requests[0] if isinstance(request, Each) else request


def refused(answer: Any) -> bool:
    [[parts]] = answer
    return all(isinstance(part, Exception) for part in parts)


def where(client: KazooClient, held: Held) -> tuple[str, int]:
    """The path of the attempt's only node, and the session that it lives by."""
    parent = held.stake.parent
    [child] = [child for child in client.get_children(parent) if nodes.attempt_of(child) == held.stake.attempt]
    return f"{parent}/{child}", client.exists(f"{parent}/{child}").ephemeralOwner


# Moves.


def test_a_move_that_comes_too_late_moves_nothing(connect: Connect, client: KazooClient) -> None:
    """S1: a renewal got no answer; the next one has, for longer, and its term is trusted. Then the first arrives, and
    would take the node to the shorter session."""
    held = Held(connect(), 20)
    assert held.renew(30) == ["renewed"]
    steps, late = held.up_to_the_move(45)
    steps.close()
    assert held.renew(90) == ["renewed"]
    assert refused(held.answer(Each((only(late),), 20)))
    path, owner = where(client, held)
    assert (path, owner) == (held.stake.path, held.stake.session.id)
    assert held.stake.session.lasts(90)
    assert held.renew(90) == ["renewed"]
    assert held.lease.release()


def test_a_move_that_comes_late_is_made_void_by_the_next_renewal(connect: Connect, client: KazooClient) -> None:
    """Though that asks for no more than the session has that it is in."""
    held = Held(connect(), 20)
    steps, late = held.up_to_the_move(45)
    steps.close()
    assert held.renew(20) == ["renewed"]
    assert refused(held.answer(Each((only(late),), 20)))
    assert where(client, held) == (held.stake.path, held.stake.session.id)
    assert held.lease.release()


@pytest.mark.parametrize("first", [60, 90])
def test_two_move_it_at_once(connect: Connect, client: KazooClient, first: int) -> None:
    """Whichever is first, and whichever hears of it first: it ends in the session that is long enough for both."""
    held = Held(connect(), 20)
    parent = held.stake.parent
    both = {ttl: held.up_to_the_move(ttl) for ttl in (60, 90)}
    second = 150 - first
    answers = {ttl: held.answer(both[ttl][1]) for ttl in (first, second)}
    for ttl in (second, first):
        assert held.finish(both[ttl][0], answers[ttl]) == ["renewed"]
    assert where(client, held) == (held.stake.path, held.stake.session.id)
    assert held.stake.session.lasts(90)
    assert held.lease.release()
    assert not client.get_children(parent)


def test_news_of_an_older_move_changes_nothing(connect: Connect, client: KazooClient) -> None:
    """Another thread has found it there, and moved it on, before the first has had a look at its own answer."""
    held = Held(connect(), 20)
    steps, move = held.up_to_the_move(45)
    answer = held.answer(move)
    assert held.renew(90) == ["renewed"]
    assert held.finish(steps, answer) == ["renewed"]
    assert where(client, held) == (held.stake.path, held.stake.session.id)
    assert held.stake.session.lasts(90)
    assert held.lease.release()


def moved_unheard(held: Held) -> None:
    """It is moved, and nobody has heard of that."""
    steps, move = held.up_to_the_move(45)
    held.answer(move)
    steps.close()


@pytest.mark.parametrize("rest", [0, 2])
def test_a_release_finds_what_was_moved_unheard(connect: Connect, client: KazooClient, rest: int) -> None:
    locks = connect(min_hold=rest)
    held = Held(locks, 20)
    moved_unheard(held)
    path, _ = where(client, held)
    assert path != held.stake.path
    assert held.lease.release()
    assert not client.exists(path)
    assert locks.lock("x").acquire(20).release()


def test_what_was_moved_unheard_is_renewed_and_watched(
    connect: Connect, client: KazooClient, server: ZooKeeper
) -> None:
    locks = connect()
    held = Held(locks, 20)
    moved_unheard(held)
    path, owner = where(client, held)
    assert held.renew(20) == ["renewed"]
    assert (path, owner) == (held.stake.path, held.stake.session.id)
    eventually(lambda: path in word(server.port, "wchp"), what="the server knows of the watch")
    held.driver.on_ring = locks._core.rung
    client.delete(path)
    assert held.lease.lost.wait(15), "by the watch"
    assert "no longer holds" in str(held.lease.lost_reason)


def test_what_was_moved_unheard_is_gone_when_it_is_over(connect: Connect, client: KazooClient) -> None:
    """The guard removes what it knows of, and looks for the rest."""
    held = Held(connect(), 20)
    moved_unheard(held)
    path, _ = where(client, held)
    held.stake.until = held.link._next_over = 0.0
    held.link.wake()
    eventually(lambda: not client.exists(path), 30)


def test_one_that_is_broken_while_it_moves_stays_broken(connect: Connect) -> None:
    locks = connect()
    held = Held(locks, 20)
    moved_unheard(held)
    assert locks.break_lease("x")
    for _ in range(2):
        assert held.renew(20) == ["broken"]
    held.lease.release()
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


def both_sessions(locks: Any) -> tuple[zk_link.Session, zk_link.Session]:
    """The longer one and the shorter one."""
    long, short = sorted(locks._core.driver.link.sessions, key=lambda session: -session.timeout)
    return long, short


def asks(*leases: Any) -> list[Renewal]:
    return [
        Renewal(lease.name, state_of(lease).claim.attempt, lease.token, int(lease.ttl * SECOND)) for lease in leases
    ]


def test_a_session_that_is_down_costs_no_other_its_leases(connect: Connect) -> None:
    locks = connect()
    ill, well = locks.lock("a", ttl=60).acquire(), locks.lock("b", ttl=20).acquire()
    long, _ = both_sessions(locks)
    long.client.hosts = [("127.0.0.1", 1)]
    long.drop_connection()
    eventually(lambda: not long.up)
    failed, renewed = locks._core.driver.run(locks._core.store.renew(asks(ill, well)), 60)
    assert isinstance(failed, StoreUnavailable)
    assert renewed == "renewed"
    with pytest.raises(StoreUnavailable):
        locks._core.driver.run(locks._core.store.renew(asks(ill)), 60)


def hang(session: zk_link.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its transactions get no answer."""
    submit = zk_link.Session.submit

    def hanging(self: zk_link.Session, call: Any) -> Any:
        if self is session and isinstance(call, Multi):
            return self.client.handler.async_result()
        return submit(self, call)

    monkeypatch.setattr(zk_link.Session, "submit", hanging)


def test_a_session_that_hangs_costs_no_other_its_time(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    locks = connect(renew=False)
    link = locks._core.driver.link  # type: ignore[attr-defined]
    well = locks.lock("b", ttl=20).acquire()
    assert link.patience() == float("inf"), "there is no other that would have to wait"
    ill = locks.lock("a", ttl=60).acquire()
    assert link.patience() == 5
    monkeypatch.setattr(zk_link.Link, "patience", lambda self: 4.0)
    hang(both_sessions(locks)[0], monkeypatch)
    began = time.monotonic()
    for batch in (asks(ill, well), asks(well, ill)):
        outcomes = locks._core.driver.run(locks._core.store.renew(batch), 100)
        assert [type(each) for each in outcomes] == [StoreUnavailable if each.name == "a" else str for each in batch]
    with pytest.raises(StoreUnavailable):
        locks._core.driver.run(locks._core.store.renew(asks(ill)), 100)
    assert time.monotonic() - began < 80, "not all the time that there is"


async def test_a_session_that_hangs_costs_no_other_its_time_in_asyncio(
    server: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zk_link, "DEAD_AFTER", (60.0, 60.0))
    async with aio.connect(server.url, namespace="hangs", renew=False) as locks:
        ill, well = await locks.lock("a", ttl=60).acquire(), await locks.lock("b", ttl=20).acquire()
        hang(both_sessions(locks)[0], monkeypatch)
        began = time.monotonic()
        failed, renewed = await locks._core.driver.run(locks._core.store.renew(asks(ill, well)), 100)
        assert isinstance(failed, StoreUnavailable)
        assert renewed == "renewed"
        assert time.monotonic() - began < 80


def test_one_that_cannot_be_moved_fails_alone(connect: Connect) -> None:
    """No session is as long as it asks for."""
    locks = connect(ttl=60)
    leases = [locks.lock(name).acquire() for name in "ab"]
    first, second = asks(*leases)
    steps = locks._core.store.renew([first._replace(ttl=200 * SECOND), second])
    failed, renewed = locks._core.driver.run(steps, 60)
    assert isinstance(failed, StoreUnavailable)
    assert "maxSessionTimeout" in str(failed)
    assert renewed == "renewed"
    assert all(lease.release() for lease in leases)


def end_of_a_session(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """From now on kazoo is refused, or stumbles, whenever it has connected. The connections it has made."""
    made: list[Any] = []
    connect = ConnectionHandler._connect

    def connecting(connection: Any, *args: Any) -> Any:
        made.append(connection)
        connect(connection, *args)
        raise kind("as it is let in")

    monkeypatch.setattr(ConnectionHandler, "_connect", connecting)
    return made


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("kind", [AuthFailedError, RuntimeError])
def test_a_session_that_has_ended_for_good_is_replaced(
    connect: Connect, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """kazoo takes a server that hangs up during SASL for one that refuses us, and tries no more."""
    monkeypatch.setattr(zk_link, "REPLACED_AFTER", 0.0, raising=False)
    locks = connect()
    lease = locks.lock("x").acquire()
    link: zk_link.Link = locks._core.driver.link  # type: ignore[attr-defined]
    [ended] = link.sessions
    thread = ended.client._connection._connection_routine
    with monkeypatch.context() as patch:
        end_of_a_session(kind, patch)
        ended.drop_connection()
        thread.join(60)
    assert lease.lost.wait(60)
    assert locks.inspect("y") is None
    again = locks.lock("y").acquire(60)
    assert ended not in link.sessions
    assert again.token > lease.token
    assert again.release()
    eventually(lambda: ended.client._connection._write_sock is None, 60, "it is closed")


def test_who_is_refused_is_told_at_once_and_not_tried_at_each_attempt(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zk_link, "REPLACED_AFTER", 600.0, raising=False)
    locks = connect()
    with monkeypatch.context() as patch:
        made = end_of_a_session(AuthFailedError, patch)
        for _ in range(3):
            with pytest.raises(StoreNotReady, match="authentication failed"):
                locks.lock("x").acquire(60)
        assert len(made) == 1
    monkeypatch.setattr(zk_link, "REPLACED_AFTER", 0.0, raising=False)
    assert locks.lock("x").acquire(60).release()


async def test_a_session_that_has_ended_for_good_is_replaced_in_asyncio(
    server: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zk_link, "REPLACED_AFTER", 600.0, raising=False)
    async with aio.connect(server.url, namespace="ended") as locks:
        with monkeypatch.context() as patch:
            end_of_a_session(AuthFailedError, patch)
            with pytest.raises(StoreNotReady):
                await locks.lock("x").acquire(timeout=60)
        monkeypatch.setattr(zk_link, "REPLACED_AFTER", 0.0)
        again = await locks.lock("x").acquire(timeout=60)
        assert await again.release()


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


def test_an_offer_that_is_taken_back_leaves_no_session(
    connect: Connect, client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[Any] = []
    monkeypatch.setattr(zk_link.Session, "leave", lambda self, remove: left.append(self))
    locks = connect(ttl=30)
    lease = locks.lock("x").acquire()
    lease.transfer()
    assert lease.release()
    locks.close()
    assert not left


def test_what_is_to_be_removed_from_a_session_that_is_left_is(
    connect: Connect, client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zk_link, "CLOSING", 60.0)  # what can't be removed in time is left to end with its session
    monkeypatch.setattr(zk_session, "LEAVING", 60.0)
    locks, other = connect(ttl=30), connect(ttl=30)
    offered, beside = locks.lock("x").acquire(), locks.lock("y").acquire()
    link = locks._core.driver.link  # type: ignore[attr-defined]
    path = link.stakes[state_of(beside).claim.attempt].path
    text = offered.transfer()
    locks._core.leases.pop(state_of(beside).claim.attempt)  # as if it could not be given back
    locks.close()
    assert not client.exists(path)
    assert other.accept(text).release()
