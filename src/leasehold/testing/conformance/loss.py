"""Loss is told: once, in time, and never after a clean release."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from ...errors import LeaseLost, StoreUnavailable
from ..api import PATIENCE
from ..handles import eventually
from ..inside import core
from ..scene import Scene
from ..store import THREADS

IN_TIME = 0.05
"""L4: how long after the deadline those who wait on ``lost`` are woken at the latest."""


def test_lost_is_set_in_time(scene: Scene) -> None:
    """Promise 6, L4; E6: waiters on lost wake ≤ 50 ms after the deadline."""
    locks = scene.connect()
    late: list[float] = []
    while len(late) < 20 and not (late and min(late) <= IN_TIME):  # a loaded machine may be late by itself at times
        lease = locks.lock(scene.name(), renew=False).acquire()
        deadline = time.monotonic() + lease.remaining
        assert not lease.lost.is_set() or not lease.remaining
        assert lease.wait_lost(3)  # who is not told sees it all the same, but only then
        late.append(time.monotonic() - deadline)
        assert lease.lost.is_set()
    assert -0.01 <= min(late) <= IN_TIME


def test_the_truth_needs_no_thread(scene: Scene) -> None:
    """Promise 6, S2: valid, remaining, check() and lost are computed, so right whatever threads or loops are stuck."""
    locks = scene.connect()
    lease = locks.lock(scene.name(), renew=False).acquire()
    lost = lease.lost
    with core(lease.real).mutex:  # whoever would mark the lease as lost is stuck here
        while lease.remaining:
            assert lease.valid or not lease.remaining
            time.sleep(0.01)
        assert not lease.valid
        assert lost.is_set()
        assert lease.lost_reason
        with pytest.raises(LeaseLost):
            lease.check()
    assert lease.wait_lost()


def test_loss_is_told_once(scene: Scene) -> None:
    """L4: one event, one call of each callback, with the lease; a callback that comes later is called at once."""
    locks = scene.connect()
    events: list[Any] = []
    calls: list[Any] = []
    locks.on_event(events.append)
    lease = locks.lock(scene.name(), ttl=scene.steady, renew=False, on_lost=calls.append).acquire()
    lease.on_lost(calls.append)
    assert lease.wait_lost()
    eventually(lambda: len(calls) == 2)
    scene.api.call(lease.real.on_lost, calls.append)
    eventually(lambda: len(calls) == 3)
    lease.let_go()
    eventually(lambda: [event for event in events if event.type == "lost"])
    lost = [event for event in events if event.type == "lost"]
    assert [(event.name, event.token, event.owner) for event in lost] == [(lease.name, lease.token, lease.owner)]
    assert lost[0].reason == lease.lost_reason
    assert calls == [lease.real] * 3


def test_a_clean_release_is_no_loss(scene: Scene) -> None:
    """L4: lost is never set after a clean release, however much time passes."""
    calls: list[Any] = []
    for _ in range(5):
        locks = scene.connect()
        events: list[Any] = []
        locks.on_event(events.append)
        lease = locks.lock(scene.name(), renew=False, ttl=1.5, on_lost=calls.append).acquire()
        lost = lease.lost
        try:
            if lease.release():
                break
        except StoreUnavailable:  # nor is that a loss, but it is not clean
            continue
        assert lease.ran_out()
        eventually(lambda: calls)
        calls.clear()
    time.sleep(1.6)
    assert not lost.is_set()
    assert not lease.lost.is_set()
    assert lease.lost_reason is None
    assert not lease.valid
    lease.on_lost(calls.append)
    assert calls == []
    # A store that took longer than the ttl to answer is told too, and asked again.
    told = ["acquired", "released"]
    eventually(lambda: [event.type for event in events if event.type != "unavailable"] == told)


def test_a_slow_callback_delays_nobody(scene: Scene) -> None:
    """L4: the second lease is told in time, though the first one's callback takes long."""
    locks = scene.connect()
    may_end = threading.Event()
    ended: list[object] = []

    def sleep(lease: object) -> None:
        may_end.wait(PATIENCE)
        ended.append(lease)

    async def nap(lease: object) -> None:
        while not may_end.is_set():  # noqa: ASYNC110  (it is told by another thread)
            await asyncio.sleep(0.01)
        ended.append(lease)

    slow = sleep if scene.side == THREADS else nap
    leases = [locks.lock(scene.name(), renew=False, on_lost=slow).acquire() for _ in range(3)]
    kept = locks.lock(scene.name(), ttl=30, renew_every=0.3, max_renew_failures=1000).acquire()
    try:
        for lease in leases:
            assert lease.wait_lost(0.8 * PATIENCE)
        before = locks.metrics().renewals
        eventually(lambda: locks.metrics().renewals > before, 0.8 * PATIENCE, "renewal goes on as well")
        assert kept.valid
        assert not ended, "no callback is over yet"
    finally:
        may_end.set()
    kept.release()


def test_a_callback_that_fails_harms_nobody(scene: Scene) -> None:
    """L4: the next callback is called all the same."""
    locks = scene.connect()
    called = threading.Event()

    def fail(lease: object) -> None:
        raise KeyError("in a callback")

    lease = locks.lock(scene.name(), renew=False, on_lost=fail).acquire()
    lease.on_lost(lambda lease: called.set())
    assert called.wait(PATIENCE)
    other = locks.lock(scene.name(), ttl=30).acquire()
    assert other.valid
    other.release()


def test_on_lost_raise_comes_at_the_end_of_the_block(scene: Scene) -> None:
    """Reference: on_lost="raise": LeaseLost at the end of the block."""
    locks = scene.connect()
    lock = locks.lock(scene.name(), renew=False, on_lost="raise")
    job = lock.block(lambda lease: lease.lost_reason is not None)
    error = job.error()
    assert isinstance(error, LeaseLost)
    assert error.name == lock.real.name
    assert error.reason
    ended = time.monotonic() + 0.05
    held = locks.lock(scene.name(), ttl=30, on_lost="raise").block(lambda lease: time.monotonic() > ended)
    assert held.error() is None


def test_on_lost_must_be_something_that_can_be_done(scene: Scene) -> None:
    """Reference: "cancel" is a ValueError in threads; anything unknown is one everywhere."""
    locks = scene.connect()
    with pytest.raises(ValueError):
        locks.lock(scene.name(), on_lost="shout")
    if scene.side == THREADS:
        with pytest.raises(ValueError):
            locks.lock(scene.name(), on_lost="cancel")


def test_loss_is_told_while_the_store_hangs(scene: Scene) -> None:
    """Promise 6: also when the network hangs, nobody who asks after the deadline is told otherwise."""
    locks, faults = scene.faulty()
    in_time = scene.ttl + IN_TIME + scene.store.slack
    late: list[float] = []
    while len(late) < 5 and not (late and min(late) <= in_time):  # as above
        lease = locks.lock(scene.name()).acquire()
        faults.lose_request("*", noticed_after=30)
        deadline = time.monotonic() + lease.remaining
        assert lease.wait_lost()
        late.append(time.monotonic() - deadline)
        assert not lease.valid
        faults.mend()
    assert min(late) <= in_time
