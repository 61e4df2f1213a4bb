"""Leases that are made of others: garbage collection, loss while another name is waited for, downgrades, arguments.

Their releases are in ``test_joint_release.py``, re-entry in ``test_reentry.py``."""

from __future__ import annotations

import asyncio
import base64
import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold import aio, fence
from leasehold.core.protocol import Store
from leasehold.stores.common.entries import SwapAll
from leasehold.testing.faults import install
from leasehold.testing.handles import eventually

from .seams import Changed, connect


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


def test_garbage_collected_entry_is_released(locks: leasehold.Locks, other: leasehold.Locks) -> None:
    with locks.rlock("r") as outer:
        locks.rlock("r").acquire()
        gc.collect()
        outer.check()
    assert other.lock("r").try_acquire() is not None, "outer, which is still here, does not keep it"


def test_garbage_collected_last_entry_releases_the_lease(locks: leasehold.Locks, other: leasehold.Locks) -> None:
    first, second = locks.rlock("r").acquire(), locks.rlock("r").acquire()
    assert first.release()
    del second
    gc.collect()
    taken = eventually(lambda: other.lock("r").try_acquire())
    with pytest.raises(leasehold.AcquireTimeout):
        locks.rlock("r").acquire(0)
    assert taken.release()
    assert locks.rlock("r").acquire(60).release()


def test_garbage_collected_lease_of_several_names_is_released(locks: leasehold.Locks, other: leasehold.Locks) -> None:
    lease = locks.all_of("a", "b").acquire()
    assert lease.valid
    del lease
    gc.collect()
    assert eventually(lambda: other.all_of("b", "a").try_acquire()).release()


def test_garbage_collected_offered_lease_stays_for_its_heir(locks: leasehold.Locks, other: leasehold.Locks) -> None:
    lease = locks.lock("t").acquire()
    text = lease.transfer()
    del lease
    gc.collect()
    assert other.lock("t").try_acquire() is None
    assert other.accept(text).release()


def test_all_of_starts_over_when_a_name_is_lost_during_the_wait_for_another(
    locks: leasehold.Locks, other: leasehold.Locks
) -> None:
    lost: list[str] = []
    locks.on_event(lambda event: lost.append(event.name) if event.type == "lost" else None)
    held = other.lock("b").acquire()
    had: list[Any] = []
    thread = threading.Thread(target=lambda: had.append(locks.all_of("a", "b").acquire(60)))
    thread.start()
    first = eventually(lambda: other.inspect("a"))
    assert other.break_lease("a", force=True)
    eventually(lambda: lost == ["a"], what="the waiter knows that it has lost a")
    assert held.release()
    thread.join(60)
    assert had[0].valid
    assert had[0].tokens["a"] > first.token, "taken anew"
    assert had[0].release()


def test_all_of_has_one_timeout_for_all_names(locks: leasehold.Locks, other: leasehold.Locks) -> None:
    held = other.lock("c").acquire()
    with pytest.raises(leasehold.AcquireTimeout, match="'c'"):
        locks.all_of("a", "b", "c", timeout=0.3).acquire()
    assert held.release()
    assert locks.all_of("a", "b", "c").try_acquire() is not None


def test_current_in_all_of_has_the_token_of_each_name(locks: leasehold.Locks) -> None:
    @locks.all_of("a", "b")
    def work() -> object:
        return leasehold.current()

    lease = work()
    assert getattr(lease, "tokens", {}).keys() == {"a", "b"}


def test_on_lost_of_several_names_is_called_once_with_their_lease(
    locks: leasehold.Locks, other: leasehold.Locks
) -> None:
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
async def test_release_reports_a_loss_that_the_blocked_loop_has_not_reported(url: str, kind: str) -> None:
    """The loop is blocked while the lease expires. The release comes before any other callback of the loop."""
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


def test_loss_of_one_name_cancels_the_body_of_all_of(url: str) -> None:
    async def work() -> None:
        async with aio.connect(url, ttl=60) as locks, aio.connect(url) as other:
            with pytest.raises(leasehold.LeaseLost, match="held together with it"):  # noqa: PT012
                async with locks.all_of("a", "b", on_lost="cancel"):
                    assert await other.break_lease("b")
                    await asyncio.sleep(60)
            lease = await locks.all_of("a", "b").acquire(60)
            assert await lease.release() is True
            with pytest.raises(ValueError, match="plain"):
                await (await locks.rlock("r").acquire()).transfer()

    asyncio.run(work())


def test_downgrade_without_an_answer_releases_the_lease(locks: leasehold.Locks) -> None:
    """The store does not answer while the lease lasts: the downgrade fails, and what there may be of it is released."""
    network = install(locks)
    writer = locks.rwlock("rw").write().acquire()
    writer.renew(ttl=1.5)  # the store keeps its first term, of a minute
    network.lose_request()
    with pytest.raises(leasehold.StoreUnavailable):
        writer.downgrade()
    assert not writer.valid
    network.mend()
    assert eventually(lambda: locks.rwlock("rw").write().try_acquire()).release()


GRACE = 600.0
"""A drain that waits for something that is over takes so long. The others take a moment."""


def is_draining(locks: leasehold.Locks) -> bool:
    try:
        probe = locks.lock("probe").try_acquire()
    except leasehold.ShuttingDown:
        return True
    assert probe is not None
    probe.release()
    return False


def test_downgrade_during_a_drain_keeps_the_lease(locks: leasehold.Locks, other: leasehold.Locks) -> None:
    """The reader is no new lease: drain waits for it as it has waited for the writer. New leases are refused."""
    writer = locks.rwlock("rw").write().acquire()
    text = other.lock("t").acquire().transfer()
    gave_up: list[list[str]] = []
    drain = threading.Thread(target=lambda: gave_up.append(locks.drain(GRACE)), daemon=True)
    drain.start()
    eventually(lambda: is_draining(locks))
    reader = writer.downgrade()
    with pytest.raises(leasehold.ShuttingDown):
        locks.accept(text)
    assert other.rwlock("rw").read().acquire(60).release()
    assert not gave_up
    assert reader.valid
    assert reader.release()
    drain.join(60)
    assert gave_up == [[]], "nothing is left to wait for, of the writer either"


async def test_downgrade_during_a_drain_keeps_the_lease_of_a_task(url: str) -> None:
    async def is_draining() -> bool:
        try:
            probe = await locks.lock("probe").try_acquire()
        except leasehold.ShuttingDown:
            return True
        assert probe is not None
        await probe.release()
        return False

    async with aio.connect(url) as locks:
        writer = await locks.rwlock("rw").write().acquire()
        drain = asyncio.create_task(locks.drain(GRACE))
        while not await is_draining():  # noqa: ASYNC110
            await asyncio.sleep(0)
        reader = await writer.downgrade()
        assert await reader.release()
        assert await asyncio.wait_for(drain, 60) == []


def test_all_of_one_name_has_a_token(locks: leasehold.Locks) -> None:
    with locks.all_of("a") as one, locks.all_of("b", "c") as two:
        assert fence.token(one) == one.token == one.tokens["a"]
        with pytest.raises(ValueError, match="several"):
            fence.token(two)
        with pytest.raises(AttributeError, match="tokens"):
            two.token  # noqa: B018


@pytest.mark.parametrize("packed", ["5", "null", '"text"', "[1]", '[1,"",5,"a",1,"lock",1,1,"lock",5,null]'])
def test_accept_refuses_what_transfer_did_not_give(packed: str, locks: leasehold.Locks) -> None:
    with pytest.raises(ValueError, match="not what"):
        locks.accept("leasehold-" + base64.urlsafe_b64encode(packed.encode()).decode())


def test_wrong_arguments_of_kinds_are_refused(locks: leasehold.Locks) -> None:
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


def test_lease_of_several_names_lasts_as_long_as_the_first_to_expire(
    locks: leasehold.Locks, other: leasehold.Locks
) -> None:
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
def test_all_of_takes_none_when_another_takes_a_name_just_before(
    name: str, scheme: str, url: str, tmp_path: Path
) -> None:
    """What was read is outdated: none of the names is written, and the others are left as they were."""
    taken: list[Any] = []

    def late(acquire_all: Any, asks: Any) -> Any:
        steps, answer = acquire_all(asks), None
        try:
            while True:
                request = steps.send(answer)
                if isinstance(request, SwapAll) and not taken:
                    taken.append(other.lock(name).acquire())
                answer = yield request
        except StopIteration as stop:
            return stop.value

    if scheme == "sqlite":
        url = f"sqlite:///{tmp_path}/leases.db"
    with connect(url, store=lambda inner: Changed(inner, acquire_all=late)) as locks, leasehold.connect(url) as other:
        assert locks.all_of("a", "b", "c").try_acquire() is None
        assert [info.name for info in other.leases()] == [name]
        assert taken[0].release(), "nobody has touched it"
        lease = locks.all_of("a", "b", "c").try_acquire()
        assert lease is not None
        assert lease.tokens[name] > taken[0].token
        assert lease.release()


def test_all_of_takes_one_name_after_the_other_where_the_store_has_no_joint_step(
    url: str, other: leasehold.Locks
) -> None:
    class Without:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def acquire_all(self, asks: Any) -> Any:
            return Store.acquire_all(self, asks)  # type: ignore[arg-type]

    with connect(url, store=Without) as locks:
        with locks.all_of("b", "a") as lease:
            assert other.all_of("a", "b").try_acquire() is None
            assert {info.name: info.token for info in other.leases()} == lease.tokens
        assert not list(other.leases())
