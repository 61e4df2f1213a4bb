"""Names with a limit, for semaphores and read/write locks. ``limit`` permits, each ask takes ``weight``."""

from __future__ import annotations

import time

from ...core.protocol import GONE, RENEWED, SECOND, Busy, Grant, Mismatch, Renewal
from ...core.timing import FIRST_TERM
from ..handles import eventually
from ..scene import Scene
from .fixtures import needs
from .operations import LONG, SOON, busy, give_back, grant, in_turn, run_out

IDS = [f"{number:032x}" for number in range(10)]


def test_permits_up_to_the_limit(scene: Scene) -> None:
    """Reference, semaphore: at most ``limit`` holders, each permit a lease of its own with its own token."""
    locks, name = scene.connect(), scene.name()
    shape = {"shape": "semaphore", "limit": 3}
    grants = [grant(locks.ask(name, each, LONG, **shape)) for each in IDS[:3]]
    assert len({each.token for each in grants}) == 3
    busy(locks.ask(name, IDS[3], LONG, **shape))
    assert sorted(each.token for each in scene.held(name)) == sorted(each.token for each in grants)
    assert locks.run(locks.store.release(name, IDS[1], grants[1].token, grants[1].hint)) is True
    assert grant(locks.ask(name, IDS[3], LONG, **shape)).token > max(each.token for each in grants)
    assert len(locks.run(locks.store.inspect(name))) == 3
    give_back(locks, name, *IDS[:4])


def test_permits_expire_one_by_one(scene: Scene) -> None:
    """Reference, rwlock: each has its own expiry."""
    locks, name = scene.connect(), scene.name()
    shape = {"shape": "semaphore", "limit": 2}
    begun = time.monotonic()
    first = grant(locks.ask(name, IDS[0], 1.5, **shape))
    second = grant(locks.ask(name, IDS[1], LONG, **shape))
    reply = locks.ask(name, IDS[2], LONG, **shape)
    if time.monotonic() - begun < 1.5:
        busy(reply)
    run_out(scene, name, 1.7, left=1 if isinstance(reply, Busy) else 2)
    third = grant(locks.ask(name, IDS[2], LONG, **shape))
    assert first.token < second.token < third.token
    grants = zip(IDS[:3], (first, second, third), strict=True)
    renewals = [Renewal(name, attempt, given.token, SECOND) for attempt, given in grants]
    assert list(locks.renewals(*renewals)) == [GONE, RENEWED, RENEWED]
    give_back(locks, name, *IDS[:3])


def test_weights_share_the_limit(scene: Scene) -> None:
    """Reference, rwlock: many readers (weight 1) or one writer (weight all)."""
    locks, name = scene.connect(), scene.name()
    shape = {"shape": "rw", "limit": 1000}
    grant(locks.ask(name, IDS[0], LONG, **shape))
    grant(locks.ask(name, IDS[1], LONG, **shape))
    busy(locks.ask(name, IDS[2], LONG, weight=1000, **shape))
    give_back(locks, name, IDS[0], IDS[1])
    grant(locks.ask(name, IDS[2], LONG, weight=1000, **shape))
    busy(locks.ask(name, IDS[0], LONG, **shape))
    give_back(locks, name, IDS[2])


@needs("fair")
def test_a_waiting_writer_is_not_starved(scene: Scene) -> None:
    """Reference, rwlock and fair: a reader that arrives after a waiting writer waits behind it."""
    locks = scene.connect()
    shape = {"shape": "rw", "limit": 1000}
    for _ in in_turn():
        name = scene.name()
        reader = grant(locks.ask(name, IDS[0], LONG, **shape))
        assert busy(locks.ask(name, IDS[1], LONG, weight=1000, queue=True, **shape)).place == 0
        busy(locks.ask(name, IDS[2], LONG, **shape))
        assert busy(locks.ask(name, IDS[3], LONG, queue=True, **shape)).place == 1
        assert busy(locks.ask(name, IDS[4], LONG, queue=True, **shape)).place == 2
        released = time.monotonic()
        locks.run(locks.store.release(name, IDS[0], reader.token, reader.hint))
        claimed = locks.ask(name, IDS[1], LONG, weight=1000, queue=True, **shape)
        if time.monotonic() - released < FIRST_TERM:
            break
        give_back(locks, name, *IDS[:5])
    writer = grant(claimed)
    locks.run(locks.store.release(name, IDS[1], writer.token, writer.hint))
    grant(locks.ask(name, IDS[3], LONG, queue=True, **shape))
    grant(locks.ask(name, IDS[4], LONG, queue=True, **shape))
    assert len(scene.held(name)) == 2
    give_back(locks, name, *IDS[:5])


def test_another_shape_is_a_mismatch_while_in_use(scene: Scene) -> None:
    """Reference: asking for another shape while the name is in use is an error; when it is free, it is not."""
    locks, name = scene.connect(), scene.name()
    grant(locks.ask(name, IDS[0], LONG))
    reply = locks.ask(name, IDS[1], LONG, shape="semaphore", limit=3)
    assert reply == Mismatch("lock", 1)
    give_back(locks, name, IDS[0])
    grant(locks.ask(name, IDS[1], LONG, shape="semaphore", limit=3))
    assert locks.ask(name, IDS[0], LONG) == Mismatch("semaphore", 3)
    assert locks.ask(name, IDS[0], LONG, shape="semaphore", limit=4) == Mismatch("semaphore", 3)
    give_back(locks, name, IDS[1])
    grant(locks.ask(name, IDS[0], LONG))
    give_back(locks, name, IDS[0])


def test_released_permits_stay_taken_until_min_hold_is_over(scene: Scene) -> None:
    """Reference, min_hold: after an early release the name stays taken until ``rest`` is over; renewal is refused."""
    locks, name = scene.connect(), scene.name()
    begun = time.monotonic()
    held = grant(locks.ask(name, IDS[0], LONG, rest=int(0.6 * SECOND)))
    assert locks.run(locks.store.release(name, IDS[0], held.token, held.hint)) is True
    assert locks.run(locks.store.release(name, IDS[0], held.token, held.hint)) is False
    assert list(locks.renewals(Renewal(name, IDS[0], held.token, SECOND))) == [GONE]
    reply = locks.ask(name, IDS[1], LONG)
    if time.monotonic() - begun < 0.6:
        assert (busy(reply).expires_in or 0) <= 0.6
        time.sleep(0.7 + scene.store.late)
        eventually(lambda: isinstance(locks.ask(name, IDS[1], LONG), Grant), SOON, "it rests no longer than that")
    give_back(locks, name, IDS[0], IDS[1])


def test_an_abandoned_attempt_does_not_rest(scene: Scene) -> None:
    """An abandoned grant that was never used is not subject to min_hold."""
    locks, name = scene.connect(), scene.name()
    grant(locks.ask(name, IDS[0], LONG, rest=20 * SECOND))
    assert locks.run(locks.store.abandon(name, IDS[0])) is True
    grant(locks.ask(name, IDS[1], LONG))
    give_back(locks, name, IDS[1])
