"""Closing a ``Locks``: what it held is lost and given back, who waits is sent off, later use is refused."""

from __future__ import annotations

import time

import pytest

from ...errors import LeaseLost, ShuttingDown
from ..handles import eventually, in_time
from ..scene import Scene


def test_close_marks_as_lost_and_gives_back(scene: Scene) -> None:
    """Reference, connect: close() marks what is still held as lost and gives it back."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)
    names = [scene.name() for _ in range(5)]
    leases = [locks.lock(name).acquire() for name in names]
    locks.close()
    for name, lease in zip(names, leases, strict=True):
        assert not lease.valid
        assert lease.lost.is_set()
        assert "closed" in lease.lost_reason
        with pytest.raises(LeaseLost):
            lease.check()
        assert lease.release() is False
        assert not scene.held(name)
        other.lock(name).acquire(0).release()


def test_a_closed_locks_refuses(scene: Scene) -> None:
    """Reference, errors: ShuttingDown; closing again is harmless."""
    locks = scene.connect(ttl=30)
    lock = locks.lock(scene.name())
    lock.acquire().release()
    locks.close()
    locks.close()
    for use in (lock.acquire, lock.try_acquire, lock.locked, locks.metrics, locks.leases):
        with pytest.raises(ShuttingDown):
            use()
    with pytest.raises(ShuttingDown):
        locks.inspect("x")
    with pytest.raises(ShuttingDown):
        locks.break_lease("x")


def test_closing_what_was_never_used(scene: Scene) -> None:
    """Reference, connect: connect does no I/O, so there is nothing to close."""
    scene.connect().close()


def test_close_ends_a_waiting_acquire(scene: Scene) -> None:
    """Reference, connect; promise 4: whoever waits gets ShuttingDown, and is not in the queue any more."""
    locks = scene.connect(ttl=30)
    name = scene.name()
    lease = locks.lock(name).acquire()

    def close() -> float:
        other = scene.connect(ttl=30)
        waiter = other.lock(name).start()
        scene.until_waiting(name)
        begun = time.monotonic()
        other.close()
        assert isinstance(waiter.error(), ShuttingDown)
        took = time.monotonic() - begun
        assert scene.waiters(name) == 0
        return took

    in_time(close, 3)
    assert lease.valid
    assert lease.release()
    assert not scene.held(name)


def test_close_while_a_grant_is_on_its_way(scene: Scene) -> None:
    """Promise 4: whoever was just being answered gets ShuttingDown, and nothing stays held."""
    locks, faults = scene.faulty(ttl=30)
    name = scene.name()
    faults.delay_answer(4.0, "acquire")
    asking = locks.lock(name).start()
    scene.until_held(name)
    closing = scene.api.start(locks.real.close)
    eventually(locks.is_closed)
    assert not asking.done()
    faults.mend()  # the answer is there at once
    assert isinstance(asking.error(), ShuttingDown)
    closing.result()
    assert not scene.held(name)


def test_close_waits_for_a_release_that_is_under_way(scene: Scene) -> None:
    """Promise 4: what its holder was just giving back is given back."""
    locks, faults = scene.faulty(ttl=30)
    name = scene.name()
    lease = locks.lock(name).acquire()
    faults.delay_request(0.5, "release")
    releasing = scene.api.start(lease.real.release)
    eventually(lambda: faults.calls["release"])
    locks.close()
    assert releasing.result() is True
    assert not scene.held(name)


def test_closing_while_the_store_is_away_ends(scene: Scene) -> None:
    """Reference, connect: close() ends also when the store does not answer; the leases run out by themselves."""
    locks, faults = scene.faulty()
    lease = locks.lock(scene.name()).acquire()
    faults.lose_request("*", noticed_after=0.2)
    begun = time.monotonic()
    locks.close()
    assert time.monotonic() - begun < 25  # it has 5 s for that
    assert not lease.valid
    assert lease.lost.is_set()


def test_closing_one_locks_leaves_others_working(scene: Scene) -> None:
    """Reference, connect: only what is ours is stopped."""
    locks, other = scene.connect(), scene.connect()
    lease = other.lock(scene.name(), ttl=30, renew_every=0.1, max_renew_failures=100).acquire()
    locks.lock(scene.name()).acquire()
    locks.close()
    before = other.metrics().renewals
    eventually(lambda: other.metrics().renewals >= before + 5, what="it is renewed as before")
    assert lease.valid, lease.lost_reason
    assert lease.release()
