"""One look at the server for all that wait in a process: how few commands that takes; nothing is overlooked."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pymongo
import pytest
from mongo_databases import own_url
from mongo_listeners import SETTLE, hearing, listening, queue
from mongo_sent import Sent

import leasehold
from leasehold import aio
from leasehold.core import clock
from leasehold.core.protocol import SECOND, Ask, Busy, Grant, Holding, run_steps
from leasehold.core.timing import FALLBACK, FIRST_TERM, WAITER_TTL
from leasehold.stores.common.waiting import Wake
from leasehold.stores.mongodb import calls as mongo_calls
from leasehold.stores.mongodb import driver as mongo_driver
from leasehold.stores.mongodb import listening as mongo_listening
from leasehold.stores.mongodb import records
from leasehold.stores.mongodb import store as mongo
from leasehold.stores.mongodb.requests import Urgency
from leasehold.stores.mongodb.waiting import GRACE, HORIZON, SHARE, QueuedAttempt, grace

NOON = datetime(2030, 1, 1, 12)


class Server:
    """Answers a store's requests about documents that it makes up, at a time that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(clock, "now", lambda: self.now)
        self.store = mongo.MongoStore()
        self.sent: list[str] = []
        self.changes: list[list[str]] = []
        self.woken: list[str] = []
        self.ttl = 30.0
        self.queues: dict[str, list[str]] = {}
        self.renewed = self.now
        self.renews = False  # or it is another holder each time
        self.error: Exception | None = None

    def document(self, name: str) -> dict[str, Any]:
        now = NOON + timedelta(seconds=self.now)
        holder = {
            "attempt": "other", "owner": "o", "kind": "lock", "data": None, "token": 7, "weight": 1, "state": "held",
            "acquired": NOON + timedelta(seconds=0 if self.renews else self.renewed), "ttl": int(self.ttl * 1000),
            "expires": NOON + timedelta(seconds=self.renewed + self.ttl),
        }  # fmt: skip
        queue = [{"attempt": one, "expires": now + timedelta(seconds=10)} for one in self.queues.get(name, [])]
        return {
            "_id": {"ns": "", "name": name}, "format": 1, "token": 7, "shape": "lock", "limit": 1, "now": now,
            "holders": [holder], "queue": queue,
        }  # fmt: skip

    def handle(self, request: Any) -> Any:
        if self.error is not None and not isinstance(request, Urgency | mongo.Sender | Wake):
            raise self.error
        match request:
            case Urgency():
                return None
            case mongo.Sender():
                return "session", 1
            case Wake(attempt):
                return self.woken.append(attempt)
            case mongo.Change(name, waiter=waiter):
                self.sent.append("ask")
                return records.placed(self.document(name), waiter)
            case mongo.ChangeMany(changes):
                self.sent.append("keep")
                self.changes.append([change.name for change in changes])
                return SimpleNamespace(modified_count=sum(self.is_kept(change) for change in changes))
            case mongo.Find(names):
                self.sent.append("find")
                return [self.document(name) for name in names]
        raise TypeError(request)

    def is_kept(self, change: mongo.Change) -> bool:
        """As the pipeline has it."""
        ask = change.stages[0]["$set"]["ask"]["$literal"]
        waits = [attempt in self.queues[change.name] for attempt in ask["attempts"]]
        if ask["horizon"] is None:
            return any(waits)
        return all(waits) and self.renewed + self.ttl > self.now + ask["horizon"] / 1000

    def ask(self, attempt: str) -> Any:
        """What the engine is told for one that waits for the name that is the attempt's last letter."""
        ask = Ask(attempt[-1], attempt, "me", "lock", None, 30 * SECOND, queue=True)
        return run_steps(self.store.acquire(ask), self.handle)

    def queue(self, *attempts: str) -> None:
        """They wait."""
        for attempt in attempts:
            self.queues.setdefault(attempt[-1], []).append(attempt)
            assert isinstance(self.ask(attempt), Busy)
        self.sent.clear()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch)


def test_one_command_for_all_who_wait(server: Server) -> None:
    server.queue("1a", "2b", "3c")
    server.now += FALLBACK
    first = server.ask("1a")
    others = [server.ask("2b"), server.ask("3c")]
    assert server.sent == ["keep"]
    assert first.expires_in == pytest.approx(FALLBACK)
    assert [one.expires_in for one in others] == pytest.approx([FALLBACK, FALLBACK])
    server.now += FALLBACK
    assert [server.ask(one).place for one in ("3c", "1a", "2b")] == [0, 0, 0]
    assert server.sent == ["keep", "keep"]


def test_those_who_wait_for_one_name_keep_their_places_in_one_change(server: Server) -> None:
    """Each change writes the whole queue: with one for each of a thousand, a look took seconds."""
    server.queue("1a", "2b", "3a", "4a", "5b")
    server.now += FALLBACK
    assert [server.ask(one).place for one in ("1a", "2b", "3a", "4a", "5b")] == [0, 0, 1, 2, 1]
    assert server.sent == ["keep"]
    assert server.changes == [["a", "b"]]


def test_of_those_who_wait_for_one_name_the_one_that_has_left_the_queue_is_woken(server: Server) -> None:
    server.queue("1a", "2a", "3a", "4b")
    server.queues["a"].remove("2a")
    server.now += FALLBACK
    assert server.ask("1a").place == 0
    assert server.woken == ["2a"]
    assert server.sent == ["keep", "keep", "find"]
    assert server.changes == [["a", "b"], ["a", "b"]]
    assert [server.ask(one).place for one in ("3a", "4b")] == [1, 0]
    assert server.sent[3:] == []


def test_a_look_for_one_name_is_as_far_as_each_of_its_waiters_needs(server: Server) -> None:
    """One was told of a holder that has long, one of another that has not: the first is not to rely on less."""
    server.queue("1a")
    server.now += FALLBACK - 1
    server.ttl, server.renewed = 5.0, server.now
    server.queue("2a")
    assert server.store.waiters["1a"].horizon > 5.0 > server.store.waiters["2a"].horizon
    server.now += 1
    assert server.ask("1a").expires_in == pytest.approx(4.0)
    assert server.sent == ["keep", "keep", "find"]


def test_a_lone_waiter_asks_for_itself(server: Server) -> None:
    server.queue("1a")
    server.now += FALLBACK
    server.ask("1a")
    assert server.sent == ["ask"]


def test_whoever_comes_later_is_due_with_the_others(server: Server) -> None:
    """Nobody's last look is ever older than the engine wants it."""
    server.queue("1a", "2b")
    server.now += FALLBACK - 1
    server.queue("3c")
    server.now += 1
    server.ask("1a")
    server.now += FALLBACK - 1
    assert server.ask("3c").expires_in == pytest.approx(1)
    assert server.sent == ["keep"]


def test_whoever_is_called_asks_for_itself(server: Server) -> None:
    server.queue("1a", "2b")
    server.now += FALLBACK
    server.ask("1a")
    server.store.waiters.ring("2b")
    server.ask("2b")
    assert server.sent == ["keep", "ask"]


def test_whoever_asks_before_its_time_has_a_reason(server: Server) -> None:
    """It was rung by another way, or its timeout is over."""
    server.queue("1a", "2b")
    server.now += FALLBACK - 0.01
    server.ask("1a")
    assert server.sent == ["ask"]


def test_one_that_is_no_longer_in_the_queue_is_woken(server: Server) -> None:
    """Its call got lost. It learns that by the look of another."""
    server.queue("1a", "2b", "3c")
    server.queues["b"] = []
    server.now += FALLBACK
    assert isinstance(server.ask("1a"), Busy)
    assert server.woken == ["2b"]
    assert server.sent == ["keep", "keep", "find"]
    server.ask("2b")
    assert server.sent[3:] == ["ask"]


def test_the_looker_itself_asks_when_it_is_no_longer_in_the_queue(server: Server) -> None:
    server.queue("1a", "2b")
    server.queues["a"] = []
    server.now += FALLBACK
    server.ask("1a")
    assert server.sent == ["keep", "keep", "find", "ask"]
    assert server.woken == []


def test_a_holder_that_may_have_expired_is_looked_at(server: Server) -> None:
    """It has renewed: one look tells that to all who wait."""
    server.ttl = 3.0
    server.queue("1a", "2b")
    server.now += 2
    server.renewed = server.now
    server.now += 1
    assert server.ask("1a").expires_in == pytest.approx(2)
    assert server.ask("2b").expires_in == pytest.approx(2)
    assert server.sent == ["find"]


def test_a_holder_that_has_expired_is_asked_about_by_who_is_next(server: Server) -> None:
    server.ttl = 3.0
    server.queue("1a", "2b")
    server.queues["a"] = ["0a", "1a"]
    server.now += 3
    server.ask("2b")
    assert server.sent == ["find", "ask"]
    assert server.woken == []  # whoever is not next has its own time for that: no herd


def test_a_holder_that_expires_sooner_than_was_known_wakes_who_is_next(server: Server) -> None:
    server.queue("1a")
    server.now += 2
    server.queue("2b")
    server.now += FALLBACK - 2
    server.ttl, server.renewed = 1.0, server.now
    assert server.ask("1a").expires_in == pytest.approx(1)
    assert server.woken == ["2b"]
    assert server.ask("2b").expires_in == pytest.approx(1)
    assert server.sent == ["keep", "keep", "find"]


def test_places_are_kept_also_when_looks_are_frequent(server: Server) -> None:
    """Of a holder with a short ttl, that is."""
    server.ttl = 3.0
    server.queue("1a", "2b")
    for _ in range(20):
        server.now += 2
        server.renewed = server.now
        server.now += 1
        server.ask("1a")
        server.ask("2b")
    assert server.sent.count("keep") >= 60 / (WAITER_TTL / 2)


def test_what_the_server_clock_says_is_reckoned_on(server: Server) -> None:
    """A grant that is pushed later is measured against it: it must not be taken for younger than it is."""
    server.queue("1a", "2b")
    for _ in range(5):
        server.now += FALLBACK
        server.renewed = server.now - 5
        told = server.ask("1a").now
        ms = int(server.now * 1000) * 1000
        epoch = int((NOON - datetime(1970, 1, 1)).total_seconds()) * SECOND
        assert ms <= told - epoch <= ms + 2000
    assert server.sent == ["keep"] * 5


def test_the_server_clock_is_read_once_a_minute(server: Server) -> None:
    server.queue("1a", "2b")
    for _ in range(25):
        server.now += FALLBACK
        server.renewed = server.now - 5
        server.ask("1a")
    assert server.sent.count("find") == 2
    assert server.sent.count("keep") == 25


def test_the_server_clock_is_a_minute_old_at_most(server: Server) -> None:
    server.queue("1a", "2b")
    for _ in range(10):
        assert "find" not in server.sent
        server.now += 6
        server.renewed = server.now - 5
        server.ask("1a")
    assert server.sent[-1] == "find"


@pytest.mark.parametrize(("left", "sent"), [(HORIZON + 0.1, ["keep"]), (HORIZON - 0.1, ["keep", "keep", "find"])])
def test_a_place_is_kept_without_a_further_look_if_nobody_expires_before_the_next(
    server: Server, left: float, sent: list[str]
) -> None:
    server.queue("1a", "2b")
    server.now += FALLBACK
    server.renewed = server.now + left - server.ttl
    server.ask("1a")
    assert server.sent == sent


def test_whoever_was_answered_from_what_is_known_and_asks_before_its_time_has_a_reason_too(server: Server) -> None:
    server.queue("1a", "2b")
    server.now += FALLBACK
    server.ask("1a")
    server.ask("2b")
    server.now += FALLBACK - 0.01
    server.ask("1a")
    server.ask("2b")
    assert server.sent == ["keep", "ask", "ask"]


def test_in_a_forked_child_nobody_waits_and_nobody_looks(server: Server) -> None:
    server.queue("1a", "2b")
    waiters = server.store.waiters
    assert waiters.begin_look()
    waiters.reset()
    assert not waiters
    assert waiters.begin_look()


def test_a_look_that_is_cut_off_ends_no_other(server: Server) -> None:
    """Its loop was closed in the middle of it, or its process has forked; it ends when it is collected."""
    server.queue("1a", "2b")
    server.now += FALLBACK
    steps = server.store.acquire(Ask("a", "1a", "me", "lock", None, 30 * SECOND, queue=True))
    next(steps)  # its urgency
    assert isinstance(next(steps), mongo.ChangeMany)
    waiters = server.store.waiters
    waiters.reset()
    assert waiters.begin_look()
    steps.close()
    assert waiters.begin_look() is None


def test_a_look_that_fails_is_told_and_made_again(server: Server) -> None:
    server.queue("1a", "2b")
    server.now += FALLBACK
    server.error = leasehold.StoreUnavailable("away")
    for attempt in ("1a", "2b", "1a"):
        with pytest.raises(leasehold.StoreUnavailable):
            server.ask(attempt)
    server.error = None
    server.ask("1a")
    server.ask("2b")
    assert server.sent == ["ask", "ask"]  # each by itself, until it was answered
    server.now += FALLBACK
    server.ask("1a")
    server.ask("2b")
    assert server.sent == ["ask", "ask", "keep"]


@pytest.mark.parametrize("failed", ["look", "ask"])
def test_who_was_not_answered_does_not_take_what_it_knew_for_an_answer(server: Server, failed: str) -> None:
    """Or how long the server is away would never be known."""
    server.queue("1a", "2b")
    server.now += FALLBACK if failed == "look" else FALLBACK - 0.01
    server.error = leasehold.StoreUnavailable("away")
    with pytest.raises(leasehold.StoreUnavailable):
        server.ask("1a")
    server.now += 0.01
    look = server.store.waiters.begin_look()
    assert look is not None
    with pytest.raises(leasehold.StoreUnavailable):
        server.ask("1a")
    assert isinstance(server.ask("2b"), Busy)
    look.release()


def test_a_look_that_is_under_way_is_waited_for_but_not_for_long(server: Server) -> None:
    server.queue("1a", "2b")
    server.now += FALLBACK
    look = server.store.waiters.begin_look()
    assert look is not None
    assert server.ask("2b").expires_in == 1.0
    assert server.sent == []
    server.now += 1
    server.ask("2b")
    assert server.sent == ["ask"]
    look.release()


def test_who_was_granted_or_has_left_is_forgotten(server: Server) -> None:
    server.queue("1a", "2b")
    run_steps(server.store.acquire(Ask("z", "9z", "me", "lock", None, SECOND, heir=("x", 1))), server.handle)
    assert set(server.store.waiters) == {"1a", "2b"}

    def abandoned(request: Any) -> Any:
        answer = server.handle(request)
        return {**answer, "abandoned": [{"found": True}]} if isinstance(request, mongo.Change) else answer

    run_steps(server.store.abandon("a", "1a"), abandoned)
    assert set(server.store.waiters) == {"2b"}

    def granted(request: Any) -> Any:
        answer = server.handle(request)
        if isinstance(request, mongo.Change):
            answer["holders"][0]["attempt"] = "2b"
        return answer

    ask = Ask("b", "2b", "me", "lock", None, 30 * SECOND, queue=True)
    assert run_steps(server.store.acquire(ask), granted) == Grant(7)
    assert not server.store.waiters


def waiter_of(busy: Busy, sent: float, limit: int = 1) -> QueuedAttempt:
    return QueuedAttempt(Ask("x", "1x", "me", "lock", None, 30 * SECOND, limit=limit, queue=True), busy, sent)


def test_what_is_told_of_the_holder_goes_with_the_time(server: Server) -> None:
    holder = Holding("x", "other", "o", "lock", None, 7, age=10.0, expires_in=8.0)
    waiter = waiter_of(Busy(holder, 0, 8.3, now=5 * SECOND), server.now)
    assert waiter.horizon == pytest.approx(8.0 * SHARE)
    assert waiter.grace == pytest.approx(0.3)
    server.now += 4
    known = waiter.answer()
    assert known is not None
    assert known.holder == holder._replace(age=14.0, expires_in=4.0)
    assert known.now == 9 * SECOND + 1  # rounded up
    assert known.expires_in == pytest.approx(1.0)
    waiter.keep(server.now)
    server.now += 1
    known = waiter.answer()
    assert known is not None
    assert known.holder is not None
    assert known.holder.age == pytest.approx(15.0)
    assert known.holder.expires_in == pytest.approx(8.0 * SHARE - 1)  # that much was seen
    assert known.expires_in == pytest.approx(FALLBACK - 1)


def test_the_last_token_is_told(server: Server) -> None:
    """By which a grant that is pushed later is known to be newer."""
    server.queue("1a")
    known = server.store.waiters["1a"].answer()
    assert known is not None
    assert known.token == 7


SOON = Busy(None, 0, FIRST_TERM, now=25 * SECOND)


@pytest.mark.parametrize(
    ("passed", "limit", "expires", "left"),
    [
        (20.0, 1, 30.0, FIRST_TERM),  # as soon as it can be known
        (20.5, 1, 30.0, FIRST_TERM - 0.5),
        (20.7, 1, 30.0, None),  # it is over
        (25.0, 1, 30.0, None),
        (19.0, 1, 30.0, FIRST_TERM),  # before it was: the server's clock was set forth
        (20.1, 1, 0.7, FIRST_TERM - 0.1),  # who held it before is gone, and its term means nothing
        (20.1, 2, 20.4, 0.3),  # another that holds it too, or did, may expire before that
        (20.1, 2, 20.0, None),
    ],
)
def test_for_how_long_one_that_is_next_need_not_ask(
    server: Server, passed: float, limit: int, expires: float, left: float | None
) -> None:
    """The server's clock was at 5 s when it was asked, and at 25 s when another was granted the name."""
    waiter = waiter_of(Busy(None, 0, expires, now=5 * SECOND), server.now, limit)
    server.now += passed
    told = waiter.give_time(SOON)
    assert told == (None if left is None else SOON._replace(expires_in=pytest.approx(left)))


def test_one_that_does_not_know_the_time_asks(server: Server) -> None:
    assert waiter_of(Busy(None, 0, 30.0), server.now).give_time(SOON) is None


def test_without_a_holder_there_is_nothing_to_wait_for(server: Server) -> None:
    waiter = waiter_of(Busy(None, 1, None), server.now)
    assert (waiter.due, waiter.expires, waiter.horizon, waiter.grace) == (server.now, server.now, 0.0, 0.0)
    assert waiter.answer() is None
    later = waiter.answer(1.0)
    assert later is not None
    assert (later.holder, later.now, later.expires_in) == (None, None, 1.0)


@pytest.mark.parametrize(("ttl", "expected"), [(0.6, 0.1), (1.2, 0.2), (3.0, 0.2), (7.4, 0.2), (7.6, 0.0), (30.0, 0.0)])
def test_how_long_one_that_renews_is_waited_for(ttl: float, expected: float) -> None:
    assert grace(ttl) == pytest.approx(expected)


class Idle(Server):
    """A holder renews every third of its ttl, 20 ms late; time passes as those who wait let it."""

    def wait(self, ttl: float, attempts: list[str], seconds: float) -> float:
        """How many commands a second it takes that they wait, with requests for calls."""
        began = self.now
        self.ttl, self.renews = ttl, True
        self.queue(*attempts)
        due = dict.fromkeys(attempts, self.now)
        while self.now < began + seconds:
            attempt = min(attempts, key=lambda one: due[one])
            self.now = max(self.now, due[attempt])
            self.renewed = began + (self.now - 0.02 - began) // (ttl / 3) * (ttl / 3) + 0.02
            reply = self.ask(attempt)
            assert isinstance(reply, Busy)
            assert reply.expires_in is not None
            # A holder that died right after its last renewal is replaced within ttl + 250 ms.
            assert self.now + min(FALLBACK, reply.expires_in) <= self.renewed + ttl + 0.25
            due[attempt] = self.now + min(FALLBACK, reply.expires_in)
            self.woken.clear()
        return len(self.sent) / seconds + 1 / mongo_calls.AWAIT


SOME = pytest.mark.parametrize("attempts", [["1a"], ["1a", "2b"], ["1a", "2b", "3c", "4d", "5e"]], ids=len)


@pytest.mark.parametrize("ttl", [5, 6, 7, 8, 9, 10, 12, 15, 30, 300])
@SOME
def test_idle_waiters_send_less_than_a_command_in_three_seconds(
    monkeypatch: pytest.MonkeyPatch, attempts: list[str], ttl: float
) -> None:
    assert Idle(monkeypatch).wait(ttl, attempts, 600.0) <= 0.3


def test_one_idle_waiter_sends_less_also_with_a_ttl_of_four_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Idle(monkeypatch).wait(4, ["1a"], 600.0) <= 0.3


@pytest.mark.parametrize("ttl", [1, 2, 3, 4])
@SOME
def test_of_shorter_terms_each_is_looked_at_once(
    monkeypatch: pytest.MonkeyPatch, attempts: list[str], ttl: float
) -> None:
    """Less often would not do: nothing but a look tells that a holder has died."""
    assert Idle(monkeypatch).wait(ttl, attempts, 600.0) <= 1 / ttl + 0.12


def test_a_holder_that_does_not_renew_is_looked_at_when_it_expires(server: Server) -> None:
    server.ttl = 3.0
    server.queues["a"] = ["1a"]
    assert server.ask("1a").expires_in == pytest.approx(3.0)
    server.renews = True
    assert server.ask("1a").expires_in == pytest.approx(3.0 + GRACE)
    assert server.ask("1a").holder.expires_in == pytest.approx(3.0)
    server.ttl = 9.0  # then only one that has died is waited for to the end
    assert server.ask("1a").expires_in == pytest.approx(9.0)


# On servers.


@pytest.fixture(params=["mongodb_server", "mongodb_replica_set"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    yield from own_url(request.getfixturevalue(request.param))


NAMES = ["a", "b", "c"]
WAIT = 20.5


def attempts(url: str) -> list[list[str]]:
    """Who waits for each name, in order."""
    with pymongo.MongoClient[Any](url) as client:
        leases = client.get_default_database()["leasehold"]
        return [[one["attempt"] for one in leases.find_one({"_id.name": name})["queue"]] for name in NAMES]  # type: ignore[index]


def check_idle(names: list[str], before: list[list[str]], after: list[list[str]]) -> None:
    assert len(names) <= WAIT * 0.3, names
    assert after == before  # nobody has lost its place, though all are older than a place lasts without a sign of life
    assert [len(queue) for queue in after] == [2, 2, 2]


@contextmanager
def watched(url: str) -> Iterator[tuple[Sent, leasehold.Locks, leasehold.Locks]]:
    """What the second of two sends."""
    sent = Sent()
    with (
        pymongo.MongoClient[Any](url, event_listeners=[sent]) as client,
        leasehold.connect(url) as ours,
        leasehold.connect(client) as theirs,
    ):
        yield sent, ours, theirs


@pytest.mark.server
@pytest.mark.slow
def test_many_idle_waiters_send_as_little_as_one(url: str) -> None:
    with watched(url) as (sent, ours, theirs):
        leases = [ours.lock(name, ttl=120).acquire() for name in NAMES]
        threads = [
            threading.Thread(target=lambda name=name: theirs.lock(name).acquire().release()) for name in NAMES * 2
        ]
        for thread in threads:
            thread.start()
        ends = time.monotonic() + 30
        while [len(queue) for queue in attempts(url)] != [2, 2, 2]:
            assert time.monotonic() < ends
        time.sleep(FALLBACK + 1)
        before = attempts(url)
        sent.names.clear()
        time.sleep(WAIT)
        counted = list(sent.names)
        check_idle(counted, before, attempts(url))
        for lease in leases:
            lease.release()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()


@pytest.mark.server
@pytest.mark.slow
def test_an_idle_waiter_sends_next_to_nothing_also_when_the_holder_has_a_short_ttl(url: str) -> None:
    with watched(url) as (sent, ours, theirs):
        lease = ours.lock("x", ttl=5).acquire()
        thread = threading.Thread(target=lambda: theirs.lock("x").acquire().release())
        thread.start()
        with pymongo.MongoClient[Any](url) as plain:
            hearing(plain.get_default_database())
        time.sleep(6)  # by then the holder has renewed
        sent.names.clear()
        time.sleep(30.5)
        counted = list(sent.names)
        lease.release()
        thread.join(20)
        assert not thread.is_alive()
    assert len(counted) <= 9, counted  # 0.3 a second


@pytest.mark.server
@pytest.mark.slow
async def test_many_idle_tasks_send_as_little_as_one(url: str) -> None:
    sent = Sent()
    async with pymongo.AsyncMongoClient[Any](url, event_listeners=[sent]) as client:
        async with aio.connect(url) as ours, aio.connect(client) as theirs:
            leases = [await ours.lock(name, ttl=120).acquire() for name in NAMES]

            async def wait(name: str) -> None:
                await (await theirs.lock(name).acquire()).release()

            tasks = [asyncio.create_task(wait(name)) for name in NAMES * 2]
            ends = time.monotonic() + 30
            while [len(queue) for queue in attempts(url)] != [2, 2, 2]:
                assert time.monotonic() < ends
                await asyncio.sleep(0.01)
            await asyncio.sleep(FALLBACK + 1)
            before = attempts(url)
            sent.names.clear()
            await asyncio.sleep(WAIT)
            counted = list(sent.names)
            check_idle(counted, before, attempts(url))
            for lease in leases:
                await lease.release()
            await asyncio.wait_for(asyncio.gather(*tasks), 20)


TURNS = 40


@pytest.mark.server
async def test_each_of_many_that_wait_costs_one_command(url: str) -> None:
    """It is given back, which calls who was granted it, and who is next: neither has to ask."""
    sent = Sent()
    async with pymongo.AsyncMongoClient[Any](url, event_listeners=[sent]) as client:
        async with aio.connect(url) as ours, aio.connect(client) as theirs:
            lease = await ours.lock("x", ttl=120).acquire()

            async def take() -> None:
                await (await theirs.lock("x").acquire()).release()

            tasks = [asyncio.create_task(take()) for _ in range(TURNS)]
            with pymongo.MongoClient[Any](url) as plain:
                database = plain.get_default_database()
                ends = time.monotonic() + 60
                while len(queue(database)) < TURNS:
                    assert time.monotonic() < ends
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(hearing, database)
                await asyncio.sleep(SETTLE)
            sent.commands.clear()
            began = time.monotonic()
            await lease.release()
            await asyncio.wait_for(asyncio.gather(*tasks), 60)
            took = time.monotonic() - began
    changes = [
        command["update"][0]["$set"]["ask"]["$literal"] for command in sent.commands if "findAndModify" in command
    ]
    asked = sum("permit" in change for change in changes)
    assert len(changes) - asked == TURNS
    assert asked < TURNS / 4 + TURNS * took  # one that has its turn no sooner than a first term later may ask


@pytest.mark.server
def test_waiters_are_served_also_when_all_calls_get_lost(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The push seems to be up, and is deaf."""
    for module in (mongo_listening, mongo_driver):
        monkeypatch.setattr(module, "callees", lambda call: iter(()))
    with (
        pymongo.MongoClient[Any](url) as plain,
        leasehold.connect(url) as ours,
        leasehold.connect(url) as theirs,
    ):
        ends = time.monotonic() + 30
        leases = [ours.lock(name, ttl=60).acquire() for name in NAMES]
        threads = [threading.Thread(target=lambda name=name: theirs.lock(name).acquire().release()) for name in NAMES]
        for thread in threads:
            thread.start()
        while [len(queue) for queue in attempts(url)] != [1, 1, 1]:
            assert time.monotonic() < ends
            time.sleep(0.01)
        for lease in leases:
            lease.release()
        for thread in threads:
            thread.join(FALLBACK * 6)
            assert not thread.is_alive()
        assert listening(plain.get_default_database())
