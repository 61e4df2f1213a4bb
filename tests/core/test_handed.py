"""A lease that a push brings: how long it can be trusted, and when it has to be asked for instead (S2)."""

from __future__ import annotations

from typing import Any

import pytest
from scripted import T0, Scripted

from leasehold.core import timing
from leasehold.core.protocol import SECOND, Busy, Grant

S0 = 5_000 * SECOND
"""What the store's clock shows at T0."""
FAR = 1000.0
"""Seconds until the holder's expiry: long enough for the waiter not to look by itself."""
FIRST_TERM = timing.FIRST_TERM * 0.99 - 0.05
"""For how long a first term can be trusted."""
ASKED = Grant(99)


class Waiter:
    """It asked at T0, when the store's clock showed S0, and was told that the lease is busy."""

    def __init__(self, world: Scripted, busy: Busy, **options: Any) -> None:
        self.world = world
        self.trusted: float | None = None
        """Until when it trusts the lease, as it says when it gets the lease."""
        world.replies += [busy, ASKED]
        self.task = world.start(self.wait(options))
        assert world.acquires() == [T0]

    async def wait(self, options: Any) -> int:
        lease = await self.world.locks.lock("a", **options).acquire()
        self.trusted = self.world.now + lease.remaining
        return lease.token

    def receives(self, grant: Grant, after: float) -> float | None:
        """It is told of the grant so long after T0. Until when it trusts that; None when it asks the store instead."""
        self.world.advance(T0 + after - self.world.now)
        self.world.push(grant)
        self.world.advance(0.0)
        assert self.task.done()
        if self.task.result() == grant.token:
            assert self.world.acquires() == [T0], "it need not ask"
            return self.trusted
        assert self.task.result() == ASKED.token
        assert self.world.acquires() == [T0, T0 + after]
        return None


def handed(granted: float, arrived: float, **options: Any) -> float | None:
    """Until when a grant is trusted that was made and told so many seconds after T0; None when it is not."""
    with Scripted() as world:
        waiter = Waiter(world, Busy(None, 0, FAR, (), S0), **options)
        return waiter.receives(Grant(7, at=S0 + int(granted * SECOND)), arrived)


def test_deadline_of_a_pushed_grant_counts_from_the_grant_by_the_stores_clock() -> None:
    assert handed(2.0, 2.3) == pytest.approx(T0 + 2.0 + FIRST_TERM)


def test_deadline_of_a_pushed_grant_never_counts_from_later_than_its_arrival() -> None:
    """The store's clock is a little faster than ours."""
    assert handed(2.02, 2.0) == pytest.approx(T0 + 2.0 + FIRST_TERM)


@pytest.mark.parametrize(
    ("granted", "arrived", "options"),
    [
        (2.0, 2.7, {}),  # too late: its first term is over
        (300.0, 2.0, {}),  # the store's clock was set forth meanwhile: it does not tell when
        (3.0, 2.0, {}),
        (3.0, 2.0, {"ttl": 300}),  # however much of its whole term is not trusted
        (-0.1, 0.1, {}),  # older than the answer that said Busy
        (0.0, 0.1, {}),
        (2.0, 2.1, {"renew": False}),  # nobody would extend it
        (2.0, 2.1, {"drift": 0.4}),  # the tolerance leaves nothing of a first term
    ],
)
def test_pushed_grant_that_cannot_be_trusted_is_asked_for(
    granted: float, arrived: float, options: dict[str, Any]
) -> None:
    assert handed(granted, arrived, **options) is None


@pytest.mark.parametrize(("last", "had"), [(6, True), (7, False), (8, False)])
@pytest.mark.parametrize("granted", [0.0, 0.3])
def test_pushed_grant_is_newer_than_the_answer_by_its_token_where_the_store_tells_the_last(
    last: int, had: bool, granted: float
) -> None:
    """A grant that is older than the answer that said Busy has no greater token; the store's clock may go by steps."""
    with Scripted() as world:
        waiter = Waiter(world, Busy(None, 0, FAR, (), S0, token=last))
        trusted = waiter.receives(Grant(7, at=S0 + int(granted * SECOND)), 0.4)
        assert trusted == (pytest.approx(T0 + granted + FIRST_TERM) if had else None)


def test_pushed_grant_is_asked_for_when_the_stores_clock_was_set_back() -> None:
    with Scripted() as world:
        waiter = Waiter(world, Busy(None, 0, FAR, (), S0, token=6))
        assert waiter.receives(Grant(7, at=S0 - 300 * SECOND), 0.1) is None


def test_pushed_grant_of_a_store_without_a_clock_is_asked_for() -> None:
    with Scripted() as world:
        assert Waiter(world, Busy(None, 0, FAR)).receives(Grant(7), 0.0) is None


# What a waiter is told while it waits.

GRANT, NEXT = Grant(7, at=S0 + 1), Busy(None, 0, 0.7, now=S0)


@pytest.mark.parametrize(
    ("unread", "told", "read"),
    [
        (None, GRANT, GRANT),
        (None, NEXT, NEXT),
        (NEXT, None, None),  # it is to ask
        (NEXT, GRANT, GRANT),
        (GRANT, None, GRANT),
        (GRANT, NEXT, GRANT),  # of the grant before that one, and late
        (GRANT, Grant(8, at=S0 + 1), Grant(8, at=S0 + 1)),
    ],
)
def test_unread_grant_is_overwritten_by_a_later_grant_alone(
    unread: Grant | Busy | None, told: Grant | Busy | None, read: Grant | Busy | None
) -> None:
    with Scripted() as world:
        waiter = Waiter(world, Busy(None, 0, FAR, (), S0))
        if unread is not None:
            world.push(unread)
        world.push(told)
        world.advance(0.0)
        if isinstance(read, Grant):
            assert waiter.task.result() == read.token
            assert world.acquires() == [T0]
        else:
            world.advance(FAR)
            assert waiter.task.result() == ASKED.token
            assert world.acquires() == pytest.approx([T0, T0 + (0.7 if read is NEXT else 0.0)])


@pytest.mark.parametrize(("told_at", "waits"), [(S0 - 1, 0.1), (S0, 0.7), (S0 + 1, 0.7), (None, 0.7)])
def test_news_older_than_the_answer_is_ignored(told_at: int | None, waits: float) -> None:
    """It came while the answer was on its way: whoever was granted the lease then has less left by now."""
    with Scripted() as world:
        Waiter(world, Busy(None, 0, 0.1, (), S0))
        world.push(Busy(None, 0, 0.7, now=told_at))
        world.advance(FAR)
        assert world.acquires() == pytest.approx([T0, T0 + waits])


def test_outdated_news_delays_no_check_of_the_holders_expiry() -> None:
    """However much of it comes: the look at the holder's expiry is due when it was."""
    with Scripted() as world:
        Waiter(world, Busy(None, 0, 1.0, (), S0))
        for _ in range(2):
            world.advance(0.4)
            world.push(Busy(None, 0, 1.0, now=S0 - 1))
        world.advance(FAR)
        assert world.acquires() == pytest.approx([T0, T0 + 1.0])
