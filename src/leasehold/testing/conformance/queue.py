"""Waiting: in order, and woken by push."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from ..handles import Lock, eventually
from ..scene import Scene
from .fixtures import needs

HANDED_OVER = 2.0
"""Well below the 5 s after which a waiter looks by itself: what is faster was told."""


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
    waiters = [other.lock(name).start()]
    time.sleep(2.5)  # by now it looks as seldom as it ever does
    looks: list[float] = []
    while len(looks) < 6:
        before = faults.calls["acquire"]
        eventually(lambda: faults.calls["acquire"] > before)  # noqa: B023
        looks.append(time.monotonic())
    pauses = sorted(later - look for look, later in pairwise(looks))
    assert pauses[2] < 0.6, "a turn lasts 0.7 s: it has to look within that"
    for place in range(1, 4):
        waiters.append(other.lock(name).start())
        scene.until_waiting(name, place + 1)
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
