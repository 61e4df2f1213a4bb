"""etcd's leases: who shares one, what ends with one, and how a renewal for another term finds one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
from etcd_tools import (
    LIMIT,
    LONG,
    A,
    B,
    C,
    Process,
    Waiter,
    delete,
    keys,
    lease_length,
    lease_number,
    leases_of,
    over,
    renewal,
    request,
)

import leasehold
from leasehold import StoreNotReady, StoreUnavailable, aio
from leasehold.core import clock
from leasehold.stores.etcd import threads, transport, wire
from leasehold.stores.etcd.doctor import doctor
from leasehold.stores.etcd.errors import GrpcError
from servers.etcd import Etcd, ask, b64

FULL = GrpcError(8, "etcdserver: mvcc: database space exceeded")


@pytest.fixture
def server(etcd_server: Etcd) -> Etcd:
    return etcd_server


@pytest.fixture
def process(server: Etcd, namespace: str) -> Iterator[Process]:
    process = Process(server.url, namespace)
    with process.locks:
        yield process


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """So much time passes for this process, and none for etcd."""
    now = clock.now
    monkeypatch.setattr(clock, "now", lambda: now() + seconds)


# Shared leases.


def test_many_locks_share_one_lease(server: Etcd, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "FAREWELL", 30.0)  # what can't be revoked in time is left to run out
    before = leases_of(server)
    with leasehold.connect(server.url, namespace=namespace) as locks:
        held = [locks.lock(f"n{number}").acquire() for number in range(20)]
        assert len(leases_of(server) - before) == 1
        own = [locks.lock("m", max_hold=5).acquire(), locks.lock("r", renew=False).acquire()]
        other = locks.lock("o", ttl=10).acquire()
        assert len(leases_of(server) - before) == 4
        for lease in (*held, *own, other):
            assert lease.release()
        assert not keys(server, namespace, "h")
    assert not leases_of(server) - before


def test_a_free_name_is_taken_and_given_back_in_one_transaction_each(server: Etcd, namespace: str) -> None:
    process = Process(server.url, namespace, ttl=LONG)  # so long: no renewal comes in between
    with process.locks as locks:
        assert locks.lock("x").acquire().release()
        with process.noted() as asked:
            lease = locks.lock("x").acquire()
        assert asked == [wire.TXN]
        with process.noted() as asked:
            assert lease.release()
        assert asked == [wire.TXN]
        with process.noted() as asked:
            both = locks.all_of("x", "y").acquire()
        assert asked == [wire.TXN]
        assert both.release()


def test_a_grant_on_a_shared_lease_counts_from_its_renewal(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """S2: the second holder's term must not be longer than that of the lease that it joins."""
    first = process.granted("a", A, LONG)
    time.sleep(0.3)
    began = clock.now()
    second = process.granted("b", A, LONG)
    assert first.since is not None
    assert second.since == pytest.approx(first.since, abs=0.05), "it was renewed less than 1000 s ago"
    assert second.since < began
    later(monkeypatch, 1001.0)
    began = clock.now()
    third = process.granted("c", A, LONG)
    assert third.since is not None
    assert third.since >= began, "it was renewed for this one"


def test_a_term_that_nobody_renews_ends_though_that_of_others_on_the_lease_is_renewed(
    server: Etcd, namespace: str, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease that they share does not keep it for ever."""
    kept, left = process.granted("kept", A, 8), process.granted("left", B, 8)
    assert process.renew(renewal("kept", A, kept, 8)) == ["renewed"]
    later(monkeypatch, 7.0)
    assert process.renew(renewal("kept", A, kept, 8)) == ["renewed"]
    assert len(keys(server, namespace, "h")) == 2
    later(monkeypatch, 2.0)
    assert process.renew(renewal("kept", A, kept, 8)) == ["renewed"]
    [key] = keys(server, namespace, "h")
    assert "/kept\0" in key
    assert process.release("left", B, left) is False
    assert process.release("kept", A, kept)


@pytest.mark.parametrize("several", [False, True])
def test_a_term_that_nobody_renews_ends_though_others_come_and_go(
    server: Etcd, namespace: str, process: Process, several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes has the lease that they share renewed, and none of them is held until its own renewal is due."""
    process.granted("left", B, 8)
    later(monkeypatch, 8.1)
    names = ["a", "b"] if several else ["a"]
    asks = [request(name, A, 8) for name in names]
    process.run(process.store.acquire_all(asks) if several else process.store.acquire(asks[0]))
    assert not [key for key in keys(server, namespace, "h") if "/left\0" in key]
    for name in names:
        process.run(process.store.abandon(name, A))


def test_a_lease_that_is_revoked_is_a_loss_that_is_told_at_once(server: Etcd, namespace: str) -> None:
    """Promise 6: by a push, and not only at the next renewal."""
    process = Process(server.url, namespace, ttl=60, renew_every=30)
    with process.locks as locks:
        leases = [locks.lock(name).acquire() for name in "ab"]
        process.until_listening()
        time.sleep(0.5)  # once it listens, all that is held is looked at
        ask(server.port, "lease/revoke", {"ID": lease_number(server, namespace, "a")})
        for lease in leases:
            assert lease.lost.wait(20)
        assert locks.lock("a").acquire(20).release()


@pytest.mark.parametrize("cut", [1, 2])
def test_what_is_asked_for_anew_is_not_ended_as_overdue(
    server: Etcd, namespace: str, process: Process, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1: an answer came too late, so that the term was over; it is asked for again while the keeper tidies up."""
    first = process.granted("x", A)
    later(monkeypatch, 31.0)
    tidying = process.store.renew([])
    call = next(tidying)
    for _ in range(cut - 1):  # as far as it gets before the name is asked for
        call = tidying.send(process.send(call))
    again = process.granted("x", A)
    assert again.token == first.token
    process.finish(tidying, call)
    assert keys(server, namespace, "h"), "it was granted again, and then deleted"
    assert process.release("x", A, again)


def test_what_is_overdue_and_cannot_be_ended_costs_nobody_a_renewal(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = process.granted("kept", A, 1000)
    process.granted("left", B, 1000)
    later(monkeypatch, 999.0)
    assert process.renew(renewal("kept", A, kept, 1000)) == ["renewed"]
    later(monkeypatch, 2.0)
    steps = process.store.renew([renewal("kept", A, kept, 1000)])
    process.up_to(steps, wire.RANGE)
    assert over(steps, TimeoutError("no answer")) == ["renewed"]
    assert process.release("kept", A, kept)


def test_the_ttl_is_refused_when_etcd_would_stretch_it(start_server: Any) -> None:
    server = start_server(Etcd, election_timeout=1500, heartbeat_interval=150)
    with leasehold.connect(server.url) as locks:
        for options in ({"ttl": 1}, {"ttl": 1.5}, {"ttl": 1, "renew": False}):
            with pytest.raises(StoreNotReady, match="no lease shorter than 3 s"):
                locks.lock("x", **options).acquire(30)
        assert leases_of(server) == set(), "none is left"
        locks.lock("x", ttl=2.5).acquire(30).release()  # so short that it may be over before it is given back
    assert any("3 s" in finding.message for finding in doctor(server.url))


def test_many_who_begin_at_once_share_one_lease(server: Etcd, namespace: str) -> None:
    async def crowd() -> set[str]:
        # So long: one that is asked for while another is on its way stands in for it unless that is 1000 s old.
        async with aio.connect(server.url, namespace=namespace, ttl=LONG) as locks:
            leases = await asyncio.gather(*(locks.lock(f"n{number}").acquire() for number in range(30)))
            found = leases_of(server)
            await asyncio.gather(*(lease.release() for lease in leases))
            return found

    before = leases_of(server)
    assert len(asyncio.run(crowd()) - before) == 1


def test_a_listing_asks_once_for_all_that_share_a_lease(server: Etcd, namespace: str) -> None:
    process = Process(server.url, namespace)
    with process.locks as locks:
        leases = [locks.lock(f"n{number}").acquire() for number in range(20)]
        with process.noted() as asked:
            assert len(list(locks.leases())) == 20
        assert asked.count(wire.TIME_TO_LIVE) == 1
        assert all(lease.release() for lease in leases)


def test_only_what_was_offered_outlives_its_locks(
    server: Etcd, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a lease of its own, that runs out if nobody comes; the one that it shared with others is given up."""
    monkeypatch.setattr(threads, "FAREWELL", 30.0)
    before = leases_of(server)
    with leasehold.connect(server.url, namespace=namespace) as heir:
        with leasehold.connect(server.url, namespace=namespace) as locks:
            others = [locks.lock(name).acquire() for name in "ab"]
            offered = locks.lock("x").acquire()
            text = offered.transfer()
            withdrawn = locks.lock("y").acquire()
            withdrawn.transfer()
            assert withdrawn.release()
        assert not any(lease.valid for lease in (*others, offered))
        assert len(leases_of(server) - before) == 1
        [key] = keys(server, namespace, "h")
        assert "/x\0" in key
        with heir.accept(text) as taken:
            assert taken.token > offered.token
        assert not keys(server, namespace, "h")


# Renewal for another term.


def test_renewal_beyond_the_length_of_the_lease(server: Etcd, namespace: str) -> None:
    """renew(ttl) with a longer ttl gives the holder a lease of its own; its token stays."""
    with leasehold.connect(server.url, namespace=namespace, ttl=20) as locks:
        lease = locks.lock("x").acquire()
        token = lease.token
        lease.renew(60)
        assert lease.remaining > 50
        info = locks.inspect("x")
        assert info is not None
        assert info.token == token
        assert (info.expires - info.acquired).total_seconds() > 50, "in etcd too"
        assert lease.release()
        assert not keys(server, namespace, "h")


def test_renewal_for_less_changes_the_term_and_not_the_lease(server: Etcd, namespace: str, process: Process) -> None:
    grant = process.granted("x", A, 60)
    number = lease_number(server, namespace)
    with process.noted() as asked:
        assert process.renew(renewal("x", A, grant, 20)) == ["renewed"]
    assert wire.GRANT not in asked
    assert lease_number(server, namespace) == number
    assert lease_length(server, namespace) == 60
    assert process.release("x", A, grant)


def test_a_holder_that_has_moved_is_renewed_where_it_is(server: Etcd, namespace: str, process: Process) -> None:
    grant = process.granted("x", A, 30)
    assert process.renew(renewal("x", A, grant, 60)) == ["renewed"]
    number = lease_number(server, namespace)
    for ttl in (30, 60):
        assert process.renew(renewal("x", A, grant, ttl)) == ["renewed"]
        assert lease_number(server, namespace) == number
    assert process.renew(renewal("x", A, grant, 90)) == ["renewed"]
    assert lease_length(server, namespace) == 90
    before = leases_of(server)
    assert process.release("x", A, grant)
    assert number not in leases_of(server), "it gives up the leases that it had for itself"
    assert len(before - leases_of(server)) >= 2


def test_what_has_gone_is_not_kept_by_keeping_its_lease(server: Etcd, namespace: str, process: Process) -> None:
    """Its key is deleted just when it is to be moved to a longer lease, while others stay on the one that it had."""
    gone, stays = process.granted("a", A), process.granted("b", A)
    steps = process.store.renew([renewal("a", A, gone, 60), renewal("b", A, stays, 30)])
    answer = process.send(next(steps))
    delete(server, next(key for key in keys(server, namespace, "h") if "/a\0" in key))
    assert process.finish(steps, steps.send(answer)) == ["gone", "renewed"]


@pytest.mark.parametrize("alone", [False, True])
def test_a_renewal_that_another_one_overtakes_is_no_loss(
    server: Etcd, namespace: str, process: Process, alone: bool
) -> None:
    """Its holder asks for a longer term just while the keeper renews: what the keeper has read is moved under its
    hands to a lease of its own, or from that to another."""
    grant = process.granted("x", A)
    overtaken, faster = (renewal("x", A, grant, ttl) for ttl in (60, 90))
    if alone:
        assert process.renew(overtaken) == ["renewed"]
    steps = process.store.renew([overtaken])
    answer = process.send(next(steps))
    assert process.renew(faster) == ["renewed"]
    assert process.finish(steps, steps.send(answer)) == ["renewed"]
    assert lease_length(server, namespace) == 90
    assert process.release("x", A, grant)


def moving(process: Process, steps: Any) -> wire.EtcdCall:
    """Carry out a renewal up to the transaction that moves its key to another lease."""
    call = next(steps)  # it reads
    call = steps.send(process.send(call))
    while call.method != wire.TXN:
        try:
            answer = process.send(call)
        except GrpcError as error:  # as a lease that was granted already, when a slow server was asked twice
            call = steps.throw(error)
        else:
            call = steps.send(answer)
    return call  # type: ignore[no-any-return]


def test_a_move_that_comes_too_late_moves_to_a_lease_that_is_renewed(
    server: Etcd, namespace: str, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4: a renewal got no answer; the next one has, and its term is trusted. Then the first arrives, and takes the
    holder to another lease: that has been renewed as well."""
    grant = process.granted("x", A)
    steps = process.store.renew([renewal("x", A, grant, 60)])
    late = moving(process, steps)
    steps.close()
    later(monkeypatch, 40.0)
    calls = list(calls_of(process, process.store.renew([renewal("x", A, grant, 30)])))
    [renewed] = [call for call in calls if call.method == wire.KEEP_ALIVE]
    assert wire.read_txn(process.send(late)).succeeded
    kept = {wire.read(message)[1][0] for message in renewed.messages}
    assert int(lease_number(server, namespace)) in kept
    assert process.release("x", A, grant)


def test_two_renewals_for_different_terms_cross(server: Etcd, namespace: str, process: Process) -> None:
    """The keeper's, for the term that it had, comes when the holder's, for a longer one, is done but not yet heard of:
    neither takes it to a shorter lease, or revokes the one that it is on."""
    grant = process.granted("x", A, 20)
    steps = process.store.renew([renewal("x", A, grant, 60)])
    answer = process.send(moving(process, steps))
    for _ in range(2):
        assert process.renew(renewal("x", A, grant, 20)) == ["renewed"]
    with pytest.raises(StopIteration) as stopped:
        steps.send(answer)
    assert stopped.value.value == ["renewed"]
    assert lease_length(server, namespace) >= 60
    assert process.release("x", A, grant)


def test_a_term_that_nobody_was_granted_is_not_kept(server: Etcd, namespace: str, process: Process) -> None:
    """Promise 5: a renewal for an hour failed. If its holder dies, nobody waits for that."""
    grant = process.granted("x", A)
    steps = process.store.renew([renewal("x", A, grant, 3600)])
    next(steps)
    with pytest.raises(OSError):
        steps.throw(OSError("lost"))
    assert process.renew(renewal("x", A, grant, 60)) == ["renewed"]
    assert lease_length(server, namespace) == 60
    assert process.release("x", A, grant)


def test_no_term_is_granted_on_the_strength_of_one_that_is_only_asked_for(process: Process) -> None:
    """S1: the answer to a grant is late. Another renewal asks for the same lease, hears that it is there, and hangs:
    so nobody here knows since when it has been running. Then the holder is moved to it, and the keeper renews."""
    grant = process.granted("x", A, 60)
    slow, hangs, keeps = (process.store.renew([renewal("x", A, grant, ttl)]) for ttl in (100, 100, 60))
    late = process.send(process.up_to(slow, wire.GRANT))
    with pytest.raises(GrpcError) as there:
        process.send(process.up_to(hangs, wire.GRANT))
    assert hangs.throw(there.value).method == wire.KEEP_ALIVE
    with pytest.raises(TimeoutError):
        hangs.throw(TimeoutError("no answer"))
    assert process.finish(slow, slow.send(late)) == ["renewed"]
    calls = [call.method for call in calls_of(process, keeps)]
    assert wire.KEEP_ALIVE in calls, "it is trusted, and may end at any time"
    assert process.release("x", A, grant)


def test_a_term_that_is_chosen_while_the_keeper_renews(server: Etcd, namespace: str) -> None:
    """The keeper looks at what is held when its listener is up, which is about when this is asked for."""
    for number in range(30):
        with leasehold.connect(server.url, namespace=f"{namespace}-{number}", ttl=20) as locks:
            lease = locks.lock("x").acquire()
            lease.renew(60)
            info = locks.inspect("x")
            assert info is not None
            assert (info.expires - info.acquired).total_seconds() > 50
            assert lease.release()


@pytest.mark.parametrize("error", [FULL, TimeoutError("no answer")])
def test_a_move_that_fails_leaves_the_others_alone(process: Process, error: Exception) -> None:
    """The server is full, say: what needs no write is renewed as ever."""
    grants = {name: process.granted(name, A, 1000) for name in "abc"}
    terms = {"a": 2000, "b": 2000, "c": 1000}
    steps = process.store.renew([renewal(name, A, grants[name], ttl) for name, ttl in terms.items()])
    moving(process, steps)
    try:
        call = steps.throw(error)
    except StopIteration as stopped:
        outcomes = stopped.value
    else:
        outcomes = process.finish(steps, call)
    first, second, third = outcomes
    assert isinstance(first, StoreUnavailable)
    assert str(error) in str(first)
    assert third == "renewed"
    assert second == "renewed"
    for name, grant in grants.items():
        assert process.release(name, A, grant)


def test_renewals_are_urgent_and_nothing_else(process: Process) -> None:
    """They have a connection of their own. Of the rest only a new acquire is patient: it takes its turn after other new
    ones, and delays neither a release nor a claim."""
    grant = process.granted("x", A)
    process.queued("x", B)
    process.transport.calls.clear()
    steps = process.store.renew([renewal("x", A, grant, 60)])
    call = next(steps)
    with contextlib.suppress(StopIteration):
        while True:
            assert call.urgent
            call = steps.send(process.send(call))
    claim = process.store.acquire(request("x", B, queue=True))
    for steps in (process.store.release("x", A, grant.token, None), claim, process.store.abandon("x", B)):
        for call in calls_of(process, steps):
            assert not call.urgent
            assert not call.patient
    both = process.store.acquire_all([request("y", C), request("z", C)])
    for steps in (process.store.acquire(request("x", C)), both):
        for call in calls_of(process, steps):
            assert not call.urgent
            assert call.patient
    for name in "xyz":
        process.run(process.store.abandon(name, C))


def calls_of(process: Process, steps: Any) -> Iterator[wire.EtcdCall]:
    """Each of its calls, before it is sent."""
    with contextlib.suppress(StopIteration):
        call = next(steps)
        while True:
            yield call
            call = steps.send(process.send(call))


def test_new_acquires_delay_neither_a_release_nor_a_claim(
    server: Etcd, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only one that may be under way hangs."""
    monkeypatch.setattr(transport, "AT_ONCE", 1)
    process = Process(server.url, namespace)
    with process.locks:
        grant = process.granted("x", A)
        process.queued("x", B)
        ours = process.transport.transport
        turn = ours._new.take(LIMIT)
        with pytest.raises(TimeoutError):
            ours.send(next(process.store.acquire(request("y", C))), 0.1)
        assert process.release("x", A, grant)
        claimed = process.granted("x", B, queue=True)
        ours._new.over(turn)
        assert process.release("x", B, claimed)


def test_new_leases_of_a_waiter_and_a_holder_are_told_apart(process: Process, server: Etcd, namespace: str) -> None:
    """A waiter whose lease ran out queues again; who holds the name is not touched."""
    grant = process.granted("x", A)
    waiter = Waiter(process.locks, "x")
    while not (places := keys(server, namespace, "w")):
        time.sleep(0.01)
    [found] = ask(server.port, "kv/range", {"key": b64(places[0])})["kvs"]
    ask(server.port, "lease/revoke", {"ID": found["lease"]})
    while not keys(server, namespace, "w"):
        time.sleep(0.01)
    assert process.release("x", A, grant)
    assert waiter.lease().release()
