"""Release: once, only by its own lease, from any thread or task, and no earlier than min_hold."""

from __future__ import annotations

import time

import pytest

from ..handles import eventually
from ..scene import Scene

TRIES = 5
"""How late a loaded machine may be, in seconds."""


def test_a_second_release_is_false(scene: Scene) -> None:
    """Reference: release() is idempotent; False if the lease was lost or released before."""
    lease = scene.connect(ttl=30).lock(scene.name()).acquire()
    assert lease.release() is True
    assert lease.release() is False


def test_release_after_expiry_takes_nothing_from_anybody(scene: Scene) -> None:
    """S3, promise 3; C4, D5: a release of a lost lease is refused and has no effect."""
    locks, other = scene.connect(), scene.connect()
    name = scene.name()
    lease = locks.lock(name, ttl=scene.steady, renew=False).acquire()
    taken = other.lock(name, ttl=30).acquire(20)
    assert lease.let_go() is False
    assert [each.token for each in scene.held(name)] == [taken.token]
    assert lease.release() is False
    assert taken.valid
    taken.renew()
    assert taken.release() is True


def test_release_after_expiry_of_an_untouched_record_is_false(scene: Scene) -> None:
    """Reference: False for a lost lease, even if the name was not acquired since."""
    lease = scene.connect().lock(scene.name(), ttl=scene.steady, renew=False).acquire()
    assert lease.wait_lost()
    assert lease.let_go() is False


def test_release_from_elsewhere(scene: Scene) -> None:
    """Reference: another thread or task can release the lease."""
    lease = scene.connect(ttl=30).lock(scene.name()).acquire()
    assert scene.api.start(lease.real.release).result() is True
    assert not lease.valid
    assert lease.release() is False


def test_releases_at_the_same_time_are_one(scene: Scene) -> None:
    """Reference: of many releases at once exactly one is True."""
    lease = scene.connect(ttl=30).lock(scene.name()).acquire()
    jobs = [scene.api.start(lease.real.release) for _ in range(8)]
    assert sorted(job.result() for job in jobs) == [False] * 7 + [True]


def test_min_hold_keeps_the_name_taken(scene: Scene) -> None:
    """Reference, timing: released no earlier than min_hold (cron on two hosts)."""
    locks, other = scene.connect(ttl=max(1.0, scene.ttl)), scene.connect(ttl=30)
    took = 0.0
    for _ in range(TRIES):
        name = scene.name()
        begun = time.monotonic()
        lease = locks.lock(name, min_hold=1.0).acquire()
        if not lease.let_go():
            assert lease.ran_out()
            continue
        assert not lease.valid
        tried = other.lock(name).try_acquire()
        assert tried is None or time.monotonic() - begun >= 1.0 - 0.001
        taken = tried or other.lock(name).acquire(20)
        took = time.monotonic() - begun
        assert took >= 1.0 - 0.001
        assert taken.token > lease.token
        taken.release()
        if tried is None and took < 1.0 + 2:
            return
    pytest.fail(f"it took {took:.3f} s, or the machine was too busy to see it")


def test_min_hold_reaches_one_who_already_waits(scene: Scene) -> None:
    """Reference, timing: a waiter is granted the name when min_hold is over, not when the ttl would be."""
    locks, other = scene.connect(), scene.connect(ttl=30)
    took: list[float] = []
    while len(took) < TRIES and not (took and took[-1] < 0.8 + 3):
        name = scene.name()
        begun = time.monotonic()
        lease = locks.lock(name, ttl=30, min_hold=0.8).acquire()
        waiter = other.lock(name).start()
        scene.until_waiting(name)
        lease.release()
        taken = waiter.lease()
        took.append(time.monotonic() - begun)
        taken.release()
    assert 0.8 - 0.001 <= min(took) < 0.8 + 3


def test_a_lease_whose_handle_is_gone_is_given_back(scene: Scene) -> None:
    """Promise 4, L5: a garbage-collected lease is no longer renewed, and is released."""
    import gc

    locks = scene.connect(ttl=30)
    name = scene.name()
    lease = locks.lock(name).acquire()
    assert scene.held(name)
    del lease
    gc.collect()
    eventually(lambda: not scene.held(name), 20, "it is given back")
