"""The operations of a store, one by one, below the API: see :class:`leasehold.core.protocol.Store`.

These are the quickest to learn from when a store is being written; most of the rest follows from them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from ...core.protocol import BROKEN, GONE, RENEWED, SECOND, Busy, Grant, Renewal
from ...core.timing import FIRST_TERM
from ..handles import Locks, eventually
from ..scene import Scene
from .fixtures import needs

A, B, C = ("a" * 32, "b" * 32, "c" * 32)
"""The form of attempts: 32 hexadecimal digits."""
LONG = 30.0
SOON = 10.0
"""Much less than LONG."""


def grant(reply: Any) -> Grant:
    assert isinstance(reply, Grant), reply
    return reply


def busy(reply: Any) -> Busy:
    assert isinstance(reply, Busy), reply
    return reply


def give_back(locks: Locks, name: str, *attempts: str) -> None:
    for attempt in attempts:
        locks.run(locks.store.abandon(name, attempt))


def run_out(scene: Scene, name: str, seconds: float, left: int = 0) -> None:
    """Sleep until leases of less than that many seconds have expired, and only ``left`` holders remain. A busy store
    that ends leases by itself may take longer."""
    time.sleep(seconds + scene.store.late)
    eventually(lambda: len(scene.held(name)) == left, SOON, "it has run out")


def in_turn() -> Iterator[int]:
    """For steps that must happen while a waiter's turn lasts: try until they did. A machine may be too busy."""
    yield from range(20)
    pytest.fail("the machine was too busy to see it")


def test_op_acquire_is_idempotent_by_attempt(scene: Scene) -> None:
    """S4; A4: asking again with the same attempt returns the same grant, with the same token."""
    locks, name = scene.connect(), scene.name()
    first = grant(locks.ask(name, A, LONG))
    assert grant(locks.ask(name, A, LONG)).token == first.token
    assert grant(locks.ask(name, A, LONG, queue=True)).token == first.token
    assert len(scene.held(name)) == 1
    give_back(locks, name, A)


def test_op_busy_tells_about_the_holder(scene: Scene) -> None:
    """A6: a refused acquire returns the holder and its expiry."""
    locks, name = scene.connect(owner="me"), scene.name()
    first = grant(locks.ask(name, A, LONG, kind="batch", data='{"x":1}'))
    reply = busy(locks.ask(name, B, LONG))
    assert reply.holder is not None
    holder = reply.holder
    assert (holder.name, holder.owner, holder.kind, holder.data) == (name, "me", "batch", '{"x":1}')
    assert holder.token == first.token
    assert 0 <= holder.age < 10
    assert LONG - 10 < holder.expires_in <= LONG + 0.001
    assert reply.place is None
    assert reply.expires_in is None or LONG - 10 < reply.expires_in <= LONG + 0.001
    assert scene.waiters(name) == 0
    give_back(locks, name, A)


@needs("fair")
def test_op_queue_has_places(scene: Scene) -> None:
    """Promise 5: 0 is next; a place is kept; release grants to the head, which claims by asking again."""
    locks = scene.connect()
    for _ in in_turn():
        name = scene.name()
        first = grant(locks.ask(name, A, LONG))
        assert busy(locks.ask(name, B, LONG, queue=True)).place == 0
        assert busy(locks.ask(name, C, LONG, queue=True)).place == 1
        assert busy(locks.ask(name, B, LONG, queue=True)).place == 0
        assert scene.waiters(name) == 2
        released = time.monotonic()
        assert locks.run(locks.store.release(name, A, first.token, first.hint)) is True
        barging = locks.ask(name, "d" * 32, LONG)
        behind = locks.ask(name, C, LONG, queue=True)
        claimed = locks.ask(name, B, LONG, queue=True)
        if time.monotonic() - released < FIRST_TERM:
            break
        give_back(locks, name, B, C, "d" * 32)
    busy(barging)
    assert busy(behind).place == 0
    second = grant(claimed)
    assert second.token > first.token
    assert scene.held(name)[0].expires_in > LONG - 10, "claimed: now for its whole ttl"
    assert locks.run(locks.store.release(name, B, second.token, second.hint)) is True
    third = grant(locks.ask(name, C, LONG, queue=True))
    assert third.token > second.token
    assert locks.run(locks.store.release(name, C, third.token, third.hint)) is True
    assert not scene.held(name)
    assert scene.waiters(name) == 0


def test_op_renew_extends_only_what_is_there(scene: Scene) -> None:
    """S3, promise 3; B2, C4: renewal matches attempt and token; it never takes."""
    locks, name = scene.connect(), scene.name()
    held = grant(locks.ask(name, A, 8))
    ttl = int(LONG * SECOND)
    nobody = scene.name()
    assert list(locks.renewals(Renewal(name, B, held.token, ttl), Renewal(name, A, held.token + 1, ttl))) == [GONE] * 2
    assert all(seen.expires_in < 10 for seen in scene.held(name))  # nor does it lengthen another's term
    assert list(
        locks.renewals(
            Renewal(name, A, held.token, ttl),
            Renewal(name, B, held.token, ttl),
            Renewal(name, A, held.token + 1, ttl),
            Renewal(name, A, held.token - 1, ttl),
            Renewal(nobody, A, held.token, ttl),
        )
    ) == [RENEWED, GONE, GONE, GONE, GONE]
    (seen,) = scene.held(name)
    assert seen.token == held.token
    assert seen.expires_in > LONG - 10
    assert not scene.held(nobody)
    give_back(locks, name, A)


def test_op_renew_never_shortens(scene: Scene) -> None:
    """An older request that arrives late must not cut a newer, longer term."""
    locks, name = scene.connect(), scene.name()
    held = grant(locks.ask(name, A, LONG))
    assert list(locks.renewals(Renewal(name, A, held.token, SECOND))) == [RENEWED]
    assert scene.held(name)[0].expires_in > LONG - 10
    give_back(locks, name, A)


def test_op_renew_never_revives(scene: Scene) -> None:
    """S3, promise 3: an expired lease is gone, even if its record was not changed since."""
    locks, name = scene.connect(), scene.name()
    held = grant(locks.ask(name, A, 0.3))
    run_out(scene, name, 0.5)
    assert list(locks.renewals(Renewal(name, A, held.token, 5 * SECOND))) == [GONE]
    assert not scene.held(name)
    assert locks.run(locks.store.inspect(name)) in ([], ())
    taken = grant(locks.ask(name, B, LONG))
    assert taken.token > held.token
    assert list(locks.renewals(Renewal(name, A, held.token, 5 * SECOND))) == [GONE]
    assert [each.token for each in scene.held(name)] == [taken.token]
    give_back(locks, name, B)


def test_op_release_matches_attempt_and_token(scene: Scene) -> None:
    """S3, promise 3; B4, C4, D5: a release acts only for the lease that asks."""
    locks, name = scene.connect(), scene.name()
    held = grant(locks.ask(name, A, LONG))
    assert locks.run(locks.store.release(name, B, held.token, None)) is False
    assert locks.run(locks.store.release(name, A, held.token + 1, None)) is False
    assert locks.run(locks.store.release(scene.name(), A, held.token, None)) is False
    assert [each.token for each in scene.held(name)] == [held.token]
    assert locks.run(locks.store.release(name, A, held.token, held.hint)) is True
    assert locks.run(locks.store.release(name, A, held.token, held.hint)) is False
    assert not scene.held(name)


def test_op_release_with_an_old_hint_harms_nobody(scene: Scene) -> None:
    """S3: the hint is a shortcut, not a key."""
    locks, name = scene.connect(), scene.name()
    first = grant(locks.ask(name, A, LONG))
    assert list(locks.renewals(Renewal(name, A, first.token, 40 * SECOND))) == [RENEWED]
    assert locks.run(locks.store.release(name, A, first.token, first.hint)) is True
    second = grant(locks.ask(name, B, LONG))
    assert locks.run(locks.store.release(name, A, first.token, first.hint)) is False
    assert [each.token for each in scene.held(name)] == [second.token]
    give_back(locks, name, B)


def test_op_release_of_an_expired_lease_is_false(scene: Scene) -> None:
    """S3: the store's clock decides expiry, not a record that is still there; the next holder is not affected."""
    locks, name = scene.connect(), scene.name()
    held = grant(locks.ask(name, A, 0.3, queue=True))
    run_out(scene, name, 0.5)
    taken = grant(locks.ask(name, B, LONG))
    assert taken.token > held.token
    assert locks.run(locks.store.release(name, A, held.token, held.hint)) is False
    assert [each.token for each in scene.held(name)] == [taken.token]
    give_back(locks, name, B)


def test_op_abandon_undoes_an_attempt(scene: Scene) -> None:
    """S4, promise 4: afterwards the attempt neither holds nor waits; True if it did."""
    locks, name = scene.connect(), scene.name()
    assert locks.run(locks.store.abandon(name, A)) is False
    grant(locks.ask(name, A, LONG))
    busy(locks.ask(name, B, LONG, queue=True))
    assert locks.run(locks.store.abandon(name, B)) is scene.store.fair, "True where it had a place in the queue"
    assert scene.waiters(name) == 0
    assert locks.run(locks.store.abandon(name, C)) is False
    assert locks.run(locks.store.abandon(name, A)) is True
    assert locks.run(locks.store.abandon(name, A)) is False
    assert not scene.held(name)


@needs("fair")
def test_op_abandon_passes_on_what_was_granted(scene: Scene) -> None:
    """L2, L5: a waiter that was granted and gives up passes the name to the next waiter."""
    locks = scene.connect()
    for _ in in_turn():
        name = scene.name()
        first = grant(locks.ask(name, A, LONG))
        busy(locks.ask(name, B, LONG, queue=True))
        busy(locks.ask(name, C, LONG, queue=True))
        released = time.monotonic()
        locks.run(locks.store.release(name, A, first.token, first.hint))
        abandoned = locks.run(locks.store.abandon(name, B))
        if time.monotonic() - released < FIRST_TERM:
            break
        give_back(locks, name, C)
    assert abandoned is True
    assert grant(locks.ask(name, C, LONG, queue=True)).token > first.token
    give_back(locks, name, C)


def test_op_interrupt_refuses_renewal(scene: Scene) -> None:
    """Reference, break_lease: renewal is BROKEN; the name is free when the holder has released it."""
    locks, name = scene.connect(), scene.name()
    assert locks.run(locks.store.interrupt(name, False)) is False
    assert locks.run(locks.store.interrupt(name, True)) is False
    held = grant(locks.ask(name, A, LONG))
    assert locks.run(locks.store.interrupt(name, False)) is True
    assert list(locks.renewals(Renewal(name, A, held.token, SECOND))) == [BROKEN]
    busy(locks.ask(name, B, LONG))
    assert len(scene.held(name)) == 1
    assert locks.run(locks.store.release(name, A, held.token, held.hint)) is True
    assert grant(locks.ask(name, B, LONG)).token > held.token
    assert locks.run(locks.store.interrupt(name, True)) is True
    assert not scene.held(name)
    assert list(locks.renewals(Renewal(name, B, held.token, SECOND))) == [GONE]


def test_op_scan_pages_through_all(scene: Scene) -> None:
    """Reference, leases(): every holding once, by name, in pages."""
    locks = scene.connect()
    names = [f"scan-{number:03}" for number in range(25)]
    for number, name in enumerate(names):
        grant(locks.ask(name, f"{number:032x}", LONG))
    grant(locks.ask("other", A, LONG))
    seen: list[str] = []
    after: str | None = ""
    pages = 0
    while after is not None:
        found, after = locks.run(locks.store.scan("scan-", after, 10))
        seen.extend(each.name for each in found)
        pages += 1
    assert seen == names
    assert 3 <= pages <= 4
    for number, name in enumerate(names):
        give_back(locks, name, f"{number:032x}")
    give_back(locks, "other", A)


def test_op_inspect_shows_what_is_live(scene: Scene) -> None:
    """Reference, inspect(): all live holdings of one name, and how many wait."""
    locks, name = scene.connect(owner="me"), scene.name()
    assert list(locks.run(locks.store.inspect(name))) == []
    held = grant(locks.ask(name, A, LONG, data="[1]"))
    busy(locks.ask(name, B, LONG, queue=True))
    (seen,) = locks.run(locks.store.inspect(name))
    assert (seen.name, seen.attempt, seen.owner, seen.token, seen.data) == (name, A, "me", held.token, "[1]")
    assert seen.waiters in (1, None)
    give_back(locks, name, B, A)
    grant(locks.ask(name, A, 0.2))
    run_out(scene, name, 0.4)
    assert list(locks.run(locks.store.inspect(name))) == []


def test_op_a_grant_says_from_whom_it_was_taken(scene: Scene) -> None:
    """A6: a takeover is reported, where the store knows the previous holder."""
    locks, name = scene.connect(owner="me"), scene.name()
    first = grant(locks.ask(name, A, 0.3))
    assert first.taken_from is None
    run_out(scene, name, 0.5)
    second = grant(locks.ask(name, B, LONG))
    if second.taken_from is not None:
        assert second.taken_from.token == first.token
        assert second.taken_from.expires_in <= 0
    give_back(locks, name, B)
