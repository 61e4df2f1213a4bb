"""The queue of ZooKeeper: dead waiters, hand-offs, and what they ask of the server; the rule who holds, by itself."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from zookeeper_tools import Tree, Waiting, queued, relayed

import leasehold
from leasehold.core import timing
from leasehold.core.protocol import Ask, Busy
from leasehold.stores.urls import find_store
from leasehold.stores.zookeeper import nodes
from leasehold.testing.handles import eventually
from servers.zookeeper import ZooKeeper, word
from servers.zookeeper_relay import ZooKeeperRelay

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
def dead_waiter(server: ZooKeeper, space: str) -> Iterator[Callable[[str], None]]:
    """Queues for "x" in a client of its own, and never asks again; its session lives on."""
    drivers: list[Any] = []

    def queue_up(attempt: str) -> None:
        opened = find_store(server.url, space)
        drivers.append(opened.threads())
        ask = Ask("x", attempt, "dead", "lock", None, 100_000_000, queue=True)
        assert isinstance(drivers[-1].run(opened.store.acquire(ask), 60.0), Busy)

    yield queue_up
    for driver in drivers:
        driver.close()


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked because time goes by, however slow the machine is, and nobody is taken for dead."""
    for name in ("FALLBACK", "WAITER_TTL", "FIRST_TERM"):
        monkeypatch.setattr(timing, name, 1000.0)


# The dead.


@pytest.mark.parametrize("ahead", [0, 1, 4])
@pytest.mark.parametrize("dead", [1, 2])
def test_dead_waiters_hold_up_nobody(
    connect: Connect,
    dead_waiter: Callable[[str], None],
    tree: Tree,
    ahead: int,
    dead: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Promise 5, also where the dead are not the first when they die, and whoever is behind them has waited since they
    were far back. Nobody's place expires here."""
    monkeypatch.setattr(timing, "WAITER_TTL", 1000.0)
    everybody = [connect(ttl=100) for _ in range(ahead + 2)]
    lease = everybody[0].lock("x").acquire()
    waiters: list[Waiting] = []
    for number in range(ahead):
        waiters.append(Waiting(everybody[1 + number]))
        queued(everybody[0], "x", number + 1)
    for number in range(dead):
        dead_waiter(f"{number:032}")
    waiters.append(Waiting(everybody[-1]))
    queued(everybody[0], "x", ahead + dead + 1)
    eventually(lambda: tree.states("x") == ["held"] + ["waiting"] * (ahead + dead + 1))
    assert lease.release()
    token = lease.token
    for waiter in waiters:
        taken = waiter.taken(5 if dead == 1 else 15)
        assert taken.token > token, "not in the order of arrival"
        token = taken.token
        began = time.monotonic()
        assert taken.release()
    assert time.monotonic() - began < 10


def test_who_is_let_in_has_a_whole_first_term_whatever_went_before(
    connect: Connect, dead_waiter: Callable[[str], None], tree: Tree
) -> None:
    """Whoever is behind it sees that the holder's node has gone, which was only moved, long before its turn comes."""
    locks, other = connect(), connect(ttl=20)
    lease = locks.lock("x", ttl=20).acquire()
    dead_waiter("e" * 32)
    first = tree.line("x")[1].path
    waiter = Waiting(other)
    queued(locks, "x", 2)
    lease.renew(ttl=40)
    time.sleep(1.5 * timing.FIRST_TERM)
    began = time.monotonic()
    assert lease.release()
    assert tree.client.exists(first), "its turn has only just come"
    assert waiter.taken(8).release()
    assert time.monotonic() - began >= timing.FIRST_TERM - 0.1


def test_who_goes_before_it_is_watched_is_heard_of(
    connect: Connect, tree: Tree, server: ZooKeeper, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No lost wake-up: the holder was there when the waiter looked, and is gone by the time that it asks to hear of
    that."""
    monkeypatch.setattr(timing, "FALLBACK", 1000.0)
    lease = connect(ttl=30).lock("x").acquire()
    with relayed(server, space, ttl=30) as (relay, other):
        other.lock("warm").acquire().release()
        hold = relay.hold(lambda request: request.what in ("set", "set watches") and bool(relay.of("x")))
        waiter = Waiting(other)
        assert hold.arrived.wait(30)
        assert lease.release()
        hold.let_go.set()
        assert waiter.taken(30).token > lease.token
        assert waiter.taken().release()


# What a hand-off asks.


@pytest.mark.parametrize("waiters", [1, 2, 10])
def test_a_turn_takes_as_many_requests_however_many_wait(
    server: ZooKeeper, space: str, waiters: int, unhurried: None
) -> None:
    """From one release to the next, with the asking of the one who gave it back: of all, in sessions of their own. The
    release; a look and the claim; the watch of who holds; a look of the second in line at who has claimed (2); a node,
    a listing, the word that it waits, two watches."""
    with ZooKeeperRelay(server.port) as relay:
        url = f"zookeeper://127.0.0.1:{relay.port}"
        everybody = [leasehold.connect(url, namespace=space, ttl=100) for _ in range(waiters + 1)]
        try:
            lease = everybody[0].lock("x").acquire()
            threads = []
            for number, locks in enumerate(everybody[1:]):
                threads.append(Waiting(locks))
                queued(everybody[0], "x", number + 1)
            time.sleep(0.5)
            spent = 0
            for number in range(5):
                before = len(relay.of("x"))
                assert lease.release()
                lease = threads[number].taken()
                threads.append(Waiting(everybody[number % len(everybody)]))
                time.sleep(0.4)
                spent += len(relay.of("x")) - before
            assert spent <= 5 * 11, [(each.what, each.path[-12:]) for each in relay.of("x")][-spent:]
            for thread in threads[5:]:
                assert lease.release()
                assert thread.taken().token > lease.token
                lease = thread.taken()
            assert lease.release()
        finally:
            for locks in everybody:
                locks.close()


def test_those_ahead_are_not_asked_while_nothing_happens(server: ZooKeeper, space: str, connect: Connect) -> None:
    """A waiter looks by itself every 5 s, and asks for little then."""
    lease = connect(ttl=60).lock("x").acquire()
    with relayed(server, space, ttl=60) as (relay, other):
        waiter = Waiting(other)
        eventually(lambda: any(each.what == "set" for each in relay.of("x")))
        time.sleep(1)
        before = len(relay.of("x"))
        time.sleep(11)
        assert len(relay.of("x")) - before <= 3 * 4
        assert lease.release()
        assert waiter.taken().release()


@pytest.mark.usefixtures("unhurried")
def test_the_work_of_a_hand_off_does_not_grow_with_the_waiters(
    start_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No herd: what the server is asked for each of 20 hand-offs, with 20 and with 200 who wait."""
    monkeypatch.setattr(timing, "CALL_LIMIT", 100.0)
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
                queued(locks, f"x{crowd}", number)
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
    assert many <= few * 1.3 + 3, (few, many)
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


def test_writer_lets_all_waiting_readers_in_at_once(connect: Connect) -> None:
    """Promise 5: readers far back in the line are woken by push too, not by their own check."""
    writing, reading = connect(ttl=30), connect(ttl=30)
    writer = writing.rwlock("name").write().acquire()
    since: list[float] = []

    def read() -> None:
        with reading.rwlock("name").read().acquire(timeout=30):
            since.append(time.monotonic())
            time.sleep(3.0)

    readers = [threading.Thread(target=read) for _ in range(6)]
    for reader in readers:
        reader.start()
    eventually(lambda: (found := writing.inspect("name")) is not None and found.waiters == len(readers))
    time.sleep(8.0)  # by now each checks by itself every 5 s only
    released = time.monotonic()
    writer.release()
    for reader in readers:
        reader.join()
    assert len(since) == len(readers)
    assert max(since) - released < 2.0
