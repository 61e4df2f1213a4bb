"""A hand-over: at no instant do two holders trust the lease, whether or not the first is notified."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold import aio, fence
from leasehold.testing.faults import install
from leasehold.testing.handles import eventually


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return f"memory://{request.node.name}"


def test_transferred_lease_is_trusted_no_longer(url: str) -> None:
    """Promise 1: also when its holder is never notified that another has taken it."""
    with leasehold.connect(url) as locks, leasehold.connect(url) as other:
        install(locks).deaf = True
        lease = locks.lock("t").acquire()
        woken = threading.Event()
        lost = lease.lost
        waiter = threading.Thread(target=lambda: (lost.wait(), woken.set()))
        waiter.start()
        text = lease.transfer()
        assert not lease.valid
        assert lease.remaining == 0.0
        assert woken.wait(60), "who waits for its loss is woken"
        waiter.join()
        taken = other.accept(text)
        assert taken.valid
        for wanted in (lease.check, lease.renew, lease.transfer, lambda: fence.token(lease)):
            with pytest.raises(leasehold.LeaseLost, match="handed over"):
                wanted()
        assert lease.release() is False
        taken.check()
        assert taken.release()


def test_on_lost_is_called_when_the_transferred_lease_is_taken(url: str) -> None:
    told: list[Any] = []
    with leasehold.connect(url) as locks, leasehold.connect(url) as other:
        lease = locks.lock("t", on_lost=told.append).acquire()
        text = lease.transfer()
        assert not told
        taken = other.accept(text)
        eventually(lambda: told == [lease])
        assert "another process has taken it over" in str(lease.lost_reason)
        assert taken.release()


def test_task_is_not_cancelled_when_its_transferred_lease_is_taken(url: str) -> None:
    async def work() -> None:
        async with aio.connect(url) as locks, aio.connect(url) as other:
            told: list[Any] = []
            async with locks.lock("t", on_lost=told.append) as lease:
                text = await lease.transfer()
                assert not lease.valid
                assert lease.lost.is_set()
                await asyncio.wait_for(lease.lost.wait(), 60)
                taken = await other.accept(text)
                async with asyncio.timeout(60):
                    while not told:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
            assert "another process has taken it over" in str(lease.lost_reason)
            assert taken.valid
            assert await taken.release()
            async with locks.lock("t") as lease:
                text = await lease.transfer()
            assert await (await other.accept(text)).release()

    asyncio.run(work())


def test_transfer_of_one_of_several_names_ends_the_trust_in_all(url: str) -> None:
    with leasehold.connect(url) as locks, leasehold.connect(url) as other:
        lease = locks.all_of("a", "b").acquire()
        text = fence.part(lease, "a").transfer()  # type: ignore[attr-defined]
        assert not lease.valid
        taken = other.accept(text)
        assert lease.release() is False
        assert taken.valid
        assert taken.release()


@pytest.mark.parametrize("side", ["threads", "asyncio"])
def test_close_leaves_a_transferred_lease_to_the_heir(side: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    with leasehold.connect(url) as keeps:  # (the embedded store sees when a session has ended, and this is its process)
        if side == "threads":
            with leasehold.connect(url) as locks:
                lease = locks.lock("t", ttl=60).acquire()
                text = lease.transfer()
        else:

            async def offer() -> str:
                async with aio.connect(url) as locks:
                    lease = await locks.lock("t", ttl=60).acquire()
                    return await lease.transfer()

            text = asyncio.run(offer())
        assert keeps.accept(text).release()
