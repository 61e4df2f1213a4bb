"""The state machine of a name, against rules that are simpler than itself."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from leasehold.core.entry import GRANTED, RESTING, Entry
from leasehold.core.protocol import BROKEN, GONE, RENEWED, SECOND, Ask, Busy, Grant, Mismatch

S = SECOND
TTL = 10 * S


def ask(attempt: str, *, queue: bool = False, **more: object) -> Ask:
    return Ask("n", attempt, f"owner-{attempt}", "lock", None, TTL, queue=queue, **more)  # type: ignore[arg-type]


def taken(reply: object) -> int:
    assert isinstance(reply, Grant)
    return reply.token


def test_round_trip_through_text() -> None:
    entry = Entry("n", 0)
    entry.acquire(ask("a"), "s1", 0, 100)
    entry.acquire(ask("b", queue=True), "s2", 1, 101)
    again = Entry.load("n", entry.token, entry.dump())
    assert again.dump() == entry.dump()
    assert again.acquire(ask("b", queue=True), "s2", 2, 102) == entry.acquire(ask("b", queue=True), "s2", 2, 102)


def test_a_free_name_is_stored_as_nothing() -> None:
    entry = Entry("n", 0)
    token = taken(entry.acquire(ask("a"), "s", 0, 1))
    assert entry.release("a", token, 1, 2)
    assert entry.dump() == ""
    assert entry.token == token


def test_asking_again_finds_the_grant_whose_answer_was_lost() -> None:  # S4
    entry = Entry("n", 0)
    token = taken(entry.acquire(ask("a"), "s", 0, 7))
    assert taken(entry.acquire(ask("a"), "s", 5 * S, 8)) == token
    assert entry.holders[0].expires == 15 * S


def test_kept_waiter_behind_a_dead_writer_has_to_acquire() -> None:
    """A dead waiter at the head of the queue holds up nobody, whatever weight it asked for."""
    entry = Entry("n", 0)
    taken(entry.acquire(ask("reader", shape="rwlock", limit=100), "s", 0, 1))
    for attempt, weight in (("writer", 100), ("next", 1)):
        reply = entry.acquire(ask(attempt, queue=True, shape="rwlock", limit=100, weight=weight), "s", S, 1)
        assert isinstance(reply, Busy)
    for now in (6 * S, 11 * S):
        assert entry.renew("reader", entry.token, TTL, now) == RENEWED
        assert entry.keep_waiting(["next"], now) != [None]
    assert entry.renew("reader", entry.token, TTL, 17 * S) == RENEWED
    assert entry.keep_waiting(["next"], 17 * S) == [None]


def test_expired_holder_is_replaced_and_named() -> None:  # A1, A6
    entry = Entry("n", 0)
    entry.acquire(ask("a"), "s", 0, 1)
    assert isinstance(entry.acquire(ask("b"), "s", TTL - 1, 2), Busy)
    reply = entry.acquire(ask("b"), "s", TTL + 2 * S, 3)
    assert isinstance(reply, Grant)
    assert reply.taken_from is not None
    assert (reply.taken_from.owner, reply.taken_from.expires_in) == ("owner-a", -2.0)


def test_who_never_came_for_its_grant_has_let_nothing_expire() -> None:  # A6
    entry = Entry("n", 0)
    token = taken(entry.acquire(ask("a"), "s", 0, 1))
    assert isinstance(entry.acquire(ask("b", queue=True), "s", 0, 2), Busy)
    assert entry.release("a", token, 0, 3)
    assert entry.holders[0].state == GRANTED
    reply = entry.acquire(ask("c"), "s", S, 4)
    assert taken(reply)
    assert reply.taken_from is None


def test_nobody_takes_over_from_itself() -> None:  # A6: the answer came so late that it is asked for anew
    entry = Entry("n", 0)
    first = taken(entry.acquire(ask("a"), "s", 0, 1))
    reply = entry.acquire(ask("a"), "s", TTL + S, 2)
    assert taken(reply) > first
    assert reply.taken_from is None


def test_burial_names_the_dead_holders() -> None:  # A6
    entry = Entry("n", 0)
    token = taken(entry.acquire(ask("a"), "alive", 0, 1))
    assert isinstance(entry.acquire(ask("b", queue=True), "dead", 0, 2), Busy)
    assert entry.release("a", token, 0, 3)
    assert entry.bury({"dead"}, 1, 4) is None
    assert not entry.holders
    taken(entry.acquire(ask("c"), "dead", 2, 5))
    buried = entry.bury({"dead"}, 3, 6)
    assert buried is not None
    assert buried.owner == "owner-c"


def test_renewal_never_revives_and_never_shortens() -> None:  # S3
    entry = Entry("n", 0)
    token = taken(entry.acquire(ask("a"), "s", 0, 1))
    assert entry.renew("a", token, 1 * S, 2 * S) == RENEWED
    assert entry.holders[0].expires == TTL  # a late, shorter renewal must not cut a longer term
    assert entry.renew("a", token + 1, TTL, 3 * S) == GONE
    assert entry.renew("b", token, TTL, 3 * S) == GONE
    assert entry.renew("a", token, TTL, TTL) == GONE  # expired, though nobody has taken it


def test_release_grants_to_the_head_for_a_first_term_and_rings_two() -> None:  # L2
    entry = Entry("n", 0)
    token = taken(entry.acquire(ask("a"), "sa", 0, 1))
    for each in "bcd":
        assert isinstance(entry.acquire(ask(each, queue=True), f"s{each}", 1, 2), Busy)
    entry.release("a", token, 2, 3)
    assert [(holder.attempt, holder.state) for holder in entry.holders] == [("b", GRANTED)]
    assert entry.holders[0].token > token
    assert entry.holders[0].expires - 2 < S
    assert entry.rings == [("sb", "b"), ("sc", "c")]  # the granted one and the new head; never all


def test_a_granted_waiter_that_is_dead_costs_its_first_term() -> None:
    entry = Entry("n", 0)
    token = taken(entry.acquire(ask("a"), "s", 0, 1))
    entry.acquire(ask("dead", queue=True), "s", 1, 2)
    entry.acquire(ask("c", queue=True), "s", 1, 2)
    entry.release("a", token, 2, 3)
    assert isinstance(entry.acquire(ask("c", queue=True), "s", 3, 4), Busy)
    assert isinstance(entry.acquire(ask("c", queue=True), "s", 1 * S, 5), Grant)


def test_a_place_in_the_queue_expires_unless_kept() -> None:
    entry = Entry("n", 0)
    entry.acquire(ask("a"), "s", 0, 1)
    entry.acquire(ask("b", queue=True), "s", 0, 2)
    entry.holders[0].expires = 60 * S
    for second in (8, 16, 24):
        reply = entry.acquire(ask("b", queue=True), "s", second * S, 3)
        assert isinstance(reply, Busy)
        assert reply.place == 0
    reply = entry.acquire(ask("c", queue=True), "s", 50 * S, 4)
    assert isinstance(reply, Busy)
    assert reply.place == 0  # b has not been heard of for longer than its place lasts


def test_try_never_queues_and_never_barges() -> None:
    entry = Entry("n", 0)
    entry.acquire(ask("r1", shape="rw", limit=4), "s", 0, 1)
    entry.acquire(ask("w", shape="rw", limit=4, weight=4, queue=True), "s", 0, 2)
    assert isinstance(entry.acquire(ask("r2", shape="rw", limit=4), "s", 0, 3), Busy)  # room, but w is first
    assert isinstance(entry.acquire(ask("r3", shape="rw", limit=4, fair=False), "s", 0, 4), Grant)
    assert len(entry.queue) == 1


def test_another_shape_is_refused_while_in_use_only() -> None:
    entry = Entry("n", 0)
    token = taken(entry.acquire(ask("a"), "s", 0, 1))
    assert entry.acquire(ask("b", shape="semaphore", limit=3), "s", 0, 2) == Mismatch("lock", 1)
    entry.release("a", token, 1, 2)
    assert isinstance(entry.acquire(ask("b", shape="semaphore", limit=3), "s", 1, 3), Grant)


def test_interrupt_refuses_renewal_but_frees_nothing() -> None:
    entry = Entry("n", 0)
    token = taken(entry.acquire(ask("a"), "sa", 0, 1))
    assert entry.interrupt(False, 1, 2)
    assert entry.rings == [("sa", "a")]
    assert entry.renew("a", token, TTL, 2) == BROKEN
    assert isinstance(entry.acquire(ask("b"), "s", 3, 3), Busy)
    assert entry.release("a", token, 4, 4)  # the acknowledgement
    assert taken(entry.acquire(ask("b"), "s", 5, 5)) > token
    assert entry.interrupt(True, 6, 6)
    assert not entry.interrupt(True, 7, 7)
    assert taken(entry.acquire(ask("c"), "s", 8, 0)) > token + 1


def test_min_hold_outlasts_release_and_death_but_not_expiry() -> None:
    rest = 5 * S
    entry = Entry("n", 0)
    token = taken(entry.acquire(ask("a", rest=rest), "sa", 0, 1))
    assert entry.release("a", token, 1 * S, 2)
    assert isinstance(entry.acquire(ask("b"), "s", 4 * S, 3), Busy)
    assert entry.holders[0].state == RESTING
    assert not entry.release("a", token, 4 * S, 3)
    assert isinstance(entry.acquire(ask("b", rest=rest), "sb", rest, 4), Grant)
    entry.bury({"sb"}, rest + 1, 5)
    assert isinstance(entry.acquire(ask("c"), "s", rest + 2, 6), Busy)
    assert isinstance(entry.acquire(ask("c"), "s", 2 * rest, 7), Grant)


def test_burial_removes_dead_holders_and_waiters() -> None:
    entry = Entry("n", 0)
    entry.acquire(ask("a"), "gone", 0, 1)
    entry.acquire(ask("b", queue=True), "gone", 0, 2)
    entry.acquire(ask("c", queue=True), "here", 0, 3)
    buried = entry.bury({"gone"}, 1, 4)
    assert buried is not None
    assert [holder.attempt for holder in entry.holders] == ["c"]
    assert entry.queue == []


class Names(RuleBasedStateMachine):
    """Random operations on one name of random capacity; what must hold whatever happens."""

    attempts: Bundle[str] = Bundle("attempts")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.wall = 1
        self.made = 0
        self.limit = 3
        self.entry = Entry("n", 0)
        self.tokens: dict[str, int] = {}
        self.arrived: list[str] = []
        self.last_token = 0

    def step(self) -> None:
        self.entry = Entry.load("n", self.entry.token, self.entry.dump())  # as every store does

    @rule(target=attempts, queue=st.booleans(), weight=st.sampled_from([1, 1, 2, 3]))
    def arrive(self, queue: bool, weight: int) -> object:
        attempt = f"a{self.made}"
        self.made += 1
        self.tokens[attempt] = weight  # its weight, until it is granted
        self.again(attempt, queue, weight)
        return multiple(attempt)

    @rule(attempt=attempts, queue=st.booleans(), weight=st.just(0))
    def again(self, attempt: str, queue: bool, weight: int) -> None:
        known = next((p for p in self.entry.holders + self.entry.queue if p.attempt == attempt), None)
        if not weight and known is None:
            return
        weight = weight or known.weight  # type: ignore[union-attr]
        before = [waiter.attempt for waiter in self.entry.queue if waiter.expires > self.now]
        reply = self.entry.acquire(
            ask(attempt, queue=queue, shape="s", limit=self.limit, weight=weight), attempt, self.now, self.wall
        )
        if isinstance(reply, Grant) and known is None:
            assert not [each for each in before if each in [w.attempt for w in self.entry.queue]], "barged"
        self.step()

    @rule(attempt=attempts)
    def renew(self, attempt: str) -> None:
        for holder in self.entry.holders:
            if holder.attempt == attempt:
                was = holder.expires
                outcome = self.entry.renew(attempt, holder.token, TTL, self.now)
                assert (outcome == GONE) == (was <= self.now)
        self.step()

    @rule(attempt=attempts)
    def release(self, attempt: str) -> None:
        for holder in list(self.entry.holders):
            if holder.attempt == attempt:
                ours = holder.expires > self.now
                assert self.entry.release(attempt, holder.token, self.now, self.wall) == ours
                assert not self.entry.release(attempt, holder.token, self.now, self.wall)
        self.step()

    @rule(attempt=attempts)
    def abandon(self, attempt: str) -> None:
        self.entry.abandon(attempt, self.now, self.wall)
        assert attempt not in [p.attempt for p in self.entry.holders + self.entry.queue]
        self.step()

    @rule(attempt=attempts)
    def die(self, attempt: str) -> None:
        self.entry.bury({attempt}, self.now, self.wall)
        assert attempt not in [p.session for p in self.entry.holders + self.entry.queue]
        self.step()

    @rule(force=st.booleans())
    def interrupt(self, force: bool) -> None:
        self.entry.interrupt(force, self.now, self.wall)
        self.step()

    @rule(by=st.sampled_from([1, S // 2, S, 4 * S, 11 * S, 20 * S]), wall=st.integers(-5, 5))
    def wait(self, by: int, wall: int) -> None:
        self.now += by
        self.wall = max(0, self.wall + wall)  # the wall clock may go back: tokens may not

    @invariant()
    def capacity_is_kept(self) -> None:
        assert sum(holder.weight for holder in self.entry.holders) <= self.limit

    @invariant()
    def one_permit_per_attempt_and_token(self) -> None:
        held = [holder.token for holder in self.entry.holders]
        assert len(set(held)) == len(held)
        assert all(token <= self.entry.token for token in held)

    @invariant()
    def tokens_rise(self) -> None:
        assert self.entry.token >= self.last_token
        self.last_token = self.entry.token

    @invariant()
    def nobody_waits_for_what_is_free(self) -> None:
        live = [holder for holder in self.entry.holders if holder.expires > self.now]
        waiting = [waiter for waiter in self.entry.queue if waiter.expires > self.now]
        if waiting and len(live) == len(self.entry.holders) and len(waiting) == len(self.entry.queue):
            free = self.limit - sum(holder.weight for holder in live)
            assert waiting[0].weight > free


TestNames = Names.TestCase
TestNames.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
