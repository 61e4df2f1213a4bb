"""One look at a row for all of a process that wait for its name: how few statements it takes; nobody is overlooked."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sql_servers import HOLD, Database, before, inside, python, statements

import leasehold
from leasehold import aio
from leasehold.core import clock, timing
from leasehold.core.entry import INTERRUPTED, Entry
from leasehold.core.protocol import ALL, HELD, SECOND, Ask, Busy, Grant, run_steps
from leasehold.core.timing import FALLBACK, FIRST_TERM, STAGGER
from leasehold.stores.common.entries import Read, Row
from leasehold.stores.common.waiting import UNDER_WAY, Wake
from leasehold.stores.sql import store as sql
from leasehold.stores.sql import waiting as sql_waiting
from leasehold.stores.sql.waiting import EARLY
from leasehold.testing.handles import eventually, in_time

SESSION = "here"


class Server:
    """Answers a store's requests about the row of one name, at a time that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(clock, "now", lambda: self.now)
        self.store = sql.SqlStore("sql")
        self.sent: list[str] = []
        self.woken: list[str] = []
        self.row = Row("x", 1, 7, [], 0, 0, SESSION)
        self.error: Exception | None = None
        self.tells = True
        """Whether it answers one who joins with the row."""

    @property
    def time(self) -> int:
        return int((self.now + 5e8) * SECOND)

    def entry(self) -> Entry:
        return Entry.load("x", self.row.token, self.row.state)

    def put(self, entry: Entry) -> int:
        self.row = self.row._replace(version=self.row.version + 1, token=entry.token, state=entry.state())
        return self.row.version

    def hold(self, ttl: float = 30.0) -> None:
        """Another process has the name for so long, from now on."""
        entry = self.entry()
        if not entry.holders:
            entry.acquire(Ask("x", "other", "o", "lock", None, int(ttl * SECOND)), "there", self.time, self.time)
        entry.holders[0].expires = self.time + int(ttl * SECOND)
        self.put(entry)

    def release(self) -> None:
        """Another process gives the name back; whom that calls is not told."""
        entry = self.entry()
        entry.release("other", entry.holders[0].token, self.time, self.time)
        self.put(entry)

    def handle(self, request: Any) -> Any:
        if isinstance(request, Wake):
            return self.woken.append(request.attempt)
        self.sent.append(type(request).__name__)
        if self.error is not None:
            raise self.error
        entry = self.entry()
        match request:
            case Read():
                return self.row._replace(now=self.time, wall=self.time)
            case sql.Exchange(_, version, token, state, rings):
                if version != self.row.version:
                    return 0
                self.row = self.row._replace(version=version + 1, token=token, state=state)
                self.woken += [attempt for session, attempt in rings if session == SESSION]
                return version + 1
            case sql.Accept(_, attempt, ttl):
                for holder in entry.holders:
                    if holder.attempt == attempt and holder.expires > self.time:
                        holder.hold(ttl, self.time)
                        self.put(entry)
                        return sql.Accepted(holder.token, bool(entry.queue))
                return sql.Accepted(0, False)
            case sql.TakeOrJoin(_, ask):
                there = [permit.attempt for permit in (*entry.holders, *entry.queue)]
                if ask.attempt in there or not any(holder.expires > self.time for holder in entry.holders):
                    return 0
                entry.acquire(ask, SESSION, self.time, self.time)
                self.put(entry)
                return self.row._replace(now=self.time, wall=self.time) if self.tells else 0
            case sql.Take() | sql.Free():
                return 0
        raise TypeError(request)

    def steps(self, attempt: str) -> Any:
        return self.store.acquire(Ask("x", attempt, "me", "lock", None, 30 * SECOND, queue=True))

    def ask(self, attempt: str) -> Any:
        return run_steps(self.steps(attempt), self.handle)

    def queue(self, *attempts: str) -> None:
        for attempt in attempts:
            assert isinstance(self.ask(attempt), Busy)
        self.sent.clear()
        self.woken.clear()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server(monkeypatch)
    server.hold()
    return server


def resumed(steps: Any, answer: Any) -> Any:
    """Steps that are to be sent an answer next."""
    while True:
        try:
            answer = yield steps.send(answer)
        except StopIteration as end:
            return end.value


def doubts(server: Server) -> bool:
    return server.store.waiters.distrusted_until > server.now


def joining(server: Server, attempt: str) -> Any:
    """Steps of one that has joined the queue, and is about to hear so."""
    steps = server.steps(attempt)
    request = next(steps)
    if isinstance(request, sql.Take):  # the first to find the name contended
        request = steps.send(server.handle(request))
    assert isinstance(request, sql.TakeOrJoin)
    return resumed(steps, server.handle(request))


def test_who_is_joining_when_rings_may_have_been_missed_asks(server: Server) -> None:
    """Two have joined, and the one is granted the name, before either hears that it waits."""
    first, second = joining(server, "a"), joining(server, "b")
    server.release()  # that ring is lost: the listener is just coming up
    server.store.waiters.ring(ALL)
    assert isinstance(run_steps(first, server.handle), Busy)
    assert isinstance(run_steps(second, server.handle), Busy)
    assert isinstance(server.ask("a"), Grant)


def test_who_was_rung_before_it_knew_that_it_waits_is_no_reason_for_doubt(server: Server) -> None:
    """It was held up, and has let its grant lapse, but the ring was heard."""
    first = joining(server, "a")
    server.release()
    server.store.waiters.ring("a")
    run_steps(first, server.handle)
    server.now += FIRST_TERM + 0.1
    server.ask("a")
    assert not doubts(server)


def test_a_grant_that_lapses_without_a_ring_is_a_reason_for_doubt(server: Server) -> None:
    server.queue("a")
    server.now += FALLBACK / 2
    server.release()
    server.now += FALLBACK / 2
    assert isinstance(server.ask("a"), Grant)
    assert doubts(server)
    server.now += sql_waiting.DISTRUST_FOR
    assert not doubts(server)


def test_so_it_is_when_another_has_it_by_now(server: Server) -> None:
    server.queue("a", "b")
    server.release()
    server.now += FIRST_TERM + STAGGER
    server.store.waiters.ring("b")
    assert isinstance(server.ask("b"), Grant)
    assert not doubts(server)  # it was called
    server.now += FALLBACK / 2
    assert isinstance(server.ask("a"), Busy)
    assert doubts(server)


@pytest.mark.parametrize("why", ["in time", "called", "called by us", "missed", "late", "no answer", "in the queue"])
def test_what_is_no_reason_for_doubt(server: Server, why: str) -> None:
    server.queue("a")
    if why == "no answer":
        server.error = leasehold.StoreUnavailable("it is away")
        with pytest.raises(leasehold.StoreUnavailable):
            server.ask("a")
        server.error = None
    if why != "in the queue":
        server.release()
    if why == "called":
        server.store.waiters.ring("a")
    elif why == "called by us":
        server.store.waiters.call("a")
    server.now += FIRST_TERM / 2 if why == "in time" else FALLBACK
    if why == "missed":
        server.store.waiters.ring(ALL)
    elif why == "late":
        server.now += 2 * FIRST_TERM
    assert isinstance(server.ask("a"), Busy if why == "in the queue" else Grant)
    assert not doubts(server)


def test_one_look_for_all_who_wait(server: Server) -> None:
    server.queue("a", "b", "c")
    server.now += FALLBACK
    first, *others = (server.ask(each) for each in "abc")
    assert server.sent == ["Read"]
    assert [first.place, *(each.place for each in others)] == [0, 1, 2]
    assert first.look == FALLBACK - EARLY
    for each in others:
        assert each.look == pytest.approx(FALLBACK)
        assert each.expires_in == pytest.approx(25)
        assert each.holder.expires_in == pytest.approx(25)


def test_places_are_kept_in_one_statement(server: Server) -> None:
    """Without reading first, where nobody else has changed the row."""
    server.queue("a", "b", "c")
    for _ in range(20):
        server.hold()
        server.now += FALLBACK
        for each in "abc":
            assert isinstance(server.ask(each), Busy)
        assert [waiter.attempt for waiter in server.entry().queue] == ["a", "b", "c"]
        assert all(waiter.expires > server.time + 5 * SECOND for waiter in server.entry().queue)
    assert len(server.sent) <= 2 * 20


def test_places_in_a_row_that_nobody_changes_are_kept_without_reading(server: Server) -> None:
    server.hold(300)
    server.queue("a", "b", "c")
    for _ in range(20):
        server.now += FALLBACK
        for each in "abc":
            assert isinstance(server.ask(each), Busy)
    assert len(server.sent) == 20
    assert [waiter.attempt for waiter in server.entry().queue] == ["a", "b", "c"]


def test_whoever_is_called_asks_for_itself(server: Server) -> None:
    server.queue("a", "b")
    server.now += FALLBACK
    server.ask("a")
    server.sent.clear()
    server.store.waiters.ring("b")
    server.store.waiters.ring("nobody")
    server.store.waiters.ring(HELD)
    assert server.ask("b").place == 1
    assert server.sent == ["Read"]
    server.now += FALLBACK  # and then it is one of the others again
    server.ask("a")
    server.sent.clear()
    assert server.ask("b").place == 1
    assert server.sent == []


def test_who_is_next_and_is_called_accepts(server: Server) -> None:
    server.queue("a", "b")
    server.release()
    server.store.waiters.ring("a")
    assert isinstance(server.ask("a"), Grant)
    assert server.sent == ["Accept"]


def test_who_is_next_and_is_called_for_another_reason_looks(server: Server) -> None:
    server.queue("a", "b")
    server.store.waiters.ring("a")
    assert server.ask("a").place == 0
    assert server.sent == ["Accept", "Read"]


def test_when_calls_may_have_been_missed_one_looks_for_all(server: Server) -> None:
    server.queue("a", "b", "c")
    server.now += 1
    server.store.waiters.ring(ALL)
    server.now += 0.01
    assert server.ask("b").place == 1
    assert server.sent == ["Read"]
    assert [server.ask(each).place for each in "ca"] == [2, 0]
    assert server.sent == ["Read"]


def test_a_look_that_began_before_calls_were_missed_is_not_relied_upon(server: Server) -> None:
    server.queue("a", "b")
    server.now += FALLBACK
    look = server.steps("a")
    assert isinstance(next(look), Read)
    server.now += 0.01
    server.store.waiters.ring(ALL)
    server.now += 0.01
    server.ask("b")
    assert server.sent == ["Read"]
    look.close()


def test_one_that_has_been_granted_the_name_unheard_is_woken_by_the_look_of_another(server: Server) -> None:
    server.queue("a", "b", "c")
    server.now += FALLBACK
    server.release()
    assert server.ask("b").place == 0
    assert server.woken == ["a"]
    assert isinstance(server.ask("a"), Grant)


def test_one_whose_place_is_lost_gets_another(server: Server) -> None:
    server.queue("a", "b", "c")
    entry = server.entry()
    del entry.queue[1]
    server.put(entry)
    server.now += FALLBACK
    server.ask("a")
    assert server.woken == ["b"]
    assert server.ask("b").place == 2
    assert [waiter.attempt for waiter in server.entry().queue] == ["a", "c", "b"]


def test_who_is_next_and_has_to_look_sooner_than_it_thinks_is_woken(server: Server) -> None:
    """Its call got lost: whoever holds the name now may be one that was granted it and has died."""
    server.queue("a")
    server.now += 2
    server.queue("b", "c")
    server.now += FALLBACK - 2
    server.hold(FIRST_TERM)
    server.store.waiters["a"].due = server.now + FALLBACK
    assert server.ask("c").place == 2
    assert server.woken == ["a"]
    assert server.ask("a").expires_in == pytest.approx(FIRST_TERM)
    assert server.sent == ["Read"]


def test_a_holder_that_has_expired_is_replaced_by_who_is_next(server: Server) -> None:
    """At once, also while another looks."""
    server.hold(3)
    server.queue("a", "b", "c")
    server.now += 3
    look = server.store.waiters["b"].peers.begin_look()
    assert look is not None
    assert isinstance(server.ask("a"), Grant)
    look.release()
    server.sent.clear()
    server.now += STAGGER
    assert server.ask("b").place == 0
    assert server.ask("c").place == 1
    assert server.sent == []  # what the first has done is known to all


def test_a_holder_that_renews_is_looked_at_once_for_all(server: Server) -> None:
    server.hold(3)
    server.queue("a", "b", "c")
    server.now += 2
    server.hold(3)
    for each in "abc":
        server.now += 1 if each == "a" else STAGGER
        assert isinstance(server.ask(each), Busy)
    assert server.sent == ["Read"]


def test_a_release_of_our_own_tells_who_is_next(server: Server) -> None:
    """What it has stored is known: only who is granted the name has anything to ask for."""
    server.queue("a", "b", "c", "d")
    server.release()
    server.store.waiters.ring("a")
    grant = server.ask("a")
    server.sent.clear()
    assert run_steps(server.store.release("x", "a", grant.token, None), server.handle)
    assert server.sent == ["Free", "ReadOurs", "Exchange"]
    assert server.woken == ["b", "c"]
    assert server.ask("c").expires_in == pytest.approx(FIRST_TERM)
    assert isinstance(server.ask("b"), Grant)
    assert server.sent[3:] == ["Accept"]
    server.now += FIRST_TERM + 2 * STAGGER
    server.sent.clear()
    assert server.ask("d").expires_in == pytest.approx(30, abs=2)  # for the whole term of who has accepted
    assert server.sent == []


def test_places_are_kept_by_releases_of_our_own_too(server: Server) -> None:
    """While these go on nobody has to look, so that nothing else would."""
    crowd = [f"{number:02}" for number in range(40)]
    server.queue(*crowd)
    server.release()
    for number, attempt in enumerate(crowd):
        server.store.waiters.ring(attempt)
        grant = server.ask(attempt)
        assert isinstance(grant, Grant)
        server.now += 1
        assert run_steps(server.store.release("x", attempt, grant.token, None), server.handle)
        for each in crowd[number + 2 :]:
            assert isinstance(server.ask(each), Busy)
        assert [waiter.attempt for waiter in server.entry().queue] == crowd[number + 2 :]


def test_who_was_granted_a_first_term_and_has_died_is_replaced(server: Server) -> None:
    server.queue("a", "b", "c")
    server.release()
    server.store.waiters.ring("b")
    assert server.ask("b").expires_in == pytest.approx(FIRST_TERM)
    server.store.waiters.forget("a")  # it has gone without a word
    server.now += FIRST_TERM
    assert isinstance(server.ask("b"), Grant)


def test_a_look_that_is_under_way_is_waited_for_but_not_for_long(server: Server) -> None:
    server.queue("a", "b", "c")
    server.now += FALLBACK
    look = server.steps("a")
    assert isinstance(next(look), Read)
    assert server.ask("b").look == UNDER_WAY
    assert server.sent == []
    server.now += UNDER_WAY
    assert server.ask("b").place == 1
    assert server.sent == ["Read"]
    assert server.ask("c").place == 2
    assert server.sent == ["Read"]
    look.close()
    assert server.store.waiters["a"].peers.begin_look()


def test_a_look_that_fails_is_told_and_made_again(server: Server) -> None:
    server.queue("a", "b")
    server.now += FALLBACK
    server.error = leasehold.StoreUnavailable("away")
    for attempt in "aba":
        with pytest.raises(leasehold.StoreUnavailable):
            server.ask(attempt)
    server.error = None
    server.sent.clear()
    server.ask("b")
    server.ask("a")
    assert server.sent == ["Read", "Accept", "Read"]  # who was not answered relies on nobody
    server.now += FALLBACK
    server.sent.clear()
    server.ask("a")
    server.ask("b")
    assert server.sent == ["Exchange"]  # and then one looks for both again


@pytest.mark.parametrize("others", ["b", "bc"])
def test_a_call_is_not_lost_with_the_answer_to_what_it_has_caused(server: Server, others: str) -> None:
    server.hold(300)
    server.queue("a", *others)  # so that more is known than "a" was told
    server.now += 1
    server.release()
    server.store.waiters.ring("a")
    server.error = leasehold.StoreUnavailable("the connection is lost")
    with pytest.raises(leasehold.StoreUnavailable):
        server.ask("a")
    server.error = None
    assert isinstance(server.ask("a"), Grant)


@pytest.mark.parametrize("attempt", ["a", "b"])
def test_a_call_is_not_lost_when_there_is_no_connection_to_ask_on(server: Server, attempt: str) -> None:
    server.hold(300)
    server.queue("a", "b", "c")
    server.now += 1
    server.release()
    server.store.waiters.ring(attempt)
    steps = server.steps(attempt)
    next(steps)
    steps.close()
    reply = server.ask(attempt)
    assert isinstance(reply, Grant) if attempt == "a" else reply.expires_in == pytest.approx(FIRST_TERM)


def test_who_was_not_answered_does_not_take_the_look_of_another_for_an_answer(server: Server) -> None:
    """Else it would never find that the server has been away for too long."""
    server.hold(300)
    server.queue("a", "b")
    server.now += FALLBACK
    server.error = leasehold.StoreUnavailable("away")
    with pytest.raises(leasehold.StoreUnavailable):
        server.ask("b")
    look = server.steps("a")
    assert isinstance(next(look), Read)
    with pytest.raises(leasehold.StoreUnavailable):
        server.ask("b")
    look.close()


def test_an_answer_that_comes_late_makes_nobody_else_late(server: Server) -> None:
    """Not the row is new then, but its way was long."""
    server.hold(3)
    server.queue("a", "b", "c")
    server.now += 0.5
    server.store.waiters.ring(ALL)
    server.now += 0.01
    look = server.steps("a")
    assert isinstance(next(look), Read)
    row = server.handle(Read("x"))
    server.now += 2
    with pytest.raises(StopIteration):
        look.send(row)
    left = (server.entry().holders[0].expires - server.time) / SECOND
    assert server.ask("b").expires_in == pytest.approx(left)


def test_whose_crowd_was_left_by_the_last_other_as_it_came_joins_those_who_come_later(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.hold(300)
    server.queue("z")

    class Overtaken(sql_waiting.Waiter):
        def __init__(self, attempt: str, crowd: sql_waiting.NameWaiters) -> None:
            if attempt == "a":
                server.store.waiters.forget("z")  # as a destructor may, or another thread
            super().__init__(attempt, crowd)

    monkeypatch.setattr(sql_waiting, "Waiter", Overtaken)
    server.queue("a", "b")
    waiters = server.store.waiters
    assert waiters["a"].peers is waiters["b"].peers is waiters.by_name["x"]
    assert set(waiters.by_name["x"]) == {"a", "b"}


def test_many_threads_that_join_and_leave_are_never_alone() -> None:
    waiters = sql_waiting.Waiters()
    alone: list[str] = []

    def come_and_go(thread: int) -> None:
        for number in range(20_000):
            attempt = f"{thread}.{number}"
            if waiters.join("x", attempt).peers is not waiters.by_name.get("x"):
                alone.append(attempt)
            waiters.forget(attempt)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=come_and_go, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not alone
    assert not waiters
    assert not waiters.by_name


def test_a_break_that_comes_with_the_accept_is_not_undone(server: Server) -> None:
    server.queue("a", "b", "c")
    server.release()
    server.store.waiters.ring("a")
    steps = server.steps("a")
    accept = next(steps)
    assert isinstance(accept, sql.Accept)
    token = server.handle(accept)
    assert run_steps(server.store.interrupt("x", False), server.handle)
    with pytest.raises(StopIteration):
        steps.send(token)
    for _ in range(4):
        server.now += FALLBACK - 0.2  # so that they go by what is known
        for each in "bc":
            server.ask(each)
        assert server.entry().holders[0].state == INTERRUPTED


def test_who_is_next_need_not_look_at_the_end_of_a_first_term_that_was_accepted(server: Server) -> None:
    server.queue("a", "b", "c", "d")
    server.release()
    server.store.waiters.ring("a")
    grant = server.ask("a")
    assert run_steps(server.store.release("x", "a", grant.token, None), server.handle)
    assert server.ask("c").expires_in == pytest.approx(FIRST_TERM)
    accepted = server.steps("b")
    token = server.handle(next(accepted))
    server.now += 0.5  # the answer takes its time
    with pytest.raises(StopIteration):
        accepted.send(token)
    server.sent.clear()
    server.now += FIRST_TERM
    left = (server.entry().holders[0].expires - server.time) / SECOND
    assert server.ask("c").expires_in == pytest.approx(left)
    assert server.sent == []


def test_places_that_could_not_be_kept_are_not_taken_for_kept(server: Server) -> None:
    server.hold(300)
    server.queue("a", "b")
    server.now += 2 * FALLBACK
    server.error = leasehold.StoreUnavailable("away")
    with pytest.raises(leasehold.StoreUnavailable):
        server.ask("a")
    assert server.sent == ["Exchange"]
    seen = server.store.waiters["a"].peers.seen
    assert seen is not None
    assert seen.entry.state() == server.row.state


@pytest.mark.parametrize("stored", [True, False])
def test_whose_first_question_failed_is_forgotten(server: Server, stored: bool) -> None:
    """Else the others would keep a place for good that nobody waits in."""
    server.hold(300)
    server.queue("b")
    steps = server.steps("a")
    request = next(steps)
    assert isinstance(request, sql.TakeOrJoin)
    if stored:
        server.handle(request)
    with pytest.raises(leasehold.StoreUnavailable):
        steps.throw(leasehold.StoreUnavailable("the answer is lost"))
    assert set(server.store.waiters) == {"b"}
    assert server.ask("a").place == 1  # asked again it finds its place
    assert set(server.store.waiters) == {"a", "b"}


def test_who_could_not_take_its_leave_is_forgotten(server: Server) -> None:
    """Its place expires like that of one who has died."""
    server.queue("b", "a")
    server.error = leasehold.StoreUnavailable("away")
    with pytest.raises(leasehold.StoreUnavailable):
        run_steps(server.store.abandon("x", "a"), server.handle)
    server.error = None
    for _ in range(5):
        server.hold()
        server.now += FALLBACK
        server.ask("b")
    assert [waiter.attempt for waiter in server.entry().queue] == ["b"]


def test_what_was_left_behind_by_one_who_has_left_does_not_join_again(server: Server) -> None:
    """A cancelled task's statement may still be answered, also after a vain try to abandon what it asked for."""
    server.queue("b", "a")
    server.now += FALLBACK
    server.store.waiters.ring("a")
    steps = server.steps("a")
    read = next(steps)
    server.store.waiters.forget("a")
    with pytest.raises(StopIteration):
        steps.send(server.handle(read))
    assert set(server.store.waiters) == {"b"}


def test_an_answer_that_comes_late_does_not_hide_a_newer_one(server: Server) -> None:
    server.queue("a", "b")
    server.now += FALLBACK
    look = server.steps("a")
    assert isinstance(next(look), Read)
    old = server.handle(Read("x"))
    server.release()
    server.store.waiters.ring("b")
    assert server.ask("b").place == 0
    with pytest.raises(StopIteration):
        look.send(old)
    assert server.store.waiters["b"].peers.seen.place("b") == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("tells", [False, True], ids=["reads", "told"])
@pytest.mark.parametrize("caller", ["the server", "one of ours"])
def test_one_that_is_called_before_it_knows_that_it_waits_asks_again(server: Server, tells: bool, caller: str) -> None:
    server.tells = tells
    server.queue("b")
    steps = server.steps("a")
    request = next(steps)
    assert isinstance(request, sql.TakeOrJoin)
    answer = server.handle(request)
    getattr(server.store.waiters, "ring" if caller == "the server" else "call")("a")
    assert run_steps(resumed(steps, answer), server.handle).place == 1
    server.now += FALLBACK
    server.ask("b")  # what it sees is no answer for one that was called
    server.sent.clear()
    assert server.ask("a").place == 1
    assert server.sent == ["Read"]


@pytest.mark.parametrize("end", ["answered", "refused", "given up", "taken"])
def test_what_was_kept_for_one_who_may_be_joining_is_forgotten_with_it(server: Server, end: str) -> None:
    server.queue("b")
    steps = server.steps("a")
    request = next(steps)
    assert isinstance(request, sql.TakeOrJoin)
    server.store.waiters.ring("a")
    server.store.waiters.ring("nobody")
    if end == "refused":
        with pytest.raises(leasehold.StoreUnavailable):
            steps.throw(leasehold.StoreUnavailable("it is away"))
    elif end == "given up":
        steps.close()
    else:
        with pytest.raises(StopIteration):
            steps.send(8 if end == "taken" else server.handle(request))
    for attempt in ("a", "nobody"):  # it joins anew, and has not been called
        server.store.waiters.forget(attempt) if end == "answered" else None
        assert not server.store.waiters.join("x", attempt).rung


def test_who_comes_to_a_contended_name_joins_in_one_statement(server: Server) -> None:
    assert server.ask("a").place == 0
    assert server.sent == ["Take", "TakeOrJoin"]  # that others hold it is news
    server.sent.clear()
    assert server.ask("b").place == 1
    assert server.sent == ["TakeOrJoin"]
    server.sent.clear()
    server.tells = False
    assert server.ask("c").place == 2
    assert server.sent == ["TakeOrJoin", "Read"]
    assert [waiter.attempt for waiter in server.entry().queue] == ["a", "b", "c"]


def test_who_took_a_name_at_once_does_not_expect_it_to_be_contended_again(server: Server) -> None:
    server.queue("a")
    steps = server.steps("b")
    assert isinstance(next(steps), sql.TakeOrJoin)
    with pytest.raises(StopIteration) as end:
        steps.send(8)
    assert end.value.value == Grant(8)
    assert isinstance(next(server.steps("c")), sql.Take)


def test_few_names_are_remembered_as_contended(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "CONTENDED", 3)
    for name in "uvwxyz":
        steps = server.store.acquire(Ask(name, name, "me", "lock", None, 30 * SECOND, queue=True))
        assert isinstance(next(steps), sql.Take)
        assert isinstance(steps.send(0), sql.TakeOrJoin)
        steps.close()
    known = []
    for name in "uvwxyz":
        steps = server.store.acquire(Ask(name, "again", "me", "lock", None, 30 * SECOND, queue=True))
        if isinstance(next(steps), sql.TakeOrJoin):
            known.append(name)
        steps.close()
    assert known == ["x", "y", "z"]


def test_who_does_not_wait_only_takes(server: Server) -> None:
    server.queue("a")
    ask = Ask("x", "b", "me", "lock", None, 30 * SECOND)
    assert run_steps(server.store.acquire(ask), server.handle).place is None
    assert server.sent == ["Take", "Read"]


def test_a_holder_with_others_behind_it_gives_back_without_the_fast_path(server: Server) -> None:
    """Which is for names that nobody waits for."""
    server.queue("a", "b")
    server.release()
    server.store.waiters.ring("a")
    grant = server.ask("a")
    server.sent.clear()
    assert run_steps(server.store.release("x", "a", grant.token, grant.hint), server.handle)
    assert server.sent == ["ReadOurs", "Exchange"]
    grant = server.ask("b")
    assert isinstance(grant, Grant)
    server.sent.clear()
    run_steps(server.store.release("x", "b", grant.token, grant.hint), server.handle)
    assert server.sent[0] == "Free"


@pytest.mark.parametrize("asker", ["new", "lost its place"])
def test_who_loses_a_swap_joins_without_one(server: Server, asker: str) -> None:
    """The holder has expired, so that the row has to be read; another has taken it over when it is to be swapped, and
    would change it before each swap."""
    if asker == "lost its place":
        server.queue("a")
        entry = server.entry()
        entry.queue.clear()
        server.put(entry)
    server.now += 31
    steps = server.steps("a")
    swaps = []

    def take_over() -> None:
        swaps.append(server.now)
        assert len(swaps) < 10
        server.row = server.row._replace(state=[])
        server.hold()

    assert run_steps(before(sql.Exchange, steps, take_over), server.handle).place == 0
    assert len(swaps) == 1
    assert [waiter.attempt for waiter in server.entry().queue] == ["a"]


def test_in_a_forked_child_nobody_waits(server: Server) -> None:
    server.queue("a", "b")
    server.store.waiters.reset()
    assert not server.store.waiters
    assert not server.store.waiters.by_name


def test_who_was_granted_or_has_left_is_forgotten(server: Server) -> None:
    server.queue("a", "b")
    run_steps(server.store.abandon("x", "a"), server.handle)
    assert set(server.store.waiters) == {"b"}
    server.release()
    server.store.waiters.ring("b")
    assert isinstance(server.ask("b"), Grant)
    assert not server.store.waiters
    assert not server.store.waiters.by_name


# With servers.


@contextmanager
def in_threads(url: str, namespace: str, count: int, taken: list[int]) -> Iterator[None]:
    """So many threads of one Locks that take the name once each, in the order of their numbers."""
    with leasehold.connect(url, namespace=namespace) as locks:

        def take(number: int) -> None:
            with locks.lock("name").acquire() as lease:
                taken.append(lease.token)

        threads = [threading.Thread(target=take, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            for thread in threads:
                thread.join()


@contextmanager
def in_tasks(url: str, namespace: str, count: int, taken: list[int]) -> Iterator[None]:
    async def work() -> None:
        async with aio.connect(url, namespace=namespace) as locks:

            async def take() -> None:
                async with locks.lock("name") as lease:
                    taken.append(lease.token)

            await asyncio.gather(*(take() for _ in range(count)))

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    try:
        yield
    finally:
        thread.join()


SIDES = {"threads": in_threads, "asyncio": in_tasks}


def queued(locks: leasehold.Locks, count: int) -> None:
    eventually(lambda: (info := locks.inspect("name")) is not None and info.waiters == count, within=60)


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize("side", list(SIDES))
def test_ten_who_wait_cost_what_one_does(
    database: Database, namespace: str, locks: leasehold.Locks, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    """Everything counted that their session sends, in two looks."""
    taken: list[int] = []
    lease = locks.lock("name", ttl=300).acquire()
    with SIDES[side](database.url, namespace, 10, taken):
        queued(locks, 10)
        time.sleep(2 * FALLBACK)  # until all are in step
        sent = statements(monkeypatch)

        def looks() -> int:
            sent.clear()
            time.sleep(2 * FALLBACK + 1)
            found = sum("version" in each and "namespace =" in each for each in sent)  # of a row, not of the server
            assert found
            return found

        in_time(looks, 5, tries=3)  # one that takes longer than a second is not waited for
        lease.release()
    assert taken == sorted(taken)
    assert len(taken) == 10


@pytest.mark.server
@pytest.mark.parametrize("side", list(SIDES))
def test_a_killed_holder_is_replaced_by_the_first_of_many(
    database: Database, namespace: str, locks: leasehold.Locks, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When its lease is over: nobody looks for any other reason here. (How late that is: in ``test_sql``.)"""
    for module in (timing, sql, sql_waiting):
        monkeypatch.setattr(module, "FALLBACK", 1000.0)
    taken: list[int] = []
    child = python(HOLD, database.url, namespace, "name", 2)
    assert child.stdout is not None
    assert child.stdin is not None
    token = int(child.stdout.readline())
    with SIDES[side](database.url, namespace, 5, taken):
        # It may have stood still and lost its lease alive: then they do not all wait at the same time.
        eventually(lambda: taken or ((info := locks.inspect("name")) is not None and info.waiters == 5), within=60)
        child.send_signal(signal.SIGKILL)
        child.wait()
        eventually(lambda: len(taken) == 5, within=60)
    child.stdout.close()
    child.stdin.close()
    assert token < taken[0]
    assert taken == sorted(taken)


@pytest.mark.server
async def test_a_crowd_is_served_in_order(database: Database, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nobody misses its turn, however long the machine stands still.
    monkeypatch.setattr("leasehold.core.entry._FIRST_TERM", 60 * SECOND)
    served: list[int] = []
    tokens: list[int] = []
    missed: list[Any] = []
    async with (
        aio.connect(database.url, namespace=namespace) as locks,
        aio.connect(database.url, namespace=namespace) as crowd,
    ):
        crowd.on_event(lambda event: missed.append(event) if event.type == "taken_over" else None)
        lease = await locks.lock("name", ttl=300).acquire()

        async def take(number: int) -> None:
            async with crowd.lock("name") as lease:
                served.append(number)
                tokens.append(lease.token)

        tasks = []
        for number in range(200):
            tasks.append(asyncio.ensure_future(take(number)))
            if number % 20 == 0:
                await _waiting(locks, number + 1)
        await _waiting(locks, 200)
        in_line = [number for number in range(200) if number % 20 == 0]
        await lease.release()
        await asyncio.wait_for(asyncio.gather(*tasks), 90)
    assert sorted(served) == list(range(200))
    assert tokens == sorted(tokens)
    assert [number for number in served if number in in_line] == in_line
    assert missed == []


async def _waiting(locks: aio.Locks, count: int) -> None:
    ends = time.monotonic() + 60
    while (info := await locks.inspect("name")) is None or info.waiters != count:
        assert time.monotonic() < ends
        await asyncio.sleep(0.05)


@pytest.mark.server
async def test_a_cancelled_looker_holds_up_nobody(
    database: Database, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All who wait are told to look, and the one who does is cancelled in the middle of it."""
    async with aio.connect(database.url, namespace=namespace) as locks:
        lease = await locks.lock("name", ttl=300).acquire()

        async def take() -> None:
            async with locks.lock("name"):
                pass

        tasks = [asyncio.ensure_future(take()) for _ in range(5)]
        await _waiting(locks, 5)
        lookers: list[Any] = []
        core: Any = inside(locks)
        crowd = core.store.waiters.by_name["name"]
        original = crowd.begin_look

        def begin_look() -> Any:
            if not lookers:
                lookers.append(asyncio.current_task())
                asyncio.get_running_loop().call_soon(lookers[0].cancel)  # once its first statement is sent
            return original()

        monkeypatch.setattr(crowd, "begin_look", begin_look)
        core.driver.session.rung(ALL)
        await _waiting(locks, 4)
        await asyncio.wait(lookers, timeout=60)
        assert [task for task in tasks if task.done()] == lookers
        ends = time.monotonic() + 60
        while len(crowd) > 4 or (free := crowd.begin_look()) is None:
            assert time.monotonic() < ends
            await asyncio.sleep(0.01)
        free.release()
        await lease.release()
        await asyncio.wait_for(asyncio.gather(*(task for task in tasks if task not in lookers)), 60)


@pytest.mark.server
@pytest.mark.parametrize("side", list(SIDES))
def test_a_lost_place_is_got_anew(database: Database, namespace: str, locks: leasehold.Locks, side: str) -> None:
    """Somebody has set the row to what it was before they came. They learn of it when they look."""
    taken: list[int] = []
    lease = locks.lock("name", ttl=300).acquire()
    with SIDES[side](database.url, namespace, 4, taken):
        queued(locks, 4)
        where = "WHERE namespace = %s AND name = %s"
        database.sql(f"UPDATE leasehold SET more = NULL, version = version + 1 {where}", namespace, "name")
        assert locks.inspect("name") is not None
        queued(locks, 4)
        lease.release()
    assert taken == sorted(taken)
    assert len(taken) == 4
