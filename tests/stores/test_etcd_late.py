"""Writes to etcd of unknown outcome: what was given up and arrives all the same, and what happens in between."""

from __future__ import annotations

import time
from typing import Any

import pytest
from etcd_tools import LIMIT, LONG, A, B, Waiter, delete, finish, keys

import leasehold
from leasehold import StoreNotReady
from leasehold.core import clock
from leasehold.core.lease import state_of
from leasehold.core.protocol import SECOND, Ask, Busy, Grant
from leasehold.stores.etcd import wire
from leasehold.stores.etcd.errors import Refused
from leasehold.testing.handles import eventually
from servers.etcd import Etcd, ask


@pytest.fixture
def server(etcd_server: Etcd) -> Etcd:
    return etcd_server


def test_a_write_that_comes_too_late_changes_nothing(server: Etcd, namespace: str) -> None:
    """S4: the acquire was sent, given up and abandoned; then it arrives. Its lease is alive, but it must not hold."""
    with leasehold.connect(server.url, namespace=namespace, ttl=LONG) as locks:
        kept = locks.lock("kept").acquire()  # keeps the shared lease alive
        store, driver = locks._core.store, locks._core.driver
        request = Ask("x", A, "me", "lock", None, LONG * SECOND, kept=True)
        steps = store.acquire(request)
        late = next(steps)
        assert late.method == wire.TXN
        steps.close()  # nobody has heard anything
        driver.run(store.abandon("x", A), LIMIT)
        assert not wire.read_txn(driver._link.send(late, LIMIT)).succeeded  # type: ignore[attr-defined]
        assert locks.inspect("x") is None
        assert kept.valid
        assert locks.lock("x").acquire(0).release()


def up_to(locks: leasehold.Locks, steps: Any, method: bytes, said: bytes = b"") -> wire.Call:
    """Carry an operation out up to its first call of this method that says so: that one is not sent."""
    call: wire.Call = next(steps)
    while call.method != method or said not in b"".join(call.messages):
        call = steps.send(locks._core.driver._link.send(call, LIMIT))  # type: ignore[attr-defined]
    return call


def test_a_write_on_a_lease_of_its_own_that_comes_too_late(server: Etcd, namespace: str) -> None:
    """S4: it was given up, and so was the revocation that is to stop it. It is stopped when the keeper tries again."""
    with leasehold.connect(server.url, namespace=namespace) as locks:
        store, driver = locks._core.store, locks._core.driver
        steps: Any = store.acquire(Ask("x", A, "me", "lock", None, 300 * SECOND))
        late = up_to(locks, steps, wire.TXN, b"h/x\0" + A.encode())
        with pytest.raises(TimeoutError):
            steps.throw(TimeoutError("no answer"))
        steps = store.abandon("x", A)
        up_to(locks, steps, wire.REVOKE)
        with pytest.raises(TimeoutError):
            steps.throw(TimeoutError("no answer"))
        driver.run(store.abandon("x", A), LIMIT)
        with pytest.raises(Refused, match="lease not found"):
            driver._link.send(late, LIMIT)  # type: ignore[attr-defined]
        assert locks.inspect("x") is None
        assert not store.sessions._own  # type: ignore[attr-defined]
        assert locks.lock("x").acquire(0).release()


@pytest.mark.parametrize("late", [False, True])
def test_a_release_whose_revocation_gets_no_answer(server: Etcd, namespace: str, late: bool) -> None:
    """It has happened; unless an earlier acquire is still on its way, which only the revocation can stop."""
    with leasehold.connect(server.url, namespace=namespace) as locks:
        store, driver = locks._core.store, locks._core.driver
        request = Ask("x", A, "me", "lock", None, (400 + late) * SECOND)  # of its own length: no other's lease
        if late:
            acquire = store.acquire(request)
            lost = up_to(locks, acquire, wire.TXN, b"h/x\0" + A.encode())
            with pytest.raises(TimeoutError):
                acquire.throw(TimeoutError("no answer"))
        reply = driver.run(store.acquire(request), LIMIT)
        assert isinstance(reply, Grant)
        steps = store.release("x", A, reply.token, None)
        up_to(locks, steps, wire.REVOKE)
        if late:
            with pytest.raises(TimeoutError):
                steps.throw(TimeoutError("no answer"))
            driver.run(store.release("x", A, reply.token, None), LIMIT)
            with pytest.raises(Refused, match="lease not found"):
                driver._link.send(lost, LIMIT)  # type: ignore[attr-defined]
        else:
            with pytest.raises(StopIteration) as over:
                steps.throw(TimeoutError("no answer"))
            assert over.value.value is True
        assert locks.inspect("x") is None


def test_a_place_that_comes_too_late_is_not_taken(server: Etcd, namespace: str) -> None:
    with leasehold.connect(server.url, namespace=namespace) as locks:
        held = locks.lock("x").acquire()
        store, driver = locks._core.store, locks._core.driver
        driver.run(store.sessions.for_waiting(), LIMIT)  # type: ignore[attr-defined]
        steps = store.acquire(Ask("x", A, "me", "lock", None, 30_000_000, queue=True, kept=True))
        call = next(steps)
        while b"w/x\0" + b"0" not in b"".join(call.messages):  # until it takes its place
            call = steps.send(driver._link.send(call, LIMIT))  # type: ignore[attr-defined]
        steps.close()
        driver.run(store.abandon("x", A), LIMIT)
        assert not wire.read_txn(driver._link.send(call, LIMIT)).succeeded  # type: ignore[attr-defined]
        assert not keys(server, namespace, "w")
        assert held.release()


def test_of_two_fences_the_newer_counts(server: Etcd, namespace: str) -> None:
    """Two threads write the fence at once, and the older answer is read last: others can still be granted."""
    with leasehold.connect(server.url, namespace=namespace) as locks:
        kept = locks.lock("kept").acquire()
        store, driver = locks._core.store, locks._core.driver
        [lease] = store.sessions._leases.values()  # type: ignore[attr-defined]
        lease.doubt(0)
        both = [store.sessions._fence(lease) for _ in range(2)]  # type: ignore[attr-defined]
        answers = [driver._link.send(next(each), LIMIT) for each in both]  # type: ignore[attr-defined]
        for each, answer in reversed(list(zip(both, answers, strict=True))):
            with pytest.raises(StopIteration):
                each.send(answer)
        assert not lease.unsure
        assert locks.lock("x").acquire(30).release()
        assert kept.valid


def test_a_fence_settles_only_what_came_before_it(server: Etcd, namespace: str) -> None:
    with leasehold.connect(server.url, namespace=namespace, ttl=LONG) as locks:
        assert locks.lock("x").acquire().release()
        store, driver = locks._core.store, locks._core.driver
        [lease] = store.sessions._leases.values()  # type: ignore[attr-defined]
        slow, fast = (store.sessions._fence(lease) for _ in range(2))  # type: ignore[attr-defined]
        late = driver._link.send(next(slow), LIMIT)  # type: ignore[attr-defined]
        driver.run(fast, LIMIT)
        lost = store.acquire(Ask("x", A, "me", "lock", None, LONG * SECOND, kept=True))
        assert next(lost).method == wire.TXN
        lost.close()  # sent after the newer fence, and not heard of
        with pytest.raises(StopIteration):
            slow.send(late)
        assert lease.unsure, "it may yet arrive"


def test_a_fence_that_somebody_has_deleted_is_made_anew(server: Etcd, namespace: str) -> None:
    with leasehold.connect(server.url, namespace=namespace) as locks:
        held = locks.lock("x").acquire()
        store, driver = locks._core.store, locks._core.driver
        waiting = driver.run(store.sessions.for_waiting(), LIMIT)  # type: ignore[attr-defined]
        for lease in store.sessions._leases.values():  # type: ignore[attr-defined]
            driver.run(store.sessions._fence(lease), LIMIT)  # type: ignore[attr-defined]
        assert waiting.fence
        assert len(keys(server, namespace, "f")) == 2
        for key in keys(server, namespace, "f"):
            delete(server, key)
        assert locks.lock("y").acquire(30).release()
        waiter = Waiter(locks, "x")
        eventually(lambda: len(keys(server, namespace, "w")) == 1)
        assert held.release()
        assert waiter.lease().release()


def test_a_place_that_comes_while_another_is_asked_for_is_found(server: Etcd, namespace: str) -> None:
    """The answer was lost and the write is late: it comes just before it is made sure that it never will."""
    with leasehold.connect(server.url, namespace=namespace) as locks:
        held = locks.lock("x").acquire()
        store, driver = locks._core.store, locks._core.driver
        request = Ask("x", A, "me", "lock", None, 30_000_000, queue=True, kept=True)
        steps = store.acquire(request)
        call = next(steps)
        while b"w/x\0" + b"0" not in b"".join(call.messages):  # until it takes its place
            call = steps.send(driver._link.send(call, LIMIT))  # type: ignore[attr-defined]
        late = call
        with pytest.raises(TimeoutError):
            steps.throw(TimeoutError("no answer"))
        assert locks.lock("other").acquire().release()  # so that the next place would be another
        again = store.acquire(request)
        fence = store.sessions.waiting.fence_key  # type: ignore[attr-defined]
        call = next(again)
        while fence not in b"".join(call.messages):
            call = again.send(driver._link.send(call, LIMIT))  # type: ignore[attr-defined]
        driver._link.send(late, LIMIT)  # type: ignore[attr-defined]
        assert isinstance(finish(locks, again, call), Busy)
        assert len(keys(server, namespace, "w")) == 1
        driver.run(store.abandon("x", A), LIMIT)
        assert not keys(server, namespace, "w")
        assert held.release()


def test_a_permit_that_was_broken_before_it_was_known_is_not_waited_for(server: Etcd, namespace: str) -> None:
    """Among several, where another's comes first."""
    with leasehold.connect(server.url, namespace=namespace) as locks:
        store, driver = locks._core.store, locks._core.driver
        other, ours = (
            Ask("s", attempt, "me", "lock", None, LONG * SECOND, 0, "semaphore", 2, 1, True, True, True)
            for attempt in (A, B)
        )
        assert isinstance(driver.run(store.acquire(other), LIMIT), Grant)
        steps = store.acquire(ours)
        call = next(steps)
        while not (result := wire.read_txn(answer := driver._link.send(call, LIMIT))).succeeded:  # type: ignore[attr-defined]
            call = steps.send(answer)
        with pytest.raises(TimeoutError):
            steps.throw(TimeoutError("no answer"))
        assert driver.run(store.interrupt("s", False), LIMIT)
        again = driver.run(store.acquire(ours), LIMIT)
        assert isinstance(again, Grant)
        assert again.token > result.revision + store._epoch  # type: ignore[attr-defined]
        for attempt in (A, B):
            assert driver.run(store.abandon("s", attempt), LIMIT)


def test_what_is_taken_over_when_the_lease_of_the_heir_has_gone(server: Etcd, namespace: str) -> None:
    with (
        leasehold.connect(server.url, namespace=namespace) as locks,
        leasehold.connect(server.url, namespace=namespace) as other,
    ):
        assert other.lock("y").acquire().release()
        [number] = other._core.store.sessions._leases  # type: ignore[attr-defined]
        ask(server.port, "lease/revoke", {"ID": str(number)})
        lease = locks.lock("x").acquire()
        heir = (state_of(lease).claim.attempt, lease.token)
        request = Ask("x", B, "me", "lock", None, 30_000_000, kept=True, heir=heir)
        reply = other._core.driver.run(other._core.store.acquire(request), LIMIT)
        assert isinstance(reply, Grant)
        assert reply.token > lease.token
        assert lease.lost.wait(20)
        assert other._core.driver.run(other._core.store.release("x", B, reply.token, None), LIMIT)


def test_a_lease_is_not_shared_without_the_key_that_tells_of_its_end(server: Etcd, namespace: str) -> None:
    """Whoever made the lease has failed before that key was there."""
    with leasehold.connect(server.url, namespace=namespace) as locks:
        steps = locks._core.store.acquire(Ask("x", A, "me", "lock", None, 30 * SECOND, kept=True))
        up_to(locks, steps, wire.TXN, b"~")
        steps.close()
        lease = locks.lock("y").acquire()
        [key] = keys(server, namespace, "s")
        assert key.endswith("~")
        assert lease.release()


def test_a_note_is_not_written_by_one_who_is_broken_meanwhile(server: Etcd, namespace: str) -> None:
    with (
        leasehold.connect(server.url, namespace=namespace) as locks,
        leasehold.connect(server.url, namespace=namespace) as other,
    ):
        lease = locks.lock("x").acquire()
        store, driver = locks._core.store, locks._core.driver
        steps = store.write_note("x", state_of(lease).claim.attempt, lease.token, "done")
        write = steps.send(driver._link.send(next(steps), LIMIT))  # type: ignore[attr-defined]
        assert write.method == wire.TXN
        assert other.break_lease("x")
        assert finish(locks, steps, write) is False
        assert driver.run(store.read_note("x"), LIMIT) is None


def test_a_lease_whose_grant_was_not_heard_starts_again(server: Etcd, namespace: str) -> None:
    """S2: it has been running since then; what is granted on it now must not be trusted for longer than it lasts."""
    with leasehold.connect(server.url, namespace=namespace) as locks:
        store, driver = locks._core.store, locks._core.driver
        request = Ask("x", A, "me", "lock", None, 6_000_000)
        steps = store.acquire(request)
        call = next(steps)
        while call.method != wire.GRANT:
            call = steps.send(driver._link.send(call, LIMIT))  # type: ignore[attr-defined]
        driver._link.send(call, LIMIT)  # type: ignore[attr-defined]
        steps.close()
        time.sleep(2.5)
        reply = driver.run(store.acquire(request), LIMIT)
        assert isinstance(reply, Grant)
        assert reply.since is not None
        [holding] = driver.run(store.inspect("x"), LIMIT)
        # etcd tells whole seconds, rounded down.
        assert holding.expires_in + 1 > reply.since + 6 - clock.now()
        driver.run(store.abandon("x", A), LIMIT)


@pytest.mark.parametrize("kept", [False, True])
def test_a_lease_that_was_refused_is_forgotten(server: Etcd, namespace: str, kept: bool) -> None:
    """Who tries again and again does not grow. One that may have been granted is known, until it has run out."""
    with leasehold.connect(server.url, namespace=namespace) as locks:
        store = locks._core.store
        books = store.sessions  # type: ignore[attr-defined]
        for code, said, known in ((7, "permission denied", 0), (14, "leader changed", 1)):
            steps = store.acquire(Ask("x", A, "me", "lock", None, 30 * SECOND, kept=kept))
            up_to(locks, steps, wire.GRANT)
            with pytest.raises(Refused):
                steps.throw(Refused(code, f"etcdserver: {said}"))
            assert len(books._asked) == known
            assert len(books._own) == (0 if kept else known)
        books._asked = {number: over - 4000 for number, over in books._asked.items()}
        books.tidy()
        assert [*books._asked, *books._own] == []


def test_a_lease_whose_grant_was_not_heard_is_refused_when_etcd_has_stretched_it(start_server: Any) -> None:
    server = start_server(Etcd, election_timeout=1500, heartbeat_interval=150)
    with leasehold.connect(server.url) as locks:
        store, driver = locks._core.store, locks._core.driver
        request = Ask("x", A, "me", "lock", None, 1_000_000)
        steps = store.acquire(request)
        call = next(steps)
        while call.method != wire.GRANT:
            call = steps.send(driver._link.send(call, LIMIT))  # type: ignore[attr-defined]
        driver._link.send(call, LIMIT)  # type: ignore[attr-defined]
        steps.close()
        with pytest.raises(StoreNotReady, match="no lease shorter than 3 s"):
            driver.run(store.acquire(request), LIMIT)
