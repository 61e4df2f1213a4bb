"""Fencing tokens always rise: across release, expiry, break, purge, restart, and a clock that is set back."""

from __future__ import annotations

import time

import pytest

from ..scene import Scene
from .fixtures import needs

now, now_ns = time.time, time.time_ns


def test_tokens_rise_with_every_grant(scene: Scene) -> None:
    """Promise 2, S1; E7: strictly greater than every earlier one of this name."""
    lock = scene.connect(ttl=30).lock(scene.name())
    last = 0
    for _ in range(scene.store.rounds):
        lease = lock.acquire(0)
        assert type(lease.token) is int
        assert lease.token > last
        last = lease.token
        assert lease.release()


def test_tokens_rise_over_expiry(scene: Scene) -> None:
    """Promise 2, S5; A1, A3, C3: an expired record that is still there is taken over, with a higher token."""
    locks, other = scene.connect(), scene.connect(ttl=30)
    name = scene.name()
    first = locks.lock(name, renew=False).acquire()
    second = other.lock(name).acquire(20)
    assert second.token > first.token
    assert not first.valid
    assert [each.token for each in scene.held(name)] == [second.token]
    second.release()


def test_tokens_rise_over_break(scene: Scene) -> None:
    """Reference, break_lease: tokens rise either way."""
    locks, other = scene.connect(ttl=30, renew_every=0.5), scene.connect(ttl=30)
    for force in (False, True):
        name = scene.name()
        first = locks.lock(name).acquire()
        assert other.break_lease(name, force=force)
        assert first.wait_lost()
        first.release()
        second = other.lock(name).acquire(20)
        assert second.token > first.token
        second.release()


@needs("age")
def test_tokens_rise_over_purge(scene: Scene) -> None:
    """Promise 2, S5: across the purge of old records."""
    locks = scene.connect(ttl=30)
    name = scene.name()
    first = locks.lock(name).acquire()
    first.release()
    assert scene.store.age is not None
    scene.store.age(scene.namespace, name)
    locks.run(locks.store.tidy())
    assert name not in scene.probe.names(scene.namespace), "the record should be gone, or this shows nothing"
    second = locks.lock(name).acquire()
    assert second.token > first.token
    second.release()


@needs("wipe")
def test_tokens_rise_when_the_store_has_forgotten_everything(scene: Scene) -> None:
    """Promise 2, S5: a restart of the store that kept nothing."""
    locks = scene.connect(ttl=30)
    name = scene.name()
    first = locks.lock(name).acquire()
    first.release()
    assert scene.store.wipe is not None
    scene.store.wipe()
    second = locks.lock(name).acquire(20)
    assert second.token > first.token
    second.release()


@needs("restart")
def test_tokens_rise_over_a_restart_of_the_store(scene: Scene) -> None:
    """Promise 2, S5: a restart of the store that kept what it had acknowledged; free names can be acquired."""
    locks = scene.connect(ttl=30)
    name = scene.name()
    first = locks.lock(name).acquire()
    first.release()
    assert scene.store.restart is not None
    scene.store.restart()
    second = locks.lock(name).acquire(20)
    assert second.token > first.token
    second.release()


def test_the_clients_wall_clock_decides_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 1: no client's wall clock takes part; an hour off, either way, has no effect at all."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)
    name = scene.name()
    last = 0
    for hours in (1, -1, 0):
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: now() + hours * 3600)  # noqa: B023
            patch.setattr(time, "time_ns", lambda: now_ns() + hours * 3600 * 10**9)  # noqa: B023
            lease = locks.lock(name).acquire(0)
            assert lease.token > last
            patch.setattr(time, "time", lambda: now() - hours * 3600)  # noqa: B023
            patch.setattr(time, "time_ns", lambda: now_ns() - hours * 3600 * 10**9)  # noqa: B023
            assert other.lock(name).try_acquire() is None
            lease.renew()
            assert lease.valid
            assert 0 < scene.held(name)[0].expires_in <= 30 + scene.store.slack
            assert lease.release()
            silent = locks.lock(name, ttl=scene.ttl, renew=False).acquire(20)
            taken = other.lock(name).acquire(20)
            assert taken.token > silent.token > lease.token
            last = taken.token
            assert taken.release()


@needs("step_clock")
def test_tokens_rise_while_a_clock_goes_back(scene: Scene) -> None:
    """S5; promise 1: while the record is there, no wall clock is needed, nor does one decide expiry."""
    step = scene.store.step_clock
    assert step is not None
    locks, other = scene.connect(), scene.connect()
    name = scene.name()
    try:
        last = 0
        for offset in (0.0, -3600.0, -7200.0, 3600.0, -3600.0):
            step(offset)
            lease = locks.lock(name, ttl=30).acquire(0)
            assert lease.token > last
            last = lease.token
            step(offset + 3600)
            assert other.lock(name).try_acquire() is None, "a clock that jumps ahead ends no lease"
            step(offset - 3600)
            assert lease.valid
            assert lease.release()
    finally:
        step(0.0)
