"""Leases that stand on others, where it gets tight: garbage, loss while others are waited for, interrupts."""

from __future__ import annotations

import asyncio
import base64
import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold import aio, fence
from leasehold.stores.entries import SwapAll
from leasehold.testing.handles import eventually


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return f"memory://{request.node.name}"


@pytest.fixture
def locks(url: str) -> Iterator[leasehold.Locks]:
    with leasehold.connect(url, ttl=60) as locks:
        yield locks


@pytest.fixture
def other(url: str) -> Iterator[leasehold.Locks]:
    with leasehold.connect(url, ttl=60) as locks:
        yield locks


def test_an_entry_that_is_garbage_is_released(locks: leasehold.Locks, other: leasehold.Locks) -> None:
    with locks.rlock("r") as outer:
        locks.rlock("r").acquire()
        gc.collect()
        outer.check()
    assert other.lock("r").try_acquire() is not None, "outer, which is still here, does not keep it"


def test_the_last_entry_that_is_garbage_gives_the_lease_back(locks: leasehold.Locks, other: leasehold.Locks) -> None:
    first, second = locks.rlock("r").acquire(), locks.rlock("r").acquire()
    assert first.release()
    del second
    gc.collect()
    taken = eventually(lambda: other.lock("r").try_acquire())
    with pytest.raises(leasehold.AcquireTimeout):
        locks.rlock("r").acquire(0)
    assert taken.release()
    assert locks.rlock("r").acquire(60).release()


def test_a_lease_of_several_names_that_is_garbage_is_given_back(locks: leasehold.Locks, other: leasehold.Locks) -> None:
    lease = locks.all_of("a", "b").acquire()
    assert lease.valid
    del lease
    gc.collect()
    assert eventually(lambda: other.all_of("b", "a").try_acquire()).release()


def test_an_offered_lease_that_is_garbage_stays_for_its_heir(locks: leasehold.Locks, other: leasehold.Locks) -> None:
    lease = locks.lock("t").acquire()
    text = lease.transfer()
    del lease
    gc.collect()
    assert other.lock("t").try_acquire() is None
    assert other.accept(text).release()


def test_one_lost_while_another_is_waited_for_starts_over(locks: leasehold.Locks, other: leasehold.Locks) -> None:
    held = other.lock("b").acquire()
    had: list[Any] = []
    thread = threading.Thread(target=lambda: had.append(locks.all_of("a", "b").acquire(60)))
    thread.start()
    first = eventually(lambda: other.inspect("a"))
    assert other.break_lease("a", force=True)
    eventually(lambda: not locks._core.leases, what="the waiting one has heard of it")
    assert held.release()
    thread.join(60)
    assert had[0].valid
    assert had[0].tokens["a"] > first.token, "taken anew"
    assert had[0].release()


def test_the_time_for_all_is_one_time(locks: leasehold.Locks, other: leasehold.Locks) -> None:
    held = other.lock("c").acquire()
    with pytest.raises(leasehold.AcquireTimeout, match="'c'"):
        locks.all_of("a", "b", "c", timeout=0.3).acquire()
    assert held.release()
    assert locks.all_of("a", "b", "c").try_acquire() is not None


def test_current_is_the_lease_of_the_whole(locks: leasehold.Locks) -> None:
    @locks.all_of("a", "b")
    def work() -> object:
        return leasehold.current()

    lease = work()
    assert getattr(lease, "tokens", {}).keys() == {"a", "b"}


def test_on_lost_is_called_with_the_whole_once(locks: leasehold.Locks, other: leasehold.Locks) -> None:
    called: list[Any] = []
    lease = locks.all_of("a", "b", on_lost=called.append).acquire()
    assert other.break_lease("a")
    assert other.break_lease("b")
    assert lease.lost.wait(60)
    eventually(lambda: called)
    assert lease.release() is False
    assert called == [lease]
    with pytest.raises(leasehold.LeaseLost), locks.all_of("a", "b", on_lost="raise") as again:  # noqa: PT012
        assert other.break_lease("a")
        assert again.lost.wait(60)


@pytest.mark.parametrize("kind", ["all_of", "rlock"])
async def test_a_loss_that_has_not_got_to_the_whole_is_told_by_its_release(url: str, kind: str) -> None:
    """The loop stood still while it ran out, and it is released before anything else gets its turn."""
    async with aio.connect(url, ttl=0.5) as locks:
        lease = await (locks.all_of("a", "b") if kind == "all_of" else locks.rlock("a")).acquire()
        told: asyncio.Queue[Any] = asyncio.Queue()
        lease.on_lost(told.put_nowait)
        time.sleep(0.6)
        assert not await lease.release()
        await asyncio.wait_for(lease.lost.wait(), 60)
        assert await asyncio.wait_for(told.get(), 60) is lease
        await asyncio.sleep(0.1)
        assert told.empty()


def test_a_cancelled_body_of_several_names(url: str) -> None:
    async def work() -> None:
        async with aio.connect(url, ttl=60) as locks, aio.connect(url) as other:
            with pytest.raises(leasehold.LeaseLost, match="held with it"):  # noqa: PT012
                async with locks.all_of("a", "b", on_lost="cancel"):
                    assert await other.break_lease("b")
                    await asyncio.sleep(60)
            lease = await locks.all_of("a", "b").acquire(60)
            assert await lease.release() is True
            with pytest.raises(ValueError, match="plain"):
                await (await locks.rlock("r").acquire()).transfer()

    asyncio.run(work())


@pytest.mark.parametrize("kind", ["all_of", "rlock"])
def test_a_release_that_the_store_refuses_is_a_loss(locks: leasehold.Locks, kind: str) -> None:
    """As of a plain lease: it was trusted until then, and had been another's already."""
    told: list[Any] = []
    lease = (locks.all_of("a", "b") if kind == "all_of" else locks.rlock("a")).acquire()
    lease.on_lost(told.append)
    locks._core.driver._table.rows.clear()  # type: ignore[attr-defined]  # it forgets, and tells nobody
    assert lease.valid
    assert lease.release() is False
    assert "no longer ours" in str(lease.lost_reason)
    assert lease.lost.wait(60)
    eventually(lambda: told == [lease])
    assert lease.release() is False


@pytest.mark.parametrize("kind", ["all_of", "rlock"])
def test_a_release_that_the_store_refuses_is_a_loss_to_a_task(url: str, kind: str) -> None:
    async def work() -> None:
        async with aio.connect(url) as locks:
            both = locks.all_of("a", "b", on_lost="raise") if kind == "all_of" else locks.rlock("a", on_lost="raise")
            with pytest.raises(leasehold.LeaseLost):
                async with both as lease:
                    locks._core.driver._table.rows.clear()  # type: ignore[attr-defined]
            assert lease.lost.is_set()

    asyncio.run(work())


def test_a_store_that_is_away_gives_nothing_away(locks: leasehold.Locks) -> None:
    """A downgrade that gets no answer while the lease lasts gives back what there may be of it, and says so."""
    writer = locks.rwlock("rw", ttl=10).write().acquire()
    run = locks._core.driver.run

    def away(steps: Any, limit: float) -> Any:
        raise leasehold.StoreUnavailable("away")

    locks._core.driver.run = away  # type: ignore[method-assign]
    with pytest.raises(leasehold.StoreUnavailable):
        writer.downgrade()
    assert not writer.valid
    locks._core.driver.run = run  # type: ignore[method-assign]
    assert eventually(lambda: locks.rwlock("rw").write().try_acquire()).release()


def test_a_writer_is_downgraded_while_it_is_drained(locks: leasehold.Locks, other: leasehold.Locks) -> None:
    """It is no new lease. Drain waits for the reader as it has waited for the writer; what is new is refused."""
    writer = locks.rwlock("rw").write().acquire()
    text = other.lock("t").acquire().transfer()
    gave_up: list[list[str]] = []
    drain = threading.Thread(target=lambda: gave_up.append(locks.drain(60)))
    drain.start()
    eventually(lambda: locks._core.draining is not None)
    reader = writer.downgrade()
    with pytest.raises(leasehold.ShuttingDown):
        locks.accept(text)
    assert other.rwlock("rw").read().acquire(60).release()
    assert not gave_up
    assert reader.valid
    assert reader.release()
    drain.join()
    assert gave_up == [[]]
    assert not locks._core.giving


def test_a_writer_is_downgraded_while_it_is_drained_by_a_task(url: str) -> None:
    async def work() -> None:
        async with aio.connect(url) as locks:
            writer = await locks.rwlock("rw").write().acquire()
            drain = asyncio.create_task(locks.drain(60))
            while locks._core.draining is None:  # noqa: ASYNC110
                await asyncio.sleep(0)
            reader = await writer.downgrade()
            assert await reader.release()
            assert await drain == []

    asyncio.run(work())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_is_in_no_block_of_its_parent(tmp_path: Path) -> None:
    """What the parent has entered is not the child's: it waits its turn, and is not told that it lost anything."""
    with leasehold.connect(f"sqlite:///{tmp_path}/leases.db", ttl=60) as locks:
        with locks.rlock("r") as lease:
            child = os.fork()
            if child == 0:
                outcome = 9
                try:
                    outcome = 7 if locks.rlock("r").try_acquire() is None else 8
                finally:
                    os._exit(outcome)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            lease.check()
        assert locks.rlock("r").acquire(60).release()


@pytest.mark.parametrize("when", ["found", "checked"])
def test_an_entry_at_the_moment_of_the_last_release(
    when: str, locks: leasehold.Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread releases the last entry while this one enters again: it is in before that, or it acquires."""
    first = locks.rlock("r").acquire()
    token = first.token
    released: list[bool] = []

    def release() -> None:
        if not released:
            released.append(True)
            elsewhere = threading.Thread(target=first.release)
            elsewhere.start()
            elsewhere.join()

    if when == "found":

        class Holds(dict[Any, Any]):
            def get(self, key: Any, default: Any = None) -> Any:
                found = super().get(key, default)
                release()
                return found

        locks._holds = Holds(locks._holds)
    else:
        check = leasehold.Lease.check
        monkeypatch.setattr(leasehold.Lease, "check", lambda lease: (check(lease), release())[0])
    second = locks.rlock("r").acquire(60)
    assert released
    assert second.valid
    assert (second.token == token) == (when == "checked")
    assert second.release()
    monkeypatch.undo()
    assert locks.inspect("r") is None
    assert not dict(locks._holds)


async def test_a_task_enters_at_the_moment_of_the_last_release(url: str) -> None:
    async with aio.connect(url) as locks:
        first = await locks.rlock("r").acquire()

        class Holds(dict[Any, Any]):
            def get(self, key: Any, default: Any = None) -> Any:
                found = super().get(key, default)
                if found is not None and first._over is None:
                    first._leave_parts()
                    assert found.leave(id(first))
                    locks._core.settle(first._parts[0]._claim.owed())
                    locks._core.end(first._parts[0], "released")
                return found

        locks._holds = Holds(locks._holds)
        second = await locks.rlock("r").acquire(60)
        assert second.valid
        assert second.token > first.token
        assert await second.release()


def test_a_lease_of_one_name_has_a_token(locks: leasehold.Locks) -> None:
    with locks.all_of("a") as one, locks.all_of("b", "c") as two:
        assert fence.token(one) == one.token == one.tokens["a"]
        with pytest.raises(ValueError, match="several"):
            fence.token(two)
        with pytest.raises(AttributeError, match="tokens"):
            two.token  # noqa: B018


@pytest.mark.parametrize("packed", ["5", "null", '"text"', "[1]", '[1,"",5,"a",1,"lock",1,1,"lock",5,null]'])
def test_what_transfer_did_not_give(packed: str, locks: leasehold.Locks) -> None:
    with pytest.raises(ValueError, match="not what"):
        locks.accept("leasehold-" + base64.urlsafe_b64encode(packed.encode()).decode())


def test_wrong_arguments(locks: leasehold.Locks) -> None:
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            locks.all_of("a", "b").acquire(wrong)
    with pytest.raises(TypeError):
        locks.accept(b"bytes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not what"):
        locks.accept(locks.lock("t").acquire().transfer()[:-8])
    with pytest.raises(ValueError, match="fair"):
        locks.rwlock("rw", fair=False)
    with pytest.raises(TypeError):
        locks.semaphore("s", limit=2, colour="red")
    with pytest.raises(ValueError, match="writer"):
        locks.lock("x").acquire().downgrade()
    with pytest.raises(ValueError, match="renew_every"):
        locks.all_of("a", "b", ttl=10, renew_every=10)


def test_the_first_to_run_out_counts(locks: leasehold.Locks, other: leasehold.Locks) -> None:
    held = other.lock("b").acquire()
    had: list[Any] = []
    thread = threading.Thread(target=lambda: had.append(locks.all_of("a", "b", renew=False).acquire(60)))
    thread.start()
    eventually(lambda: other.inspect("a"))
    time.sleep(0.5)
    assert held.release()
    thread.join(60)
    (lease,) = had
    assert lease.remaining < lease.ttl - 0.5, "a was taken half a second before b"
    assert lease.release()


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_another_takes_one_just_before_all_are_swapped(name: str, scheme: str, url: str, tmp_path: Path) -> None:
    """What was read is no longer so: nothing of it is written, and the others are left as they were."""
    if scheme == "sqlite":
        url = f"sqlite:///{tmp_path}/leases.db"
    with leasehold.connect(url) as locks, leasehold.connect(url) as other:
        locks.all_of("a", "b", "c").acquire().release()
        driver: Any = locks._core.driver
        driver = getattr(driver, "database", driver)
        handle, taken = driver._handle, []

        def late(*asked: Any) -> Any:
            if isinstance(asked[-1], SwapAll) and not taken:
                taken.append(other.lock(name).acquire())
            return handle(*asked)

        driver._handle = late
        assert locks.all_of("a", "b", "c").try_acquire() is None
        assert [info.name for info in other.leases()] == [name]
        assert taken[0].release(), "nobody has touched it"
        lease = locks.all_of("a", "b", "c").try_acquire()
        assert lease is not None
        assert lease.tokens[name] > taken[0].token
        assert lease.release()


def test_all_of_is_one_name_at_a_time_where_the_store_has_no_such_step(
    locks: leasehold.Locks, other: leasehold.Locks
) -> None:
    """A store need not have it."""

    class Without:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            if name == "acquire_all":
                raise AttributeError(name)
            return getattr(self._inner, name)

    locks._core.store = Without(locks._core.store)  # type: ignore[assignment]
    with locks.all_of("b", "a") as lease:
        assert other.all_of("a", "b").try_acquire() is None
        assert {info.name: info.token for info in other.leases()} == lease.tokens
    assert not list(other.leases())


class Interrupted:
    """The first release that reaches the store is interrupted, before or after the store has heard of it."""

    def __init__(self, locks: Any, error: BaseException, after: bool) -> None:
        self.left = 1
        release = locks._core.store.release

        def interrupted(*args: Any) -> Any:
            answer = (yield from release(*args)) if after or not self.left else None
            if self.left:
                self.left = 0
                raise error
            return answer

        locks._core.store.release = interrupted


def make(locks: Any, kind: str) -> Any:
    """A lock of that kind."""
    return locks.all_of("a", "b", "c") if kind == "all_of" else getattr(locks, kind)("a")


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("kind", ["lock", "rlock", "all_of"])
def test_what_is_interrupted_in_its_release_is_given_back(
    kind: str, after: bool, locks: leasehold.Locks, other: leasehold.Locks
) -> None:
    """Promise 4: also while somebody still has the lease in hand, as a traceback does."""
    lease = make(locks, kind).acquire()
    interrupted = Interrupted(locks, KeyboardInterrupt(), after)
    with pytest.raises(KeyboardInterrupt):
        lease.release()
    assert not interrupted.left
    assert not lease.valid
    assert not lease.release(), "nothing more to do"
    assert eventually(
        lambda: other.all_of("a", "b", "c").try_acquire(), what="the keeper gives back the rest"
    ).release()


@pytest.mark.parametrize(("kind", "place"), [("lock", 0), ("rlock", 0), ("all_of", 0), ("all_of", 1), ("all_of", 2)])
async def test_what_is_cancelled_in_its_release_is_given_back(kind: str, place: int, url: str) -> None:
    """Promise 4, at each of several names."""
    async with aio.connect(url, ttl=60) as locks, aio.connect(url) as other:
        lease = await make(locks, kind).acquire()
        driver: Any = locks._core.driver
        run, calls = driver.run, []

        async def hangs(steps: Any, limit: float) -> Any:
            if asyncio.current_task() is task:
                calls.append(steps)
                if len(calls) == place + 1:
                    await asyncio.Event().wait()
            return await run(steps, limit)

        driver.run = hangs
        task = asyncio.create_task(lease.release())
        while len(calls) <= place:  # noqa: ASYNC110
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not lease.valid
        async with asyncio.timeout(60):
            while (taken := await other.all_of("a", "b", "c").try_acquire()) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await taken.release()
