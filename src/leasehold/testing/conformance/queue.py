"""Waiting: in order, and woken by push."""

from __future__ import annotations

import time
from functools import partial
from itertools import pairwise

import pytest

from ...core.timing import FIRST_TERM
from ..faults import Faults
from ..handles import Lease, Lock, Waiter, eventually
from ..scene import Scene
from .fixtures import needs
from .operations import in_turn

HANDED_OVER = 2.0
"""Well below the 5 s after which a waiter looks by itself: what is faster was told."""
TRIES = 5
"""A loaded machine may be late by itself, now and then."""


@needs("fair")
def test_waiters_are_served_in_order(scene: Scene) -> None:
    """Promise 5: FIFO, for 20 waiters of two sessions."""
    locks = [scene.connect(ttl=30), scene.connect(ttl=30)]
    for _ in in_turn():
        name = scene.name()
        lease = locks[0].lock(name).acquire()
        waiters = []
        for place in range(20):
            waiters.append(locks[place % 2].lock(name).start())
            scene.until_waiting(name, place + 1)
        if _serve(lease, waiters):
            break


def _serve(lease: Lease, waiters: list[Waiter]) -> bool:
    """Release, and again whatever comes of it, until everybody was served: one at a time, in order, with rising tokens.

    False when a turn has passed, or may have: somebody stood still for longer than a first term."""
    waiting, tokens, nobody_late = list(waiters), [lease.token], True
    while waiting:
        released = time.monotonic()
        if not lease.release():
            assert lease.ran_out()
            nobody_late = False
        served = eventually(lambda: [waiter for waiter in waiting if waiter.done()])[0]
        if served is not waiting[0]:
            assert not nobody_late or time.monotonic() - released >= FIRST_TERM, "out of order"
            nobody_late = False
        done = [waiter.lease() for waiter in waiting if waiter.done()]
        assert sum(each.valid for each in reversed(done)) <= 1, "one at a time"  # none is valid later than the next one
        waiting.remove(served)
        lease = served.lease()
        tokens.append(lease.token)
    lease.release()
    assert len(set(tokens)) == len(tokens)
    assert not nobody_late or tokens == sorted(tokens)
    return nobody_late


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
        before = _checks(faults)
        eventually(lambda: _checks(faults) > before)  # noqa: B023
        looks.append(time.monotonic())
    pauses = sorted(later - look for look, later in pairwise(looks))
    assert pauses[2] < 0.6, "a turn lasts 0.7 s: it has to look within that"
    for _ in in_turn():
        while len(waiters) < 4:
            waiters.append(other.lock(name).start())
            scene.until_waiting(name, len(waiters))
        if _serve(lease, waiters):
            break
        lease, waiters = locks.lock(name).acquire(), []


@needs("fair")
def test_try_acquire_does_not_barge_in(scene: Scene) -> None:
    """Reference, fair: try_acquire() never queues, and returns None while anyone is queued."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)
    for _ in in_turn():
        name = scene.name()
        lease = locks.lock(name).acquire()
        waiter = other.lock(name).start()
        scene.until_waiting(name)
        assert locks.lock(name).try_acquire() is None
        released = time.monotonic()
        lease.release()
        tried = locks.lock(name).try_acquire()
        assert tried is None or time.monotonic() - released >= FIRST_TERM
        if tried is not None:
            tried.release()
        taken = waiter.lease()
        again = locks.lock(name).try_acquire()
        assert again is None or taken.ran_out()
        if again is not None:
            again.release()
        taken.release()
        assert scene.waiters(name) == 0
        if tried is None and again is None:
            break


@needs("push")
def test_a_release_reaches_the_waiter_by_push(scene: Scene) -> None:
    """Promise 5, L2: no poll in between, from session to session and within one."""
    locks = scene.connect(ttl=30)
    for other, faults in (scene.faulty(ttl=30), (locks, locks.faults())):
        took: list[float] = []
        while len(took) < TRIES and not (took and took[-1] < HANDED_OVER):
            name = scene.name()
            lease = locks.lock(name).acquire()
            waiter = other.lock(name).start()
            scene.until_waiting(name)
            eventually(partial(_silent_for_a_second, faults), what="the listener is up; else it polls")
            begun = time.monotonic()
            lease.release()
            taken = waiter.lease()
            took.append(time.monotonic() - begun)
            taken.release()
        assert took[-1] < HANDED_OVER


def _silent_for_a_second(faults: Faults) -> bool:
    """Longer than any pause between two polls."""
    before = _checks(faults)
    time.sleep(1.0)
    return _checks(faults) == before


def _checks(faults: Faults) -> int:
    """How often the waiters, or the keeper for them, have called the store."""
    return faults.calls["acquire"] + faults.calls["keep_waiting"]


@needs("push", "fair")
def test_hand_offs_in_a_row_are_pushed(scene: Scene) -> None:
    """Promise 5, L2: each of 10 waiters is told; a wake-up that got lost would cost 5 s."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)
    took: list[float] = []
    while len(took) < TRIES and not (took and took[-1] < HANDED_OVER + 10 * scene.store.slack):
        name = scene.name()
        lease = locks.lock(name).acquire()
        waiters = []
        for place in range(10):
            waiters.append((locks, other)[place % 2].lock(name).start())
            scene.until_waiting(name, place + 1)
        begun = time.monotonic()
        _serve(lease, waiters)
        took.append(time.monotonic() - begun)
    assert took[-1] < HANDED_OVER + 10 * scene.store.slack


def test_expiry_reaches_the_waiter(scene: Scene) -> None:
    """Promise 5, L1, L2: a holder that falls silent is replaced within ttl + 1 s; A1, A3, C3."""
    (locks, faults), other = scene.faulty(), scene.connect()
    took: list[float] = []
    while len(took) < TRIES and not (took and took[-1] <= scene.ttl + 1 + scene.store.slack):
        name = scene.name()
        lease = locks.lock(name).acquire()
        waiter = other.lock(name, ttl=30).start()
        eventually(partial(_waits_or_has_it, scene, name, waiter))
        begun = time.monotonic()
        faults.die()
        taken = waiter.lease()
        took.append(time.monotonic() - begun)
        assert taken.token > lease.token
        assert not lease.valid
        taken.release()
        faults.mend()
    assert took[-1] <= scene.ttl + 1 + scene.store.slack


def _waits_or_has_it(scene: Scene, name: str, waiter: Waiter) -> bool:
    """Where the holder fell silent by itself, on a machine that stood still, the waiter already has it."""
    if not scene.store.fair:
        scene.until_waiting(name)
        return True
    return waiter.done() or scene.waiters(name) == 1


@needs("fair")
def test_a_waiter_keeps_its_place(scene: Scene) -> None:
    """Promise 5: a place in the queue is kept alive while its waiter lives, also when asked again."""
    locks, (first, faults), second = scene.connect(ttl=30), scene.faulty(ttl=30), scene.connect(ttl=30)
    for _ in in_turn():
        name = scene.name()
        lease = locks.lock(name).acquire()
        ahead = first.lock(name).start()
        scene.until_waiting(name)
        behind = second.lock(name).start()
        scene.until_waiting(name, 2)
        before = faults.calls["acquire"]
        for _ in range(5):
            faults.wake(faults.asked[name])  # a ring for nothing: it asks again and goes on waiting
        eventually(lambda: faults.calls["acquire"] > before)  # noqa: B023
        if _serve(lease, [ahead, behind]):
            break


def test_waiter_of_an_unfair_lock_is_served(scene: Scene) -> None:
    """Reference, fair: fair=False allows barging; the waiter gets it all the same."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)
    lock: Lock = other.lock(scene.name(), fair=False)
    lease = locks.lock(lock.real.name, fair=False).acquire()
    waiter = lock.start()
    scene.until_waiting(lock.real.name)
    lease.release()
    waiter.lease().release()


def test_fair_is_a_promise_or_an_error(scene: Scene) -> None:
    """Reference, fair: True demands it, ValueError where the store can't."""
    locks = scene.connect(ttl=30)
    if scene.store.fair:
        locks.lock(scene.name(), fair=True).acquire().release()
    else:
        with pytest.raises(ValueError):
            locks.lock(scene.name(), fair=True)
