"""How leases are kept: which renewals are sent when, and for how long. Each of these cases was wrong once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import leasehold
from intercept import Intercepted
from leasehold.core import keeper, timing
from leasehold.errors import StoreUnavailable
from leasehold.testing.faults import install
from leasehold.testing.handles import eventually


@pytest.fixture
def locks(tmp_path: Path) -> Iterator[leasehold.Locks]:
    with leasehold.connect(f"sqlite:///{tmp_path}/leases.db") as locks:
        yield locks


def until_extended(lease: leasehold.Lease, within: float = 30.0) -> None:
    """Until a renewal has extended the lease: only that makes what remains of it grow."""
    least = lease.remaining

    def grown() -> bool:
        nonlocal least
        before, least = least, lease.remaining
        return least > before

    eventually(grown, within, "the lease is extended")


def test_renewal_for_another_ttl_takes_its_margin_and_its_cadence(locks: leasehold.Locks) -> None:
    lease = locks.lock("job", ttl=30).acquire()
    lease.renew(3600)
    assert 3600 * 0.99 - 60 < lease.remaining <= 3600 * 0.99 - 0.05
    lease.renew(6)
    assert lease.remaining <= 6 * 0.99 - 0.05
    until_extended(lease)  # at the new cadence, though the keeper had meant to sleep for long
    lease.check()
    lease.release()


def test_failed_renewal_of_the_holder_is_tried_again_soon(locks: leasehold.Locks) -> None:
    network = install(locks)
    lease = locks.lock("job", ttl=60).acquire()
    eventually(lambda: network.calls["tidy"])  # the last step of the keeper before it sleeps
    network.settle()
    time.sleep(0.05)
    network.lose_answer("renew", times=1)
    with pytest.raises(StoreUnavailable):
        lease.renew()
    until_extended(lease, 10)  # the keeper had meant to sleep for 20 s
    assert lease.release()


@pytest.mark.parametrize("delays", [(0.3, 0.0), (0.2, 0.4)])
@pytest.mark.parametrize("first", ["user", "keeper"])
def test_chosen_ttl_stands_whatever_the_keeper_renews_meanwhile(first: str, delays: tuple[float, float]) -> None:
    store = Intercepted("memory://chosen-ttl")
    with store.connect() as locks:
        faults = install(locks)
        lease = locks.lock("name", ttl=300).acquire()  # nothing but what is asked for below renews it

        def user() -> None:
            threading.Thread(target=lease.renew, args=(600,)).start()

        def keeper() -> None:
            store.wake("name")

        for number, ask in enumerate([user, keeper] if first == "user" else [keeper, user]):
            faults.delay_answer(delays[number], "renew", times=1)
            ask()
            eventually(lambda asked=number + 1: faults.calls["renew"] == asked)  # type: ignore[misc]
        eventually(lambda: locks.counters().renewals == 2)
        eventually(lambda: lease.ttl == 600)
        assert lease.remaining > 500


@pytest.mark.slow
def test_failed_renewal_and_a_wake_up_do_not_renew_a_lease_without_renewal() -> None:
    store = Intercepted("memory://ends-no-renewal")
    with store.connect(ttl=5) as locks:
        lease = locks.lock("job", renew=False).acquire()

        def away() -> None:
            raise StoreUnavailable("away")

        store.before["renew"] = away
        with pytest.raises(StoreUnavailable):
            lease.renew()
        store.before.clear()
        store.wake("job")
        assert lease.lost.wait(30)
        assert locks.counters().renewals == 0


def test_wake_up_does_not_extend_a_lease_without_renewal() -> None:
    """It makes the keeper check whether the lease is still ours. That must not make the lease last longer."""
    store = Intercepted("memory://called")
    with store.connect() as locks:
        lease = locks.lock("name", ttl=30, renew=False).acquire()
        before, stored = lease.remaining, locks.inspect("name")
        store.wake("name")
        eventually(lambda: store.over["renew"])
        time.sleep(0.05)
        assert lease.remaining <= before
        assert abs(locks.inspect("name").expires - stored.expires).total_seconds() < 1
        assert locks.metrics().renewals == 0
        assert lease.release()


def test_tidying_leaves_time_for_leases_that_come_meanwhile() -> None:
    """Its limit cannot be taken from the leases that are held: one of a second must be renewed though tidying hangs."""
    store = Intercepted("memory://tidy")
    with store.connect(ttl=3600) as locks:
        lease = locks.lock("x").acquire()
        eventually(lambda: store.limits["tidy"])
        assert store.limits["tidy"] == [keeper.TIDY_LIMIT]
        assert keeper.TIDY_LIMIT <= 0.5
        assert lease.release()


def test_renewal_that_hangs_leaves_time_for_leases_that_live_elsewhere() -> None:
    """As in a cluster of which one node hangs: the others must be renewed though their neighbour is not."""
    store = Intercepted("memory://spare")
    with store.connect() as locks:
        long, short = locks.lock("long", ttl=30).acquire(), locks.lock("short", ttl=9).acquire()
        remaining = short.remaining
        store.wake("long")  # it alone is renewed
        eventually(lambda: store.over["renew"] == 1)
        assert keeper.SPARE <= store.limits["renew"][0] <= remaining / 2
        assert store.limits["renew"][0] < timing.CALL_LIMIT
        short.release()
        store.wake("long")
        eventually(lambda: store.over["renew"] == 2)
        assert store.limits["renew"][1] == timing.CALL_LIMIT
        assert long.release()
