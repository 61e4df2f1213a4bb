"""Waiting: in order, woken by push, and nobody held up by those who gave up or died."""

from __future__ import annotations

import threading
import time

import pytest

from ...errors import AcquireCancelled, AcquireTimeout
from ..handles import Lock, eventually
from ..scene import Scene
from .fixtures import needs

HANDED_OVER = 2.0
"""Well below the 5 s after which a waiter looks by itself: what is faster was told."""
DEAD_WAITER = 1.0
"""Promise 5: what a waiter that has died costs the others."""


@needs("fair")
def test_waiters_are_served_in_order(scene: Scene) -> None:
    """Promise 5: FIFO, for 20 waiters of two sessions."""
    locks = [scene.connect(ttl=30), scene.connect(ttl=30)]
    name = scene.name()
    lease = locks[0].lock(name).acquire()
    served: list[int] = []
    waiters = []
    for place in range(20):
        waiters.append(locks[place % 2].lock(name).start())
        scene.until_waiting(name, place + 1)
    tokens = [lease.token]
    lease.release()
    while len(served) < 20:
        place = eventually(lambda: [p for p in range(20) if waiters[p].done() and p not in served], 15)[0]
        assert sum(waiters[p].done() for p in range(20) if p not in served) == 1, "one at a time"
        taken = waiters[place].lease()
        served.append(place)
        tokens.append(taken.token)
        taken.release()
    assert served == list(range(20))
    assert tokens == sorted(set(tokens))


@needs("fair")
@pytest.mark.slow
def test_order_is_kept_without_push(scene: Scene) -> None:
    """Promise 5, L2: those who poll look often enough to claim what was granted to them, and so keep their turn."""
    locks, (other, faults) = scene.connect(ttl=30), scene.faulty(ttl=30)
    faults.no_push = True
    name = scene.name()
    lease = locks.lock(name).acquire()
    waiters = []
    for place in range(4):
        waiters.append(other.lock(name).start())
        scene.until_waiting(name, place + 1)
    time.sleep(3)  # by now they look as seldom as they ever do
    before = faults.calls["acquire"]
    time.sleep(1.5)
    assert faults.calls["acquire"] - before >= 2 * len(waiters), "a turn lasts 0.7 s: they have to look within that"
    tokens = [lease.token]
    for waiter in waiters:
        lease.release()
        lease = waiter.lease(5)
        tokens.append(lease.token)
    assert tokens == sorted(set(tokens))
    lease.release()


@needs("fair")
def test_try_acquire_does_not_barge_in(scene: Scene) -> None:
    """Contract, fairness: try_acquire() never queues, and returns None while anyone is queued."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)
    name = scene.name()
    lease = locks.lock(name).acquire()
    waiter = other.lock(name).start()
    scene.until_waiting(name)
    assert locks.lock(name).try_acquire() is None
    lease.release()
    assert locks.lock(name).try_acquire() is None
    taken = waiter.lease()
    assert locks.lock(name).try_acquire() is None
    taken.release()
    assert scene.waiters(name) == 0


@needs("push")
def test_a_release_reaches_the_waiter_by_push(scene: Scene) -> None:
    """Promise 5, L2: no poll in between, from session to session and within one."""
    locks = scene.connect(ttl=30)
    for other, faults in (scene.faulty(ttl=30), (locks, locks.faults())):
        name = scene.name()
        lease = locks.lock(name).acquire()
        before = faults.calls["acquire"]
        waiter = other.lock(name).start()
        scene.until_waiting(name)
        time.sleep(1.0)
        assert faults.calls["acquire"] - before <= 3, "it polls"
        begun = time.monotonic()
        lease.release()
        taken = waiter.lease()
        assert time.monotonic() - begun < HANDED_OVER
        taken.release()


@needs("push", "fair")
def test_hand_offs_in_a_row_are_pushed(scene: Scene) -> None:
    """Promise 5, L2: each of 10 waiters is told; a wake-up that got lost would cost 5 s."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)
    name = scene.name()
    lease = locks.lock(name).acquire()
    waiters = []
    for place in range(10):
        waiters.append((locks, other)[place % 2].lock(name).start())
        scene.until_waiting(name, place + 1)
    begun = time.monotonic()
    for waiter in waiters:
        lease.release()
        lease = waiter.lease()
    assert time.monotonic() - begun < HANDED_OVER + 10 * scene.store.slack
    lease.release()


def test_expiry_reaches_the_waiter(scene: Scene) -> None:
    """Promise 5, L1, L2: a holder that falls silent is replaced within ttl + 1 s; seeds A1, A3, C3."""
    (locks, faults), other = scene.faulty(), scene.connect()
    name = scene.name()
    lease = locks.lock(name).acquire()
    waiter = other.lock(name, ttl=30).start()
    scene.until_waiting(name)
    begun = time.monotonic()
    faults.die()
    taken = waiter.lease()
    assert time.monotonic() - begun <= scene.ttl + 1 + scene.store.slack
    assert taken.token > lease.token
    assert not lease.valid
    taken.release()


def test_a_cancelled_waiter_leaves_nothing(scene: Scene) -> None:
    """Promise 4, L5; seed E2: cancelled within 100 ms, and not in the queue any more."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)
    name = scene.name()
    lease = locks.lock(name).acquire()
    waiter = other.lock(name).start()
    scene.until_waiting(name)
    begun = time.monotonic()
    waiter.cancel()
    assert isinstance(waiter.error(), scene.api.cancelled)
    assert time.monotonic() - begun <= 0.1 + scene.store.slack
    eventually(lambda: scene.waiters(name) == 0, 2)
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


@needs("fair")
def test_a_waiter_keeps_its_place(scene: Scene) -> None:
    """Promise 5: a place in the queue is kept alive while its waiter lives, also when asked again."""
    locks, (first, faults), second = scene.connect(ttl=30), scene.faulty(ttl=30), scene.connect(ttl=30)
    name = scene.name()
    lease = locks.lock(name).acquire()
    ahead = first.lock(name).start()
    scene.until_waiting(name)
    behind = second.lock(name).start()
    scene.until_waiting(name, 2)
    attempt = next(iter(first.real._core.asking))
    for _ in range(5):
        first.real._core.rung(attempt)  # a ring for nothing: it asks again and goes on waiting
    eventually(lambda: faults.calls["acquire"] >= 2)
    lease.release()
    taken = ahead.lease(HANDED_OVER)
    assert not behind.done()
    taken.release()
    behind.lease(HANDED_OVER).release()


def test_unfair_locks_are_served_too(scene: Scene) -> None:
    """Contract, fairness: fair=False allows barging; the waiter gets it all the same."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)
    lock: Lock = other.lock(scene.name(), fair=False)
    lease = locks.lock(lock.real.name, fair=False).acquire()
    waiter = lock.start()
    scene.until_waiting(lock.real.name)
    lease.release()
    waiter.lease(HANDED_OVER + 5).release()


def test_fair_is_a_promise_or_an_error(scene: Scene) -> None:
    """Contract, fairness: True demands it, ValueError where the store can't."""
    locks = scene.connect()
    if scene.store.fair:
        locks.lock(scene.name(), fair=True).acquire().release()
    else:
        with pytest.raises(ValueError):
            locks.lock(scene.name(), fair=True)
