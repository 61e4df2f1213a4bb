"""Going out of service: no new leases, wait for those that are held, give back the rest. D9."""

from __future__ import annotations

import logging
import time

import pytest

from ...errors import ShuttingDown
from ..handles import eventually
from ..scene import Scene


def test_drain_waits_for_what_is_held(scene: Scene) -> None:
    """Reference, drain; L6: no new leases, and it ends when the last lease has been given back."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)
    names = [scene.name() for _ in range(3)]
    leases = [locks.lock(name).acquire() for name in names]
    drain = locks.start_drain(30)
    eventually(lambda: locks.refuses("refused"))
    with pytest.raises(ShuttingDown):
        locks.lock(scene.name()).acquire()
    with pytest.raises(ShuttingDown):
        locks.lock(scene.name()).try_acquire()
    assert [each.name for each in locks.leases()] == names, "looking is still allowed"
    for name, lease in zip(names, leases, strict=True):
        time.sleep(0.05)
        assert not drain.done()
        assert lease.valid
        assert lease.release()
        other.lock(name).acquire(0).release()
    assert drain.result() == []
    assert [lease.lost_reason for lease in leases] == [None] * 3


def test_drain_sends_off_those_who_wait(scene: Scene) -> None:
    """Reference, drain; promise 4: a waiting acquire ends with ShuttingDown and leaves the queue."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)
    name = scene.name()
    lease = other.lock(name).acquire()
    waiter = locks.lock(name).start()
    scene.until_others_wait(name)
    begun = time.monotonic()
    assert locks.drain(30) == []
    assert isinstance(waiter.error(), ShuttingDown)
    assert time.monotonic() - begun < 15  # and not the 30 s of the grace
    eventually(lambda: scene.waiters(name) == 0, 10, "long before its place runs out")
    assert lease.valid
    assert lease.release()


def test_drain_gives_up_what_does_not_end(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """Reference, drain: after the grace what remains is lost and given back, and the log says what."""
    other = scene.connect(ttl=30)
    for grace in (0.4, 3.0, 10.0):  # in which a busy machine, too, comes to give one back
        caplog.clear()
        locks = scene.connect(ttl=30)
        name, in_time = scene.name(), scene.name()
        lease = locks.lock(name).acquire()
        ended = locks.lock(in_time).acquire()
        begun = time.monotonic()
        with caplog.at_level(logging.WARNING, "leasehold"):
            drain = locks.start_drain(grace)
            eventually(lambda: locks.refuses("refused"))  # noqa: B023
            valid = lease.valid
            released = ended.release()
            in_grace = time.monotonic() - begun < grace
            given_up = drain.result()
        if in_grace:
            break
    assert in_grace
    assert released
    assert valid
    assert given_up == [name]
    assert time.monotonic() - begun >= grace
    assert not lease.valid
    assert lease.lost.is_set()
    assert "drained" in (lease.lost_reason or "")
    assert not scene.held(name)
    other.lock(name).acquire(0).release()
    assert lease.release() is False
    (gave_up,) = [each for each in caplog.records if getattr(each, "lease_event", "") == "drain_gave_up"]
    assert repr(name) in gave_up.getMessage()
    assert in_time not in gave_up.getMessage()


def test_drain_of_a_lease_that_ends_when_told(scene: Scene) -> None:
    """Reference, drain: a body that stops when its lease is lost is waited for; its own release counts."""
    locks = scene.connect(ttl=30)
    name = scene.name()
    block = locks.lock(name, on_lost="log").block(lambda lease: bool(lease.lost_reason))
    eventually(lambda: block.lease is not None)  # not only granted: what is on its way then is not given out
    assert locks.drain(0.1) == [name]
    assert block.result() is None
    assert not scene.held(name)


def test_drain_while_the_store_is_away_ends(scene: Scene) -> None:
    """D9, L6: errors on the way do not stop it; the lease runs out by itself."""
    locks, faults = scene.faulty()
    name, ttl = scene.name(), 10.0
    lease = locks.lock(name, ttl=ttl).acquire()
    faults.lose_request("*", noticed_after=0.2)
    begun = time.monotonic()
    assert locks.drain(0.2) == [name]
    assert time.monotonic() - begun < 25  # it has 5 s for that
    assert not lease.valid
    faults.mend()
    scene.until_free(name, ttl + 1 + scene.store.slack)


def test_drain_twice_and_then_close(scene: Scene) -> None:
    """Reference, drain: again is harmless; a closed Locks has nothing to drain."""
    locks = scene.connect(ttl=30)
    locks.lock(scene.name()).acquire().release()
    assert locks.drain(1) == []
    assert locks.drain(1) == []
    locks.close()
    with pytest.raises(ShuttingDown):
        locks.drain(1)
    with pytest.raises(ValueError):
        scene.connect().drain(-1)
