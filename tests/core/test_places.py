"""Places in a queue: the keeper refreshes them while their waiters sleep; a waiter checks by itself if that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from scripted import T0, Scripted

from leasehold.core import places, timing
from leasehold.core.protocol import SECOND, Busy, Grant
from leasehold.errors import StoreUnavailable

S0 = 5_000 * SECOND
"""What the store's clock shows at T0."""
FAR = 1000.0
"""Seconds until the holder's expiry: no waiter checks because of that."""
CHECK = timing.FALLBACK
LATE = places.LATE
GRANT = Grant(99)


def busy(place: int = 0, expires_in: float = FAR) -> Busy:
    return Busy(None, place, expires_in)


class World(Scripted):
    """Waiters of names of their own, each told at T0 that it is busy. ``kept`` answers each check of the keeper."""

    def __init__(self, *told: Busy, **options: Any) -> None:
        super().__init__(keeps_places=True, **options)
        self.kept: Any = lambda ask: busy()
        self.checks: list[tuple[float, int]] = []
        """When the keeper checked, and how many places."""
        self.away = False
        self.told = told
        self.tasks: list[asyncio.Task[Any]] = []

    def __enter__(self) -> World:
        for number, each in enumerate(self.told):
            self.replies.append(each)
            self.tasks.append(self.start(self.locks.lock(f"name-{number}").acquire(1000)))
        return self

    def answer(self, operation: str, what: Any) -> Any:
        if operation != "keep_waiting":
            return super().answer(operation, what)
        self.checks.append((self.now, len(what)))
        if self.away:
            raise StoreUnavailable("away")
        return [self.kept(ask) for ask in what]


@contextmanager
def world(*told: Busy, **options: Any) -> Iterator[World]:
    with World(*told, **options) as made:
        yield made
        made.replies += [GRANT] * 1000  # whoever still waits
        for bell in list(made.locks._core.asking.values()):
            bell.ring()
        made.advance(0.0)


def test_keeper_checks_instead_of_the_waiter() -> None:
    with world(busy()) as made:
        made.advance(10 * CHECK)
        assert made.acquires() == [T0]
        assert [when - T0 for when, _ in made.checks] == pytest.approx([CHECK * number for number in range(1, 11)])


def test_places_that_are_due_soon_are_checked_in_the_same_call() -> None:
    with World() as made:
        for number in range(10):
            made.replies.append(busy())
            made.tasks.append(made.start(made.locks.lock(f"name-{number}").acquire(1000)))
            made.advance(CHECK / 5 / 10)
        made.advance(3 * CHECK)
        assert len(made.acquires()) == 10
        assert [count for _, count in made.checks] == [10, 10, 10]
        made.replies += [GRANT] * 10
        for task in made.tasks:
            task.cancel()
        made.advance(0.0)


def test_many_places_are_checked_in_batches() -> None:
    with world(*(busy() for _ in range(places.MOST_PLACES + 1))) as made:
        made.advance(1.5 * CHECK)
        assert [count for _, count in made.checks] == [places.MOST_PLACES, 1]


def test_waiter_whose_place_is_gone_calls_the_store() -> None:
    with world(busy(), busy()) as made:
        made.kept = lambda ask: None if ask.name == "name-0" else busy()
        made.replies.append(GRANT)
        made.advance(CHECK)
        assert made.tasks[0].done()
        assert made.tasks[0].result().token == GRANT.token
        assert made.acquires() == [T0, T0, T0 + CHECK], "the other one sleeps on"


@pytest.mark.parametrize("place", [0, 1, 3])
def test_place_is_checked_when_the_holder_may_have_expired(place: int) -> None:
    """Each waiter further back is checked a little later, so that not all call at once."""
    with world(busy(place, 2.0)) as made:
        made.advance(2.0 + timing.STAGGER * place - 0.01)
        assert not made.checks
        made.advance(0.02)
        assert [when for when, _ in made.checks] == [pytest.approx(T0 + 2.0 + timing.STAGGER * place)]


def test_answer_of_the_keeper_puts_off_the_waiters_own_check() -> None:
    with world(busy(0, 2.0)) as made:
        made.kept = lambda ask: busy(0, 4.0)
        made.advance(5.9)
        assert made.acquires() == [T0]
        assert [when - T0 for when, _ in made.checks] == pytest.approx([2.0])
        made.kept = lambda ask: None
        made.replies.append(GRANT)
        made.advance(0.2)
        assert made.tasks[0].result().token == GRANT.token


def test_waiter_checks_by_itself_a_little_later_than_the_keeper_should_have() -> None:
    with world(busy()) as made:
        made.away = True
        made.replies.append(GRANT)
        made.advance(CHECK + LATE - 0.01)
        assert made.acquires() == [T0]
        assert len(made.checks) == 1, "a keeper does not retry for its waiters"
        made.advance(0.02)
        assert made.tasks[0].result().token == GRANT.token


def test_next_waiter_does_not_wait_long_for_the_keeper_when_the_holder_may_have_expired() -> None:
    """Promise 5: a holder that was killed is replaced 250 ms after its ttl at the latest, whatever the keeper does."""
    with world(busy(0, 2.0)) as made:
        made.away = True
        made.replies.append(GRANT)
        made.advance(2.0 + places.LATE_AT_EXPIRY + 0.01)
        assert made.tasks[0].result().token == GRANT.token


def test_waiter_that_was_woken_calls_the_store_and_is_kept_again() -> None:
    with world(busy()) as made:
        made.advance(2.0)
        made.replies.append(busy())
        made.push(None)
        made.advance(0.0)
        assert made.acquires() == [T0, T0 + 2.0]
        made.advance(CHECK)
        assert [when - T0 for when, _ in made.checks] == pytest.approx([2.0 + CHECK])


def test_pushed_grant_is_measured_against_the_last_answer_of_the_keeper() -> None:
    with world(Busy(None, 0, FAR, (), S0)) as made:
        made.kept = lambda ask: Busy(None, 0, FAR, (), S0 + int((made.now - T0) * SECOND))
        made.advance(CHECK + 1.0)
        made.push(Grant(7, at=S0 + int((CHECK - 1.0) * SECOND)))
        made.replies.append(GRANT)
        made.advance(0.0)
        assert made.tasks[0].result().token == GRANT.token, "older than that answer, so the store is called"


def test_older_answer_of_the_keeper_does_not_hide_a_newer_push() -> None:
    """Promise 5: a dead waiter that was granted the name holds up the next one for its first term, and no longer."""
    with world(Busy(None, 1, FAR, (), S0)) as made:
        made.kept = lambda ask: Busy(None, 1, FAR, (), S0 + int((CHECK - 0.1) * SECOND))
        made.advance(CHECK - 0.05)
        made.push(Busy(None, 0, timing.FIRST_TERM, (), S0 + int((CHECK - 0.06) * SECOND)))
        made.advance(0.1)
        assert made.checks, "its answer is older than the push"
        made.checks.clear()
        made.kept = lambda ask: None
        made.replies.append(GRANT)
        made.advance(1.0)
        assert made.tasks[0].result().token == GRANT.token


def test_keeper_does_not_check_again_and_again_whatever_the_store_answers() -> None:
    with world(busy(1, 1.0)) as made:
        made.kept = lambda ask: busy(1, -1.0)
        made.advance(3.0)
        assert len(made.checks) <= 50


def test_lease_that_is_granted_during_a_check_that_hangs_is_renewed_in_time() -> None:
    with world(Busy(None, 0, FAR, (), S0), busy()) as made:
        run = made.driver.run

        async def hang(steps: Any, limit: float) -> Any:
            checks = len(made.checks)
            result = await run(steps, limit)
            if len(made.checks) > checks:
                await asyncio.sleep(limit)
                raise StoreUnavailable("no answer in time")
            return result

        made.driver.run = hang  # type: ignore[method-assign]
        made.advance(CHECK + 0.05)
        first = next(what for _, operation, what in made.asked if operation == "acquire")
        made.driver.on_ring(first.attempt, Grant(7, at=S0 + int((CHECK + 0.04) * SECOND)))
        made.advance(1.0)
        assert made.tasks[0].result().valid


def test_check_that_fails_does_not_wake_all_waiters_at_once() -> None:
    with world(*(busy() for _ in range(10))) as made:
        made.away = True
        made.replies += [busy()] * 20
        made.advance(CHECK + LATE + 0.001)
        assert len(made.acquires()) == 10 + 1
        made.advance(LATE)
        assert len(made.acquires()) == 10 + 10


def test_renewals_go_first() -> None:
    with World(busy()) as made:
        made.replies.append(GRANT)
        held = made.start(made.locks.lock("held", ttl=3 * CHECK).acquire())
        made.advance(CHECK)
        operations = [what for when, what, _ in made.asked if when == T0 + CHECK]
        assert held.result().valid
        assert operations[:1] == ["renew"]
        assert [when for when, _ in made.checks] == [T0 + CHECK]
        made.tasks[0].cancel()
        made.advance(0.0)


def test_waiter_without_a_place_checks_by_itself() -> None:
    with world(Busy(None, None, FAR)) as made:
        made.replies.append(GRANT)
        made.advance(CHECK)
        assert made.tasks[0].done()
        assert not made.checks


def test_timeout_ends_a_wait_that_the_keeper_keeps() -> None:
    with World() as made:
        made.replies += [busy(), busy()]
        task = made.start(made.locks.lock("a").try_acquire(3 * CHECK + 0.5))
        made.advance(3 * CHECK + 0.5)
        assert task.result() is None
        assert made.acquires() == [T0, T0 + 3 * CHECK + 0.5]
        made.advance(3 * CHECK)
        assert len(made.checks) == 3, "nobody waits any more"
