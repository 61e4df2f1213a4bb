"""Writes to etcd of unknown outcome: what was given up and arrives all the same, and what happens in between."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from etcd_tools import LONG, A, B, Process, Waiter, delete, keys, leases_of, over, request

from leasehold import StoreNotReady
from leasehold.core import clock
from leasehold.core.protocol import Busy, Grant
from leasehold.stores.etcd import wire
from leasehold.stores.etcd.errors import GrpcError
from leasehold.testing.handles import eventually
from servers.etcd import Etcd, ask

NO_ANSWER = TimeoutError("no answer")
PLACE = b"w/x\0" + b"0"


@pytest.fixture
def server(etcd_server: Etcd) -> Etcd:
    return etcd_server


@pytest.fixture
def process(server: Etcd, namespace: str) -> Iterator[Process]:
    process = Process(server.url, namespace)
    with process.locks:
        yield process


@pytest.fixture
def other(server: Etcd, namespace: str) -> Iterator[Process]:
    process = Process(server.url, namespace)
    with process.locks:
        yield process


def succeeded(process: Process, call: wire.EtcdCall) -> bool:
    return wire.read_txn(process.send(call)).succeeded


def test_a_write_that_comes_too_late_changes_nothing(process: Process) -> None:
    """S4: the acquire was sent, given up and abandoned; then it arrives. Its lease is alive, but it must not hold."""
    kept = process.granted("kept", B, LONG)  # keeps the shared lease alive
    steps = process.store.acquire(request("x", A, LONG))
    late = next(steps)
    assert late.method == wire.TXN
    steps.close()  # nobody has heard anything
    process.run(process.store.abandon("x", A))
    assert not succeeded(process, late)
    assert process.locks.inspect("x") is None
    assert process.locks.lock("x", ttl=LONG).acquire(0).release()
    assert process.release("kept", B, kept)


def test_a_write_on_a_lease_of_its_own_that_comes_too_late(process: Process) -> None:
    """S4: it was given up, and so was the revocation that is to stop it. It is stopped when the keeper tries again."""
    steps: Any = process.store.acquire(request("x", A, 300, kept=False))
    late = process.up_to(steps, wire.TXN, b"h/x\0" + A.encode())
    with pytest.raises(TimeoutError):
        steps.throw(NO_ANSWER)
    steps = process.store.abandon("x", A)
    process.up_to(steps, wire.REVOKE)
    with pytest.raises(TimeoutError):
        steps.throw(NO_ANSWER)
    process.run(process.store.abandon("x", A))
    with pytest.raises(GrpcError, match="lease not found"):
        process.send(late)
    assert process.locks.inspect("x") is None
    assert process.locks.lock("x").acquire(0).release()


@pytest.mark.parametrize("late", [False, True])
def test_a_release_whose_revocation_gets_no_answer(process: Process, late: bool) -> None:
    """It has happened; unless an earlier acquire is still on its way, which only the revocation can stop."""
    mine = request("x", A, 400, kept=False)
    if late:
        acquire = process.store.acquire(mine)
        lost = process.up_to(acquire, wire.TXN, b"h/x\0" + A.encode())
        with pytest.raises(TimeoutError):
            acquire.throw(NO_ANSWER)
    reply = process.run(process.store.acquire(mine))
    assert isinstance(reply, Grant)
    steps = process.store.release("x", A, reply.token, None)
    process.up_to(steps, wire.REVOKE)
    if late:
        with pytest.raises(TimeoutError):
            steps.throw(NO_ANSWER)
        process.run(process.store.release("x", A, reply.token, None))
        with pytest.raises(GrpcError, match="lease not found"):
            process.send(lost)
    else:
        assert over(steps, NO_ANSWER) is True
    assert process.locks.inspect("x") is None


def test_a_place_that_comes_too_late_is_not_taken(server: Etcd, namespace: str, process: Process) -> None:
    held = process.locks.lock("x").acquire()
    process.queued("x", B)  # so that the waiters have a lease already
    process.run(process.store.abandon("x", B))
    steps = process.store.acquire(request("x", A, queue=True))
    late = process.up_to(steps, wire.TXN, PLACE)
    steps.close()
    process.run(process.store.abandon("x", A))
    assert not succeeded(process, late)
    assert not keys(server, namespace, "w")
    assert held.release()


def given_up(process: Process, name: str, attempt: str, ttl: float = LONG) -> wire.EtcdCall:
    """An acquire on a shared lease that gets no answer. Its write."""
    steps = process.store.acquire(request(name, attempt, ttl))
    late = process.up_to(steps, wire.TXN, attempt.encode())
    steps.close()
    return late


def test_of_two_fences_the_newer_counts(process: Process) -> None:
    """Two threads write the fence at once, and the older answer is read last: others can still be granted."""
    kept = process.granted("kept", B, LONG)
    late = given_up(process, "x", A)
    both = [process.store.abandon("x", A) for _ in range(2)]
    fences = [process.up_to(each, wire.TXN, b"f/") for each in both]
    answers = [process.send(fence) for fence in fences]
    for each, answer in reversed(list(zip(both, answers, strict=True))):
        process.finish(each, each.send(answer))
    assert not succeeded(process, late)
    assert process.locks.lock("x", ttl=LONG).acquire(30).release()
    assert process.release("kept", B, kept)


def test_a_fence_settles_only_what_came_before_it(process: Process) -> None:
    process.granted("kept", B, LONG)
    given_up(process, "y", A)
    slow, fast = (process.store.abandon("y", A) for _ in range(2))
    old = process.send(process.up_to(slow, wire.TXN, b"f/"))
    process.run(fast)
    late = given_up(process, "x", A)  # sent after the newer fence
    process.finish(slow, slow.send(old))
    process.run(process.store.abandon("x", A))
    assert not succeeded(process, late), "it was fenced off once more"


def test_a_fence_that_somebody_has_deleted_is_made_anew(server: Etcd, namespace: str, process: Process) -> None:
    held = process.locks.lock("x", ttl=LONG).acquire()
    process.queued("x", B)
    given_up(process, "y", A)
    steps = process.store.acquire(request("x", A, queue=True))
    process.up_to(steps, wire.TXN, PLACE)
    steps.close()
    process.run(process.store.abandon("y", A))
    for attempt in (A, B):
        process.run(process.store.abandon("x", attempt))
    assert len(keys(server, namespace, "f")) == 2
    for key in keys(server, namespace, "f"):
        delete(server, key)
    assert process.locks.lock("y", ttl=LONG).acquire(30).release()
    waiter = Waiter(process.locks, "x")
    eventually(lambda: len(keys(server, namespace, "w")) == 1)
    assert held.release()
    assert waiter.lease().release()


def test_a_place_that_comes_while_another_is_asked_for_is_found(server: Etcd, namespace: str, process: Process) -> None:
    """The answer was lost and the write is late: it comes just before it is made sure that it never will."""
    held = process.locks.lock("x").acquire()
    mine = request("x", A, queue=True)
    steps = process.store.acquire(mine)
    late = process.up_to(steps, wire.TXN, PLACE)
    with pytest.raises(TimeoutError):
        steps.throw(NO_ANSWER)
    assert process.locks.lock("other").acquire().release()  # so that the next place would be another
    again = process.store.acquire(mine)
    call = process.up_to(again, wire.TXN, b"f/")
    process.send(late)
    assert isinstance(process.finish(again, call), Busy)
    assert len(keys(server, namespace, "w")) == 1
    process.run(process.store.abandon("x", A))
    assert not keys(server, namespace, "w")
    assert held.release()


def test_a_permit_that_was_broken_before_it_was_known_is_not_waited_for(process: Process) -> None:
    """Among several, where another's comes first."""
    shape = {"shape": "semaphore", "limit": 2, "queue": True}
    process.granted("s", A, LONG, **shape)
    ours = request("s", B, LONG, **shape)
    steps = process.store.acquire(ours)
    call = next(steps)
    while not (result := wire.read_txn(answer := process.send(call))).succeeded:
        call = steps.send(answer)
    with pytest.raises(TimeoutError):
        steps.throw(NO_ANSWER)
    [_, first] = process.run(process.store.inspect("s"))
    assert result.succeeded
    assert process.run(process.store.interrupt("s", False))
    again = process.run(process.store.acquire(ours))
    assert isinstance(again, Grant)
    assert again.token > first.token
    for attempt in (A, B):
        assert process.run(process.store.abandon("s", attempt))


def test_what_is_taken_over_when_the_lease_of_the_heir_has_gone(
    server: Etcd, namespace: str, process: Process, other: Process
) -> None:
    before = leases_of(server)
    assert other.locks.lock("y").acquire().release()
    [number] = leases_of(server) - before
    ask(server.port, "lease/revoke", {"ID": number})
    grant = process.granted("x", A)
    reply = other.granted("x", B, heir=(A, grant.token))
    assert reply.token > grant.token
    assert process.release("x", A, grant) is False
    assert other.release("x", B, reply)


def test_a_lease_is_not_shared_without_the_key_that_tells_of_its_end(
    server: Etcd, namespace: str, process: Process
) -> None:
    """Whoever made the lease has failed before that key was there."""
    steps = process.store.acquire(request("x", A))
    process.up_to(steps, wire.TXN, b"~")
    steps.close()
    lease = process.locks.lock("y").acquire()
    [key] = keys(server, namespace, "s")
    assert key.endswith("~")
    assert lease.release()


def test_a_note_is_not_written_by_one_who_is_broken_meanwhile(process: Process, other: Process) -> None:
    grant = process.granted("x", A)
    steps = process.store.write_note("x", A, grant.token, "done")
    write = steps.send(process.send(next(steps)))
    assert write.method == wire.TXN
    assert other.locks.break_lease("x")
    assert process.finish(steps, write) is False
    assert process.run(process.store.read_note("x")) is None


def test_a_lease_whose_grant_was_not_heard_starts_again(process: Process) -> None:
    """S2: it has been running since then; what is granted on it now must not be trusted for longer than it lasts."""
    steps = process.store.acquire(request("x", A, 6, kept=False))
    process.send(process.up_to(steps, wire.GRANT))
    steps.close()
    time.sleep(2.5)
    reply = process.granted("x", A, 6, kept=False)
    assert reply.since is not None
    [holding] = process.run(process.store.inspect("x"))
    # etcd tells whole seconds, rounded down.
    assert holding.expires_in + 1 > reply.since + 6 - clock.now()
    process.run(process.store.abandon("x", A))


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(("code", "said", "known"), [(7, "permission denied", 0), (14, "leader changed", 1)])
def test_a_lease_that_was_refused_is_forgotten(process: Process, kept: bool, code: int, said: str, known: int) -> None:
    """Who tries again and again does not grow. One that may have been granted is revoked when all is closed."""
    steps = process.store.acquire(request("x", A, kept=kept))
    process.up_to(steps, wire.GRANT)
    with pytest.raises(GrpcError):
        steps.throw(GrpcError(code, f"etcdserver: {said}"))
    farewell = process.store.farewell()
    revoked = 0
    for call in farewell:
        assert call.method == wire.REVOKE
        revoked += 1
        break
    farewell.close()
    assert revoked == known


def test_a_lease_whose_grant_was_not_heard_is_refused_when_etcd_has_stretched_it(start_server: Any) -> None:
    process = Process(start_server(Etcd, election_timeout=1500, heartbeat_interval=150).url, "")
    with process.locks:
        mine = request("x", A, 1, kept=False)
        steps = process.store.acquire(mine)
        process.send(process.up_to(steps, wire.GRANT))
        steps.close()
        with pytest.raises(StoreNotReady, match="no lease shorter than 3 s"):
            process.run(process.store.acquire(mine))
