"""Waiters that give up or die: they leave nothing behind, and delay no other waiter."""

from __future__ import annotations

import threading
import time

import pytest

from ...core.timing import FIRST_TERM
from ...errors import AcquireCancelled, AcquireTimeout, StoreUnavailable
from ..api import PATIENCE
from ..handles import Waiter, eventually, in_time
from ..scene import Scene
from .fixtures import needs
from .queue import HANDED_OVER

CANCELLED = 0.1
"""Reference: how soon a cancelled wait ends."""
SOON = 10.0
"""Well below the ttl of 30 s, and the 15 s of a place in the queue: what is gone by then was released."""
DEAD_WAITER = 1.0
"""Promise 5: how long a dead waiter delays the others."""


def test_a_cancelled_waiter_leaves_nothing(scene: Scene) -> None:
    """Promise 4, L5; E2: cancelled within 100 ms, and no longer in the queue."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)
    name = scene.name()
    lease = locks.lock(name).acquire()

    def cancel() -> float:
        waiter = other.lock(name).start()
        scene.until_waiting(name)
        begun = time.monotonic()
        waiter.cancel()
        assert isinstance(waiter.error(), scene.api.cancelled)
        took = time.monotonic() - begun
        eventually(lambda: scene.waiters(name) == 0, SOON)
        return took

    in_time(cancel, CANCELLED, tries=30)
    assert [each.token for each in scene.held(name)] == [lease.token]
    lease.release()
    assert scene.held(name) == []


def test_cancel_event_that_is_set_already_asks_nothing_of_the_store(threads: Scene) -> None:
    """Reference: AcquireCancelled at once when the event is already set, and no call is made to the store."""
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
    for timeout in (0.3, 3.0, 10.0):  # in which it can be seen to wait, also on a busy machine
        waiter = other.lock(name).start(timeout)
        waited = eventually(lambda: scene.waiters(name) or (waiter.done() and "unseen")) != "unseen"  # noqa: B023
        error = waiter.error()
        eventually(lambda: scene.waiters(name) == 0, SOON)
        if isinstance(error, AcquireTimeout) and (waited or not scene.store.fair):
            break
        assert isinstance(error, (AcquireTimeout, StoreUnavailable)), "or the store was slower than the timeout"
    assert isinstance(error, AcquireTimeout)
    assert waited or not scene.store.fair
    lease.release()
    assert scene.held(name) == []


@needs("fair")
def test_one_who_gives_up_lets_the_next_move_up(scene: Scene) -> None:
    """Promise 5: the first waiter leaves; the second is granted at the release, the third after it."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)

    def hand_over() -> float:
        name = scene.name()
        lease = locks.lock(name).acquire()
        waiters = []
        for place in range(3):
            waiters.append(other.lock(name).start())
            scene.until_waiting(name, place + 1)
        waiters[0].cancel()
        scene.until_waiting(name, 2)
        begun = time.monotonic()
        lease.release()
        second = waiters[1].lease()
        out_of_turn = waiters[2].done()
        took = time.monotonic() - begun
        assert not out_of_turn or took >= FIRST_TERM, "the third before the second, whose turn has not passed"
        second.release()
        begun = time.monotonic()
        waiters[2].lease().release()
        waiters[0].error()
        return float("inf") if out_of_turn else max(took, time.monotonic() - begun)

    in_time(hand_over, HANDED_OVER)


def test_cancelling_just_as_it_is_granted_leaves_nothing(scene: Scene) -> None:
    """Promise 4, L5: whether the cancellation or the grant comes first, the name is free afterwards."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)
    lock = other.lock(scene.name())
    for delay in (0.0, 0.0005, 0.001, 0.002, 0.005):
        lease = locks.lock(lock.real.name).acquire(PATIENCE)
        waiter = lock.start()
        scene.until_waiting(lock.real.name)
        lease.release()
        time.sleep(delay)
        waiter.cancel()
        if waiter.error() is None:
            waiter.lease().release()
        scene.until_free(lock.real.name, SOON)


def test_an_acquire_cancelled_during_its_call_leaves_nothing(scene: Scene) -> None:
    """Promise 4, L5: the store has granted the name and the answer is on its way; the grant is released."""
    locks, faults = scene.faulty(ttl=30)
    name = scene.name()
    faults.delay_answer(4.0, "acquire")
    waiter = locks.lock(name).start()
    eventually(lambda: scene.held(name), what="the store has granted it")
    waiter.cancel()
    assert isinstance(waiter.error(), scene.api.cancelled)
    faults.mend()  # the answer is there at once
    scene.until_free(name, 15)  # long before it would expire


def test_a_dead_waiter_holds_up_nobody(scene: Scene) -> None:
    """Promise 5, L2: the first waiter has died; the next acquires within 1 s of the release."""
    locks, (dead, faults), other = scene.connect(ttl=30), scene.faulty(ttl=30), scene.connect(ttl=30)

    def die() -> float:
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
        took = time.monotonic() - begun
        ghost.cancel()
        faults.mend()
        ghost.error()
        assert taken.valid
        assert taken.release()
        return took

    in_time(die, DEAD_WAITER + scene.store.slack)


def test_dead_waiters_hold_up_nobody_when_the_holder_dies_too(scene: Scene) -> None:
    """Promise 5, L1 and L2 together: ttl + 1 s for the holder, 1 s for the dead waiter."""
    other = scene.connect(ttl=30)

    def die() -> float:
        locks, faults = scene.faulty(ttl=scene.steady)
        name = scene.name()
        lease = locks.lock(name).acquire()
        ghost = locks.lock(name).start()
        _until_waiting_or_served(scene, name, 1, ghost)
        waiter = other.lock(name).start()
        _until_waiting_or_served(scene, name, 2, ghost)
        begun = time.monotonic()
        faults.die()
        early = ghost.done()  # it stood still, and lost its lease to the one that was to die with it
        taken = waiter.lease()
        took = float("inf") if early else time.monotonic() - begun
        assert taken.token > lease.token
        ghost.cancel()
        faults.mend()
        ghost.error()
        assert taken.release()
        return took

    in_time(die, scene.steady + 1 + DEAD_WAITER + scene.store.slack)


def _until_waiting_or_served(scene: Scene, name: str, count: int, first: Waiter) -> None:
    if not scene.store.fair:
        scene.until_waiting(name, count)
        return
    eventually(lambda: first.done() or scene.waiters(name) == count, what=f"{count} wait for {name}")
