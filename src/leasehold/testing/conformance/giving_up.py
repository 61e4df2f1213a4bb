"""Waiters that give up or die: they leave nothing behind, and hold up nobody."""

from __future__ import annotations

import threading
import time

import pytest

from ...errors import AcquireCancelled, AcquireTimeout
from ..handles import eventually
from ..scene import Scene
from .fixtures import needs
from .queue import HANDED_OVER

CANCELLED = 0.1
"""Contract: how soon a cancelled wait ends."""
DEAD_WAITER = 1.0
"""Promise 5: what a waiter that has died costs the others."""


def test_a_cancelled_waiter_leaves_nothing(scene: Scene) -> None:
    """Promise 4, L5; seed E2: cancelled within 100 ms, and not in the queue any more."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)
    name = scene.name()
    lease = locks.lock(name).acquire()
    took: list[float] = []
    while len(took) < 5 and not (took and min(took) <= CANCELLED):  # a loaded machine may be late now and then
        waiter = other.lock(name).start()
        scene.until_waiting(name)
        begun = time.monotonic()
        waiter.cancel()
        assert isinstance(waiter.error(), scene.api.cancelled)
        took.append(time.monotonic() - begun)
        eventually(lambda: scene.waiters(name) == 0, 2)
    assert min(took) <= CANCELLED
    assert [each.token for each in scene.held(name)] == [lease.token]
    lease.release()
    assert scene.held(name) == []


def test_cancel_before_asking(threads: Scene) -> None:
    """Contract: AcquireCancelled at once when the event is already set, and nothing is asked of the store."""
    locks, faults = threads.faulty()
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(AcquireCancelled):
        locks.real.lock(threads.name()).acquire(cancel=cancel)
    assert not faults.calls


def test_a_waiter_that_timed_out_leaves_nothing(scene: Scene) -> None:
    """Promise 4, L5."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)
    name = scene.name()
    lease = locks.lock(name).acquire()
    waiter = other.lock(name).start(0.3)
    scene.until_waiting(name)
    assert isinstance(waiter.error(), AcquireTimeout)
    eventually(lambda: scene.waiters(name) == 0, 2)
    lease.release()
    assert scene.held(name) == []


@needs("fair")
def test_one_who_gives_up_lets_the_next_move_up(scene: Scene) -> None:
    """Promise 5: the head of the queue goes, the second is served at the release; the third after it."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)
    name = scene.name()
    lease = locks.lock(name).acquire()
    waiters = []
    for place in range(3):
        waiters.append(other.lock(name).start())
        scene.until_waiting(name, place + 1)
    waiters[0].cancel()
    scene.until_waiting(name, 2)
    lease.release()
    second = waiters[1].lease(HANDED_OVER)
    assert not waiters[2].done()
    second.release()
    waiters[2].lease(HANDED_OVER).release()
    waiters[0].error()


def test_cancelling_just_as_it_is_granted_leaves_nothing(scene: Scene) -> None:
    """Promise 4, L5: whichever comes first, the cancellation or the grant, nobody holds it afterwards."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)
    lock = other.lock(scene.name())
    for delay in (0.0, 0.0005, 0.001, 0.002, 0.005):
        lease = locks.lock(lock.real.name).acquire(5)
        waiter = lock.start()
        scene.until_waiting(lock.real.name)
        lease.release()
        time.sleep(delay)
        waiter.cancel()
        if waiter.error() is None:
            waiter.lease().release()
        scene.until_free(lock.real.name, 2)


def test_a_dead_waiter_holds_up_nobody(scene: Scene) -> None:
    """Promise 5, L2: the head of the queue has died; the next has the lease within 1 s of the release."""
    locks, (dead, faults), other = scene.connect(ttl=30), scene.faulty(ttl=30), scene.connect(ttl=30)
    name = scene.name()
    lease = locks.lock(name).acquire()
    ghost = dead.lock(name).start()
    scene.until_waiting(name)
    waiter = other.lock(name).start()
    scene.until_waiting(name, 2)
    faults.die()
    begun = time.monotonic()
    lease.release()
    taken = waiter.lease()
    assert time.monotonic() - begun <= DEAD_WAITER + scene.store.slack
    ghost.cancel()
    faults.mend()
    ghost.error()
    assert taken.valid
    assert taken.release()


def test_dead_waiters_hold_up_nobody_when_the_holder_dies_too(scene: Scene) -> None:
    """Promise 5, L1 and L2 together: ttl + 1 s for the holder, 1 s for the dead waiter."""
    (locks, faults), other = scene.faulty(), scene.connect(ttl=30)
    name = scene.name()
    lease = locks.lock(name).acquire()
    ghost = locks.lock(name).start()
    scene.until_waiting(name)
    waiter = other.lock(name).start()
    scene.until_waiting(name, 2)
    begun = time.monotonic()
    faults.die()
    taken = waiter.lease()
    assert time.monotonic() - begun <= scene.ttl + 1 + DEAD_WAITER + scene.store.slack
    assert taken.token > lease.token
    ghost.cancel()
    faults.mend()
    ghost.error()
    assert taken.release()
