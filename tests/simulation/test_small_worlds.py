"""One process, one lease, one thing that goes wrong: what random worlds would only show now and then."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold import LeaseLost, ShuttingDown, StoreUnavailable
from leasehold.core.drain import UNWIND
from leasehold.testing.history import check

from .resource import Counter
from .store import Network, Server, Store
from .workload import Client
from .world import World

TTL = 30.0


class Small:
    """A world without faults but those that the test makes."""

    def __init__(self) -> None:
        self.world = World(1)
        self.server = Server(self.world, "ring", 1.0)
        self.network = Network(self.world, self.server, 0.001, 0.0, 0.0, ordered=True)
        self.network.late = 0.0
        self.client = Client(self.world, "p", 1.0, self.network, {"a": Counter()}, calm=True)

    def do(self, work: Any) -> Any:
        task = self.client.process.start(work)
        self.world.run(task.done, self.world.now + 1000)
        return task.result()

    def acquire(self, **options: Any) -> Any:
        async def take() -> Any:
            return await self.client.locks.lock("a", ttl=TTL, **options).acquire()

        return self.do(take())

    def pass_time(self, seconds: float) -> None:
        self.world.run(lambda: False, self.world.now + seconds)

    def cut(self, seconds: float) -> None:
        for upwards in (True, False):
            self.network.cuts["p", upwards] = self.world.now + seconds

    def taken(self) -> bool:
        return bool(self.server.holders("a"))


@pytest.fixture
def small() -> Any:
    found = Small()
    yield found
    found.client.process.end()


def test_a_lease_outlives_renewals_that_fail(small: Small) -> None:
    """L3: an error is unknown, not lost; it is tried again until the deadline."""
    lease = small.acquire()
    small.pass_time(9)
    small.cut(15)
    small.pass_time(100)
    assert lease.valid
    assert small.client.locks.counters().renewal_failures >= 1


def test_a_lease_that_cannot_be_renewed_is_lost_at_its_deadline(small: Small) -> None:
    told: list[float] = []
    lease = small.acquire(on_lost=lambda lease: told.append(small.world.now), max_renew_failures=100)
    small.cut(1000)
    small.pass_time(29.6)
    assert lease.valid
    assert not told
    until = small.world.now + lease.remaining
    small.pass_time(0.1)
    assert not lease.valid
    assert len(told) == 1
    assert told[0] == pytest.approx(until, abs=0.001)
    assert small.taken()  # the store still has it then: that is what the margin is for


@pytest.mark.parametrize("upwards", [True, False], ids=["request", "answer"])
def test_a_release_that_got_lost_is_tried_again(small: Small, upwards: bool) -> None:
    """S4: the name is free long before the lease would have expired."""
    lease = small.acquire()
    small.network.cuts["p", upwards] = small.world.now + 5.5

    async def release() -> None:
        with pytest.raises(ConnectionError):
            await lease.release()

    small.do(release())
    small.pass_time(6)  # one more try may get lost, and takes its 5 s to be noticed
    assert not small.taken()


@pytest.mark.parametrize("upwards", [True, False], ids=["request", "answer"])
def test_an_acquire_whose_answer_got_lost_holds_nothing(small: Small, upwards: bool) -> None:
    small.network.cuts["p", upwards] = small.world.now + 5.5

    async def take() -> None:
        with pytest.raises(ConnectionError):
            await small.client.locks.lock("a", ttl=TTL).acquire(0)

    small.do(take())
    small.pass_time(6)
    assert not small.taken()


def test_a_lease_that_nobody_has_any_more_is_given_back(small: Small) -> None:
    async def take() -> None:
        await small.client.locks.lock("a", ttl=TTL).acquire()
        assert small.taken()

    small.do(take())
    small.pass_time(1)
    assert not small.taken()


@pytest.mark.parametrize("stall", ["pause", "block"])
def test_a_process_that_did_not_run_does_not_believe_in_its_lease(small: Small, stall: str) -> None:
    """S2: whoever asks after the deadline is told so, though nothing has run since."""
    lease = small.acquire()
    getattr(small.client.process, stall)(TTL)
    small.pass_time(TTL - 0.3)
    assert not lease.valid
    assert lease.lost.is_set()
    assert lease.remaining == 0.0


def test_max_hold_ends_renewal(small: Small) -> None:
    lease = small.acquire(max_hold=40.0)
    small.pass_time(39)
    assert lease.valid
    small.pass_time(1 + TTL)
    assert not lease.valid
    assert "max_hold" in lease.lost_reason
    assert not small.taken()


def test_a_body_that_stops_beating_loses_its_lease(small: Small) -> None:
    lease = small.acquire(beat_every=20.0)
    small.pass_time(15)
    lease.beat()
    small.pass_time(15 + 9)
    assert lease.valid
    small.pass_time(TTL)
    assert not lease.valid
    assert "beat" in lease.lost_reason
    assert not small.taken()


def test_what_was_broken_is_not_renewed(small: Small) -> None:
    """Its holder is told at once, and its name is free when it has let go of it."""
    told: list[Any] = []
    lease = small.acquire(on_lost=told.append)
    assert small.do(small.client.locks.break_lease("a"))
    small.pass_time(0.1)
    assert told == [lease]
    assert small.taken()
    small.pass_time(TTL)
    assert not small.taken()


def test_what_is_offered_is_had_by_one_alone(small: Small) -> None:
    """S1, S2: who offers it trusts it no longer, before anybody has it; of two who accept, one has it."""
    lease = small.acquire()
    text = small.do(lease.transfer())
    assert not lease.valid

    async def accept() -> Any:
        return await small.client.locks.accept(text)

    heir = small.do(accept())
    assert heir.valid
    assert heir.token > lease.token
    with pytest.raises(LeaseLost):
        small.do(accept())
    assert heir.valid


def drained_while(small: Small, acquiring: Any) -> None:
    """Drain without grace while an acquire is granted, and its answer on its way."""
    small.network.delay = 0.2
    task = small.client.process.start(acquiring)
    small.world.run(small.taken, 10)
    assert small.taken()
    assert not task.done()
    small.do(small.client.locks.drain(0))
    small.world.run(task.done, 20)
    assert isinstance(task.exception(), ShuttingDown)
    small.pass_time(1)
    assert not small.taken()


def test_what_was_under_way_when_a_drain_began_is_not_given_out(small: Small) -> None:
    """L6, promise 4: no new leases, and nothing is left."""
    drained_while(small, small.client.locks.lock("a", ttl=TTL).acquire().__aenter__())


def test_several_names_under_way_when_a_drain_began_are_not_given_out(small: Small) -> None:
    small.network.joint = True
    small.client.locks = small.client.connect(small.network)
    drained_while(small, small.client.locks.all_of("a", "b", ttl=TTL).acquire().__aenter__())


def test_drain_notifies_holders_that_do_not_end_and_gives_them_time(small: Small) -> None:
    """And gives it some time to stop before another may begin."""
    told: list[Any] = []
    still_there: list[bool] = []

    def stop(lease: Any) -> None:
        told.append(lease)
        small.world.after(UNWIND - 0.1, lambda: still_there.append(small.taken()))

    lease = small.acquire(on_lost=stop)
    assert small.do(small.client.locks.drain(1.0)) == ["a"]
    assert told == [lease]
    assert not lease.valid
    small.pass_time(UNWIND)
    assert still_there == [True]
    assert not small.taken()


def test_a_clock_that_goes_back_costs_time_alone(small: Small) -> None:
    """S1: what the store keeps it keeps for longer. Its holder knows nothing of that; the next token is higher."""
    lease = small.acquire(renew=False)
    small.server.step_us -= int(5e6)
    small.pass_time(TTL - 0.3)
    assert not lease.valid
    small.pass_time(5.2)
    assert small.taken()
    small.pass_time(0.2)
    assert not small.taken()
    assert small.acquire().token > lease.token


def test_a_lease_is_not_valid_after_its_release(small: Small) -> None:
    """S2: long before its deadline, and whatever the store answers."""
    lease = small.acquire()
    assert lease.valid
    small.do(lease.release())
    assert not lease.valid
    assert lease.remaining == 0.0
    with pytest.raises(LeaseLost):
        lease.check()


def test_a_lease_that_the_store_has_given_to_another_is_lost_at_the_next_renewal(small: Small) -> None:
    """S3: the store says so, and that counts at once, not at the deadline."""
    told: list[Any] = []
    lease = small.acquire(on_lost=told.append)
    small.server.forget()
    small.pass_time(11)
    assert told == [lease]
    assert not lease.valid
    assert lease.remaining == 0.0


def test_a_waiter_takes_over_when_the_holders_time_is_over(small: Small) -> None:
    """L1, L2: the holder has died, so nobody calls: the waiter looks by itself, at the expiry, not seconds later."""
    holder = Client(small.world, "q", 1.0, small.network, {"a": Counter()}, calm=True)

    async def hold() -> Any:
        return await holder.locks.lock("a", ttl=TTL).acquire()

    held = holder.process.start(hold())
    small.world.run(held.done, 10)
    began = small.world.now
    small.pass_time(2)
    waiter = small.client.process.start(small.client.locks.lock("a", ttl=TTL).acquire())
    small.pass_time(1)
    holder.process.kill()
    small.world.run(waiter.done, began + 2 * TTL)
    assert waiter.result().token > held.result().token
    assert TTL - 0.1 <= small.world.now - began <= TTL + 0.25


def late_by_a_jump(small: Small, jump: float) -> Any:
    """A waiter is granted the name by a release while its loop is blocked, in which the store's clock jumps. When it
    hears of that, another has had the name for two seconds. The lease that it has then, if it has one."""
    small.server.pushes = "grant"
    holder, other = (Client(small.world, who, 1.0, small.network, {"a": Counter()}, calm=True) for who in "qr")

    async def take(client: Client) -> Any:
        lease = await client.locks.lock("a", ttl=TTL, data=client.process.name).acquire()
        client.granted(lease, lease.data, 0.0)
        return lease

    held = holder.process.start(take(holder))
    small.pass_time(0.1)
    waiting = small.client.process.start(take(small.client))
    small.pass_time(1.0)
    small.client.process.block(3.0)
    small.server.step_us += int(jump * 1e6)
    holder.process.start(held.result().release())
    small.pass_time(0.1)
    taken = other.process.start(take(other))
    small.pass_time(2.8)
    assert taken.result().valid
    assert not waiting.done()
    small.pass_time(0.2)
    assert check(small.world.history.records, exclusive=False) == [], "tokens are in the order of the grants"
    for each in (holder, other):
        each.process.end()
    return waiting.result() if waiting.done() else None


def test_a_grant_that_comes_late_is_not_believed_by_a_clock_that_was_set_forth(small: Small) -> None:
    """S2: when it was granted cannot be reckoned from that clock, so the store is asked; it is another's by then."""
    assert late_by_a_jump(small, 8.0) is None


def test_a_clock_that_was_set_forth_by_as_much_as_the_grant_is_late_shows_in_nothing(small: Small) -> None:
    """What no reckoning can find out, and documented as such: two believe in the name. Their tokens are in order."""
    assert late_by_a_jump(small, 2.9).token


def start_waiting(small: Small) -> Any:
    async def wait() -> Any:
        return await small.client.locks.lock("a", ttl=TTL).acquire(500)

    return small.client.process.start(wait())


def calls(small: Small, operation: str) -> int:
    return sum(who == "server" and what.startswith(f"p: {operation} ") for _, who, what in small.world.trace)


def test_keeper_refreshes_the_places_of_its_waiters(small: Small) -> None:
    """L2: places last 15 s. One call of the keeper serves all waiters, so none of them has to call by itself."""
    lease = small.acquire()
    waiters = [start_waiting(small), start_waiting(small)]
    small.pass_time(60)
    assert calls(small, "acquire") == 3
    assert 10 <= calls(small, "keep waiting") <= 13
    small.do(lease.release())
    small.pass_time(0.1)
    assert [task.done() for task in waiters] == [True, False]
    small.do(waiters[0].result().release())
    small.pass_time(0.1)
    assert waiters[1].done()


def test_waiter_takes_over_though_the_keeper_cannot_refresh_places(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2: the holder's time is over, nobody sends a wake-up, and each check of the keeper fails."""

    def away(store: Store, batch: Any) -> Any:
        raise StoreUnavailable("away")
        yield

    monkeypatch.setattr(Store, "keep_waiting", away)
    small.acquire(renew=False)
    waiter = start_waiting(small)
    small.pass_time(TTL + 0.25)
    assert waiter.done()


def test_keeper_finds_that_the_holder_has_expired(small: Small) -> None:
    """L2: the waiter takes over within 250 ms, after one call of the keeper and one of its own."""
    small.acquire(renew=False)
    waiter = start_waiting(small)
    small.pass_time(TTL - 1)
    before = calls(small, "acquire")
    small.pass_time(1.1)
    assert waiter.done()
    assert calls(small, "acquire") == before + 1
