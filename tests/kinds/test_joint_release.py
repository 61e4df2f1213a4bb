"""The release of leases that are made of others: refused by the store, interrupted, cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import leasehold
from leasehold import aio
from leasehold.testing.faults import install
from leasehold.testing.handles import eventually

from .seams import Changed, Through, connect


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return f"memory://{request.node.name}"


@pytest.fixture
def other(url: str) -> Iterator[leasehold.Locks]:
    with leasehold.connect(url, ttl=60) as locks:
        yield locks


def make(locks: Any, kind: str) -> Any:
    """A lock of that kind."""
    return locks.all_of("a", "b", "c") if kind == "all_of" else getattr(locks, kind)("a")


def free_in_secret(locks: Any, other: leasehold.Locks) -> None:
    """The store gives the leases to nobody, and ``locks`` is not notified."""
    install(locks).deaf = True
    for info in list(other.leases()):
        assert other.break_lease(info.name, force=True)


@pytest.mark.parametrize("kind", ["all_of", "rlock"])
def test_release_that_the_store_refuses_is_a_loss(kind: str, url: str, other: leasehold.Locks) -> None:
    """As with a plain lease: it was trusted until then, and was no longer its holder's."""
    told: list[Any] = []
    with leasehold.connect(url, ttl=60) as locks:
        lease = make(locks, kind).acquire()
        lease.on_lost(told.append)
        free_in_secret(locks, other)
        assert lease.valid
        assert lease.release() is False
        assert "no longer holds" in str(lease.lost_reason)
        assert lease.lost.wait(60)
        eventually(lambda: told == [lease])
        assert lease.release() is False


@pytest.mark.parametrize("kind", ["all_of", "rlock"])
async def test_release_that_the_store_refuses_is_a_loss_to_a_task(kind: str, url: str, other: leasehold.Locks) -> None:
    async with aio.connect(url) as locks:
        lock = locks.all_of("a", "b", on_lost="raise") if kind == "all_of" else locks.rlock("a", on_lost="raise")
        with pytest.raises(leasehold.LeaseLost):
            async with lock as lease:
                free_in_secret(locks, other)
        assert lease.lost.is_set()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("kind", ["lock", "rlock", "all_of"])
def test_interrupted_release_releases_in_the_end(kind: str, after: bool, url: str, other: leasehold.Locks) -> None:
    """Promise 4: also while somebody still has the lease in hand, as a traceback does.

    The interrupt comes before or ``after`` the store has released the first name."""
    errors: list[BaseException] = [KeyboardInterrupt()]

    def interrupted(release: Any, *args: Any) -> Any:
        answer = (yield from release(*args)) if after or not errors else None
        if errors:
            raise errors.pop()
        return answer

    with connect(url, ttl=60, store=lambda inner: Changed(inner, release=interrupted)) as locks:
        lease = make(locks, kind).acquire()
        with pytest.raises(KeyboardInterrupt):
            lease.release()
        assert not errors
        assert not lease.valid
        assert not lease.release(), "nothing more to do"
        assert eventually(
            lambda: other.all_of("a", "b", "c").try_acquire(), what="the keeper releases the rest"
        ).release()


class Hanging(Through):
    """A driver that does not answer the ``task``, from its ``place``-th call on."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.calls = 0
        self.task: asyncio.Task[Any] | None = None
        self.hangs = asyncio.Event()

    async def run(self, steps: Any, limit: float) -> Any:
        if asyncio.current_task() is self.task:
            self.calls += 1
            if self.calls >= self.place:
                self.hangs.set()
                await asyncio.Event().wait()
        return await self.inner.run(steps, limit)


@pytest.mark.parametrize(("kind", "place"), [("lock", 1), ("rlock", 1), ("all_of", 1), ("all_of", 2), ("all_of", 3)])
async def test_cancelled_release_releases_in_the_end(kind: str, place: int, url: str) -> None:
    """Promise 4, at each of several names."""
    driver = Hanging(place)
    async with connect(url, "asyncio", ttl=60, driver=driver) as locks, aio.connect(url) as other:
        lease = await make(locks, kind).acquire()
        driver.task = task = asyncio.create_task(lease.release())
        await asyncio.wait_for(driver.hangs.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not lease.valid
        async with asyncio.timeout(60):
            while (taken := await other.all_of("a", "b", "c").try_acquire()) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await taken.release()
