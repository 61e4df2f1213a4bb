"""What is peculiar to etcd: waiters that are passed over, the cost of a hand-over, deleted keys, a full server."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from etcd_tools import LIMIT, LONG, A, B, C, Process, Waiter, delete, keys, request

import leasehold
from leasehold import LeaseLost, StoreNotReady, aio
from leasehold.core import clock, timing
from leasehold.core.protocol import Busy, Grant
from leasehold.stores.etcd import acquiring, driver, leases, queue, wire
from leasehold.stores.etcd.doctor import doctor
from leasehold.stores.etcd.endpoints import Endpoints
from leasehold.stores.etcd.errors import GrpcError
from leasehold.stores.etcd.store import EtcdStore
from leasehold.stores.etcd.subscriptions import IDLE, TAKING, Interest, Subscriptions
from leasehold.stores.etcd.tasks import EtcdTasks, TaskTransport
from leasehold.stores.etcd.url import parse
from leasehold.tasks.runner import TaskRegistry
from leasehold.testing.handles import eventually
from servers.base import NotReady
from servers.etcd import Etcd, ask, b64
from servers.proxy import Proxy


@pytest.fixture
def server(etcd_server: Etcd) -> Etcd:
    return etcd_server


# Waiting.


def revoke_lease_of(server: Etcd, key: str) -> None:
    [found] = ask(server.port, "kv/range", {"key": b64(key)})["kvs"]
    ask(server.port, "lease/revoke", {"ID": found["lease"]})


def test_an_expired_waiter_is_not_granted(server: Etcd, namespace: str) -> None:
    """etcd's own lock once did: the lease of a waiter ran out while it waited, and it was granted all the same.

    Its process hears and says nothing for a while, as if it were paused: else it would rightly queue again at once."""
    with Proxy(server.port) as proxy:
        late = Process(f"etcd://127.0.0.1:{proxy.port}", namespace)
        with (
            leasehold.connect(server.url, namespace=namespace) as first,
            late.locks,
            leasehold.connect(server.url, namespace=namespace) as third,
        ):
            held = first.lock("x").acquire()
            waiter = Waiter(late.locks, "x")
            place = eventually(lambda: keys(server, namespace, "w"))[0]
            late.until_listening()
            proxy.blackhole()
            revoke_lease_of(server, place)
            assert not keys(server, namespace, "w")
            assert held.release()
            taken = third.lock("x").acquire(60)
            proxy.all_well()
            eventually(lambda: len(keys(server, namespace, "w")) == 1, 60, "it queues again")
            assert not waiter.leases, "two hold it"
            assert taken.valid
            assert taken.release()
            served = waiter.lease()
            assert served.token > taken.token > held.token
            assert served.release()


def test_a_waiter_notices_that_its_place_is_gone(server: Etcd, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleted by hand: it queues again, behind those who came meanwhile."""
    monkeypatch.setattr(acquiring, "FIRST_TERM", 30.0)
    monkeypatch.setattr(queue, "FIRST_TERM", 30.0)  # nobody is passed over for being slow
    with leasehold.connect(server.url, namespace=namespace) as locks:
        held = locks.lock("x").acquire()
        waiters = []
        for number in range(3):
            waiters.append(Waiter(locks, "x"))
            eventually(lambda count=number + 1: len(keys(server, namespace, "w")) == count)
        before = keys(server, namespace, "w")
        delete(server, before[1])
        eventually(lambda: len(keys(server, namespace, "w")) == 3 and keys(server, namespace, "w") != before)
        assert keys(server, namespace, "w")[1] == before[2]
        assert held.release()
        assert waiters[0].lease().release()
        assert waiters[2].lease().release()
        assert waiters[1].lease().release()


@pytest.mark.parametrize("ahead", [0, 1, 4])
@pytest.mark.parametrize("dead", [1, 2])
def test_dead_waiters_hold_up_nobody_until_somebody_looks_by_itself(
    server: Etcd, namespace: str, ahead: int, dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 5, also where the dead are not the first when they die, and whoever is behind them has waited since they
    were far back: it hears that it is one of the first. Nobody looks by itself here, and no place expires."""
    monkeypatch.setattr(timing, "FALLBACK", 1000.0)
    monkeypatch.setattr(leases, "WAITER_TTL", 1000.0)
    with contextlib.ExitStack() as opened:
        everybody = [Process(server.url, namespace, ttl=LONG) for _ in range(ahead + dead + 2)]
        for each in everybody:
            opened.enter_context(each.locks)
        lease = everybody[0].locks.lock("x").acquire()
        served: list[int] = []
        threads: dict[int, threading.Thread] = {}

        def have(locks: leasehold.Locks, number: int) -> None:
            with locks.lock("x").acquire():
                served.append(number)

        for number, process in enumerate(everybody[1:]):
            if ahead <= number < ahead + dead:
                process.queued("x", f"{number:032}", LONG)
            else:
                threads[number] = threading.Thread(target=have, args=(process.locks, number))
                threads[number].start()
                eventually(lambda count=number + 1: len(keys(server, namespace, "w")) == count)
                process.until_listening()
            assert len(keys(server, namespace, "w")) == number + 1
        assert lease.release()
        for thread in threads.values():
            thread.join(60)
            assert not thread.is_alive(), "it was not served"
        assert served == list(threads), "not in the order of arrival"


def test_who_passes_over_a_dead_waiter_is_not_taken_for_it(
    server: Etcd, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead one, and two who wait behind it. Whoever is third knows for how long nobody has taken the name, but not
    whom it was there for: it asks at once when the dead one is gone, and may not take the second for that one."""
    holder, dead, second, third = (Process(server.url, namespace) for _ in range(4))
    with holder.locks, dead.locks, second.locks, third.locks:
        held = holder.granted("x", C, LONG)
        for process, attempt in ((dead, "d" * 32), (second, A), (third, B)):
            process.queued("x", attempt, LONG)
        place = keys(server, namespace, "w")[0]
        assert holder.release("x", C, held)
        for process in (second, third):  # as their drivers do when a watch says so
            process.store.holder_is_gone(Interest(IDLE, "x", b"", b"", 0))
        now = clock.now
        monkeypatch.setattr(clock, "now", lambda: now() + timing.FIRST_TERM)
        asked: list[Any] = []

        def ask_when_it_is_gone(call: wire.EtcdCall) -> None:
            if not asked and place not in keys(server, namespace, "w"):
                asked.append(third.run(third.store.acquire(request("x", B, LONG, queue=True))))

        second.transport.after = ask_when_it_is_gone
        steps = second.store.acquire(request("x", A, LONG, queue=True))
        assert isinstance(second.driver.run(steps, LIMIT), Grant)
        assert isinstance(asked[0], Busy)


class CountingTransport(TaskTransport):
    """Counts what one process of asyncio asks etcd, by method, what it says about watches, and what it is told."""

    def __init__(self, url: str) -> None:
        super().__init__(Endpoints(parse(url)))
        self.clear()

    def clear(self) -> None:
        self.calls: Counter[bytes] = Counter()
        self.said = self.events = 0
        self.failures: list[BaseException] = []

    async def send(self, call: wire.EtcdCall, limit: float) -> list[bytes]:
        self.calls[call.method] += 1
        try:
            return await super().send(call, limit)
        except BaseException as error:
            self.failures.append(error)
            raise

    async def watch(self, limit: float) -> Any:
        stream = await super().watch(limit)
        send, read = stream.send, stream.read
        cancelled: set[int] = set()

        def counted(messages: list[bytes]) -> None:
            self.said += len(messages)
            cancelled.update(wire.read(each[2][0])[1][0] for each in map(wire.read, messages) if 2 in each)
            send(messages)

        async def heard(seconds: float) -> list[bytes] | None:
            messages = await read(seconds)
            for told in map(wire.read_watch, messages or ()):
                if told.watch not in cancelled:  # else etcd has yet to end it
                    self.events += len(told.deletes)
            return messages

        stream.send, stream.read = counted, heard  # type: ignore[method-assign, assignment]
        return stream


def only_by_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked because time goes by, however slow the machine is: with a ttl that is LONG, what is left are the
    looks that waiters have every 5 s, the lease that keeps their places, the listener's question whether the server is
    there, and calls that are given up and made again. And nobody is passed over for being slow."""
    monkeypatch.setattr(timing, "FALLBACK", 1000.0)
    monkeypatch.setattr(timing, "CALL_LIMIT", 100.0)
    monkeypatch.setattr(leases, "WAITER_TTL", 1000.0)
    monkeypatch.setattr(leases, "WAITING_FRESH", 1000.0)
    monkeypatch.setattr(driver, "HEARTBEAT", 1000.0)
    monkeypatch.setattr(acquiring, "FIRST_TERM", 1000.0)
    monkeypatch.setattr(queue, "FIRST_TERM", 1000.0)


async def until(true: Callable[[], Any]) -> None:
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("crowd", [20, 200])
async def test_a_hand_over_costs_the_same_however_many_wait(
    server: Etcd, namespace: str, crowd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No herd: a handful of calls and events for each hand-over, one after the other."""
    only_by_news(monkeypatch)
    rounds = 15
    store, transport = EtcdStore(namespace), CountingTransport(server.url)
    driver = EtcdTasks(store, transport, "etcd", None)  # type: ignore[arg-type]
    registry = TaskRegistry(store, driver, namespace=namespace, owner=None, kinds=None, defaults={"ttl": LONG})
    async with aio.Locks(registry) as locks:
        lease = await locks.lock("x").acquire()
        while not await driver.listen("", None):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        served: list[int] = []
        over = asyncio.Semaphore(0)

        async def one(number: int) -> None:
            async with locks.lock("x"):
                served.append(number)
                await over.acquire()

        async def settled() -> None:
            """Until nothing is asked any more."""
            before = -1
            while before != (before := sum(transport.calls.values()) + transport.said):  # noqa: ASYNC110
                await asyncio.sleep(0.3)

        crowding = []
        for number in range(crowd):
            crowding.append(asyncio.ensure_future(one(number)))
            await until(lambda: transport.said > number + 1)  # noqa: B023  # it waits, and listens
        await settled()
        assert transport.said <= 2 * crowd + 2, "one watch for each: of who is ahead, but for the first"
        transport.clear()
        await lease.release()
        for count in range(1, rounds + 1):
            await until(lambda: len(served) == count)  # noqa: B023
            await settled()
            if count < rounds:
                over.release()
        calls, failures = dict(transport.calls), list(transport.failures)
        said, events = transport.said, transport.events
        for task in crowding:
            task.cancel()
        ended = await asyncio.gather(*crowding, return_exceptions=True)
        await until(lambda: not registry.unsettled and not keys(server, namespace, "w"))
    assert not [each for each in ended if isinstance(each, Exception)]
    assert served == list(range(rounds)), f"in the order of arrival; calls that failed: {failures}"
    # Giving back, taking, the next one's look, and that of the one who has become the third.
    assert calls[wire.TXN] <= 4 * rounds + 2, f"{calls} for {rounds} hand-overs"
    assert sum(calls.values()) <= 5 * rounds + 2, f"{calls} for {rounds} hand-overs"
    # The first in line no longer watches who is ahead.
    assert said <= rounds + 2, f"{said} messages about watches for {rounds} hand-overs"
    # That it is given back, once for the first three in line; that the first is gone, to each of the next three.
    assert events <= 4 * rounds + 4, f"{events} events for {rounds} hand-overs"


# By hand, and out of order.


def test_a_holders_key_that_is_deleted_by_hand_is_a_loss_that_is_told(server: Etcd, namespace: str) -> None:
    with leasehold.connect(server.url, namespace=namespace, ttl=20, renew_every=0.3) as locks:
        lease = locks.lock("x").acquire()
        [key] = keys(server, namespace, "h")
        delete(server, key)
        assert lease.lost.wait(15)  # before it would expire
        with pytest.raises(LeaseLost):
            lease.check()
        assert lease.release() is False
        again = locks.lock("x").acquire(20)
        assert again.token > lease.token
        assert again.release()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_key_deleted_by_hand_is_told_to_one_who_does_not_renew(
    server: Etcd, namespace: str, asynchronous: bool
) -> None:
    """Promise 6: by a push, long before its deadline."""
    if asynchronous:
        asyncio.run(_deleted_in_asyncio(server, namespace))
        return
    with leasehold.connect(server.url, namespace=namespace, ttl=60) as locks:
        lease = locks.lock("x", renew=False).acquire()
        time.sleep(5.0)  # by now it is followed
        assert lease.valid
        [key] = keys(server, namespace, "h")
        delete(server, key)
        assert lease.lost.wait(20)
        assert "no longer holds" in str(lease.lost_reason)


async def _deleted_in_asyncio(server: Etcd, namespace: str) -> None:
    async with aio.connect(server.url, namespace=namespace, ttl=60) as locks:
        lease = await locks.lock("x", renew=False).acquire()
        [key] = keys(server, namespace, "h")
        delete(server, key)  # before it is followed: from the revision of its grant on
        await asyncio.wait_for(lease.lost.wait(), 20)


def test_the_epoch_is_made_anew_when_it_is_gone(server: Etcd, namespace: str) -> None:
    with leasehold.connect(server.url, namespace=namespace) as locks:
        first = locks.lock("x").acquire()
        assert first.release()
        delete(server, f"leasehold/{namespace}/epoch")
        second = locks.lock("x").acquire()
        assert second.token > first.token
        assert second.release()


def test_a_record_of_a_newer_format_is_refused(server: Etcd, namespace: str) -> None:
    with leasehold.connect(server.url, namespace=namespace) as locks:
        assert locks.lock("y").acquire().release()
        ask(server.port, "kv/put", {"key": b64(f"leasehold/{namespace}/h/x\0{A}"), "value": b64("[2, {}]")})
        with pytest.raises(StoreNotReady, match="newer leasehold"):
            locks.lock("x").acquire(20)


def fill(server: Etcd) -> None:
    block = base64.b64encode(b"x" * 500_000).decode()
    for number in range(100):
        ask(server.port, "kv/put", {"key": b64(f"fill{number}"), "value": block})


def test_a_server_that_is_full(start_server: Any) -> None:
    """NOSPACE: what is held is renewed and given back; nothing new is granted, and the error says what to do."""
    server = start_server(Etcd, quota_backend_bytes=4 * 1024 * 1024)
    with leasehold.connect(server.url, ttl=20, renew_every=0.3) as locks:
        lease = locks.lock("x").acquire()
        stuck = locks.lock("stuck").acquire()
        told: list[BaseException] = []

        def wait() -> None:
            try:
                locks.lock("x").acquire(100)
            except StoreNotReady as error:
                told.append(error)

        waiter = threading.Thread(target=wait)
        waiter.start()
        eventually(lambda: keys(server, "", "w"))
        with pytest.raises(NotReady, match="space exceeded"):
            fill(server)
        with pytest.raises(StoreNotReady, match="NOSPACE"):
            locks.lock("y").acquire(20)
        time.sleep(4.0)  # what is held is renewed, many times
        assert lease.valid, lease.lost_reason
        assert any("NOSPACE" in finding.message for finding in doctor(server.url))
        with pytest.raises(StoreNotReady, match="NOSPACE"):
            locks.break_lease("stuck")
        assert locks.break_lease("stuck", force=True)
        assert stuck.lost.wait(15)
        assert lease.release()
        waiter.join(60)
        assert told, "it can neither be granted nor does it wait for ever"
        assert not [key for kind in "hw" for key in keys(server, "", kind)]


def test_a_write_that_fills_the_server_is_taken_back(server: Etcd, namespace: str) -> None:
    """etcd carries out the transaction that goes over its quota, and answers that there is no space."""
    process = Process(server.url, namespace)
    with process.locks as locks:
        held = locks.lock("busy").acquire()
        full = GrpcError(8, "etcdserver: mvcc: database space exceeded")
        for name, said in (("x", b"h/x\0" + A.encode()), ("busy", b"w/busy\0" + b"0")):
            steps = process.store.acquire(request(name, A, queue=True))
            call = process.up_to(steps, wire.TXN, said)
            assert wire.read_txn(process.send(call)).succeeded
            assert any(A in key for key in keys(server, namespace, said[:1].decode()))
            with pytest.raises(GrpcError):
                process.finish(steps, steps.throw(full))
            left = [key for kind in "hw" for key in keys(server, namespace, kind) if A in key]
            assert not left, "nobody knows of it"
        assert held.release()


# Several holders.


def test_permits_are_not_given_twice(server: Etcd, namespace: str) -> None:
    """Many at once ask for 3 permits: at no time do more than 3 have one."""
    with contextlib.ExitStack() as stack:
        everyone = [Process(server.url, namespace) for _ in range(4)]
        for each in everyone:
            stack.enter_context(each.locks)
        mutex, now, most, served = threading.Lock(), 0, 0, 0

        def one(process: Process, number: int) -> None:
            nonlocal now, most, served
            for turn in range(5):
                attempt = f"{number * 100 + turn:032x}"
                mine = request("s", attempt, shape="semaphore", limit=3, queue=True)
                while not isinstance(reply := process.run(process.store.acquire(mine)), Grant):
                    assert isinstance(reply, Busy)
                    time.sleep(0.005)
                with mutex:
                    now += 1
                    most, served = max(most, now), served + 1
                time.sleep(0.002)
                with mutex:
                    now -= 1
                assert process.release("s", attempt, reply)

        threads = [threading.Thread(target=one, args=(everyone[n % 4], n)) for n in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert served == 60
        assert most <= 3


class Gap:
    """Waits for "x", and calls ``happens`` between the look that says so and the watch of it."""

    def __init__(self, process: Process, happens: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
        process.until_listening()
        listen, late = process.driver.listen, []

        def too_late(attempt: str, busy: Busy | None) -> bool:
            if attempt and not late:
                late.append(attempt)
                happens()
            return bool(listen(attempt, busy))

        monkeypatch.setattr(process.driver, "listen", too_late)
        self.waiter = Waiter(process.locks, "x")
        self.lease = self.waiter.lease


def in_line(locks: leasehold.Locks, count: int) -> list[Waiter]:
    """So many who wait for "x", in this order."""
    waiting: list[Waiter] = []
    for _ in range(count):
        waiting.append(Waiter(locks, "x"))
        eventually(lambda: locks.inspect("x").waiters == len(waiting))  # type: ignore[union-attr]
    return waiting


@pytest.mark.parametrize("ahead", [0, 1, 4])
def test_what_happens_between_a_look_and_its_watch_is_not_missed(
    server: Etcd, namespace: str, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch begins after that, and nobody looks by itself here."""
    only_by_news(monkeypatch)
    other = Process(server.url, namespace, ttl=LONG)
    with leasehold.connect(server.url, namespace=namespace, ttl=LONG) as locks, other.locks:
        lease = locks.lock("x").acquire()
        waiting = in_line(locks, ahead)

        def served() -> None:
            assert lease.release()
            for waiter in waiting:
                assert waiter.lease().release()

        assert Gap(other, served, monkeypatch).lease().release()


def test_who_has_become_the_first_meanwhile_is_not_passed_over(
    server: Etcd, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was far back when it looked. Whoever has come behind it gives it a first term from when the name is free."""
    monkeypatch.setattr(acquiring, "FIRST_TERM", 5.0)
    monkeypatch.setattr(queue, "FIRST_TERM", 5.0)
    other, behind = (Process(server.url, namespace, ttl=LONG) for _ in range(2))
    with leasehold.connect(server.url, namespace=namespace, ttl=LONG) as locks, other.locks, behind.locks:
        lease = locks.lock("x").acquire()
        waiting = in_line(locks, 3)
        last: list[Waiter] = []

        def served() -> None:
            assert lease.release()
            first, second, third = (waiter.lease for waiter in waiting)
            assert first().release()
            assert second().release()
            held = third()
            last.append(Waiter(behind.locks, "x"))
            eventually(lambda: len(keys(server, namespace, "w")) == 2)
            behind.until_listening()
            time.sleep(0.5)
            assert held.release()

        gap = Gap(other, served, monkeypatch)
        eventually(lambda: last and (last[0].leases or gap.waiter.leases), 60)
        assert not last[0].leases, "it was passed over"
        assert gap.lease().release()
        assert last[0].lease().release()


def tasks_of(url: str, namespace: str, **options: Any) -> tuple[aio.Locks, EtcdTasks]:
    """A ``Locks`` of asyncio, and its driver."""
    store = EtcdStore(namespace)
    driver = EtcdTasks(store, TaskTransport(Endpoints(parse(url))), "etcd", None)  # type: ignore[arg-type]
    registry = TaskRegistry(store, driver, namespace=namespace, owner=None, kinds=None, defaults=options)
    return aio.Locks(registry), driver


async def until_listening(driver: EtcdTasks) -> None:
    async with asyncio.timeout(60):
        while not await driver.listen("", None):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_what_happens_between_a_look_and_its_watch_is_not_missed_under_asyncio(
    server: Etcd, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_by_news(monkeypatch)
    other, driver = tasks_of(server.url, namespace, ttl=LONG)
    async with aio.connect(server.url, namespace=namespace, ttl=LONG) as locks, other:
        lease = await locks.lock("x").acquire()
        await until_listening(driver)
        listen = driver.listen
        late: list[str] = []

        async def too_late(attempt: str, busy: Busy | None) -> bool:
            if attempt and not late:
                late.append(attempt)
                assert await lease.release()
            return bool(await listen(attempt, busy))

        monkeypatch.setattr(driver, "listen", too_late)
        async with asyncio.timeout(60):
            last = await other.lock("x").acquire()
        assert late, "it did not have to wait"
        assert await last.release()


def test_a_server_that_nothing_is_written_to_answers_a_listener(server: Etcd, namespace: str) -> None:
    """L2: who waits relies on push for as long as the server is known to be there. While all wait, nothing is written,
    and no watch that began after the last write has come to the revision from which it is to tell."""
    process = Process(server.url, namespace)
    with process.locks:
        subscriptions = Subscriptions(process.store)
        stream = process.transport.watch(LIMIT)

        def told(count: int) -> list[bytes]:
            messages: list[bytes] = []
            while len(messages) < count:
                some = stream.read(LIMIT)  # none, if what came is of the transport alone
                assert some is not None, "the server does not answer"
                messages += some
            return messages

        try:
            stream.send([subscriptions.begin()])
            while not subscriptions.listening:
                subscriptions.heard(told(1), asked=True)
            revision = int(ask(server.port, "kv/range", {"key": b64("a")})["header"]["revision"])
            stream.send(subscriptions.add(A, [Interest(TAKING, "name", b"a", b"b", revision + 1)])[1])
            told(1)  # it has accepted that
            for _ in range(2):
                _, messages = subscriptions.heard(None, asked=False)
                stream.send(messages)
                assert subscriptions.heard(told(len(messages)), asked=True) == ([], []), "of no concern to a waiter"
        finally:
            stream.close()


async def test_the_listener_comes_back_when_every_task_was_cancelled(server: Etcd, namespace: str) -> None:
    """As some frameworks do when they shut down, and go on all the same."""
    locks, driver = tasks_of(server.url, namespace, ttl=60)
    async with locks, aio.connect(server.url, namespace=namespace, ttl=60) as others:
        theirs = await others.lock("name").acquire()
        for _ in range(2):
            waiter = asyncio.ensure_future(locks.lock("name", timeout=60).acquire())
            await until_listening(driver)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.wait([waiter])
            assert not await driver.listen("", None), "one that ends is not to be relied upon"
        waiter = asyncio.ensure_future(locks.lock("name", timeout=60).acquire())
        await until_listening(driver)
        await theirs.release()
        await (await waiter).release()
