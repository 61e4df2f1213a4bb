"""Loss is told: once, in time, and never after a clean release."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from ...errors import LeaseLost
from ..handles import eventually
from ..scene import Scene
from ..store import THREADS

IN_TIME = 0.05
"""L4: how long after the deadline those who wait on ``lost`` are woken at the latest."""


def test_lost_is_set_in_time(scene: Scene) -> None:
    """Promise 6, L4; seed E6: waiters on lost wake ≤ 50 ms after the deadline."""
    locks = scene.connect()
    late: list[float] = []
    while len(late) < 5 and not (late and min(late) <= IN_TIME):  # a loaded machine may be late by itself, now and then
        lease = locks.lock(scene.name(), renew=False).acquire()
        deadline = time.monotonic() + lease.remaining
        assert not lease.lost.is_set()
        assert lease.wait_lost(scene.ttl + 2)
        late.append(time.monotonic() - deadline)
        assert lease.lost.is_set()
    assert -0.01 <= min(late) <= IN_TIME


def test_the_truth_needs_no_thread(scene: Scene) -> None:
    """Promise 6, S2: valid, remaining, check() and lost are computed, so right whatever threads or loops are stuck."""
    locks = scene.connect()
    lease = locks.lock(scene.name(), renew=False).acquire()
    lost = lease.lost
    with lease._core.mutex:  # whoever would mark the lease as lost is stuck here
        while lease.remaining:
            assert lease.valid or not lease.remaining
            time.sleep(0.01)
        assert not lease.valid
        assert lost.is_set()
        assert lease.lost_reason
        with pytest.raises(LeaseLost):
            lease.check()
    assert lease.wait_lost(2)


def test_loss_is_told_once(scene: Scene) -> None:
    """L4: one event, one call of each callback, with the lease; a callback that comes later is called at once."""
    locks = scene.connect()
    events: list[Any] = []
    calls: list[Any] = []
    locks.on_event(events.append)
    lease = locks.lock(scene.name(), renew=False, on_lost=calls.append).acquire()
    lease.on_lost(calls.append)
    assert lease.wait_lost(scene.ttl + 2)
    eventually(lambda: len(calls) == 2)
    scene.api.call(lease.real.on_lost, calls.append)
    eventually(lambda: len(calls) == 3)
    lease.release()
    eventually(lambda: [event for event in events if event.type == "lost"])
    lost = [event for event in events if event.type == "lost"]
    assert [(event.name, event.token, event.owner) for event in lost] == [(lease.name, lease.token, lease.owner)]
    assert lost[0].reason == lease.lost_reason
    assert calls == [lease.real] * 3


def test_a_clean_release_is_no_loss(scene: Scene) -> None:
    """L4: lost is never set after a clean release, however much time passes."""
    locks = scene.connect()
    calls: list[Any] = []
    events: list[str] = []
    locks.on_event(lambda event: events.append(event.type))
    lease = locks.lock(scene.name(), renew=False, ttl=1.5, on_lost=calls.append).acquire()
    lost = lease.lost
    assert lease.release()
    time.sleep(1.6)
    assert not lost.is_set()
    assert not lease.lost.is_set()
    assert lease.lost_reason is None
    assert not lease.valid
    lease.on_lost(calls.append)
    assert calls == []
    eventually(lambda: events == ["acquired", "released"])


def test_a_slow_callback_delays_nobody(scene: Scene) -> None:
    """L4: the second lease is told in time, though the first one's callback takes long."""
    locks = scene.connect()

    def sleep(lease: object) -> None:
        time.sleep(1.5)

    async def nap(lease: object) -> None:
        await asyncio.sleep(1.5)

    slow = sleep if scene.side == THREADS else nap
    leases = [locks.lock(scene.name(), renew=False, on_lost=slow).acquire() for _ in range(3)]
    kept = locks.lock(scene.name(), ttl=scene.steady).acquire()
    for lease in leases:
        deadline = time.monotonic() + lease.remaining
        assert lease.wait_lost(scene.ttl + 1)
        assert time.monotonic() - deadline <= IN_TIME + 2 * scene.store.slack
    eventually(lambda: locks.metrics().renewals or not kept.valid)
    assert kept.valid, "renewal goes on as well"
    kept.release()


def test_a_callback_that_fails_harms_nobody(scene: Scene) -> None:
    """L4: the next callback is called all the same."""
    locks = scene.connect()
    called = threading.Event()

    def fail(lease: object) -> None:
        raise KeyError("in a callback")

    lease = locks.lock(scene.name(), renew=False, on_lost=fail).acquire()
    lease.on_lost(lambda lease: called.set())
    assert called.wait(scene.ttl + 5)
    other = locks.lock(scene.name()).acquire()
    assert other.valid
    other.release()


def test_on_lost_raise_comes_at_the_end_of_the_block(scene: Scene) -> None:
    """Contract: on_lost="raise": LeaseLost at the end of the block."""
    locks = scene.connect()
    lock = locks.lock(scene.name(), renew=False, on_lost="raise")
    job = lock.block(lambda lease: lease.lost_reason is not None)
    error = job.error()
    assert isinstance(error, LeaseLost)
    assert error.name == lock.real.name
    assert error.reason
    ended = time.monotonic() + 0.05
    assert locks.lock(scene.name(), on_lost="raise").block(lambda lease: time.monotonic() > ended).error() is None


def test_on_lost_must_be_something_that_can_be_done(scene: Scene) -> None:
    """Contract: "cancel" is a ValueError in threads; anything unknown is one everywhere."""
    locks = scene.connect()
    with pytest.raises(ValueError):
        locks.lock(scene.name(), on_lost="shout")
    if scene.side == THREADS:
        with pytest.raises(ValueError):
            locks.lock(scene.name(), on_lost="cancel")


def test_loss_is_told_while_the_store_hangs(scene: Scene) -> None:
    """Promise 6: also when the network hangs, nobody who asks after the deadline is told otherwise."""
    locks, faults = scene.faulty()
    lease = locks.lock(scene.name()).acquire()
    faults.lose_request("*", noticed_after=30)
    deadline = time.monotonic() + lease.remaining
    assert lease.wait_lost(2 * scene.ttl + 2)
    assert time.monotonic() - deadline <= scene.ttl + IN_TIME + scene.store.slack
    assert not lease.valid
    faults.mend()
