"""Re-entry at the moment of the last release, and in a forked child."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold import aio

from .lines import AtLine


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return f"memory://{request.node.name}"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_child_is_in_no_block_of_its_parent(tmp_path: Path) -> None:
    """A block that the parent has entered is not the child's: the child waits its turn, and has lost nothing."""
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


class Outcomes:
    """Whether an entry found the lease that was being released, for each line before which that was."""

    def __init__(self) -> None:
        self.entered: list[bool] = []

    def add(self, token: int, second: Any, where: str) -> None:
        assert second.valid, f"released before {where}"
        assert second.token >= token, f"released before {where}"
        self.entered.append(second.token == token)

    def check(self) -> None:
        assert set(self.entered) == {False, True}
        assert self.entered == sorted(self.entered), "an entry that was made keeps the lease"


@pytest.mark.parametrize("how", ["released", "collected"])
def test_entry_during_the_last_release_is_made_or_acquires(how: str, url: str) -> None:
    """The last entry goes, by a release in another thread or by a destructor in this one, before each line of another
    entry: that finds the lease before it is released, or acquires a new one."""
    outcomes = Outcomes()
    with leasehold.connect(url, ttl=60) as locks:
        lock = locks.rlock("r")
        for place in itertools.count(1):
            first: list[Any] = [lock.acquire()]
            threads: list[threading.Thread] = []
            token = first[0].token

            def release(first: list[Any] = first, threads: list[threading.Thread] = threads) -> None:
                threads.append(threading.Thread(target=first[0].release))
                threads[0].start()
                threads[0].join(0.2)  # longer only where this thread has a mutex at that line

            with AtLine(place, release if how == "released" else first.clear) as at:
                second = lock.acquire(60)
            if not at.where:
                break
            for thread in threads:
                thread.join(60)
            outcomes.add(token, second, at.where)
            assert second.release(), at.where
            assert locks.inspect("r") is None, at.where
    outcomes.check()


async def test_entry_of_a_task_during_the_last_release_is_made_or_acquires(url: str) -> None:
    outcomes = Outcomes()
    async with aio.connect(url, ttl=60) as locks:
        lock = locks.rlock("r")
        for place in itertools.count(1):
            first = [await lock.acquire()]
            token = first[0].token
            with AtLine(place, first.clear) as at:
                second = await lock.acquire(60)
            if not at.where:
                break
            outcomes.add(token, second, at.where)
            assert await second.release(), at.where
            assert await locks.inspect("r") is None, at.where
    outcomes.check()


def test_hold_count_is_that_of_the_calling_thread(url: str) -> None:
    with leasehold.connect(url) as locks:
        lock: Any = locks.rlock("x")
        assert lock.hold_count == 0
        with lock as outer:
            assert lock.hold_count == 1
            entry = lock.acquire()
            assert locks.rlock("x").hold_count == 2
            counts: list[int] = []
            thread = threading.Thread(target=lambda: counts.append(lock.hold_count))
            thread.start()
            thread.join()
            assert counts == [0]
            assert entry.release()
            assert lock.hold_count == 1
            assert outer.release()
            assert lock.hold_count == 0


async def test_hold_count_is_that_of_the_calling_task(url: str) -> None:
    async with aio.connect(url) as locks:
        lock: Any = locks.rlock("x")
        async with lock, lock:
            assert lock.hold_count == 2

            async def count() -> int:
                found: int = lock.hold_count
                return found

            assert await asyncio.create_task(count()) == 0
        assert lock.hold_count == 0
