"""Acquire: at once, with a timeout, not at all; and the messages of its errors."""

from __future__ import annotations

import time

import pytest

from ...errors import AcquireTimeout, StoreUnavailable
from ..api import PATIENCE
from ..handles import Lock, eventually, in_time
from ..scene import Scene


def test_a_lease_stands_in_the_store_while_it_is_held(scene: Scene) -> None:
    """Reference, lock; A1, B1, C1, C4, E1: one holder, recorded, gone after release."""
    locks = scene.connect(owner="api-7", ttl=30)
    name = scene.name()
    lease = locks.lock(name, data={"by": "nightly"}, kind="batch").acquire()
    assert (lease.name, lease.owner, lease.kind, lease.data) == (name, "api-7", "batch", {"by": "nightly"})
    assert lease.ttl == 30
    assert lease.valid
    assert not lease.lost.is_set()
    assert lease.lost_reason is None
    lease.check()
    (held,) = scene.held(name)
    assert (held.owner, held.token) == ("api-7", lease.token)
    assert 0 < held.expires_in <= 30 + scene.store.slack
    assert lease.release() is True
    assert not lease.valid
    assert scene.held(name) == []


def test_try_acquire_of_a_busy_name_is_none(scene: Scene) -> None:
    """E2: TryAcquire returns nothing when busy; it doesn't queue."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)
    name = scene.name()
    lease = locks.lock(name).acquire()
    assert other.lock(name).try_acquire() is None
    assert locks.lock(name).try_acquire() is None, "the same Locks is no exception: a lock is not re-entrant"
    assert scene.waiters(name) == 0
    assert [each.token for each in scene.held(name)] == [lease.token]
    lease.release()
    taken = other.lock(name).try_acquire()
    assert taken is not None
    assert taken.token > lease.token
    taken.release()


def test_a_timeout_names_the_holder(scene: Scene) -> None:
    """Reference, errors; A6: AcquireTimeout is a TimeoutError and names the holder, its age and its token."""
    locks, other = scene.connect(owner="the-holder"), scene.connect(ttl=30)
    name = scene.name()
    lease = locks.lock(name, ttl=30, data=[1, "two"]).acquire()
    with pytest.raises(AcquireTimeout) as caught:
        other.lock(name).acquire(0)
    assert isinstance(caught.value, TimeoutError)
    holder = caught.value.holder
    assert holder is not None
    assert (holder.name, holder.owner, holder.token, holder.data) == (name, "the-holder", lease.token, [1, "two"])
    assert name in str(caught.value)
    assert "the-holder" in str(caught.value)
    assert str(lease.token) in str(caught.value)
    lease.release()


def test_a_timeout_is_waited_for(scene: Scene) -> None:
    """E2: both with a timeout, given to the call or to the lock."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)
    name = scene.name()
    lease = locks.lock(name).acquire()
    for lock, timeout in ((other.lock(name), 0.3), (other.lock(name, timeout=0.3), None)):

        def wait(lock: Lock = lock, timeout: float | None = timeout) -> float:
            begun = time.monotonic()
            error = lock.start(timeout).error()
            took = time.monotonic() - begun
            assert took >= 0.3
            assert isinstance(error, (AcquireTimeout, StoreUnavailable))
            return took if isinstance(error, AcquireTimeout) else float("inf")  # the store did not answer in time

        in_time(wait, 0.3 + 1)
    begun = time.monotonic()
    assert other.lock(name, on_unavailable="skip").try_acquire(0.2) is None  # a store may need longer
    assert time.monotonic() - begun >= 0.2
    lease.release()


def test_a_waiting_acquire_is_served_when_the_name_becomes_free(scene: Scene) -> None:
    """C5, E2: a blocking acquire, no spinning by the caller."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)
    name = scene.name()
    lease = locks.lock(name).acquire()
    waiter = other.lock(name, renew=False).start(PATIENCE)  # without renewal it claims a whole ttl, not a first term
    scene.until_waiting(name)
    assert not waiter.done()
    lease.release()
    taken = waiter.lease()
    assert taken.valid
    assert taken.token > lease.token
    assert [each.token for each in scene.held(name)] == [taken.token]
    taken.release()


def test_locked_says_whether_anybody_holds_it(scene: Scene) -> None:
    """Reference: Lock.locked()."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)
    lock = other.lock(scene.name())
    assert not lock.locked()
    lease = locks.lock(lock.real.name).acquire()
    assert lock.locked()
    lease.release()
    assert not lock.locked()


def test_a_block_gives_back_however_it_ends(scene: Scene) -> None:
    """E1: a handle that releases when its block ends; no leak on an exception (L5)."""
    locks = scene.connect(ttl=30)
    lock = locks.lock(scene.name())
    ended: list[bool] = []
    job = lock.block(lambda lease: bool(ended))
    scene.until_held(lock.real.name)
    ended.append(True)
    assert job.error() is None
    assert scene.held(lock.real.name) == []

    def fail(lease: object) -> bool:
        raise KeyError("in the body")

    assert isinstance(lock.block(fail).error(), KeyError)
    assert scene.held(lock.real.name) == []


def test_names_do_not_disturb_each_other(scene: Scene) -> None:
    """C1: different names do not affect each other."""
    locks = scene.connect(ttl=30)
    leases = [locks.lock(scene.name()).acquire(0) for _ in range(10)]
    assert all(lease.valid for lease in leases)
    assert all(lease.release() for lease in leases)


def test_a_lock_can_be_used_again_and_shared(scene: Scene) -> None:
    """Reference: a Lock is reusable; a holding's state is in its Lease."""
    lock = scene.connect(ttl=30).lock(scene.name())
    first = lock.acquire()
    assert lock.try_acquire() is None
    first.release()
    second = lock.acquire(0)
    assert second.token > first.token
    assert not first.valid
    assert second.valid
    assert first.release() is False
    assert second.valid
    second.release()


def test_an_unavailable_store_is_an_error_or_skipped(scene: Scene) -> None:
    """Reference, store unreachable; B6: a ConnectionError, or None with "skip"; an event either way."""
    locks, faults = scene.faulty()
    events: list[str] = []
    locks.on_event(lambda event: events.append(event.type))
    faults.lose_request("acquire")
    with pytest.raises(StoreUnavailable) as caught:
        locks.lock(scene.name()).try_acquire()
    assert isinstance(caught.value, ConnectionError)
    assert locks.lock(scene.name(), on_unavailable="skip").try_acquire() is None
    eventually(lambda: events.count("unavailable") == 2, what="two events")

    def wait() -> float:
        begun = time.monotonic()
        with pytest.raises(StoreUnavailable):
            locks.lock(scene.name()).acquire(0.4)
        assert time.monotonic() - begun >= 0.4
        return time.monotonic() - begun

    in_time(wait, 0.4 + 1.5)


def test_a_waiting_acquire_outlives_an_outage(scene: Scene) -> None:
    """Reference, store unreachable: a waiting acquire keeps trying until its timeout."""
    locks, faults = scene.faulty(ttl=30)
    faults.lose_request("acquire", times=2)
    lease = locks.lock(scene.name()).acquire(PATIENCE)
    assert faults.calls["acquire"] == 3
    lease.release()
