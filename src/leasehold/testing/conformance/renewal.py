"""Renewal: keeps a lease, never revives one, and knows refusal from failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from ...errors import LeaseLost, StoreUnavailable
from ..handles import Lease, eventually
from ..scene import Scene
from ..threads import refuse_threads
from .operations import in_turn

TRIES = 5
"""A machine that is busy may not let it be seen, now and then."""


def ttls(scene: Scene) -> Iterator[float]:
    """For what is to be kept for longer than its ttl: try with a longer one, in which a machine that stood still for
    too long comes round. What is not renewed is lost with each."""
    yield from (2 * scene.steady, 3 * scene.steady, 6 * scene.steady)
    pytest.fail("it was lost with each ttl")


def stays_valid(leases: Sequence[Lease], seconds: float, beat: bool = False) -> bool:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        for lease in leases:
            if beat:
                lease.beat()
            if not lease.valid:
                assert lease.ran_out(), lease.lost_reason
                return False
        time.sleep(0.02)
    return True


@pytest.mark.slow
def test_renewal_keeps_a_lease(scene: Scene) -> None:
    """Promise 5; B2, C2, D7, E3, E9: held over 3 × ttl by renewal in the background, with one token."""
    locks, other = scene.connect(), scene.connect(ttl=30)
    for ttl in ttls(scene):
        name = scene.name()
        lease = locks.lock(name, ttl=ttl).acquire()
        ends = time.monotonic() + 3 * ttl
        while time.monotonic() < ends and not lease.ran_out():
            taken = other.lock(name).try_acquire()
            tokens = [each.token for each in scene.held(name)]
            valid = lease.valid
            assert valid or lease.ran_out(), lease.lost_reason
            assert not valid or (taken is None and tokens == [lease.token])
            time.sleep(0.05)
        if lease.let_go():
            break
    assert locks.metrics().renewals >= 3


LISTENERS = {f"leasehold-{store}" for store in ("etcd", "mongodb", "redis", "sql", "sqlite")}


@pytest.mark.parametrize("error", [None, OSError("too many open files")])
def test_who_cannot_listen_keeps_its_lease_and_waits(
    threads: Scene, monkeypatch: pytest.MonkeyPatch, error: OSError | None
) -> None:
    """L3, L5: in a process that can have no more threads, or whose driver fails over it, leases are renewed as ever."""
    locks, other, name = threads.connect(ttl=30), threads.connect(ttl=30), threads.name()
    with monkeypatch.context() as patch:
        refuse_threads(patch, LISTENERS.__contains__)
        if error is not None:
            patch.setattr(locks.driver, "listen", _raises(error))
        lease = locks.lock(name, renew_every=0.1).acquire()
        eventually(lambda: locks.real.counters().renewals >= 2, what="it is renewed")
        assert lease.valid or lease.ran_out()
        waiting = other.lock(name).start()
        threads.until_waiting(name)
        lease.let_go()
        waiting.lease().let_go()
    threads.until_free(name)


def _raises(error: OSError) -> Callable[..., bool]:
    def listen(*_: object) -> bool:
        raise error

    return listen


@pytest.mark.slow
def test_many_leases_are_kept_at_once(scene: Scene) -> None:
    """One keeper for all: batches of renewals."""
    locks = scene.connect()
    for ttl in ttls(scene):
        leases = [locks.lock(scene.name(), ttl=ttl).acquire() for _ in range(30)]
        kept = stays_valid(leases, 1.5 * ttl)
        given = [lease.let_go() for lease in leases]
        if kept and all(given):
            break


def test_a_refused_renewal_is_loss_at_once(scene: Scene) -> None:
    """Reference, timing; D7, E6: the store says that it is not ours any more."""
    locks, other = scene.connect(), scene.connect()
    name = scene.name()
    lease = locks.lock(name, ttl=20, renew_every=0.2).acquire()
    assert other.run(other.store.abandon(name, other.attempt(name)))  # taken away behind its back
    assert lease.wait_lost(15)
    assert not lease.valid
    assert lease.lost_reason
    with pytest.raises(LeaseLost):
        lease.check()
    assert lease.release() is False
    assert locks.metrics().renewal_failures >= 1


def test_a_failed_renewal_is_unknown_until_the_deadline(scene: Scene) -> None:
    """Promise 6, L3; B3: errors are retried until the deadline, and then it is lost."""
    locks, faults = scene.faulty()
    for _ in range(TRIES):
        lease = locks.lock(scene.name(), ttl=scene.steady, max_renew_failures=100).acquire()
        before = faults.calls["renew"]
        faults.lose_request("renew")
        eventually(lambda: faults.calls["renew"] >= before + 2 or not lease.valid)  # noqa: B023
        assert lease.valid or lease.ran_out(), "an error is not a refusal"
        unknown = lease.valid
        assert lease.wait_lost()
        assert lease.ran_out()
        assert not lease.valid
        faults.mend()
        assert lease.let_go() is False
        if unknown and faults.calls["renew"] >= before + 3:
            return
    pytest.fail("it was not retried, or the machine was too busy to see it")


@pytest.mark.slow
def test_renewal_goes_on_after_an_error(scene: Scene) -> None:
    """L3: a renewer that fails once must not die of it."""
    locks, faults = scene.faulty()
    for ttl in ttls(scene):
        lease = locks.lock(scene.name(), ttl=ttl).acquire()
        faults.lose_request("renew", times=1)
        if stays_valid([lease], 1.5 * ttl) and lease.let_go():
            break


def test_renewal_goes_on_when_housekeeping_fails(scene: Scene) -> None:
    """L3: whoever renews also tidies up, first of all; an error there must not end it either."""
    locks, faults = scene.faulty()
    faults.lose_request("tidy")
    lease = locks.lock(scene.name(), ttl=30, renew_every=0.1, max_renew_failures=1000).acquire()
    eventually(lambda: faults.calls["tidy"], what="it has tidied up")
    before = faults.calls["renew"]
    eventually(lambda: faults.calls["renew"] >= before + 3, 20, "it is renewed")
    assert lease.valid
    assert lease.release()


def test_failed_cycles_in_a_row_end_a_lease_early(scene: Scene) -> None:
    """B3: after max_renew_failures failed cycles the lease is given up, long before its deadline."""
    locks, faults = scene.faulty()
    faults.lose_request("renew")  # from the first one on: one that is slow fails too, and would be counted
    begun = time.monotonic()
    lease = locks.lock(scene.name(), ttl=20, renew_every=0.2, max_renew_failures=3).acquire()
    assert lease.wait_lost(15)
    assert time.monotonic() - begun >= 0.59, "a failure is counted once a cycle"
    assert "3" in lease.lost_reason
    faults.mend()
    lease.release()


def test_a_success_resets_the_count_of_failures(scene: Scene) -> None:
    """B3: success resets the count."""
    locks, faults = scene.faulty()
    told: list[str] = []
    locks.on_event(lambda event: told.append(event.type))
    for _ in in_turn():  # a call that takes longer than renew_every is a failure too, and a slow machine adds its own
        lease = locks.lock(scene.name(), ttl=30, renew_every=0.2, max_renew_failures=10).acquire()
        slow = False
        for _ in range(3):
            faults.lose_request("renew")
            failures = told.count("renewal_failed")
            eventually(lambda: told.count("renewal_failed") >= failures + 4 or not lease.valid)  # noqa: B023
            faults.mend()
            renewals = told.count("renewed")
            eventually(lambda: told.count("renewed") > renewals or not lease.valid)  # noqa: B023
            slow |= told.count("renewal_failed") - failures >= 10
        if lease.valid or not slow:
            break
    assert lease.valid, lease.lost_reason
    lease.release()


def test_max_hold_ends_renewal(scene: Scene) -> None:
    """Reference, timing: max_hold ends renewal; the lease is lost soon after, and says why."""
    locks = scene.connect()
    for _ in range(TRIES):
        begun = time.monotonic()
        lease = locks.lock(scene.name(), max_hold=1.5 * scene.ttl).acquire()
        assert lease.wait_lost()
        lost = time.monotonic() - begun
        assert lease.ran_out()
        assert lease.let_go() is False
        if "max_hold" in lease.lost_reason and lost <= 2.5 * scene.ttl + 1 + scene.store.slack:
            assert lost >= 1.5 * scene.ttl
            return
    pytest.fail(f"lost after {lost:.3f} s: {lease.lost_reason}")


@pytest.mark.slow
def test_a_body_that_stops_beating_loses_its_lease(scene: Scene) -> None:
    """Reference, timing: beat_every."""
    locks = scene.connect()
    for ttl in ttls(scene):
        lease = locks.lock(scene.name(), ttl=ttl, beat_every=ttl / 2).acquire()
        if stays_valid([lease], 1.2 * ttl, beat=True):
            break
    assert lease.wait_lost()
    assert "beat" in lease.lost_reason


def test_lease_without_renewal_ends_at_the_ttl(scene: Scene) -> None:
    """Reference: renew=False. It may still be looked at, when rings may have been missed: that adds nothing."""
    (locks, faults), name = scene.faulty(), scene.name()
    begun = time.monotonic()
    lease = locks.lock(name, renew=False).acquire()
    ends = lease.remaining + time.monotonic()  # in this order: no sooner than it is, and the one below no later
    while lease.valid:
        now, left = time.monotonic(), lease.remaining
        assert not left or now + left <= ends + 0.01
        faults.wake(faults.asked[name])
        lease.wait_lost(scene.ttl / 5)
    assert time.monotonic() - begun >= 0.5 * scene.ttl
    assert locks.metrics().renewals == 0


def test_a_holder_can_renew_by_itself(scene: Scene) -> None:
    """Reference: Lease.renew(ttl=None), from here on for ttl seconds a term."""
    locks = scene.connect()
    name = scene.name()
    lease = locks.lock(name, renew=False, ttl=5).acquire()
    token = lease.token
    before = lease.until()
    time.sleep(0.2)
    lease.renew()
    assert lease.until() >= before + 0.2
    lease.renew(50)
    assert lease.ttl == 50
    assert lease.remaining > 40
    assert scene.held(name)[0].expires_in > 40
    assert lease.token == token == scene.held(name)[0].token
    assert lease.release()
    with pytest.raises(LeaseLost):
        lease.renew()


def test_a_shorter_term_does_not_end_the_one_that_was_granted(scene: Scene) -> None:
    """Design 01, keeper: a renewal that overtook another, for a longer term, would end that one early."""
    name = scene.name()
    lease = scene.connect().lock(name, renew=False, ttl=30).acquire()
    lease.renew(5)
    assert lease.ttl == 5
    assert lease.remaining < 5
    assert scene.held(name)[0].expires_in > 20
    assert lease.release()
    assert not scene.held(name)


def test_renewing_by_hand_tells_failure_from_loss(scene: Scene) -> None:
    """Reference, errors: StoreUnavailable leaves the lease as it was; LeaseLost when the store refuses."""
    locks, faults = scene.faulty()
    name = scene.name()
    lease = locks.lock(name, ttl=20).acquire()
    faults.lose_request("renew")  # all of them: the keeper may be at one too, when it begins to listen
    with pytest.raises(StoreUnavailable):
        lease.renew()
    assert lease.valid
    faults.mend()
    lease.renew()
    locks.run(locks.store.abandon(name, locks.attempt(name)))
    with pytest.raises(LeaseLost):
        lease.renew()
    assert not lease.valid


def test_a_lost_lease_is_not_revived(scene: Scene) -> None:
    """S3, promise 3: a renewal that comes after the deadline changes nothing, not even when the store allows it."""
    locks, faults = scene.faulty(ttl=scene.steady)
    locks.stop_the_timer()  # so that only the clock can say that it is over
    for _ in range(TRIES):
        name = scene.name()
        lease = locks.lock(name, renew=False).acquire()
        eventually(lambda: lease.remaining < 0.25 * scene.steady)  # noqa: B023
        faults.delay_answer(0.4 * scene.steady, "renew", times=1)
        with pytest.raises((LeaseLost, StoreUnavailable)) as caught:  # or the store took longer than it lasts
            lease.renew()
        told = isinstance(caught.value, LeaseLost)
        renewed = told and scene.held(name)
        assert lease.ran_out() or not told
        eventually(lease.ran_out)
        assert not lease.valid
        assert lease.lost.is_set()
        with pytest.raises(LeaseLost):
            lease.renew()
        try:
            assert lease.release() is False
        except StoreUnavailable:
            renewed = False
        else:
            assert not scene.held(name), "it was given back nevertheless"
        if renewed:
            return
        faults.mend()
    pytest.fail("the store has not renewed it, so this shows nothing")
