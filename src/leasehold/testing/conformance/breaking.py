"""Taking a lease from its holder: an operator's tool."""

from __future__ import annotations

import pytest

from ...errors import LeaseLost
from ..api import PATIENCE
from ..handles import eventually
from ..scene import Scene
from .fixtures import needs


def test_break_tells_the_holder_and_waits_for_it(scene: Scene) -> None:
    """Reference, break_lease: the name is free when the holder has acknowledged, and not before."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)
    name = scene.name()
    lease = locks.lock(name, renew_every=1, max_renew_failures=1000).acquire()
    assert other.break_lease(name) is True
    assert lease.wait_lost()
    assert not lease.valid
    assert "broken" in lease.lost_reason
    with pytest.raises(LeaseLost):
        lease.check()
    assert other.lock(name).try_acquire() is None, "its body may still be at it"
    assert len(scene.held(name)) == 1
    assert lease.release() is False
    taken = other.lock(name).try_acquire(10)
    assert taken is not None
    assert taken.token > lease.token
    assert taken.release()


@needs("push")
def test_break_is_pushed_to_the_holder(scene: Scene) -> None:
    """Reference, break_lease: tells the holder; not only at its next renewal."""
    (locks, faults), other = scene.faulty(), scene.connect()
    name = scene.name()
    lease = locks.lock(name, ttl=90, renew_every=30).acquire()
    eventually(lambda: "" in faults.listening, what="the keeper asks to listen")
    assert other.break_lease(name) is True
    assert lease.wait_lost(15), "long before it is renewed"
    lease.release()


def test_break_of_one_who_does_not_answer(scene: Scene) -> None:
    """Reference, break_lease: … or its lease has run out."""
    (locks, faults), other = scene.faulty(), scene.connect(ttl=30)
    for ttl in (scene.ttl, 4.0, 15.0):
        name = scene.name()
        lease = locks.lock(name, ttl=ttl).acquire()
        faults.die()
        broken = other.break_lease(name)
        if broken:
            break
        assert not lease.valid, "it had not run out before"
        faults.mend()
    assert broken
    taken = other.lock(name).acquire(ttl + PATIENCE)
    assert not lease.valid
    assert taken.token > lease.token
    taken.release()


def test_break_by_force_frees_at_once(scene: Scene) -> None:
    """Reference, break_lease: force=True frees it at once; the old holder is told, and harms nobody."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)
    name = scene.name()
    lease = locks.lock(name, renew_every=1, max_renew_failures=1000).acquire()
    assert other.break_lease(name, force=True) is True
    assert not scene.held(name)
    taken = other.lock(name).acquire(0)
    assert taken.token > lease.token
    assert lease.wait_lost()
    assert lease.release() is False
    assert [each.token for each in scene.held(name)] == [taken.token]
    assert taken.release()


def test_break_of_nobody_is_false(scene: Scene) -> None:
    """Reference, break_lease: False when nobody holds it."""
    locks = scene.connect(ttl=30)
    name = scene.name()
    assert locks.break_lease(name) is False
    assert locks.break_lease(name, force=True) is False
    locks.lock(name).acquire().release()
    assert locks.break_lease(name) is False
    assert locks.break_lease(name, force=True) is False


def test_break_serves_the_queue(scene: Scene) -> None:
    """Reference, break_lease: who waits gets it when the holder has let go, or at once by force."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)
    for force in (False, True):
        name = scene.name()
        lease = locks.lock(name, renew_every=1, max_renew_failures=1000).acquire()
        waiter = other.lock(name).start()
        scene.until_waiting(name)
        assert other.break_lease(name, force=force) is True
        assert lease.wait_lost()
        if not force:
            assert not waiter.done()
            lease.release()
        taken = waiter.lease(15)  # half the ttl of the one that was broken
        assert taken.token > lease.token
        taken.release()


def test_a_broken_block_gives_back_at_its_end(scene: Scene) -> None:
    """Reference, break_lease: the end of the holder's block is its acknowledgement."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)
    lock = locks.lock(scene.name(), renew_every=1, max_renew_failures=1000, on_lost="raise")
    job = lock.block(lambda lease: lease.lost_reason is not None)
    scene.until_held(lock.real.name)
    assert other.break_lease(lock.real.name)
    assert isinstance(job.error(), LeaseLost)
    eventually(lambda: not scene.held(lock.real.name))
