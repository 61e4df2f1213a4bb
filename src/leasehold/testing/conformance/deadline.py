"""A holder stops trusting its lease before the store ends it: counted from the sending, with a margin."""

from __future__ import annotations

import time

import pytest

from ...errors import LeaseLost
from ..scene import Scene


def margin(ttl: float) -> float:
    return 0.01 * ttl + 0.05


def test_deadline_is_ttl_less_the_margin(scene: Scene) -> None:
    """Reference, timing; S2; B5: deadline = sending + ttl − (1 % + 50 ms), or − 2·drift."""
    locks = scene.connect()
    lease = locks.lock(scene.name(), ttl=10).acquire()
    assert 0 < lease.remaining <= 10 - margin(10)
    lease.renew()
    assert 0 < lease.remaining <= 10 - margin(10)
    lease.renew(20)
    assert 10 < lease.remaining <= 20 - margin(20)
    lease.release()
    lease = locks.lock(scene.name(), ttl=10, drift=1.5).acquire()
    assert 0 < lease.remaining <= 10 - 3
    lease.renew()
    assert 0 < lease.remaining <= 10 - 3
    lease.release()


def test_the_deadline_counts_from_sending(scene: Scene) -> None:
    """S2, promise 1: an answer that took 0.7 s leaves ttl − 0.7 s, of an acquire and of a renewal."""
    locks, faults = scene.faulty()
    faults.delay_answer(0.7, "acquire")
    lease = locks.lock(scene.name(), ttl=20, renew=False).acquire()
    assert 0 < lease.remaining <= 20 - 0.7 - margin(20)
    faults.mend()
    faults.delay_answer(0.7, "renew")
    lease.renew()
    assert 0 < lease.remaining <= 20 - 0.7 - margin(20)
    faults.mend()
    lease.release()


def test_the_deadline_of_a_hand_off_is_not_later_than_the_store_says(scene: Scene) -> None:
    """S2, hand-off: a waiter that a release granted trusts its lease no longer than the store keeps it."""
    locks, (other, faults) = scene.connect(), scene.faulty()
    name = scene.name()
    lease = locks.lock(name, ttl=30).acquire()
    faults.delay_answer(0.5, "acquire")  # before the call: the same call may wait and be granted
    waiter = other.lock(name, ttl=10, renew=False).start()
    scene.until_waiting(name)
    lease.release()
    taken = waiter.lease()
    before = time.monotonic()
    believed = taken.remaining
    stored = scene.held(name)[0].expires_in
    assert before + believed <= time.monotonic() + stored + 1e-3
    faults.mend()
    taken.release()


def test_nobody_believes_what_the_store_has_given_up(scene: Scene) -> None:
    """Promise 1: at no moment does a holder trust a lease that has expired in the store."""
    locks = scene.connect()
    name = scene.name()
    lease = locks.lock(name, ttl=scene.steady, renew=False).acquire()
    ends = time.monotonic() + scene.steady + 1
    while time.monotonic() < ends:
        expired = not scene.held(name)  # read first: what has expired now is not valid later
        assert not (expired and lease.valid)
        if expired:
            break
        time.sleep(0.002)
    assert not lease.valid
    assert lease.remaining == 0
    assert lease.lost.is_set()
    assert lease.lost_reason
    with pytest.raises(LeaseLost):
        lease.check()
    assert lease.let_go() is False


def test_a_lease_can_be_trusted_until_its_deadline(scene: Scene) -> None:
    """Promise 1, the other half: while a holder trusts its lease, no other process is granted the name."""
    locks, other = scene.connect(), scene.connect(ttl=30)
    name = scene.name()
    lease = locks.lock(name, renew=False).acquire()
    lock = other.lock(name)
    while True:
        taken = lock.try_acquire()
        if taken is not None:
            break
        time.sleep(0.01)
    assert not lease.valid
    assert taken.valid
    assert taken.token > lease.token
    taken.release()
