"""``keep_waiting``: places in a queue are refreshed many at a time, and nothing else changes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ...core.protocol import Ask, Busy, Store
from ...core.timing import STAGGER, WAITER_TTL
from ..handles import Locks, eventually, make_ask
from ..scene import Scene
from .fixtures import needs
from .operations import LONG, SOON, A, B, C, busy, give_back, grant

D, E = ("d" * 32, "e" * 32)


def _asks(name: str, *attempts: str) -> list[Ask]:
    return [make_ask(name, attempt, LONG, queue=True) for attempt in attempts]


def _kept(locks: Locks, *asks: Ask) -> list[Busy | None]:
    if type(locks.store).keep_waiting is Store.keep_waiting:
        pytest.skip("this store does not implement keep_waiting")
    return list(locks.run(locks.store.keep_waiting(asks)))


def _queued(scene: Scene, ttl: float = LONG) -> tuple[Locks, str]:
    """A name that A holds; B and C wait."""
    locks, name = scene.connect(), scene.name()
    grant(locks.ask(name, A, ttl))
    for place, attempt in enumerate((B, C)):
        assert busy(locks.ask(name, attempt, LONG, queue=True)).place == place
    return locks, name


def _end(locks: Locks, name: str) -> None:
    give_back(locks, name, C, B, A)


@needs("fair")
def test_op_keep_waiting_answers_as_acquire_would(scene: Scene) -> None:
    """Who holds the name, until when, and the waiter's place; for each in the order in which they are given."""
    locks, name = _queued(scene)
    other = scene.name()
    grant(locks.ask(other, D, LONG))
    busy(locks.ask(other, E, LONG, queue=True))
    answers = _kept(locks, *_asks(name, C), *_asks(other, E), *_asks(name, B))
    assert [answer and answer.place for answer in answers] == [1, 0, 0]
    for answer in answers:
        assert answer is not None
        assert answer.expires_in is None or LONG - 10 < answer.expires_in <= LONG + 0.001
    assert [each and each.holder and each.holder.name for each in answers] == [name, other, name]
    _end(locks, name)
    give_back(locks, other, E, D)


@needs("fair")
def test_op_keep_waiting_sends_a_waiter_without_a_place_to_acquire(scene: Scene) -> None:
    """None for one that does not wait, also where nobody holds the name: it has to call ``acquire`` itself."""
    locks, name = _queued(scene)
    give_back(locks, name, B)
    gone, next_one = _kept(locks, *_asks(name, B, C))
    assert gone is None
    assert next_one is not None
    assert next_one.place == 0
    assert scene.waiters(name) == 1, "it was not queued again"
    assert _kept(locks, *_asks(scene.name(), A)) == [None]
    _end(locks, name)


@needs("fair")
def test_op_keep_waiting_sends_a_waiter_that_was_granted_the_name_to_acquire(scene: Scene) -> None:
    locks, name = _queued(scene)
    give_back(locks, name, A)
    assert _kept(locks, *_asks(name, B)) == [None]
    _end(locks, name)


@needs("fair")
def test_op_keep_waiting_grants_nothing(scene: Scene) -> None:
    """When the holder's time is over, the next waiter is sent to ``acquire``; those behind it a little later."""
    ttl = scene.steady
    locks, name = _queued(scene, ttl)
    answers: list[Any] = [None]

    def expired() -> bool:
        answers[:] = _kept(locks, *_asks(name, B))
        return answers == [None]

    eventually(expired, ttl + SOON + scene.store.late, "the next one is told that it may be next")
    assert all(holder.expires_in <= 0 for holder in scene.held(name)), "nothing was granted"
    time.sleep(STAGGER)
    assert _kept(locks, *_asks(name, C)) == [None], "the one before it may be dead"
    grant(locks.ask(name, B, LONG, queue=True))
    assert [answer and answer.place for answer in _kept(locks, *_asks(name, C))] == [0]
    _end(locks, name)


@needs("fair")
@pytest.mark.slow
def test_op_keep_waiting_keeps_a_place(scene: Scene) -> None:
    """Promise 5: a waiter that calls nothing else is still ahead of one that comes later."""
    locks, name = _queued(scene, 4 * WAITER_TTL)
    ends = time.monotonic() + WAITER_TTL + 2
    while time.monotonic() < ends:
        assert [answer and answer.holder is not None for answer in _kept(locks, *_asks(name, C))] == [True]
        time.sleep(2.5)
    later = busy(locks.ask(name, D, LONG, queue=True)).place
    kept = busy(locks.ask(name, C, LONG, queue=True)).place
    assert kept is not None
    assert later is not None
    assert kept < later
    give_back(locks, name, D)
    _end(locks, name)
