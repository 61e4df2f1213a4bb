"""Renewal: keeps a lease, never revives one, and knows refusal from failure."""

from __future__ import annotations

import time

import pytest

from ...errors import LeaseLost, StoreUnavailable
from ..handles import Lease, eventually
from ..scene import Scene


def stays_valid(lease: Lease, seconds: float) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        assert lease.valid, lease.lost_reason
        time.sleep(0.02)


@pytest.mark.slow
def test_renewal_keeps_a_lease(scene: Scene) -> None:
    """Promise 5; seeds B2, C2, D7, E3, E9: held over 3 × ttl by renewal in the background, with one token."""
    locks, other = scene.connect(ttl=scene.steady), scene.connect()
    name = scene.name()
    lease = locks.lock(name).acquire()
    ends = time.monotonic() + 3 * scene.steady
    while time.monotonic() < ends:
        assert lease.valid, lease.lost_reason
        assert other.lock(name).try_acquire() is None
        assert [each.token for each in scene.held(name)] == [lease.token]
        time.sleep(0.05)
    assert lease.release()
    assert locks.metrics().renewals >= 3


@pytest.mark.slow
def test_many_leases_are_kept_at_once(scene: Scene) -> None:
    """One keeper for all: batches of renewals."""
    locks = scene.connect(ttl=scene.steady)
    leases = [locks.lock(scene.name()).acquire() for _ in range(30)]
    ends = time.monotonic() + 1.5 * scene.steady
    while time.monotonic() < ends:
        assert all(lease.valid for lease in leases)
        time.sleep(0.05)
    assert all(lease.release() for lease in leases)


def test_a_refused_renewal_is_loss_at_once(scene: Scene) -> None:
    """Contract, timing; seeds D7, E6: the store says that it is not ours any more."""
    locks, other = scene.connect(), scene.connect()
    name = scene.name()
    lease = locks.lock(name, ttl=20, renew_every=0.2).acquire()
    assert other.run(other.store.abandon(name, lease._claim.attempt))  # taken away behind its back
    assert lease.wait_lost(5)
    assert not lease.valid
    assert lease.lost_reason
    with pytest.raises(LeaseLost):
        lease.check()
    assert lease.release() is False
    assert locks.metrics().renewal_failures >= 1


def test_a_failed_renewal_is_unknown_until_the_deadline(scene: Scene) -> None:
    """Promise 6, L3; seed B3: errors are retried until the deadline, and then it is lost."""
    locks, faults = scene.faulty()
    lease = locks.lock(scene.name(), ttl=scene.steady, max_renew_failures=100).acquire()
    faults.lose_request("renew")
    eventually(lambda: faults.calls["renew"] >= 2 or not lease.valid)
    assert lease.valid, "an error is not a refusal"
    assert lease.wait_lost(scene.steady + 1)
    assert faults.calls["renew"] >= 3, "it was retried"
    assert not lease.valid
    assert lease.release() is False


@pytest.mark.slow
def test_renewal_goes_on_after_an_error(scene: Scene) -> None:
    """L3: a renewer that fails once must not die of it."""
    locks, faults = scene.faulty()
    lease = locks.lock(scene.name(), ttl=scene.steady).acquire()
    faults.lose_request("renew", times=1)
    stays_valid(lease, 1.5 * scene.steady)
    assert lease.release()


def test_failed_cycles_in_a_row_end_it_early(scene: Scene) -> None:
    """Seed B3: after max_renew_failures failed cycles the lease is given up, long before its deadline."""
    locks, faults = scene.faulty()
    lease = locks.lock(scene.name(), ttl=20, renew_every=0.2, max_renew_failures=3).acquire()
    begun = time.monotonic()
    faults.lose_request("renew")
    assert lease.wait_lost(10)
    assert time.monotonic() - begun >= 0.3
    assert "3" in lease.lost_reason
    faults.mend()
    lease.release()


def test_a_success_resets_the_count_of_failures(scene: Scene) -> None:
    """Seed B3: success resets the count."""
    locks, faults = scene.faulty()
    lease = locks.lock(scene.name(), ttl=20, renew_every=0.1, max_renew_failures=3).acquire()
    for cycle in range(1, 4):
        faults.lose_request("renew", times=2)  # one more in a row would end it
        eventually(lambda: faults.calls["renew"] >= 4 * cycle)  # noqa: B023
    assert lease.valid
    lease.release()


def test_max_hold_ends_renewal(scene: Scene) -> None:
    """Contract, timing: max_hold ends renewal; the lease is lost soon after, and says why."""
    locks = scene.connect()
    begun = time.monotonic()
    lease = locks.lock(scene.name(), max_hold=1.5 * scene.ttl).acquire()
    assert lease.wait_lost(2.5 * scene.ttl + 1 + scene.store.slack)
    assert time.monotonic() - begun >= 1.5 * scene.ttl
    assert "max_hold" in lease.lost_reason
    assert lease.release() is False


@pytest.mark.slow
def test_a_body_that_stops_beating_loses_its_lease(scene: Scene) -> None:
    """Contract, timing: beat_every."""
    locks = scene.connect()
    lease = locks.lock(scene.name(), ttl=scene.steady, beat_every=0.5 * scene.steady).acquire()
    ends = time.monotonic() + 1.5 * scene.steady
    while time.monotonic() < ends:
        lease.beat()
        assert lease.valid, lease.lost_reason
        time.sleep(0.02)
    assert lease.wait_lost(1.5 * scene.steady + 1 + scene.store.slack)
    assert "beat" in lease.lost_reason


def test_without_renewal_it_ends_at_the_ttl(scene: Scene) -> None:
    """Contract: renew=False."""
    locks, faults = scene.faulty()
    begun = time.monotonic()
    lease = locks.lock(scene.name(), renew=False).acquire()
    assert lease.wait_lost(scene.ttl + 1)
    assert time.monotonic() - begun >= 0.5 * scene.ttl
    assert faults.calls["renew"] == 0


def test_a_holder_can_renew_by_itself(scene: Scene) -> None:
    """Contract: Lease.renew(ttl=None), from here on for ttl seconds a term."""
    locks = scene.connect()
    name = scene.name()
    lease = locks.lock(name, renew=False, ttl=5).acquire()
    token = lease.token
    time.sleep(0.2)
    before = lease.remaining
    lease.renew()
    assert lease.remaining > before
    lease.renew(50)
    assert lease.ttl == 50
    assert lease.remaining > 40
    assert scene.held(name)[0].expires_in > 40
    assert lease.token == token == scene.held(name)[0].token
    assert lease.release()
    with pytest.raises(LeaseLost):
        lease.renew()


def test_renewing_by_hand_tells_failure_from_loss(scene: Scene) -> None:
    """Contract, errors: StoreUnavailable leaves the lease as it was; LeaseLost when the store refuses."""
    locks, faults = scene.faulty()
    name = scene.name()
    lease = locks.lock(name, ttl=20).acquire()
    faults.lose_request("renew", times=1)
    with pytest.raises(StoreUnavailable):
        lease.renew()
    assert lease.valid
    lease.renew()
    locks.run(locks.store.abandon(name, lease._claim.attempt))
    with pytest.raises(LeaseLost):
        lease.renew()
    assert not lease.valid


def test_a_lost_lease_is_not_revived(scene: Scene) -> None:
    """S3, promise 3: a renewal that comes after the deadline changes nothing, not even when the store allows it."""
    locks, faults = scene.faulty()
    name = scene.name()
    lease = locks.lock(name, renew=False).acquire()
    locks.stop_the_timer()  # so that only the clock can say that it is over
    eventually(lambda: lease.remaining < 0.25 * scene.ttl)
    faults.delay_answer(0.4 * scene.ttl, "renew", times=1)
    with pytest.raises(LeaseLost):
        lease.renew()
    assert scene.held(name), "the store has renewed it, or this shows nothing"
    assert not lease.valid
    assert lease.lost.is_set()
    with pytest.raises(LeaseLost):
        lease.renew()
    assert lease.release() is False
    assert not scene.held(name), "it was given back nevertheless"
