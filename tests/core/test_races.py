"""Threads that come and go at the worst moments. The switch interval is made tiny so that such moments come up."""

from __future__ import annotations

import gc
import random
import sys
import threading
import time
from collections.abc import Iterator

import pytest

import leasehold
from leasehold.core import clock
from leasehold.core.timing import FIRST_TERM, safety_margin

SHORTEST = FIRST_TERM - safety_margin(FIRST_TERM, None)
"""For how long any lease can be trusted, at least, from when it was asked for."""


@pytest.fixture(autouse=True)
def restless() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(count: int, work: object, *args: object) -> None:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work(*args)  # type: ignore[operator]
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def test_racing_threads_hold_one_at_a_time_with_rising_tokens() -> None:
    """A thread that stands still for longer than its first term, which a release granted it, knows of its loss."""
    inside: dict[str, list[leasehold.Lease]] = {"a": [], "b": []}
    tokens: dict[str, list[int]] = {"a": [], "b": []}
    late: set[str] = set()

    with leasehold.connect("memory://races-exclusion") as locks:

        def work() -> None:
            shared = {name: locks.lock(name) for name in inside}
            for _ in range(60):
                name = random.choice("ab")
                asked = clock.now()
                with shared[name] as lease:
                    entered, remaining = clock.now(), lease.remaining
                    inside[name].append(lease)
                    for other in list(inside[name]):
                        assert other is lease or not (other.valid and lease.valid)
                    tokens[name].append(lease.token)
                    inside[name].remove(lease)
                    if not lease.valid:
                        assert clock.now() >= max(asked + SHORTEST, entered + remaining)
                        late.add(name)

        together(8, work)
        assert list(locks.leases()) == []
    for name, each in tokens.items():
        assert len(set(each)) == len(each)
        assert each == sorted(each) or name in late


def test_lease_added_at_any_moment_is_renewed() -> None:
    """A lease added while the keeper works out when to look next must not be forgotten."""
    with leasehold.connect("memory://races-keeper", ttl=30, renew_every=0.2) as locks:

        def work() -> None:
            for turn in range(4):
                for _ in range(random.randrange(20)):  # come and go, to keep the keeper's books moving
                    locks.lock(f"{threading.get_ident()} {turn}").acquire().release()
                with locks.lock(f"{threading.get_ident()} held") as lease:
                    least = lease.remaining
                    while (remaining := lease.remaining) <= least:  # it grows by a renewal alone
                        lease.check()
                        least = remaining
                        time.sleep(random.uniform(0.05, 0.1))

        together(12, work)
        assert locks.metrics().renewals >= 12


def test_lease_added_at_any_moment_is_announced_as_lost() -> None:
    """A lease added while the timer looks for the next deadline must not be forgotten."""
    with leasehold.connect("memory://races-timer") as locks:

        def work() -> None:
            for turn in range(6):
                ttl, told = random.uniform(0.1, 0.3), threading.Event()
                lock = locks.lock(
                    f"{threading.get_ident()} {turn}", ttl=ttl, renew=False, on_lost=lambda _, told=told: told.set()
                )
                lease = lock.acquire()
                assert lease.lost.wait(20)
                assert told.wait(20), "its callback was not called"
                assert lease.lost_reason is not None

        together(12, work)


def test_lease_released_and_lost_at_once_ends_once() -> None:
    """Each lease ends exactly once, however many ends meet."""
    ends: list[str] = []
    with leasehold.connect("memory://races-ends") as locks:
        locks.on_event(lambda event: ends.append(event.type) if event.type in ("lost", "released") else None)

        def work() -> None:
            for turn in range(20):
                name = f"{threading.get_ident()} {turn}"
                lease = locks.lock(name, ttl=0.1, renew=False, on_lost=lambda lease: None).acquire()
                helper = threading.Thread(target=lease.release)
                time.sleep(0.045)  # the deadline is at 49 ms
                helper.start()
                lease.release()
                helper.join()

        together(6, work)
        deadline = time.monotonic() + 20
        while len(ends) < 120 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
        lost, released = ends.count("lost"), ends.count("released")
        assert lost <= 120
        assert released <= 120
        assert lost + released >= 120


def test_lease_dropped_in_a_cycle_is_released_by_garbage_collection() -> None:
    class Knot:
        """A cycle: only the collector can free it, in whatever thread it happens to run."""

        def __init__(self, lease: leasehold.Lease) -> None:
            self.lease = lease
            self.me = self

    with leasehold.connect("memory://races-garbage", ttl=30) as locks:

        def work() -> None:
            for turn in range(15):
                Knot(locks.lock(f"{threading.get_ident()} {turn}").acquire())
                if turn % 5 == 0:
                    gc.collect()

        together(8, work)
        gc.collect()
        deadline = time.monotonic() + 20
        while list(locks.leases()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert list(locks.leases()) == []
