"""The server's wall clock is stepped: tokens still only rise. What becomes of expiry is what the docs say."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import pymongo
import pytest

import leasehold
from servers.base import NotReady
from servers.clock import FakeClock
from servers.mongodb import REPLICA_SET, MongoDB, MongoReplicaSet, ask
from servers.process import wait_until

pytestmark = pytest.mark.server

STEP = 300
T = TypeVar("T")


class Stepper:
    """Steps a server's clock and waits until `$$NOW` follows: the server looks at its clock every 10 ms."""

    def __init__(self, clock: FakeClock, url: str) -> None:
        self.clock = clock
        self.client: pymongo.MongoClient[Any] = pymongo.MongoClient(url)

    def step(self, seconds: float) -> None:
        self.clock.step(seconds)
        end = time.monotonic() + 60
        while abs((self._now() - datetime.now(UTC)).total_seconds() - seconds) > 5:
            assert time.monotonic() < end, "the server does not see its clock step"
            time.sleep(0.01)

    def _now(self) -> datetime:
        with self.client.admin.aggregate([{"$documents": [{}]}, {"$project": {"now": "$$NOW"}}]) as found:
            now: datetime = next(found)["now"]
        return now.replace(tzinfo=UTC)


@pytest.fixture
def stepped(start_server: Any) -> Iterator[tuple[Stepper, str]]:
    clock = FakeClock()
    server = start_server(MongoDB, env=clock.env)
    stepper = Stepper(clock, server.url)
    yield stepper, server.url
    stepper.client.close()


def asked(question: Callable[[], T]) -> T:
    """The answer, once there is one. A client may have to find a new primary first; and a server whose clock is set
    may end what it is asked meanwhile, since the time for it is over."""
    ends = time.monotonic() + 60
    while True:
        try:
            return question()
        except leasehold.StoreUnavailable:
            assert time.monotonic() < ends
            time.sleep(0.05)


def test_tokens_rise_whatever_the_clock_does(stepped: tuple[Stepper, str]) -> None:
    clock, url = stepped
    tokens = []
    with leasehold.connect(url) as locks:
        for offset in (0, STEP, 0, -STEP, -STEP, STEP, -STEP, 0):
            clock.step(offset)
            for name in ("x", "x"):
                with locks.lock(name) as lease:
                    tokens.append(lease.token)
    assert tokens == sorted(set(tokens))
    assert tokens[-1] - tokens[0] > 200 * 1_000_000  # the clock did step


def test_a_step_back_after_the_record_was_purged(stepped: tuple[Stepper, str]) -> None:
    """A record is kept for a day, so a step of less than that cannot lead back."""
    clock, url = stepped
    with leasehold.connect(url) as locks, pymongo.MongoClient[Any](url) as client:
        with locks.lock("x") as lease:
            first = lease.token
        clock.step(86_400)
        client.get_default_database()["leasehold"].delete_many({"purge": {"$lte": lease_time(client)}})
        clock.step(86_400 - STEP)
        with locks.lock("x") as lease:
            assert lease.token > first


def lease_time(client: Any) -> Any:
    return client.admin.command("hello")["localTime"]


def test_a_step_ahead_ends_leases_early_and_a_holder_that_renews_learns_it(stepped: tuple[Stepper, str]) -> None:
    """Documented: a server whose clock jumps ahead by more than the ttl takes leases for expired. The fence holds."""
    clock, url = stepped
    with leasehold.connect(url, ttl=20) as ours, leasehold.connect(url, ttl=20) as theirs:
        lease = ours.lock("x").acquire()
        clock.step(STEP)
        second = asked(theirs.lock("x").try_acquire)
        assert second is not None
        assert second.token > lease.token
        with pytest.raises(leasehold.LeaseLost):
            asked(lease.renew)
        assert not lease.valid
        assert not lease.release()
        assert second.valid
        second.release()


def test_a_step_ahead_alone_does_not_take_a_lease(stepped: tuple[Stepper, str]) -> None:
    """Nobody asked for it meanwhile; but a renewal never revives: it is lost, and told so."""
    clock, url = stepped
    with leasehold.connect(url, ttl=20) as locks:
        lease = locks.lock("x").acquire()
        clock.step(STEP)
        with pytest.raises(leasehold.LeaseLost):
            asked(lease.renew)


def test_a_step_back_keeps_what_is_held(stepped: tuple[Stepper, str]) -> None:
    """Documented: a live lease is renewed and released as ever, min_hold or not."""
    clock, url = stepped
    with leasehold.connect(url, ttl=200) as ours, leasehold.connect(url, ttl=200) as theirs:
        for rest in (None, 0.5):
            clock.step(0)
            lease = ours.lock("x", min_hold=rest).acquire(timeout=60)
            clock.step(-STEP)
            asked(lease.renew)
            assert asked(theirs.lock("x").try_acquire) is None
            assert lease.release()
            second = theirs.lock("x").acquire(timeout=60)
            assert second.token > lease.token
            second.release()


def test_a_step_back_delays_the_takeover_from_the_dead(stepped: tuple[Stepper, str]) -> None:
    """Documented: the lease of a holder that died lasts longer by the step. `break_lease(force=True)` helps."""
    clock, url = stepped
    with leasehold.connect(url, ttl=1) as ours, leasehold.connect(url, ttl=30) as theirs:
        began = time.monotonic()
        lease = ours.lock("x", renew=False).acquire()
        clock.step(-STEP)
        assert lease.lost.wait(60)  # the holder trusts its own deadline, not the server's clock
        info = asked(lambda: theirs.inspect("x"))
        assert info is not None
        left = (info.expires - datetime.now(UTC)).total_seconds()
        assert STEP - (time.monotonic() - began) < left < STEP + 1
        assert asked(theirs.lock("x").try_acquire) is None
        asked(lambda: theirs.break_lease("x", force=True))
        second = asked(theirs.lock("x").try_acquire)
        assert second is not None
        assert second.token > lease.token
        second.release()


# Members of a replica set whose clocks differ: after an election that of the new primary decides.


class OddOneOut(MongoReplicaSet):
    """Of its three members, the last has a clock of its own."""

    def __init__(self, env: Mapping[str, str]) -> None:
        super().__init__(members=2)
        self.odd = MongoDB(replica_set=REPLICA_SET, env=env)
        self.others = self.members
        self.members = [*self.others, self.odd]

    def elect(self, member: MongoDB) -> None:
        def leads() -> bool:
            if not self.leads(member):
                try:
                    ask(member.port, {"replSetStepUp": 1, "$db": "admin"})
                except (OSError, EOFError, NotReady):
                    pass  # it has not caught up yet
            return self.leads(member)

        wait_until(leads, f"{member!r} is elected")
        assert self.leader() is member


@pytest.fixture
def skewed(start_server: Any) -> Callable[[float], OddOneOut]:
    """A replica set, one member of which has a clock that is so many seconds ahead, from its start on: one that is
    stepped while it runs may have threads that sleep by it. Another leads."""

    def start(seconds: float) -> OddOneOut:
        clock = FakeClock()
        clock.step(seconds)
        servers: OddOneOut = start_server(OddOneOut, env=clock.env)
        servers.elect(servers.odd)  # so it has caught up
        servers.elect(servers.others[0])
        return servers

    return start


@pytest.mark.slow
def test_a_new_primary_whose_clock_is_ahead_ends_leases_early(skewed: Callable[[float], OddOneOut]) -> None:
    """Documented, the known violation: two trust it until the first renews or its deadline passes. The fence holds."""
    servers = skewed(STEP)
    with leasehold.connect(servers.url, ttl=120) as ours, leasehold.connect(servers.url, ttl=120) as theirs:
        first = asked(ours.lock("x").try_acquire)
        assert first is not None
        assert asked(theirs.lock("x").try_acquire) is None
        servers.elect(servers.odd)
        second = asked(theirs.lock("x").try_acquire)
        assert second is not None
        assert first.valid
        assert second.token > first.token
        with pytest.raises(leasehold.LeaseLost):
            asked(first.renew)
        assert not first.valid
        # Back at a clock that is behind what the last token was made of: they rise all the same.
        assert asked(second.release)
        servers.elect(servers.others[1])
        third = asked(theirs.lock("x").try_acquire)
        assert third is not None
        assert third.token > second.token


@pytest.mark.slow
def test_a_new_primary_whose_clock_is_behind_ends_leases_late(skewed: Callable[[float], OddOneOut]) -> None:
    """Documented: who is alive notices nothing, and the lease of one that died lasts longer by the difference."""
    servers = skewed(-STEP)
    with leasehold.connect(servers.url, ttl=120) as ours, leasehold.connect(servers.url, ttl=120) as theirs:
        alive = asked(ours.lock("alive").try_acquire)
        began = time.monotonic()
        dead = asked(lambda: ours.lock("dead", ttl=1, renew=False).acquire(timeout=60))  # an answer may get lost
        assert alive is not None
        servers.elect(servers.odd)
        asked(alive.renew)
        assert dead.lost.wait(60)  # by its own deadline
        assert asked(theirs.lock("dead").try_acquire) is None
        info = theirs.inspect("dead")
        assert info is not None
        left = (info.expires - datetime.now(UTC)).total_seconds()
        assert STEP - (time.monotonic() - began) < left < STEP + 2
        assert asked(lambda: theirs.break_lease("dead", force=True))
        second = asked(theirs.lock("dead").try_acquire)
        assert second is not None
        assert second.token > dead.token
        assert asked(alive.release)
        third = asked(theirs.lock("alive").try_acquire)
        assert third is not None
        assert third.token > alive.token


@pytest.mark.slow
def test_a_difference_that_drift_allows_for_costs_no_exclusion(skewed: Callable[[float], OddOneOut]) -> None:
    """Documented: a ``drift`` of at least half the difference."""
    servers = skewed(3)
    with leasehold.connect(servers.url) as ours, leasehold.connect(servers.url) as theirs:
        first = asked(ours.lock("x", ttl=15, drift=2, renew=False).try_acquire)
        assert first is not None
        servers.elect(servers.odd)
        second = theirs.lock("x").acquire(timeout=60)
        assert not first.valid
        assert second.token > first.token
