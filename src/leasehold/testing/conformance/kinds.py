"""Kinds of lock beside the plain one: semaphore, read/write, re-entrant, several names, hand-over."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from ...core.timing import FIRST_TERM
from ...errors import LeaseLost
from ..api import PATIENCE
from ..handles import eventually, times_out
from ..scene import Scene
from .fixtures import needs
from .operations import in_turn

LONG = 20.0
"""For what is not to run out, nor its calls to be given up, on a machine that is busy."""
SOON = 10.0
"""Much less than LONG: what is gone by then was given back, and did not run out."""


@needs("semaphore", "fair")
def test_a_semaphore_has_so_many_permits(scene: Scene) -> None:
    """Reference, semaphore: at most ``limit`` holders, each with a token of its own; waiters in order."""
    locks, other, name = scene.connect(ttl=LONG), scene.connect(ttl=LONG), scene.name()
    first, second = (each.semaphore(name, 2).acquire(5) for each in (locks, other))
    assert first.token < second.token
    assert not first.exclusive
    assert other.semaphore(name, 2).try_acquire() is None
    waiting = other.semaphore(name, 2).start(20)
    scene.until_waiting(name)
    assert first.release()
    third = waiting.lease()
    assert third.token > second.token
    assert second.valid
    assert second.release()
    assert third.release() or third.ran_out()


@needs("semaphore")
def test_a_semaphore_is_locked_while_it_has_no_permit_to_spare(scene: Scene) -> None:
    """Contract: Lock.locked()."""
    locks, other, name = scene.connect(ttl=LONG), scene.connect(ttl=LONG), scene.name()
    seen = other.semaphore(name, 2)
    assert not seen.locked()
    first = locks.semaphore(name, 2).acquire(5)
    assert not seen.locked()
    second = other.semaphore(name, 2).acquire(5)
    assert seen.locked()
    assert first.release()
    assert not seen.locked()
    assert second.release()


@needs("rwlock")
def test_a_read_write_lock_is_locked_by_any_reader_or_writer(scene: Scene) -> None:
    """Contract: Lock.locked()."""
    locks, name = scene.connect(ttl=LONG), scene.name()
    sides = locks.reader(name), locks.writer(name)
    for side in sides:
        assert [each.locked() for each in sides] == [False, False]
        lease = side.acquire(5)
        assert [each.locked() for each in sides] == [True, True]
        assert lease.release()


@needs("semaphore")
def test_a_permit_expires_alone(scene: Scene) -> None:
    """Reference, semaphore: each permit is a lease of its own."""
    locks, name = scene.connect(ttl=LONG), scene.name()
    silent = locks.semaphore(name, 2, ttl=scene.ttl, renew=False).acquire(5)
    kept = locks.semaphore(name, 2).acquire(5)
    assert silent.wait_lost()
    third = locks.semaphore(name, 2).acquire(20)
    assert kept.valid
    assert third.release()
    assert kept.release()


@needs("rwlock", "fair")
def test_readers_share_and_a_writer_does_not(scene: Scene) -> None:
    """Reference, rwlock: many readers or one writer; a waiting writer goes before the readers that come later."""
    locks, other = scene.connect(ttl=LONG), scene.connect(ttl=LONG)
    for _ in in_turn():
        name = scene.name()
        first, second = (each.reader(name).acquire(5) for each in (locks, other))
        assert other.writer(name).try_acquire() is None
        writing = other.writer(name).start(60)
        scene.until_waiting(name)
        late = locks.reader(name).start(60)
        scene.until_waiting(name, 2)
        assert locks.reader(name).try_acquire() is None
        assert first.release()
        time.sleep(0.1)
        assert not writing.done()
        released = time.monotonic()
        assert second.release()
        eventually(lambda: writing.done() or late.done())  # noqa: B023
        if not writing.done():
            assert time.monotonic() - released >= FIRST_TERM, "it was overtaken"
            late.lease().release()
            writing.lease().release()
            continue
        writer = writing.lease()
        assert writer.exclusive
        alone = not late.done() and len(scene.held(name)) == 1
        assert alone or writer.ran_out()
        given = writer.release()
        assert given or writer.ran_out()
        reader = late.lease()
        assert reader.token > writer.token
        assert reader.release() or reader.ran_out()
        if alone and given:
            break


@needs("rwlock")
def test_a_dead_reader_expires_alone(scene: Scene) -> None:
    """Reference, rwlock: each reader has its own expiry; the writer waits for the living one."""
    locks, other, name = scene.connect(ttl=LONG), scene.connect(ttl=LONG), scene.name()
    silent = locks.reader(name, ttl=scene.ttl, renew=False).acquire(5)
    kept = locks.reader(name).acquire(5)
    assert silent.wait_lost()
    eventually(lambda: len(scene.held(name)) == 1, 10, "the silent one is gone")
    assert other.writer(name).try_acquire() is None
    assert kept.valid
    assert kept.release()
    writer = other.writer(name).acquire(20)
    assert writer.release()


@needs("rwlock", "heir")
def test_a_writer_becomes_a_reader(scene: Scene) -> None:
    """Reference, rwlock: downgrade, with no other writer in between, and readers that waited come in."""
    locks, other, name = scene.connect(ttl=LONG), scene.connect(ttl=LONG), scene.name()
    writer = locks.writer(name, renew_every=0.5, max_renew_failures=1000).acquire(5)
    waiting = other.reader(name).start(20)
    scene.until_waiting(name)
    reader = writer.downgrade()
    assert reader.token > writer.token
    assert not writer.valid
    assert writer.lost_reason is None
    assert writer.release() is False
    beside = waiting.lease()
    assert reader.valid
    assert beside.valid or beside.ran_out()
    assert other.writer(name).try_acquire() is None
    with pytest.raises(ValueError, match="writer"):
        reader.downgrade()
    reader.is_renewed()
    assert reader.valid
    assert reader.release()
    assert beside.release() or beside.ran_out()


def test_several_names_are_one_lease(scene: Scene) -> None:
    """Reference, all_of: all or none, ``tokens`` per name."""
    locks, other = scene.connect(ttl=LONG), scene.connect(ttl=LONG)
    names = [scene.name("b"), scene.name("a")]
    lease = locks.all_of(*names).acquire(5)
    assert list(lease.tokens) == sorted(names)
    assert {name: scene.held(name)[0].token for name in names} == lease.tokens
    assert lease.valid
    assert 0 < lease.remaining <= LONG
    assert not hasattr(lease.real, "token")
    assert all(other.lock(name).try_acquire() is None for name in names)
    assert lease.release() is True
    assert lease.release() is False
    assert not lease.valid
    assert lease.lost_reason is None
    assert not any(scene.held(name) for name in names)


def test_one_of_several_names_that_is_busy_leaves_none(scene: Scene) -> None:
    """Promise 4: out of time, or cancelled, it gives back what it had; ``min_hold`` does not count for that."""
    locks, other = scene.connect(ttl=LONG), scene.connect(ttl=LONG)
    first, second = sorted((scene.name(), scene.name()))
    held = other.lock(second).acquire(5)
    both = locks.all_of(second, first, min_hold=20)
    assert both.try_acquire() is None
    scene.until_free(first, SOON)

    def wait() -> None:
        scene.until_free(first, SOON)
        both.acquire(1.0)

    assert second in str(times_out(wait))
    scene.until_free(first, SOON)
    waiting = both.start(20)
    scene.until_held(first)
    waiting.cancel()
    assert isinstance(waiting.error(), scene.api.cancelled)
    scene.until_free(first, SOON)
    assert held.release()


def test_all_names_are_lost_when_one_is(scene: Scene) -> None:
    """Reference, all_of: trusted only while all are; the rest is given back with it."""
    locks, other = scene.connect(ttl=LONG), scene.connect(ttl=LONG)
    first, second = sorted((scene.name(), scene.name()))
    lease = locks.all_of(first, second).acquire(5)
    assert other.break_lease(second)
    assert lease.wait_lost()
    assert not lease.valid
    with pytest.raises(LeaseLost):
        lease.check()
    assert lease.release() is False
    for name in (first, second):
        scene.until_free(name)


def test_all_of_never_waits_in_a_circle(scene: Scene) -> None:
    """Reference, all_of: two that name them in opposite order do not deadlock."""
    one, two = scene.connect(ttl=LONG), scene.connect(ttl=LONG)
    names = [scene.name(), scene.name(), scene.name()]
    for _ in range(5):
        jobs = [one.all_of(*names).start(20), two.all_of(*names[::-1]).start(20)]
        eventually(lambda: any(job.done() for job in jobs), 20, "one of them has them")  # noqa: B023
        for job in sorted(jobs, key=lambda job: not job.done()):
            lease = job.lease()
            assert lease.release() or lease.ran_out()


@needs("heir")
def test_a_lease_is_handed_over(scene: Scene) -> None:
    """Reference, transfer: another takes it over, the token is raised, and the first holder's is lost to it."""
    locks, other, name = scene.connect(ttl=LONG, owner="first"), scene.connect(ttl=LONG, owner="second"), scene.name()
    lease = locks.lock(name, kind="batch", data={"a": 1}).acquire(5)
    text = lease.transfer()
    assert not lease.valid, "another may have it from now on: two must not trust it at the same time"
    assert lease.remaining == 0.0
    with pytest.raises(LeaseLost, match="handed over"):
        lease.check()
    taken = other.accept(text)
    assert taken.token > lease.token
    assert (taken.name, taken.kind, taken.data, taken.ttl, taken.owner) == (name, "batch", {"a": 1}, LONG, "second")
    assert lease.wait_lost()
    assert "handed over" in lease.lost_reason
    assert lease.release() is False
    with pytest.raises(LeaseLost):
        other.accept(text)
    assert [each.owner for each in scene.held(name)] == ["second"]
    again = locks.accept(taken.transfer(), ttl=2 * LONG, renew_every=0.5, max_renew_failures=1000)
    assert again.ttl == 2 * LONG
    again.is_renewed()
    assert again.valid
    assert again.release()
    with pytest.raises(ValueError, match="not what"):
        other.accept("nonsense")
    with pytest.raises(ValueError, match="namespace"):
        scene.connect(namespace=scene.namespace + "x").accept(text)


@needs("heir")
def test_end_of_the_block_leaves_an_offered_lease_to_the_heir(scene: Scene) -> None:
    """The end of a block after transfer gives nothing back; a release does, and takes the offer back."""
    locks, other, name = scene.connect(ttl=LONG), scene.connect(ttl=LONG), scene.name()
    texts: list[str] = []
    lock = locks.lock(name).real
    if scene.side == "threads":
        with lock as lease:
            texts.append(lease.transfer())
    else:

        async def block() -> None:
            async with lock as lease:
                texts.append(await lease.transfer())

        scene.loop.run(block())
    assert other.lock(name).try_acquire() is None
    taken = other.accept(texts[0])
    assert taken.release()
    withdrawn = locks.lock(name).acquire(5)
    text = withdrawn.transfer()
    assert withdrawn.release() is True
    with pytest.raises(LeaseLost):
        other.accept(text)


@needs("heir")
@pytest.mark.parametrize("ended", [False, True])
def test_closing_leaves_an_offered_lease_to_the_heir(scene: Scene, ended: bool) -> None:
    """Contract, transfer: what was offered stays for whoever takes it over when its Locks is closed, in its block or
    after it; all else is given back."""
    locks, other, name, kept = scene.connect(ttl=LONG), scene.connect(ttl=LONG), scene.name(), scene.name()
    assert other.lock(name).acquire(5).release()
    beside = locks.lock(kept).acquire(5)
    lease = locks.lock(name).acquire(5)
    text = lease.transfer_in_block() if ended else lease.transfer()
    locks.close()
    assert not beside.valid
    assert not scene.held(kept)
    assert other.lock(name).try_acquire() is None
    taken = other.accept(text)
    assert taken.token > lease.token
    assert taken.valid
    assert taken.release()


def test_a_name_has_one_shape_at_a_time(scene: Scene) -> None:
    """Reference: another shape of a name in use is a ValueError, and so is what the store cannot do."""
    locks, name = scene.connect(ttl=LONG), scene.name()
    lacks = locks.store.lacks
    lease = locks.lock(name).acquire(5)
    with pytest.raises(ValueError, match="does not support" if "semaphore" in lacks else "in use"):
        locks.semaphore(name, 3).acquire(20)
    with pytest.raises(ValueError, match="does not support" if "rwlock" in lacks else "in use"):
        locks.reader(name).acquire(20)
    assert lease.release()
    if "heir" in lacks:
        lease = locks.lock(name).acquire(5)
        with pytest.raises(ValueError, match="heir"):
            lease.transfer()
        assert lease.release()
    for limit, error in ((0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(ValueError if "semaphore" in lacks else error):
            locks.semaphore(name, limit)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one name"):
        locks.all_of()
    with pytest.raises(ValueError, match="twice"):
        locks.all_of("a", "b", "a")


def test_a_thread_enters_again(threads: Scene) -> None:
    """Reference, rlock; C5: each entry its own handle, one token; freed by the last release; contends with lock."""
    locks, other, name = threads.connect(ttl=LONG), threads.connect(ttl=LONG), threads.name()
    real = locks.real
    with real.rlock(name) as outer:
        with real.rlock(name) as inner:
            assert inner is not outer
            assert inner.token == outer.token
            assert inner.release() is True
            assert inner.release() is False
            assert not inner.valid
            assert outer.valid
        seen: list[Any] = []
        thread = threading.Thread(target=lambda: seen.append(real.rlock(name).try_acquire()))
        thread.start()
        thread.join()
        assert seen == [None], "another thread is another"
        assert other.lock(name).try_acquire() is None
        assert other.real.rlock(name).try_acquire() is None, "another Locks is another"
    assert not threads.held(name)
    first, second = real.rlock(name).acquire(5), real.rlock(name).acquire(5)
    assert first.release() is True, "in whatever order"
    assert threads.held(name)
    assert other.break_lease(name)
    assert second.lost.wait(PATIENCE)
    with pytest.raises(LeaseLost):
        real.rlock(name).acquire(5)
    assert second.release() is False
    threads.until_free(name)
    assert real.rlock(name).acquire(5).release() is True


def test_a_task_enters_again(tasks: Scene) -> None:
    """As above, for tasks: also through ``asyncio.wait_for``, which may await in a task of its own."""
    locks, other, name = tasks.connect(ttl=LONG), tasks.connect(ttl=LONG), tasks.name()
    real = locks.real

    async def work() -> None:
        async with real.rlock(name) as outer:
            async with real.rlock(name) as inner:
                assert inner is not outer
                assert inner.token == outer.token
            assert outer.valid
            again = await asyncio.wait_for(real.rlock(name).acquire(), PATIENCE)
            assert again.token == outer.token
            assert await again.release() is True
            again = await asyncio.wait_for(real.rlock(name).try_acquire(), PATIENCE)
            assert again.token == outer.token
            assert await again.release() is True

            async def another() -> Any:
                return await real.rlock(name).try_acquire()

            assert await asyncio.create_task(another()) is None, "another task is another"
            assert await other.real.lock(name).try_acquire() is None
        lease = await real.rlock(name).acquire(5)
        assert await other.real.break_lease(name)
        await asyncio.wait_for(lease.lost.wait(), PATIENCE)
        with pytest.raises(LeaseLost):
            await real.rlock(name).acquire(5)
        assert await lease.release() is False

    tasks.loop.run(work())


def test_events_tell_everything(scene: Scene) -> None:
    """Reference, on_event; D7: each kind of event, and a slow callback delays no renewal."""
    locks, other, name = scene.connect(ttl=LONG), scene.connect(ttl=LONG), scene.name()
    told: list[str] = []
    locks.on_event(lambda event: told.append(event.type))

    slept: list[str] = []
    may_end = threading.Event()

    def slow(event: Any) -> None:
        if scene.side == "threads" and not slept:  # in asyncio a callback that blocks the loop blocks everything
            slept.append(event.type)
            may_end.wait(PATIENCE)
            slept.append("enough")

    held = other.lock(name).acquire(5)
    assert locks.lock(name).try_acquire() is None
    assert held.release()
    lease = locks.lock(name, renew_every=0.5, max_renew_failures=1000).acquire(20)
    eventually(lambda: "renewed" in told, 20)
    locks.on_event(slow)  # not before: what it holds up is told to nobody
    eventually(lambda: slept or scene.side == "asyncio")
    for _ in range(2):
        lease.is_renewed(10)
    assert lease.valid
    assert "enough" not in slept
    may_end.set()
    assert other.break_lease(name)
    assert lease.wait_lost()
    lease.release()
    assert locks.lock(name).acquire(20).release()
    wanted = {"refused", "renewed", "broken", "lost", "released", "acquired"}
    eventually(lambda: wanted <= set(told), 60, f"{wanted} were told")


def test_a_renewal_that_fails_is_told(scene: Scene) -> None:
    """Reference, on_event; B6: renewal_failed once a cycle, while the lease is still held; counted by metrics()."""
    locks, faults = scene.faulty(ttl=LONG)
    told: list[Any] = []
    locks.on_event(told.append)
    lease = locks.lock(scene.name(), renew_every=scene.ttl, max_renew_failures=1000).acquire(5)
    faults.lose_request("renew")
    failed = eventually(lambda: [event for event in told if event.type == "renewal_failed"], 20)
    assert lease.valid
    assert (failed[0].name, failed[0].token, failed[0].owner) == (lease.name, lease.token, lease.owner)
    faults.mend()
    eventually(lambda: "renewed" in [event.type for event in told], 20)
    assert lease.valid
    assert locks.metrics().renewal_failures >= 1
    assert lease.release()
