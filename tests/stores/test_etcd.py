"""What is peculiar to etcd: its leases, waiters that are passed over, keys deleted by hand, a full server."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from etcd_tools import LIMIT, LONG, A, B, Waiter, delete, deletion, finish, keys, without_listener

import leasehold
from leasehold import LeaseLost, StoreNotReady, StoreUnavailable, aio
from leasehold.core import clock, timing
from leasehold.core.lease import state_of
from leasehold.core.protocol import SECOND, Ask, Busy, Grant, Renewal
from leasehold.stores.etcd import asking, renewing, sessions, tasks, threads, wire
from leasehold.stores.etcd.asking import Watch
from leasehold.stores.etcd.doctor import doctor
from leasehold.stores.etcd.errors import Refused
from leasehold.stores.etcd.watches import Watches
from leasehold.testing.handles import eventually
from servers.base import NotReady
from servers.etcd import Etcd, ask, b64
from servers.proxy import Proxy


@pytest.fixture
def server(etcd_server: Etcd) -> Etcd:
    return etcd_server


# Leases.


def leases_of(server: Etcd) -> set[str]:
    """The leases that it has; those that other tests have left may end at any time."""
    return {each["ID"] for each in ask(server.port, "lease/leases", {}).get("leases", [])}


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


def noted(locks: leasehold.Locks) -> list[bytes]:
    """The methods of the calls that are made from now on, by this thread: the keeper looks at what is held as soon as
    it listens."""
    link = locks._core.driver._link  # type: ignore[attr-defined]
    send, asked, here = link.send, [], threading.current_thread()

    def send_noted(call: wire.Call, limit: float) -> list[bytes]:
        if threading.current_thread() is here:
            asked.append(call.method)
        return send(call, limit)  # type: ignore[no-any-return]

    link.send = send_noted
    return asked


def test_a_free_name_is_taken_and_given_back_in_one_transaction_each(server: Etcd, namespace: str) -> None:
    with leasehold.connect(server.url, namespace=namespace, ttl=LONG) as locks:  # so long: no renewal comes in between
        assert locks.lock("x").acquire().release()
        asked = noted(locks)
        lease = locks.lock("x").acquire()
        assert asked == [wire.TXN]
        assert lease.release()
        assert asked == [wire.TXN, wire.TXN]
        both = locks.all_of("x", "y").acquire()
        assert asked == [wire.TXN] * 3
        assert both.release()


def test_a_grant_on_a_shared_lease_counts_from_its_renewal(server: Etcd, namespace: str) -> None:
    """S2: the second holder's term must not be longer than that of the lease that it joins."""
    with leasehold.connect(server.url, namespace=namespace, ttl=LONG) as locks:
        without_listener(locks)
        assert locks.lock("a").acquire().release()  # connected: else the first counts from before that
        first = locks.lock("a").acquire()
        time.sleep(0.3)
        second = locks.lock("b").acquire()
        assert second._deadline == pytest.approx(first._deadline, abs=0.05), "it was renewed less than 1000 s ago"
        [lease] = locks._core.store.sessions._leases.values()  # type: ignore[attr-defined]
        lease.refreshed -= 1000.0
        third = locks.lock("c").acquire()
        assert third._deadline > first._deadline + 0.25, "it was renewed for this one"


def test_a_lease_that_nobody_renews_ends_though_others_do(server: Etcd, namespace: str) -> None:
    """Its term is over by its own deadline: the lease that it shares does not keep it for ever."""
    with leasehold.connect(server.url, namespace=namespace, ttl=8, renew_every=0.5) as locks:
        kept = locks.lock("kept").acquire()
        lost = locks.lock("lost").acquire()
        # As if it had been given up as lost, while its body goes on.
        locks._core.leases.pop(state_of(lost).claim.attempt)
        with leasehold.connect(server.url, namespace=namespace) as other:
            taken = other.lock("lost").acquire(60)
        assert taken.token > lost.token
        assert kept.valid


@pytest.mark.parametrize("several", [False, True])
def test_a_lease_that_nobody_renews_ends_though_others_come_and_go(server: Etcd, namespace: str, several: bool) -> None:
    """Whoever comes has the lease that they share renewed, and none of them is held until its own renewal is due."""
    with (
        leasehold.connect(server.url, namespace=namespace, ttl=6) as locks,
        leasehold.connect(server.url, namespace=namespace) as other,
    ):
        lost = locks.lock("lost").acquire()
        # As if it had been given up as lost, while its body goes on.
        locks._core.leases.pop(state_of(lost).claim.attempt)
        waiter = Waiter(other, "lost")
        passing = locks.all_of("a", "b") if several else locks.lock("a")
        ends = time.monotonic() + 60
        while not waiter.leases and time.monotonic() < ends:
            assert passing.acquire(20).release()
        taken = waiter.lease(0)
        assert not lost.valid
        assert taken.token > lost.token
        assert taken.release()


def test_a_lease_that_is_revoked_is_a_loss_that_is_told_at_once(server: Etcd, namespace: str) -> None:
    """Promise 6: by a push, and not only at the next renewal."""
    with leasehold.connect(server.url, namespace=namespace, ttl=60, renew_every=30) as locks:
        leases = [locks.lock(name).acquire() for name in "ab"]
        eventually(lambda: locks._core.driver._ear is not None)  # type: ignore[attr-defined]
        time.sleep(0.5)  # once it listens, all that is held is looked at
        [number] = locks._core.store.sessions._leases  # type: ignore[attr-defined]
        ask(server.port, "lease/revoke", {"ID": str(number)})
        for lease in leases:
            assert lease.lost.wait(20)
        assert locks.lock("a").acquire(20).release()


def test_what_is_asked_for_anew_is_not_ended_as_overdue(server: Etcd, namespace: str) -> None:
    """S1: an answer came too late, so that the term was over; it is asked for again while the keeper tidies up."""
    ttl = 30_000_000
    with leasehold.connect(server.url, namespace=namespace, ttl=30) as locks:
        store, driver = locks._core.store, locks._core.driver
        for cut in (1, 2):
            request = Ask("x", f"{cut:032x}", "me", "lock", None, ttl, kept=True)
            first = driver.run(store.acquire(request), LIMIT)
            assert isinstance(first, Grant)
            held = store.sessions.held[request.attempt]  # type: ignore[attr-defined]
            store.sessions.held[request.attempt] = held._replace(until=0.0)  # type: ignore[attr-defined]
            tidying = store.renew([])
            call = next(tidying)
            for _ in range(cut - 1):  # as far as it gets before the name is asked for
                call = tidying.send(driver._link.send(call, LIMIT))  # type: ignore[attr-defined]
            again = driver.run(store.acquire(request), LIMIT)
            assert isinstance(again, Grant)
            assert again.token == first.token
            with contextlib.suppress(StopIteration):
                while True:
                    call = tidying.send(driver._link.send(call, LIMIT))  # type: ignore[attr-defined]
            assert keys(server, namespace, "h"), "it was granted again, and then deleted"
            assert driver.run(store.release("x", request.attempt, again.token, again.hint), LIMIT)


def test_the_ttl_is_refused_when_etcd_would_stretch_it(start_server: Any) -> None:
    server = start_server(Etcd, election_timeout=1500, heartbeat_interval=150)
    with leasehold.connect(server.url) as locks:
        for options in ({"ttl": 1}, {"ttl": 1.5}, {"ttl": 1, "renew": False}):
            with pytest.raises(StoreNotReady, match="no lease shorter than 3 s"):
                locks.lock("x", **options).acquire(30)
        books = locks._core.store.sessions  # type: ignore[attr-defined]
        assert [*books._asked, *books._own] == []
        locks.lock("x", ttl=2.5).acquire(30).release()  # so short that it may be over before it is given back
    assert any("3 s" in finding.message for finding in doctor(server.url))


def test_renewal_beyond_the_length_of_the_lease(server: Etcd, namespace: str) -> None:
    """renew(ttl) with another ttl gives the holder a lease of its own; its token stays."""
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


def kept(server: Etcd, namespace: str, name: str) -> list[Any]:
    """The keys of a name's holders."""
    found = [key for key in keys(server, namespace, "h") if f"/{name}\0" in key]
    return [each for key in found for each in ask(server.port, "kv/range", {"key": b64(key)})["kvs"]]


def lease_of(server: Etcd, namespace: str, name: str = "x") -> int:
    """How long the lease of the only holder is."""
    [found] = kept(server, namespace, name)
    return int(ask(server.port, "lease/timetolive", {"ID": found["lease"]})["grantedTTL"])


def test_renewal_for_less_gets_a_shorter_lease(server: Etcd, namespace: str) -> None:
    """Promise 5: else, if it died, the name would be held for as long as the ttl that it had before. It leaves the
    lease that others keep alive at once; what it was promised there is not cut short."""
    with leasehold.connect(server.url, namespace=namespace, ttl=16, renew_every=0.3) as locks:
        promised = time.monotonic() + 16  # at least: it counts from a time after this
        others, lease = locks.lock("y").acquire(), locks.lock("x").acquire()
        token = lease.token
        lease.renew(8)
        [shared] = {each["lease"] for each in kept(server, namespace, "y")}
        assert [each["lease"] for each in kept(server, namespace, "x")] != [shared]
        while (length := lease_of(server, namespace, "x")) > 8:
            assert length <= 16
            time.sleep(0.05)
        assert time.monotonic() > promised - 8
        assert lease.valid
        assert lease.token == token
        lease.renew(60)
        # The keeper, when it renews at the same time, takes it to one for what is left of that term by then.
        assert 30 < lease_of(server, namespace, "x") <= 60
        assert lease.release()
        assert others.release()


def test_what_has_gone_is_not_kept_by_keeping_its_lease(server: Etcd, namespace: str) -> None:
    """Its key is deleted just when it is to be moved to a longer lease, while others stay on the one that it had."""
    with leasehold.connect(server.url, namespace=namespace) as locks:
        without_listener(locks)
        leases = [locks.lock(name).acquire() for name in "ab"]
        store, driver = locks._core.store, locks._core.driver
        terms = (60_000_000, 30_000_000)
        asks = [
            Renewal(lease.name, state_of(lease).claim.attempt, lease.token, ttl)
            for lease, ttl in zip(leases, terms, strict=True)
        ]
        steps = store.renew(asks)
        answer = driver._link.send(next(steps), LIMIT)  # type: ignore[attr-defined]
        delete(server, next(key for key in keys(server, namespace, "h") if "/a\0" in key))
        assert finish(locks, steps, steps.send(answer)) == ["gone", "renewed"]


@pytest.mark.parametrize("alone", [False, True])
def test_a_renewal_that_another_one_overtakes_is_no_loss(server: Etcd, namespace: str, alone: bool) -> None:
    """Its holder asks for a longer term just while the keeper renews: what the keeper has read is moved under its
    hands to a lease of its own, or from that to another."""
    with leasehold.connect(server.url, namespace=namespace) as locks:
        store, driver = locks._core.store, locks._core.driver
        reply = driver.run(store.acquire(Ask("x", A, "me", "lock", None, 30 * SECOND, kept=True)), LIMIT)
        assert isinstance(reply, Grant)
        overtaken, faster = ([Renewal("x", A, reply.token, ttl * SECOND)] for ttl in (60, 90))
        if alone:
            assert driver.run(store.renew(overtaken), LIMIT) == ["renewed"]
        steps = store.renew(overtaken)
        answer = driver._link.send(next(steps), LIMIT)  # type: ignore[attr-defined]
        assert driver.run(store.renew(faster), LIMIT) == ["renewed"]
        assert finish(locks, steps, steps.send(answer)) == ["renewed"]
        assert lease_of(server, namespace) == 90
        assert driver.run(store.release("x", A, reply.token, None), LIMIT)


def moving(driver: Any, steps: Any) -> wire.Call:
    """Carry out a renewal up to the transaction that moves its key to another lease."""
    call = next(steps)  # it reads
    first = True
    while first or call.method != wire.TXN:
        first = False
        try:
            answer = driver._link.send(call, LIMIT)
        except Refused as error:  # as a lease that was granted already, when a slow server was asked twice
            call = steps.throw(error)
        else:
            call = steps.send(answer)
    return call  # type: ignore[no-any-return]


def test_a_move_that_comes_too_late_moves_nothing(server: Etcd, namespace: str) -> None:
    """S4: a renewal got no answer; the next one has, and its term is trusted. Then the first arrives, and would take
    the holder to a lease that nobody renews."""
    with leasehold.connect(server.url, namespace=namespace) as locks:
        store, driver = locks._core.store, locks._core.driver
        reply = driver.run(store.acquire(Ask("x", A, "me", "lock", None, 30 * SECOND, kept=True)), LIMIT)
        assert isinstance(reply, Grant)
        longer, before = (Renewal("x", A, reply.token, ttl * SECOND) for ttl in (60, 30))
        steps = store.renew([longer])
        late = moving(driver, steps)
        steps.close()
        assert driver.run(store.renew([before]), LIMIT) == ["renewed"]
        assert not wire.read_txn(driver._link.send(late, LIMIT)).succeeded  # type: ignore[attr-defined]
        assert not store.sessions._moving  # type: ignore[attr-defined]
        assert driver.run(store.release("x", A, reply.token, None), LIMIT)


def test_two_renewals_for_different_terms_cross(server: Etcd, namespace: str) -> None:
    """The keeper's, for the term that it had, comes when the holder's, for a longer one, is done but not yet heard of:
    neither takes it to a shorter lease, or revokes the one that it is on."""
    with leasehold.connect(server.url, namespace=namespace) as locks:
        store, driver = locks._core.store, locks._core.driver
        reply = driver.run(store.acquire(Ask("x", A, "me", "lock", None, 20 * SECOND, kept=True)), LIMIT)
        assert isinstance(reply, Grant)
        longer, before = (Renewal("x", A, reply.token, ttl * SECOND) for ttl in (60, 20))
        began = clock.now()
        steps = store.renew([longer])
        answer = driver._link.send(moving(driver, steps), LIMIT)  # type: ignore[attr-defined]
        assert driver.run(store.renew([before]), LIMIT) == ["renewed"]
        assert driver.run(store.renew([before]), LIMIT) == ["renewed"]
        with pytest.raises(StopIteration) as over:
            steps.send(answer)
        assert over.value.value == ["renewed"]
        assert lease_of(server, namespace) >= 60 - (clock.now() - began), "what is left of the longer term, at least"
        assert driver.run(store.release("x", A, reply.token, None), LIMIT)


def test_a_move_that_ends_while_another_reads(server: Etcd, namespace: str) -> None:
    """The keeper moves it to a shorter lease, for what was promised is over; its holder, who asks for more just then,
    has read where it was before: that one is not the lease to be kept."""
    with leasehold.connect(server.url, namespace=namespace) as locks:
        store, driver = locks._core.store, locks._core.driver
        reply = driver.run(store.acquire(Ask("x", A, "me", "lock", None, 60 * SECOND, kept=True)), LIMIT)
        assert isinstance(reply, Grant)
        held = store.sessions.held[A]  # type: ignore[attr-defined]
        store.sessions.held[A] = held._replace(promised=0.0)  # type: ignore[attr-defined]
        shorter, longer = (Renewal("x", A, reply.token, ttl * SECOND) for ttl in (20, 60))
        keeper, holder = store.renew([shorter]), store.renew([longer])
        call = moving(driver, keeper)
        answer = driver._link.send(next(holder), LIMIT)  # type: ignore[attr-defined]
        with pytest.raises(StopIteration) as over:
            keeper.send(driver._link.send(call, LIMIT))  # type: ignore[attr-defined]
        assert over.value.value == ["renewed"]
        assert lease_of(server, namespace) == 20
        assert finish(locks, holder, holder.send(answer)) == ["renewed"]
        assert lease_of(server, namespace) == 60
        assert driver.run(store.release("x", A, reply.token, None), LIMIT)


def test_a_term_that_nobody_was_granted_is_not_kept(server: Etcd, namespace: str) -> None:
    """Promise 5: a renewal for an hour failed. If its holder dies, nobody waits for that."""
    with leasehold.connect(server.url, namespace=namespace) as locks:
        store, driver = locks._core.store, locks._core.driver
        reply = driver.run(store.acquire(Ask("x", A, "me", "lock", None, 30 * SECOND, kept=True)), LIMIT)
        assert isinstance(reply, Grant)
        hour, more = (Renewal("x", A, reply.token, ttl * SECOND) for ttl in (3600, 60))
        steps = store.renew([hour])
        next(steps)
        with pytest.raises(OSError):
            steps.throw(OSError("lost"))
        assert driver.run(store.renew([more]), LIMIT) == ["renewed"]
        assert lease_of(server, namespace) == 60
        assert driver.run(store.release("x", A, reply.token, None), LIMIT)


def test_two_moves_from_the_same_place_are_two() -> None:
    """One is refused; the other may still arrive."""
    books = sessions.Sessions(b"", b"")
    books.moves(A, 7)
    books.moves(A, 7)
    books.refused(A, 7)
    assert books.may_move(A)
    books.moves(A, 8)
    books.answered(A, 7)
    assert books.may_move(A), "which has read what that one wrote"
    books.answered(A, 8)
    assert not books.may_move(A)


def test_a_move_that_is_refused_leaves_the_others_alone(server: Etcd, namespace: str) -> None:
    """The server is full, say: what needs no write is renewed as ever."""
    with leasehold.connect(server.url, namespace=namespace, ttl=1000) as locks:
        without_listener(locks)
        store, driver = locks._core.store, locks._core.driver
        leases = [locks.lock(name).acquire() for name in "ab"]
        asks = [
            Renewal(lease.name, state_of(lease).claim.attempt, lease.token, ttl * SECOND)
            for lease, ttl in zip(leases, (2000, 1000), strict=True)
        ]
        steps = store.renew(asks)
        call = moving(driver, steps)
        assert call.method == wire.TXN
        with pytest.raises(StopIteration) as over:
            steps.throw(Refused(8, "etcdserver: mvcc: database space exceeded"))
        refused, renewed = over.value.value
        assert isinstance(refused, StoreUnavailable)
        assert renewed == "renewed"
        for lease in leases:
            assert lease.release()


def test_no_term_is_granted_on_the_strength_of_one_that_is_only_asked_for(server: Etcd, namespace: str) -> None:
    """S1: it has a lease of its own that is longer than its ttl and has run down. Its holder asks for much more, and
    hangs; the keeper renews for less than that. The first then fails, so that it kept nothing alive."""
    with leasehold.connect(server.url, namespace=namespace) as locks:
        store, driver = locks._core.store, locks._core.driver
        reply = driver.run(store.acquire(Ask("x", A, "me", "lock", None, 100 * SECOND, kept=True)), LIMIT)
        assert isinstance(reply, Grant)
        long, more, usual = ([Renewal("x", A, reply.token, ttl * SECOND)] for ttl in (200, 1000, 100))
        assert driver.run(store.renew(long), LIMIT) == ["renewed"]
        held = store.sessions.held[A]  # type: ignore[attr-defined]
        store.sessions.held[A] = held._replace(promised=held.promised - 150)  # type: ignore[attr-defined]
        store.sessions._leases[held.lease].refreshed -= 150  # type: ignore[attr-defined]
        hangs = store.renew(more)
        next(hangs)
        assert driver.run(store.renew(usual), LIMIT) == ["renewed"]
        with pytest.raises(OSError, match="lost"):
            hangs.throw(OSError("lost"))
        [key] = kept(server, namespace, "x")
        assert store.sessions.lasts(int(key["lease"]), 99 * SECOND), "it ends before that term does"  # type: ignore[attr-defined]
        assert driver.run(store.release("x", A, reply.token, None), LIMIT)


def asks_for(leases: list[leasehold.Lease], *ttls: int) -> list[Renewal]:
    """A renewal of each, in seconds; of the rest as of the last."""
    terms = [*ttls, *[ttls[-1]] * (len(leases) - len(ttls))]
    return [
        Renewal(lease.name, state_of(lease).claim.attempt, lease.token, ttl * SECOND)
        for lease, ttl in zip(leases, terms, strict=True)
    ]


def test_many_that_could_move_are_renewed_where_they_are(server: Etcd, namespace: str) -> None:
    """Each move takes some calls, one after the other, and meanwhile all others wait to hear that they are renewed."""
    with leasehold.connect(server.url, namespace=namespace, ttl=1000) as locks:
        without_listener(locks)
        store, driver = locks._core.store, locks._core.driver
        leases = [locks.lock(f"n{number}").acquire() for number in range(3 * renewing.MOVES)]
        asked = noted(locks)
        for turn in (1, 2, 3, 4):
            assert driver.run(store.renew(asks_for(leases, 500)), LIMIT) == ["renewed"] * len(leases)
            assert asked.count(wire.GRANT) <= 2 * turn * renewing.MOVES
        [shared] = store.sessions._by_length.values()  # type: ignore[attr-defined]
        on_it = [lease for lease in leases if store.sessions.held[state_of(lease).claim.attempt].lease == shared.id]  # type: ignore[attr-defined]
        assert not on_it, "all have left it by now"
        assert all(lease.release() for lease in leases)


def test_moves_that_take_long_do_not_hold_up_what_needs_none(
    server: Etcd, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewing, "MOVING", 0.0)
    with leasehold.connect(server.url, namespace=namespace, ttl=1000) as locks:
        without_listener(locks)
        store, driver = locks._core.store, locks._core.driver
        leases = [locks.lock(name).acquire() for name in "abcd"]
        for moved in (1, 2, 3):
            *longer, usual = driver.run(store.renew(asks_for(leases, 2000, 2000, 2000, 1000)), LIMIT)
            assert longer[:moved] == ["renewed"] * moved
            assert all(isinstance(each, StoreUnavailable) for each in longer[moved:])
            assert usual == "renewed"
        assert all(lease.release() for lease in leases)


def test_a_move_that_gets_no_answer_leaves_the_others_alone(server: Etcd, namespace: str) -> None:
    """It does not take all the time that there is, and no other is tried after it."""
    with leasehold.connect(server.url, namespace=namespace, ttl=1000) as locks:
        without_listener(locks)
        store, driver = locks._core.store, locks._core.driver
        leases = [locks.lock(name).acquire() for name in "abc"]
        steps = store.renew(asks_for(leases, 2000, 2000, 1000))
        call = moving(driver, steps)
        assert call.share == 0.5
        with pytest.raises(StopIteration) as over:
            steps.throw(TimeoutError("no answer"))
        first, second, usual = over.value.value
        assert isinstance(first, StoreUnavailable)
        assert "no answer" in str(first)
        assert isinstance(second, StoreUnavailable)
        assert usual == "renewed"
        assert all(lease.release() for lease in leases)


@pytest.mark.parametrize("error", [Refused(8, "etcdserver: mvcc: database space exceeded"), TimeoutError("no answer")])
def test_what_could_move_and_cannot_is_renewed_where_it_is(server: Etcd, namespace: str, error: Exception) -> None:
    """Its lease is longer than it needs: that does no harm while it lives."""
    with leasehold.connect(server.url, namespace=namespace, ttl=1000) as locks:
        without_listener(locks)
        store, driver = locks._core.store, locks._core.driver
        lease = locks.lock("x").acquire()
        steps = store.renew(asks_for([lease], 500))
        moving(driver, steps)
        with pytest.raises(StopIteration) as over:
            steps.throw(error)
        assert over.value.value == ["renewed"]
        assert driver.run(store.renew(asks_for([lease], 500)), LIMIT) == ["renewed"]
        assert lease.release()


def test_what_is_overdue_and_cannot_be_ended_costs_nobody_a_renewal(server: Etcd, namespace: str) -> None:
    with leasehold.connect(server.url, namespace=namespace, ttl=1000) as locks:
        without_listener(locks)
        store, driver = locks._core.store, locks._core.driver
        leases = [locks.lock(name).acquire() for name in "ab"]
        overdue = leases[1]._claim.attempt
        held = store.sessions.held[overdue]  # type: ignore[attr-defined]
        store.sessions.held[overdue] = held._replace(until=clock.now() - 1)  # type: ignore[attr-defined]
        steps = store.renew(asks_for(leases[:1], 1000))
        call = next(steps)
        while call.method != wire.RANGE:
            call = steps.send(driver._link.send(call, LIMIT))  # type: ignore[attr-defined]
        with pytest.raises(StopIteration) as over:
            steps.throw(TimeoutError("no answer"))
        assert over.value.value == ["renewed"]
        assert leases[0].release()


def test_only_what_was_offered_outlives_its_locks(
    server: Etcd, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a lease of its own, that runs out if nobody comes; the one that it shared with others is given up."""
    monkeypatch.setattr(threads, "FAREWELL", 30.0)
    before = leases_of(server)
    with leasehold.connect(server.url, namespace=namespace) as heir:
        with leasehold.connect(server.url, namespace=namespace) as locks:
            without_listener(locks)
            others = [locks.lock(name).acquire() for name in "ab"]
            offered = locks.lock("x").acquire()
            text = offered.transfer()
            withdrawn = locks.lock("y").acquire()
            withdrawn.transfer()
            assert withdrawn.release()
        assert not any(lease.valid for lease in (*others, offered))
        assert len(leases_of(server) - before) == 1
        [key] = keys(server, namespace, "h")
        assert f"/x\0{offered._claim.attempt}" in key
        with heir.accept(text) as taken:
            assert taken.token > offered.token
        assert not keys(server, namespace, "h")


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


def test_a_listing_asks_once_for_all_that_share_a_lease(server: Etcd, namespace: str) -> None:
    with leasehold.connect(server.url, namespace=namespace) as locks:
        leases = [locks.lock(f"n{number}").acquire() for number in range(20)]
        asked = noted(locks)
        assert len(list(locks.leases())) == 20
        assert asked.count(wire.TIME_TO_LIVE) == 1
        assert all(lease.release() for lease in leases)


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


# Waiting.


def test_an_expired_waiter_is_not_granted(server: Etcd, namespace: str) -> None:
    """etcd's own lock once did: the lease of a waiter ran out while it waited, and it was granted all the same.

    Its process hears and says nothing for a while, as if it were paused: else it would rightly queue again at once."""
    with (
        Proxy(server.port) as proxy,
        leasehold.connect(server.url, namespace=namespace) as first,
        leasehold.connect(f"etcd://127.0.0.1:{proxy.port}", namespace=namespace) as late,
        leasehold.connect(server.url, namespace=namespace) as third,
    ):
        held = first.lock("x").acquire()
        waiter = Waiter(late, "x")
        eventually(lambda: len(keys(server, namespace, "w")) == 1)
        eventually(lambda: late._core.driver._watches._by_number, what="it listens")  # type: ignore[attr-defined]
        proxy.blackhole()
        for lease in list(late._core.store.sessions._leases):  # type: ignore[attr-defined]
            ask(server.port, "lease/revoke", {"ID": str(lease)})
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
    monkeypatch.setattr(asking, "FIRST_TERM", 30.0)  # nobody is passed over for being slow
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
    monkeypatch.setattr(sessions, "WAITER_TTL", 1000.0)
    with contextlib.ExitStack() as opened:
        everybody = [
            opened.enter_context(leasehold.connect(server.url, namespace=namespace, ttl=LONG))
            for _ in range(ahead + dead + 2)
        ]
        lease = everybody[0].lock("x").acquire()
        served: list[int] = []
        threads: dict[int, threading.Thread] = {}

        def have(locks: leasehold.Locks, number: int) -> None:
            with locks.lock("x").acquire():
                served.append(number)

        for number, locks in enumerate(everybody[1:]):
            if ahead <= number < ahead + dead:
                mine = Ask("x", f"{number:032}", "dead", "lock", None, LONG * SECOND, queue=True)
                assert isinstance(locks._core.driver.run(locks._core.store.acquire(mine), LIMIT), Busy)
            else:
                threads[number] = threading.Thread(target=have, args=(locks, number))
                threads[number].start()
                watches = locks._core.driver._watches  # type: ignore[attr-defined]
                eventually(lambda watches=watches: any(watches._by_attempt.values()))  # it waits, and listens
            assert len(keys(server, namespace, "w")) == number + 1
        assert lease.release()
        for thread in threads.values():
            thread.join(60)
            assert not thread.is_alive(), "it was not served"
        assert served == list(threads), "not in the order of arrival"


def test_who_passes_over_a_dead_waiter_is_not_taken_for_it(server: Etcd, namespace: str) -> None:
    """A dead one, and two who wait behind it. Whoever is third knows for how long nobody has taken the name, but not
    whom it was there for: it asks at once when the dead one is gone, and may not take the second for that one."""
    with contextlib.ExitStack() as opened:
        holder, dead, second, third = (
            opened.enter_context(leasehold.connect(server.url, namespace=namespace, ttl=LONG)) for _ in range(4)
        )

        def reply(locks: leasehold.Locks, attempt: str) -> Any:
            mine = Ask("x", attempt, "owner", "lock", None, LONG * SECOND, queue=True)
            return locks._core.driver.run(locks._core.store.acquire(mine), LIMIT)

        held = holder.lock("x").acquire()
        for locks, attempt in ((dead, "d" * 32), (second, A), (third, B)):
            assert isinstance(reply(locks, attempt), Busy)
        place = keys(server, namespace, "w")[0]
        assert held.release()

        link = second._core.driver._link  # type: ignore[attr-defined]
        send, asked = link.send, list[Any]()

        def send_then_ask(call: wire.Call, limit: float) -> list[bytes]:
            answer: list[bytes] = send(call, limit)
            if not asked and place not in keys(server, namespace, "w"):
                third._core.store._idle["x"] = (b"", clock.now() - timing.FIRST_TERM)  # type: ignore[attr-defined]
                asked.append(reply(third, B))
            return answer

        link.send = send_then_ask
        since = clock.now() - timing.FIRST_TERM
        second._core.store._idle["x"] = (place.encode(), since)  # type: ignore[attr-defined]
        assert isinstance(reply(second, A), Grant)
        assert isinstance(asked[0], Busy)


class Traffic:
    """Counts what one ``Locks`` of asyncio asks etcd, by method, what it says about watches, and what it is told."""

    def __init__(self, locks: aio.Locks) -> None:
        self.calls: Counter[bytes] = Counter()
        self.said = self.events = 0
        self.failures: list[BaseException] = []
        driver = locks._core.driver
        send, told, unsaid = driver._link.send, driver._watches.told, driver._watches.unsaid  # type: ignore[attr-defined]

        async def counted(call: wire.Call, limit: float) -> list[bytes]:
            self.calls[call.method] += 1
            try:
                return await send(call, limit)
            except BaseException as error:
                self.failures.append(error)
                raise

        def heard(message: bytes) -> Iterator[Any]:
            news = wire.read_watch(message)
            if news.watch in driver._watches._by_number:  # type: ignore[attr-defined]  # else etcd has yet to end it
                self.events += len(news.deletes)
            return told(message)

        def saying() -> list[bytes]:
            messages: list[bytes] = unsaid()
            self.said += len(messages)
            return messages

        driver._link.send = counted  # type: ignore[attr-defined]
        driver._watches.told, driver._watches.unsaid = heard, saying  # type: ignore[attr-defined]


def only_by_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked because time goes by, however slow the machine is: with a ttl that is LONG, what is left are the
    looks that waiters have every 5 s, the lease that keeps their places, the listener's question whether the server is
    there, and calls that are given up and made again. And nobody is passed over for being slow."""
    monkeypatch.setattr(timing, "FALLBACK", 1000.0)
    monkeypatch.setattr(timing, "CALL_LIMIT", 100.0)
    monkeypatch.setattr(sessions, "WAITER_TTL", 1000.0)
    monkeypatch.setattr(sessions, "WAITING_FRESH", 1000.0)
    monkeypatch.setattr(tasks, "HEARTBEAT", 1000.0)
    monkeypatch.setattr(asking, "FIRST_TERM", 1000.0)


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
    async with aio.connect(server.url, namespace=namespace, ttl=LONG) as locks:
        lease = await locks.lock("x").acquire()
        core, watches = locks._core, locks._core.driver._watches  # type: ignore[attr-defined]
        await until(lambda: core.driver._ear and core.renewals)  # type: ignore[attr-defined]  # what is held is looked at
        traffic = Traffic(locks)
        served: list[int] = []
        over = asyncio.Semaphore(0)

        async def one(number: int) -> None:
            async with locks.lock("x"):
                served.append(number)
                await over.acquire()

        def next_is_there() -> bool:
            """Whether the first in line has looked, so that it hears when the name is given back."""
            served = watches._by_range.get(core.store.holders_of("x"))  # type: ignore[attr-defined]
            return served is not None and any(watch.kind == asking.TAKING for watch in served.hearers.values())

        crowding = []
        for number in range(crowd):
            crowding.append(asyncio.ensure_future(one(number)))
            await until(lambda: len(watches._by_attempt) > number)  # noqa: B023  # it waits, and listens
        assert traffic.said == crowd, "one watch for each: of who is ahead, but for the first; they share the holders'"
        traffic.calls.clear()
        traffic.said = traffic.events = 0
        await lease.release()
        for count in range(1, rounds + 1):
            await until(lambda: len(served) == count and next_is_there())  # noqa: B023
            if count < rounds:
                over.release()
        calls, failures = dict(traffic.calls), list(traffic.failures)
        said, events = traffic.said, traffic.events
        for task in crowding:
            task.cancel()
        ended = await asyncio.gather(*crowding, return_exceptions=True)
    assert not [each for each in ended if isinstance(each, Exception)]
    assert served == list(range(rounds)), f"in the order of arrival; calls that failed: {failures}"
    # Giving back, taking, and the next one's look; with what it says about the holder.
    assert calls[wire.TXN] <= 3 * rounds, f"{calls} for {rounds} hand-overs"
    assert sum(calls.values()) <= 4 * rounds, f"{calls} for {rounds} hand-overs"
    # The first in line no longer watches who is ahead. Who nears the head shares a watch that is there.
    assert said <= rounds, f"{said} messages about watches for {rounds} hand-overs"
    # That it is given back, once for the first three in line; that the first is gone, to each of the next three.
    assert events <= 4 * rounds, f"{events} events for {rounds} hand-overs"


def test_who_is_to_ask_is_not_told_before_it_does_that_it_need_not(server: Etcd, namespace: str) -> None:
    """L2: the second in line hears that the name was given back, which is for the first to take, and that this one has;
    in either order, before it can do anything about the one or the other. Or all are called, for it may have missed
    something."""
    with leasehold.connect(server.url, namespace=namespace) as locks:
        core = locks._core
        watches: Any = core.driver._watches  # type: ignore[attr-defined]
        ahead, idle = Watch(asking.TAKING, "x", b"w", b"x", 1), Watch(asking.IDLE, "x", b"h", b"i", 1)
        for order in ((ahead, idle), (idle, ahead), (idle,)):
            bell = core.asking[A] = core.new_bell()
            watches.add(A, (ahead, idle))
            for watch in order:
                number = watches._by_range[watch.key, watch.end].number
                for ring in watches.told(deletion(number, {watch.key: 1})):
                    core.rung(*ring)
            if len(order) == 1:
                assert isinstance(bell.news, Busy)
                core.rung("")
            assert bell.rang()
            assert bell.news is None
            watches.drop(A)
        del core.asking[A]


# By hand, and out of order.


def test_a_watch_from_a_revision_that_is_compacted_calls_its_waiter(server: Etcd, namespace: str) -> None:
    with leasehold.connect(server.url, namespace=namespace) as locks:
        held = locks.lock("x").acquire()
        store, driver = locks._core.store, locks._core.driver
        eventually(lambda: driver._ear)  # type: ignore[attr-defined]
        revision = int(ask(server.port, "kv/range", {"key": b64("x")})["header"]["revision"])
        ask(server.port, "kv/compaction", {"revision": str(revision)})
        called: list[str] = []
        driver.on_ring = lambda attempt, news=None: called.append(attempt)
        watch = Watch("taking", "x", *store.holders_of("x"), 1)  # type: ignore[attr-defined]
        eventually(lambda: driver.listen(A, Busy(None, 0, None, (watch,))), what="it listens")
        eventually(lambda: A in called)
        driver.on_ring = locks._core.rung
        assert held.release()


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
        eventually(lambda: locks._core.driver._watches._followed, 30, "it is followed")  # type: ignore[attr-defined]
        assert lease.valid
        [key] = keys(server, namespace, "h")
        delete(server, key)
        assert lease.lost.wait(20)
        assert "no longer holds" in str(lease.lost_reason)
        eventually(lambda: not locks._core.driver._watches._followed, 30)  # type: ignore[attr-defined]


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
        renewed = locks._core.renewals
        eventually(lambda: locks._core.renewals >= renewed + 10, 60, "what is held is renewed")
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
    with leasehold.connect(server.url, namespace=namespace) as locks:
        held = locks.lock("busy").acquire()
        store, driver = locks._core.store, locks._core.driver
        full = Refused(8, "etcdserver: mvcc: database space exceeded")
        for name, kind in (("x", "h/x\0"), ("busy", "w/busy\0" + "0")):
            steps = store.acquire(Ask(name, A, "me", "lock", None, 30_000_000, queue=True, kept=True))
            call = next(steps)
            while kind.encode() + (A.encode() if name == "x" else b"") not in b"".join(call.messages):
                call = steps.send(driver._link.send(call, LIMIT))  # type: ignore[attr-defined]
            assert wire.read_txn(driver._link.send(call, LIMIT)).succeeded  # type: ignore[attr-defined]
            assert any(A in key for key in keys(server, namespace, kind[0]))
            call = steps.throw(full)
            with pytest.raises(Refused):
                finish(locks, steps, call)
            assert not any(A in key for key in keys(server, namespace, kind[0])), "nobody knows of it"
        assert held.release()


# Several holders.


def test_permits_are_not_given_twice(server: Etcd, namespace: str) -> None:
    """Many at once ask for 3 permits: at no time do more than 3 have one."""
    with contextlib.ExitStack() as stack:
        everyone = [stack.enter_context(leasehold.connect(server.url, namespace=namespace)) for _ in range(4)]
        mutex, now, most, served = threading.Lock(), 0, 0, 0

        def one(locks: leasehold.Locks, number: int) -> None:
            nonlocal now, most, served
            store, driver = locks._core.store, locks._core.driver
            for turn in range(5):
                attempt = f"{number * 100 + turn:032x}"
                while True:
                    request = Ask("s", attempt, "me", "lock", None, 30_000_000, 0, "semaphore", 3, 1, True, True, True)
                    reply = driver.run(store.acquire(request), LIMIT)
                    if isinstance(reply, Grant):
                        break
                    assert isinstance(reply, Busy)
                    time.sleep(0.005)
                with mutex:
                    now += 1
                    most, served = max(most, now), served + 1
                time.sleep(0.002)
                with mutex:
                    now -= 1
                assert driver.run(store.release("s", attempt, reply.token, reply.hint), LIMIT)

        threads = [threading.Thread(target=one, args=(everyone[n % 4], n)) for n in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert served == 60
        assert most <= 3


class Gap:
    """Waits for "x", and calls ``happens`` between the look that says so and the watch of it."""

    def __init__(self, locks: leasehold.Locks, happens: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
        driver: Any = locks._core.driver
        driver.listen("", None)
        eventually(lambda: driver._ear is not None)
        listen, late = driver.listen, []

        def too_late(attempt: str, busy: Busy | None) -> bool:
            if attempt and not late:
                late.append(attempt)
                happens()
            return bool(listen(attempt, busy))

        monkeypatch.setattr(driver, "listen", too_late)
        self.waiter = Waiter(locks, "x")
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
    """The watch begins after that, and nobody looks by itself here. Who was not near the head looks a little later."""
    only_by_news(monkeypatch)
    monkeypatch.setattr(threads, "HEARTBEAT", 1000.0)
    monkeypatch.setattr(asking, "SOON", 0.2 if ahead > 2 else 1000.0)
    with (
        leasehold.connect(server.url, namespace=namespace, ttl=LONG) as locks,
        leasehold.connect(server.url, namespace=namespace, ttl=LONG) as other,
    ):
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
    monkeypatch.setattr(asking, "FIRST_TERM", 5.0)
    with (
        leasehold.connect(server.url, namespace=namespace, ttl=LONG) as locks,
        leasehold.connect(server.url, namespace=namespace, ttl=LONG) as other,
        leasehold.connect(server.url, namespace=namespace, ttl=LONG) as behind,
    ):
        lease = locks.lock("x").acquire()
        waiting = in_line(locks, 3)
        last: list[Waiter] = []

        def served() -> None:
            assert lease.release()
            first, second, third = (waiter.lease for waiter in waiting)
            assert first().release()
            assert second().release()
            held = third()
            last.append(Waiter(behind, "x"))
            watches = behind._core.driver._watches  # type: ignore[attr-defined]
            eventually(lambda: [bool(served.began) for served in list(watches._by_number.values())] == [True, True])
            assert held.release()

        gap = Gap(other, served, monkeypatch)
        eventually(lambda: last and (last[0].leases or gap.waiter.leases), 60)
        assert not last[0].leases, "it was passed over"
        assert gap.lease().release()
        assert last[0].lease().release()


async def test_what_happens_between_a_look_and_its_watch_is_not_missed_under_asyncio(
    server: Etcd, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_by_news(monkeypatch)
    async with (
        aio.connect(server.url, namespace=namespace, ttl=LONG) as locks,
        aio.connect(server.url, namespace=namespace, ttl=LONG) as other,
    ):
        lease = await locks.lock("x").acquire()
        driver: Any = other._core.driver
        await driver.listen("", None)
        await until(lambda: driver._ear is not None)
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
    with leasehold.connect(server.url, namespace=namespace) as locks:
        driver: Any = locks._core.driver
        watches = Watches(driver._store)
        ear = driver._link.ear(LIMIT)

        def told(count: int) -> list[bytes]:
            messages: list[bytes] = []
            while len(messages) < count:
                some = ear.read(LIMIT)  # none, if what came is of the transport alone
                assert some is not None, "the server does not answer"
                messages += some
            return messages

        try:
            ear.send([watches.begin()])
            while not watches.listening:
                watches.heard(told(1), asked=True)
            revision = int(ask(server.port, "kv/range", {"key": b64("a")})["header"]["revision"])
            ear.send(watches.add(A, [Watch(asking.TAKING, "name", b"a", b"b", revision + 1)])[1])
            told(1)  # it has taken that on
            for _ in range(2):
                _, messages = watches.heard(None, asked=False)
                ear.send(messages)
                assert watches.heard(told(len(messages)), asked=True) == ([], []), "of no concern to anybody who waits"
        finally:
            ear.close()


async def test_the_listener_comes_back_when_every_task_was_cancelled(server: Etcd, namespace: str) -> None:
    """As some frameworks do when they shut down, and go on all the same."""

    async def until(condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async with (
        aio.connect(server.url, namespace=namespace, ttl=60) as locks,
        aio.connect(server.url, namespace=namespace, ttl=60) as others,
    ):
        driver: Any = locks._core.driver
        theirs = await others.lock("name").acquire()
        for _ in range(2):
            waiter = asyncio.ensure_future(locks.lock("name", timeout=60).acquire())
            await until(lambda: driver._ear is not None)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.wait([waiter])
            assert not await driver.listen("", None), "one that ends is not to be relied upon"
        waiter = asyncio.ensure_future(locks.lock("name", timeout=60).acquire())
        await until(lambda: driver._ear is not None)
        await theirs.release()
        await (await waiter).release()
