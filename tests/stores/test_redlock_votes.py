"""The votes of a quorum: none goes to one who has left, none wears away, and split ones are soon asked for again."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from redlock_nodes import be_patient, behind_a_proxy, holders, url

import leasehold
from leasehold.core import clock
from leasehold.core.lease import state_of
from leasehold.core.protocol import SECOND, Busy, Grant, Renewal
from leasehold.errors import LeaseLost
from leasehold.stores.redis.requests import ScriptCall
from leasehold.stores.redis.scripts import ABANDON, ACQUIRE, RAISE, RELEASE
from leasehold.stores.redlock.store import SPLIT, SPREAD, YOUNG, Held, RedlockStore, Tell
from leasehold.testing.handles import Locks, eventually, in_time, make_ask
from servers.redis import Redis

Connect = Callable[..., Locks]
A, B, C = "a" * 32, "b" * 32, "c" * 32
TTL = 600.0
KEY = "leasehold:{:x}"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch, 5.0)


@pytest.fixture
def nodes(start_server: Any) -> list[Redis]:
    return [start_server(Redis) for _ in range(3)]


@pytest.fixture
def first(nodes: list[Redis]) -> Iterator[redis.Redis]:
    """Looks into the first node."""
    with redis.Redis(port=nodes[0].port) as client:
        yield client


def marks(client: redis.Redis) -> int:
    return sum(field.startswith(b"w") for field in client.hkeys(KEY))


# Late acquires.


class Stuck:
    """A ``Locks`` whose commands to the first node are held back from now on; ``other`` reaches that node directly."""

    def __init__(self, connect: Connect, nodes: list[Redis], client: redis.Redis, address: str, proxy: Any) -> None:
        self._client, self._proxy = client, proxy
        self.other = connect(url(nodes), ttl=TTL)
        before = self._connections(self.other)
        self.locks = connect(address, ttl=TTL)
        self._through = self._connections(self.locks) - before
        assert self._through
        proxy.blackhole()

    def _connections(self, locks: Locks) -> set[str]:
        """Those of the first node, when all nodes have been asked something and have answered."""
        assert locks.lock("warm").acquire(20).release()
        for node in locks.real._core.driver._nodes:
            eventually(lambda node=node: not _waiting(node.jobs))
        locks.inspect("warm")  # each has come to it after the release
        return {each["id"] for each in self._client.client_list()}

    def connect_anew(self) -> None:
        """When a command to that node was given up on: what is sent to it after that goes directly."""
        (node, *_), (direct, *_) = (each.real._core.driver._nodes for each in (self.locks, self.other))
        eventually(lambda: node.health._error is not None)
        node.transport.make = direct.transport.make

    def arrive(self) -> None:
        """What was held back reaches the node, which does it, and hangs up."""
        self._proxy.all_well()
        eventually(lambda: not self._through & {each["id"] for each in self._client.client_list()})


def _waiting(jobs: Any) -> bool:
    """Whether a node has jobs that it has not begun."""
    return bool(jobs) if isinstance(jobs, deque) else not jobs.empty()


def test_an_acquire_that_reaches_a_node_too_late(connect: Connect, nodes: list[Redis], first: redis.Redis) -> None:
    """The others had granted the lease, and it is over."""
    with behind_a_proxy(nodes) as (address, proxy):
        stuck = Stuck(connect, nodes, first, address, proxy)
        lease = stuck.locks.lock("x").acquire(30)
        stuck.connect_anew()
        assert lease.release()
        eventually(lambda: marks(first) == 1)
        stuck.arrive()
        assert holders(nodes[0], "x") is None
        assert stuck.locks.lock("x").acquire(30).release()


def test_a_later_try_of_the_same_attempt_is_not_too_late(
    connect: Connect, nodes: list[Redis], first: redis.Redis
) -> None:
    with behind_a_proxy(nodes) as (address, proxy):
        stuck = Stuck(connect, nodes, first, address, proxy)
        held = stuck.other.lock("x").acquire(30)
        eventually(lambda: all(holders(node, "x") for node in nodes))
        assert isinstance(stuck.locks.ask("x", A, TTL), Busy)
        stuck.connect_anew()
        eventually(lambda: marks(first) == 1)
        assert held.release()
        eventually(lambda: not any(holders(node, "x") for node in nodes))
        reply = stuck.locks.ask("x", A, TTL)
        assert isinstance(reply, Grant)
        eventually(lambda: all(holders(node, "x") for node in nodes))
        assert stuck.locks.run(stuck.locks.store.release("x", A, reply.token, None)) is True
        eventually(lambda: not any(holders(node, "x") for node in nodes))
        stuck.arrive()
        assert holders(nodes[0], "x") is None


def test_an_abandon_that_reaches_a_node_too_late_ends_no_later_try(
    connect: Connect, nodes: list[Redis], first: redis.Redis
) -> None:
    """Each try that too few nodes have granted is abandoned. If that hangs in the network, the next may be granted
    before it arrives: the vote stays, or another could have a majority beside this one."""
    store = connect(url(nodes)).store
    keys = store._one.keys("x")

    def send(script: Any, *args: bytes) -> Any:
        return first.execute_command(*ScriptCall(script, keys, args).command(whole=True))

    for number in (b"1", b"2"):
        assert send(ACQUIRE, *store._one.asked(make_ask("x", A, TTL)), number)[0] == 1
    assert send(ABANDON, A.encode(), b"", b"1") == 0
    assert holders(nodes[0], "x")
    assert send(ACQUIRE, *store._one.asked(make_ask("x", A, TTL)), b"1")[0] == 1, "late itself"
    assert send(ABANDON, A.encode(), b"", b"1") == 0, "and yet the vote is of the second"
    assert send(RAISE, A.encode(), b"5", b"1") == 0, "so is the token of the first of no concern any more"
    assert send(RAISE, A.encode(), b"7", b"2") == 1
    assert send(RELEASE, A.encode(), b"5", b"1") == 0, "nor is a release of the first, though it leaves a mark"
    assert holders(nodes[0], "x")
    assert send(ABANDON, A.encode(), b"", b"2") == 1
    assert holders(nodes[0], "x") is None
    send(ABANDON, A.encode(), b"4")
    send(ABANDON, A.encode(), b"3")
    assert send(ACQUIRE, *store._one.asked(make_ask("x", A, TTL)), b"4")[0] == 0, "the later mark stands"
    assert send(ACQUIRE, *store._one.asked(make_ask("x", A, TTL)), b"5")[0] == 1
    send(ABANDON, A.encode())
    steps = store.acquire(make_ask("x", A, TTL, queue=True))
    asked = next(steps).request
    told = steps.send({0: GRANTED, 1: refused(B, 5, 10), 2: refused(B, 5, 10)})
    assert told.what.args == (A.encode(), b"", asked.args[12]), "it says which one it means"


# Votes that were forgotten.


def test_a_lease_outlives_the_restart_of_every_node(connect: Connect, nodes: list[Redis]) -> None:
    """One at a time, each empty, with a renewal in between, while somebody waits: the majority is never lost."""
    locks, other = connect(url(nodes), owner="me"), connect(url(nodes))
    lease = locks.lock("x", ttl=TTL).acquire(30)
    eventually(lambda: all(holders(node, "x") for node in nodes))
    waiter = other.lock("x").start(120)

    def has_it_again(node: Redis) -> bool:
        lease.renew()
        found = locks.run(locks.store._look(["x"]))
        vote = holders(node, "x") or b""  # a waiter's, for a moment, perhaps
        return state_of(lease.real).claim.attempt.encode() in vote and [each.owner for each in found] == ["me"]

    for node in nodes:
        node.kill()
        node.start()
        eventually(lambda node=node: has_it_again(node))
        assert lease.valid
    info = locks.inspect("x")
    assert info.token == lease.token
    assert not waiter.done()
    assert lease.release()
    after = waiter.lease(60)
    assert after.token > lease.token
    assert after.release()


def test_a_lease_that_is_gone_at_a_majority_is_not_revived(connect: Connect, nodes: list[Redis]) -> None:
    locks = connect(url(nodes))
    lease = locks.lock("x", ttl=TTL).acquire(30)
    eventually(lambda: all(holders(node, "x") for node in nodes))
    for node in nodes[:2]:
        redis.Redis(port=node.port).flushall()
    with pytest.raises(LeaseLost):
        lease.renew()
    assert locks.inspect("x") is None  # each node has come to it after what the renewal may have told it
    assert [holders(node, "x") is not None for node in nodes] == [False, False, True]


def vote(locks: Locks, reply: Grant) -> ScriptCall | None:
    """What a node is told that said it knows nothing of the lease."""
    told = locks.store._votes({0: Renewal("x", A, reply.token, int(TTL) * SECOND)}, {0: [0]}, 0)
    return None if told is None else told.calls[0]


def test_whom_a_node_votes_for_again(connect: Connect, nodes: list[Redis], first: redis.Redis) -> None:
    """Its record tells whether the vote was somebody else's meanwhile."""
    locks, other = connect(url(nodes)), connect(url(nodes))
    reply = locks.ask("x", A, TTL)
    assert isinstance(reply, Grant)
    eventually(lambda: all(holders(node, "x") for node in nodes))
    call = vote(locks, reply)
    assert call is not None

    def give() -> Any:
        return first.execute_command(*call.command(whole=True))

    assert give() == 0  # it has it
    first.flushall()
    assert give() == 1
    assert 0 < first.ttl(KEY) <= 27 * 3600
    first.flushall()
    assert isinstance(other.ask("x", B, TTL), Busy)  # which had this vote for a moment
    eventually(lambda: int(first.hget(KEY, "t") or 0) > reply.token)
    eventually(lambda: holders(nodes[0], "x") is None)
    assert give() == 1
    first.flushall()
    for node in nodes[1:]:
        redis.Redis(port=node.port).flushall()
    second = other.ask("x", B, TTL)
    assert isinstance(second, Grant)
    eventually(lambda: all(holders(node, "x") for node in nodes))
    assert give() == 0  # another holds it
    assert other.run(other.store.release("x", B, second.token, None)) is True
    eventually(lambda: holders(nodes[0], "x") is None)
    assert give() == 0  # another has held it, by a majority
    first.flushall()
    first.execute_command(*ScriptCall(ABANDON, call.keys, (A.encode(), call.args[12])).command(whole=True))
    assert give() == 0  # it was given back, and this came late
    locks.run(locks.store.abandon("x", A))


def test_no_vote_for_a_lease_that_is_given_back_meanwhile(connect: Connect, nodes: list[Redis]) -> None:
    """Between the answers to its renewal and what those nodes are told that have forgotten it."""
    locks = connect(url(nodes))
    reply = locks.ask("x", A, TTL)
    assert isinstance(reply, Grant)
    assert vote(locks, reply) is not None
    steps = locks.store.renew([Renewal("x", A, reply.token, int(TTL) * SECOND)])
    poll = next(steps)
    assert locks.run(locks.store.release("x", A, reply.token, None)) is True
    assert vote(locks, reply) is None
    poll.heard.update({0: [0], 1: [1], 2: [1]})
    told = steps.send(poll.heard)
    assert isinstance(told, Tell)
    assert told.what(0) is None  # type: ignore[operator]


def test_leases_that_ended_without_a_word_are_forgotten() -> None:
    store = RedlockStore("", 3)
    now = clock.now()
    store._held = {
        A: Held(make_ask("x", A, TTL), b"1", now - 2 * TTL),
        B: Held(make_ask("x", B, TTL), b"1", now),
    }
    for _ in store.tidy():
        pass
    assert list(store._held) == [B]


# When a waiter looks.


def refused(attempt: str, age: float, left: float) -> list[Any]:
    fields = [attempt.encode(), b"owner", b"lock", b"", 7, int(age * SECOND), int(left * SECOND), 0]
    return [0, -1, 1, 0, int(left * SECOND), *fields]


GRANTED = [1, 5, 1]


def look(store: RedlockStore, *answers: Any, attempt: str = A, queue: bool = True) -> Any:
    """What the nodes have answered, an exception for one that did not; and when the waiter is told to look again."""
    steps = store.acquire(make_ask("x", attempt, TTL, queue=queue))
    next(steps)
    told = steps.send(dict(enumerate(answers)))
    assert isinstance(told, Tell)
    with pytest.raises(StopIteration) as end:
        steps.send(None)
    assert isinstance(end.value.value, Busy)
    return end.value.value.look


def test_a_waiter_looks_when_a_majority_is_free() -> None:
    """Not when the last node is, whose record may be somebody else's; and each at a time of its own."""
    store = RedlockStore("", 5)
    answers = [refused(B, 5, left) for left in (1, 2, 3, 4, 500)]
    looks = [look(store, *answers) for _ in range(20)]
    assert all(3 <= each <= 3 + SPREAD for each in looks)
    assert len(set(looks)) > 1
    assert 2 <= look(store, GRANTED, *answers[1:4], TimeoutError()) <= 3 + SPREAD
    assert look(store, *answers[:2], *[GRANTED] * 2, TimeoutError()) <= 1 + SPREAD
    assert look(store, refused(B, 5, -1), *[refused(C, 5, -1)] * 4) <= SPREAD


def test_votes_that_are_split_are_soon_asked_for_again() -> None:
    """Each time within twice as long, so that many who ask come to an end; by anything else it starts anew."""
    store = RedlockStore("", 3)
    split = [GRANTED, refused(B, 0.01, TTL), refused(C, 0.01, TTL)]
    for most in (1, 2, 4, 8, 16, 16):
        looks = [look(store, *split, attempt=f"{number:032x}") for number in range(50)]
        assert max(looks) <= SPLIT * most
        assert max(looks) > SPLIT * most / 4
    assert look(store, *[refused(B, 5, 10)] * 3, attempt=f"{0:032x}") >= 10
    assert look(store, *split, attempt=f"{0:032x}") <= SPLIT
    store = RedlockStore("", 3)
    look(store, *split, queue=False)
    assert not store._splits  # one who does not wait is not remembered


def test_what_is_no_split() -> None:
    """Somebody may have the majority, or the votes are old: they are of some who died."""
    store = RedlockStore("", 3)
    young, old = refused(B, 0.01, 10), refused(C, YOUNG + 1, 20)
    assert look(store, GRANTED, young, TimeoutError()) >= 10  # the one that is silent may have voted for it too
    assert look(store, young, young, GRANTED) >= 10
    assert look(store, GRANTED, refused(B, YOUNG + 1, 10), old) >= 10


@pytest.mark.slow
def test_ten_dead_holders_are_replaced_at_once(nodes: list[Redis]) -> None:
    """E4: within 0.25 s after the ttl, by the nodes' clock, though eight wait for it; of a machine that stands still
    now and then, in the best of a few tries."""
    ttl = 1.5
    waiting = [leasehold.connect(url(nodes)) for _ in range(8)]

    def until_replaced(number: int) -> float:
        core: Any = waiting[0]._core
        dead = core.driver.run(core.store.acquire(make_ask("x", f"{number:032x}", ttl)), 20.0)
        while not isinstance(dead, Grant):
            dead = core.driver.run(core.store.acquire(make_ask("x", f"{number:032x}", ttl)), 20.0)
        tokens: list[int] = []

        def wait(locks: leasehold.Locks) -> None:
            with locks.lock("x").acquire(timeout=60) as lease:
                tokens.append(lease.token)

        threads = [threading.Thread(target=wait, args=(locks,)) for locks in waiting]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(tokens) == len(waiting)
        return (min(tokens) - dead.token) / SECOND - ttl  # a token is the time of its grant

    for number in range(10):
        in_time(lambda number=number: until_replaced(number), 0.25)
    for locks in waiting:
        locks.close()
