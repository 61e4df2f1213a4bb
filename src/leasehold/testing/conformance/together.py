"""Several names in one step of the store, where it can; and what holds of ``all_of`` however they are taken."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest

from ...core.timing import FIRST_TERM
from ...errors import AcquireTimeout, StoreUnavailable
from ..handles import Lease, eventually
from ..scene import Scene
from .cancelling import walk
from .fixtures import needs
from .operations import in_turn

LONG = 30.0
SOON = 10.0
"""Much less than LONG: what is gone by then was given back, and did not run out."""


def _names(scene: Scene, count: int = 3) -> list[str]:
    return [scene.name() for _ in range(count)]


def _held(scene: Scene, names: Sequence[str]) -> dict[str, int]:
    """The token of each name, of which each has one holder."""
    found = {}
    for name in names:
        (holder,) = scene.held(name)
        found[name] = holder.token
    return found


def _settled(scene: Scene, names: Sequence[str]) -> bool:
    """Whether each has one holder, and nothing else is left of any attempt."""
    return all(len(scene.held(name)) == 1 and not scene.waiters(name) for name in names)


def _give_back(scene: Scene, lease: Lease | None, names: Sequence[str]) -> None:
    assert lease is not None
    assert lease.valid
    assert _held(scene, names) == lease.tokens
    assert lease.release()
    assert not any(scene.held(name) or scene.waiters(name) for name in names)


@needs("joint")
def test_free_names_are_taken_in_one_step(scene: Scene) -> None:
    """Reference, all_of; one step of the store for all of them, whether there is time to wait or not."""
    locks, faults = scene.faulty(ttl=LONG)
    names = _names(scene)
    first = locks.all_of(*names, data={"a": 1}).acquire(20)
    before = dict(first.tokens)
    assert first.data == {"a": 1}
    _give_back(scene, first, names)
    second = locks.all_of(*names[::-1]).try_acquire()
    assert second is not None
    assert all(second.tokens[name] > before[name] for name in names)
    _give_back(scene, second, names)
    assert (faults.calls["acquire_all"], faults.calls["acquire"]) == (2, 0)


@needs("joint")
def test_names_taken_in_one_step_are_kept_and_broken_as_any(scene: Scene) -> None:
    """Promises 5 and 6: each is renewed; one that is broken is heard of, and all are lost."""
    (locks, faults), other = scene.faulty(ttl=LONG), scene.connect(ttl=LONG)
    names = _names(scene)
    lease = locks.all_of(*names, renew_every=0.5, max_renew_failures=1000).acquire(20)
    assert faults.calls["acquire"] == 0
    lease.is_renewed()
    assert lease.valid, lease.lost_reason
    assert _held(scene, names) == lease.tokens
    assert other.break_lease(names[1])
    assert lease.wait_lost()
    assert lease.release() is False
    for name in names:
        scene.until_free(name)


@needs("joint")
def test_the_deadline_of_one_step_counts_from_its_sending(scene: Scene) -> None:
    """S2: for each of the names."""
    locks, faults = scene.faulty(ttl=LONG)
    faults.delay_answer(1.0, "acquire_all", times=1)
    lease = locks.all_of(*_names(scene), renew=False).acquire(20)  # when its listener is up, the keeper renews all
    assert faults.calls["acquire"] == 0
    assert lease.remaining < LONG - 1.0
    assert lease.release()


@needs("joint")
def test_what_was_taken_in_one_step_and_is_not_renewed_runs_out(scene: Scene) -> None:
    """Reference, renew=False: each of them ends by itself, and its holder knows before it does."""
    locks, faults = scene.faulty()
    for _ in in_turn():
        names, before = _names(scene), faults.calls["acquire"]
        lease = locks.all_of(*names, ttl=scene.steady, renew=False).acquire(20)
        if faults.calls["acquire"] == before:  # else the one step took longer than they last
            break
        lease.let_go()
    assert lease.wait_lost()
    for name in names:
        scene.until_free(name)
    lease.let_go()


@needs("joint")
def test_a_busy_name_is_found_without_taking_another(scene: Scene) -> None:
    """Reference, all_of: none is taken, not for a moment; the error names the holder."""
    (locks, faults), other = scene.faulty(ttl=LONG), scene.connect(ttl=LONG, owner="somebody")
    names = _names(scene)
    held = other.lock(names[2]).acquire(20)
    for renew in (True, False):
        several = locks.all_of(*names, renew=renew)
        assert several.try_acquire() is None
        with pytest.raises(AcquireTimeout, match="somebody") as caught:
            several.acquire(0)
        assert caught.value.holder is not None
        assert (caught.value.holder.name, caught.value.holder.token) == (names[2], held.token)
    assert (faults.calls["acquire_all"], faults.calls["acquire"], faults.calls["abandon"]) == (4, 0, 0)
    assert held.release()


@needs("joint", "semaphore")
def test_a_name_of_another_shape_is_refused_in_one_step(scene: Scene) -> None:
    """Reference: a ValueError, and none is taken."""
    (locks, faults), other = scene.faulty(ttl=LONG), scene.connect(ttl=LONG)
    names = _names(scene)
    permit = other.semaphore(names[1], 2).acquire(20)
    with pytest.raises(ValueError, match=f"{names[1]}.*in use as a semaphore"):
        locks.all_of(*names).acquire(20)
    assert (faults.calls["acquire"], faults.calls["abandon"]) == (0, 0)
    assert permit.release()


@needs("joint")
def test_names_whose_holders_have_died_are_taken_in_one_step(scene: Scene) -> None:
    """Promise 5: what has run out is free; the token is above its holder's."""
    (locks, faults), other = scene.faulty(ttl=LONG), scene.connect(ttl=LONG)
    names = _names(scene)
    dead = [other.lock(name, ttl=scene.ttl, renew=False).acquire(20) for name in names]
    assert all(each.wait_lost() for each in dead)
    for name in names:
        eventually(lambda: not scene.held(name), what="it has run out")  # noqa: B023
    lease = locks.all_of(*names).try_acquire()
    assert lease is not None
    assert faults.calls["acquire"] == 0
    assert all(lease.tokens[each.name] > each.token for each in dead)
    _give_back(scene, lease, names)


@pytest.mark.slow
@needs("joint")
def test_one_step_keeps_min_hold(scene: Scene) -> None:
    """Reference, min_hold: released no earlier, each of them."""
    (locks, faults), other = scene.faulty(ttl=LONG), scene.connect(ttl=LONG)
    names = _names(scene, 2)
    begun = time.monotonic()
    lease = locks.all_of(*names, min_hold=5).acquire(20)
    assert faults.calls["acquire"] == 0
    assert lease.release()
    for name in names:
        other.lock(name).acquire(30).release()
        assert time.monotonic() - begun >= 5


def test_a_try_for_several_whose_answer_was_lost_leaves_nothing(scene: Scene) -> None:
    """S4, promise 4: what may have been given is given back, each of them."""
    locks, faults = scene.faulty(ttl=LONG)
    names = _names(scene)
    faults.lose_answer("acquire_all" if scene.store.joint else "acquire", times=1)
    with pytest.raises(StoreUnavailable):
        locks.all_of(*names).try_acquire()
    for name in names:
        scene.until_free(name, SOON)
    _give_back(scene, locks.all_of(*names).try_acquire(), names)


def test_several_names_whose_answer_was_lost_are_acquired_in_the_end(scene: Scene) -> None:
    """S4, promise 4: one that waits asks again; nothing of the first is left beside it."""
    locks, faults = scene.faulty(ttl=LONG)
    for _ in in_turn():
        names = _names(scene)
        faults.lose_answer("acquire_all" if scene.store.joint else "acquire", times=1)
        lease = locks.all_of(*names).acquire(20)
        eventually(lambda: _settled(scene, names), SOON, "the first is settled")  # noqa: B023
        if lease.has_whole_term():
            break
        lease.release()
    _give_back(scene, lease, names)


def test_several_in_an_outage_leave_nothing_once_it_is_over(scene: Scene) -> None:
    """Promise 4: granted, the answer lost, and then the store is away for a while."""
    locks, faults = scene.faulty(ttl=LONG)
    for _ in in_turn():
        names = _names(scene)
        faults.lose_answer("acquire_all" if scene.store.joint else "acquire", times=1)
        faults.lose_request("*")
        with pytest.raises(StoreUnavailable):
            locks.all_of(*names).acquire(1.0)
        granted = bool(scene.held(sorted(names)[0]))
        faults.mend()
        for name in names:
            scene.until_free(name, SOON)
        if granted:
            break


def test_several_that_come_too_late_are_not_trusted(scene: Scene) -> None:
    """S2: the answer comes when the terms are over; they are asked for anew."""
    locks, faults = scene.faulty()
    for _ in in_turn():
        names = _names(scene, 2)
        faults.delay_answer(scene.steady, "acquire_all" if scene.store.joint else "acquire", times=1)
        lease = locks.all_of(*names, ttl=scene.steady).acquire(20)
        held = {each.token for name in names for each in scene.held(name)}
        trusted = lease.valid
        assert trusted or lease.ran_out()
        assert held == set(lease.tokens.values()) or not trusted
        lease.let_go()
        if trusted:
            break


def test_several_cancelled_during_the_call_leave_nothing(scene: Scene) -> None:
    """Promise 4, L5: the store has granted them and the answer is under way; what it brings is given back."""
    locks, faults = scene.faulty(ttl=LONG)
    names = _names(scene)
    faults.delay_answer(4.0, "acquire_all" if scene.store.joint else "acquire")
    waiter = locks.all_of(*names).start()
    eventually(lambda: scene.held(sorted(names)[0]), what="the store has granted it")
    waiter.cancel()
    assert isinstance(waiter.error(), scene.api.cancelled)
    faults.mend()
    for name in names:
        scene.until_free(name, 15)


@pytest.mark.slow
def test_several_cancelled_at_any_await_leave_nothing(tasks: Scene) -> None:
    """Promise 4, L5."""
    locks = tasks.connect(ttl=LONG)
    tried: list[list[str]] = []

    async def prepare() -> tuple[Awaitable[Any], Awaitable[Any]]:
        tried.append(_names(tasks, 2))

        async def nothing() -> None:
            pass

        return locks.real.all_of(*tried[-1]).acquire(), nothing()

    async def after(lease: Any) -> None:
        if lease is not None:
            await lease.release()

    tasks.loop.run(walk(tasks, prepare, after))
    for names in tried:
        for name in names:
            tasks.until_free(name, SOON)


@pytest.mark.slow
def test_several_cut_off_anywhere_leave_nothing(scene: Scene) -> None:
    """S4, promise 4: the connection breaks after each request of the step."""
    locks, faults = scene.faulty(ttl=LONG)
    operation = "acquire_all" if scene.store.joint else "acquire"
    for requests in range(1, 30):
        before = faults.calls["cut"]
        for _ in in_turn():
            names = _names(scene, 2)
            faults.cut(operation, requests)
            lease = locks.all_of(*names).acquire(20)
            eventually(lambda: _settled(scene, names), SOON, "the first is settled")  # noqa: B023
            if lease.has_whole_term():
                break
            lease.release()
        _give_back(scene, lease, names)
        if faults.calls["cut"] == before:
            break
    assert faults.calls["cut"], "or this shows nothing"


@needs("fair")
def test_who_wants_several_overtakes_nobody(scene: Scene) -> None:
    """Reference, fair: one who waits for one of the names gets it first; then those who wait for several."""
    locks, other, third = (scene.connect(ttl=LONG) for _ in range(3))
    for _ in in_turn():
        first, second = sorted(_names(scene, 2))
        held = other.lock(second).acquire(20)
        single = third.lock(second).start(60)
        scene.until_waiting(second)
        both = locks.all_of(first, second).start(60)
        scene.until_waiting(second, 2)
        assert scene.held(first), "it waits for the second with the first in hand"
        released = time.monotonic()
        assert held.release()
        eventually(lambda: single.done() or both.done())  # noqa: B023
        if not single.done():
            assert time.monotonic() - released >= FIRST_TERM, "it was overtaken"
            both.lease().release()
            single.lease().release()
            continue
        lease = single.lease()
        assert not both.done() or lease.ran_out()
        assert locks.all_of(first, second).try_acquire() is None or lease.ran_out()
        given = lease.release()
        assert given or lease.ran_out()
        joint = both.lease()
        assert joint.tokens[second] > lease.token
        assert joint.release() or joint.ran_out()
        if given:
            break


@needs("fair")
def test_a_try_for_several_does_not_take_what_is_there_for_a_waiter(scene: Scene) -> None:
    """Reference, fair: None while anyone is queued, though the waiter has yet to hear that it is its turn."""
    locks, other, (deaf, faults) = scene.connect(ttl=LONG), scene.connect(ttl=LONG), scene.faulty(ttl=LONG)
    first, second = sorted(_names(scene, 2))
    in_time = 0
    for _ in range(10):
        held = other.lock(second).acquire(20)
        waiting = deaf.lock(second).start(60)
        scene.until_waiting(second)
        faults.deaf = True
        released = time.monotonic()
        assert held.release()
        tried = locks.all_of(first, second).try_acquire()
        if time.monotonic() - released < 0.5:  # else its turn may be over, and anybody's
            assert tried is None
            in_time += 1
        if tried is not None:
            tried.release()
        faults.deaf = False
        lease = waiting.lease()
        assert lease.release() or lease.ran_out()
        if in_time >= 2:
            return
    pytest.fail("the machine was too busy to see it")
