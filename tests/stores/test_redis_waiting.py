"""One look at the server for all that wait in a process: how few commands that takes; nothing is overlooked."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot
from redis_tools import scripts_run

import leasehold
from leasehold import aio
from leasehold.core import clock, timing
from leasehold.core.protocol import SECOND, Ask, Busy, Holding, run_steps
from leasehold.core.timing import FALLBACK, STAGGER, WAITER_TTL
from leasehold.stores.common import waiting as redis_waiting
from leasehold.stores.common.waiting import UNDER_WAY, Wake
from leasehold.stores.redis import limits
from leasehold.stores.redis import store as redis_store
from leasehold.stores.redis import waiter as redis_waiter
from leasehold.stores.redis.requests import ScriptCall, round_trip
from leasehold.stores.redis.scripts import ABANDON, ACQUIRE, LOOK_FOR
from leasehold.stores.redis.store import RedisStore
from leasehold.stores.redis.waiter import RELIED, SLOWLY, Waiter
from leasehold.testing.handles import in_time
from servers.proxy import Proxy
from servers.redis import Redis
from servers.redis_ensembles import RedisCluster

NOON = 10**15


def ask_of(attempt: str, name: str = "") -> Ask:
    """For the name that is the attempt's last letter."""
    return Ask(name or attempt[-1], attempt, "me", "lock", None, 30 * SECOND, queue=True)


class Server:
    """Answers a store's requests about names that it makes up, at a time that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.now = 1000.0
        monkeypatch.setattr(clock, "now", lambda: self.now)
        self.store = RedisStore("redis", "", **options)
        self.sent: list[str] = []
        self.woken: list[str] = []
        self.queues: dict[str, list[str]] = {}
        self.expires: dict[str, float] = {}
        self.moves: set[str] = set()
        self.granted: set[str] = set()
        self.error: Exception | None = None
        self.takes = 0.0
        self.soon = 0
        self.came: dict[str, float] = {}
        self.looked_for: list[str] = []

    def handle(self, request: Any) -> Any:
        match request:
            case Wake(attempt):
                return self.woken.append(attempt)
        return self.call(request)

    def call(self, call: ScriptCall) -> Any:
        self.sent.append({ACQUIRE: "ask", LOOK_FOR: "look", ABANDON: "abandon"}[call.script])
        if self.error is not None:
            raise self.error
        self.now += self.takes
        if call.script is ABANDON:
            return 1
        if call.script is ACQUIRE:
            attempt, name = call.args[0].decode(), self.store.name(call.keys[0])
            if attempt in self.granted:
                return [1, 7, self.clock()]
            holder = self.holder(name)
            if self.soon:
                self.came.setdefault(attempt, self.now)
            return [0, self.place(attempt, name), self.clock(), self.soon, holder[6], *holder]
        names = [self.store.name(key) for key in call.keys[::2]]
        reply, args = [], list(call.args)
        for name in names:
            count = int(args.pop(0))
            places = [self.seen(args.pop(0).decode(), name) for _ in range(count)]
            reply.append([self.clock(), int(name in self.moves), places, *self.holder(name)])
        assert not args
        return reply

    def clock(self) -> int:
        return NOON + int(self.now * SECOND)

    def seen(self, attempt: str, name: str) -> int:
        self.looked_for.append(attempt)
        return -2 if self.now - self.came.get(attempt, 0.0) < 0.5 else self.place(attempt, name)

    def place(self, attempt: str, name: str) -> int:
        queue = self.queues.get(name, [])
        return queue.index(attempt) if attempt in queue else -1

    def holder(self, name: str) -> list[Any]:
        left = int((self.expires.get(name, self.now + 30) - self.now) * SECOND)
        return [b"other", b"o", b"lock", b"", 7, SECOND, left, len(self.queues.get(name, []))]

    def ask(self, attempt: str) -> Any:
        """What the engine is told."""
        return run_steps(self.store.acquire(ask_of(attempt)), self.handle)

    def queue(self, *attempts: str) -> None:
        """They wait, each for a name of its own."""
        for attempt in attempts:
            self.queues.setdefault(attempt[-1], []).append(attempt)
            assert isinstance(self.ask(attempt), Busy)
        self.sent.clear()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch)


def due(reply: Busy) -> float:
    """In how many seconds the engine asks again."""
    assert reply.expires_in is not None
    assert reply.place is not None
    return min(FALLBACK if reply.look is None else reply.look, reply.expires_in + STAGGER * reply.place)


def test_one_command_for_all_who_wait(server: Server) -> None:
    server.queue("1a", "2b", "3c")
    server.now += FALLBACK
    assert [due(server.ask(one)) for one in ("1a", "2b", "3c")] == pytest.approx([FALLBACK] * 3)
    assert server.sent == ["look"]
    server.now += FALLBACK
    assert [server.ask(one).place for one in ("3c", "1a", "2b")] == [0, 0, 0]
    assert server.sent == ["look", "look"]
    assert server.woken == []


def test_a_lone_waiter_asks_for_itself(server: Server) -> None:
    server.queue("1a")
    server.now += FALLBACK
    server.ask("1a")
    assert server.sent == ["ask"]


def test_those_who_have_just_come_look_for_the_first_time_together(server: Server) -> None:
    """In a queue that moves slowly each looks once, soon after it has come (LOOK of the scripts)."""
    server.soon = 800_000
    server.queue("1a", "2a")
    server.now += 0.2
    server.queue("3b")
    server.now += 0.6
    assert [due(server.ask(one)) for one in ("1a", "2a")] == pytest.approx([FALLBACK] * 2)
    server.now += 0.2
    assert due(server.ask("3b")) == pytest.approx(FALLBACK - 0.2)
    assert server.sent == ["look"]


def test_who_has_just_come_is_not_put_off_by_the_look_of_another(server: Server) -> None:
    """It is not told that it is next (NEW of the scripts), so what was seen before that is of no use to it."""
    server.queue("1a", "2b")
    server.soon = 800_000
    server.now += FALLBACK - 0.49
    server.queue("3a")
    server.now += 0.49
    server.ask("1a")
    assert server.sent == ["look"]
    server.now += 0.31
    assert due(server.ask("3a")) == pytest.approx(FALLBACK)
    assert server.sent == ["look", "look"]


def test_who_has_just_come_and_is_due_asks_for_itself_after_one_look(server: Server) -> None:
    """Whoever it is that looks: the holder that they know of may have expired."""
    server.soon = 800_000
    server.expires = dict.fromkeys("ab", server.now + 0.2)
    server.queue("1a", "2b")
    server.now += 0.2
    server.ask("1a")
    server.ask("2b")
    assert server.sent == ["look", "ask", "ask"]


def test_who_has_just_come_does_not_rely_on_the_look_of_another(server: Server) -> None:
    """It may be next behind one that has died, and nobody has told it who holds the name."""
    server.queue("1a", "2b")
    server.soon = 800_000
    server.queue("3c")
    server.now += 0.8
    look = server.store.waiters.begin_look()
    assert look is not None
    server.ask("3c")
    assert server.sent == ["ask"]
    look.release()


def test_whoever_comes_later_is_due_with_the_others(server: Server) -> None:
    """Nobody's last look is ever older than the engine wants it."""
    server.queue("1a", "2b")
    server.now += FALLBACK - 1
    server.queue("3c")
    server.now += 1
    server.ask("1a")
    server.now += FALLBACK - 1
    assert due(server.ask("3c")) == pytest.approx(1)
    assert server.sent == ["look"]


def test_whoever_is_called_asks_for_itself(server: Server) -> None:
    server.queue("1a", "2b")
    server.now += FALLBACK
    server.ask("1a")
    server.store.waiters.ring("2b")
    server.ask("2b")
    assert server.sent == ["look", "ask"]


def test_a_call_during_a_look_is_not_lost(server: Server) -> None:
    server.queue("1a", "2b")
    server.now += FALLBACK
    steps = server.store.acquire(ask_of("1a"))
    request = next(steps)
    answer = server.handle(request)
    server.store.waiters.ring("2b")
    assert steps.send(answer) == Wake("2b")
    server.sent.clear()
    server.ask("2b")
    assert server.sent == ["ask"]


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
    server.ask("2b")
    assert server.sent == ["look", "ask"]


def test_the_looker_itself_asks_when_it_is_no_longer_in_the_queue(server: Server) -> None:
    server.queue("1a", "2b")
    server.queues["a"] = []
    server.now += FALLBACK
    server.ask("1a")
    assert server.sent == ["look", "ask"]
    assert server.woken == []


def test_a_holder_that_may_have_expired_is_looked_at(server: Server) -> None:
    """It has renewed: one look tells that to all who wait."""
    server.expires = dict.fromkeys("ab", server.now + 3)
    server.queue("1a", "2b")
    server.now += 3
    server.expires = dict.fromkeys("ab", server.now + 2)
    assert due(server.ask("1a")) == pytest.approx(2)
    assert due(server.ask("2b")) == pytest.approx(2)
    assert server.sent == ["look"]


def test_each_looks_at_the_expiry_that_it_knows(server: Server) -> None:
    """A look for all postpones nobody's."""
    server.expires = {"a": server.now + 60, "b": server.now + 5.3}
    server.queue("1a", "2b")
    server.now += FALLBACK
    server.ask("1a")
    assert due(server.ask("2b")) == pytest.approx(0.3, abs=1e-5)


def test_a_holder_that_has_expired_is_asked_about_by_who_is_next(server: Server) -> None:
    """Also at the look of another. Who is not next has its own time for that: no herd."""
    server.expires["a"] = server.now + 3
    server.queue("1a", "2a", "3b", "4b")
    server.moves = {"a", "b"}
    server.now += 3
    server.ask("1a")
    assert server.sent == ["look", "ask"]
    assert server.woken == ["3b"]
    server.ask("3b")
    server.now += STAGGER
    server.ask("2a")
    assert server.sent == ["look", "ask", "ask", "look", "ask"]


def test_a_holder_that_expires_sooner_than_was_known_wakes_who_waits(server: Server) -> None:
    server.queue("1a", "2b")
    server.now += 2
    server.queue("3c")
    server.now += FALLBACK - 2
    server.expires = {"a": server.now + 1, "b": server.now + 1, "c": server.now + 1}
    assert due(server.ask("1a")) == pytest.approx(1)
    assert server.woken == ["3c"]  # the others ask anyway
    assert due(server.ask("3c")) == pytest.approx(1)
    assert server.sent == ["look"]


def test_a_name_that_many_wait_for_is_looked_at_once(server: Server) -> None:
    attempts = [f"{number}a" for number in range(5)]
    server.queue(*attempts)
    server.now += FALLBACK
    assert [server.ask(one).place for one in attempts] == list(range(5))
    assert server.sent == ["look"]


def test_a_crowd_is_looked_for_in_parts(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_store, "_AT_ONCE", 2)
    attempts = ["1a", "2b", "3a", "4c", "5a"]
    server.queue(*attempts)
    server.now += FALLBACK
    assert [server.ask(one).place for one in attempts] == [0, 0, 1, 0, 2]
    assert server.sent == ["look"] * 3


def test_a_look_is_for_those_who_are_due_first(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has time is looked for as far as that takes no further script."""
    monkeypatch.setattr(redis_store, "_AT_ONCE", 2)
    for attempt in ("1c", "2b", "3b", "4a"):
        server.queue(attempt)
        server.now += UNDER_WAY + 0.1
    server.now += FALLBACK - 4 * (UNDER_WAY + 0.1)
    assert due(server.ask("1c")) == pytest.approx(FALLBACK)
    assert server.looked_for == ["1c", "2b"]
    server.now += UNDER_WAY + 0.1
    assert due(server.ask("2b")) == pytest.approx(FALLBACK - UNDER_WAY - 0.1)
    server.now += UNDER_WAY + 0.1
    assert due(server.ask("3b")) == pytest.approx(FALLBACK)
    assert server.looked_for == ["1c", "2b", "3b", "4a"]
    assert server.sent == ["look", "look"]
    assert server.woken == []


def test_nobody_relies_on_a_look_that_is_not_for_it(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_store, "_AT_ONCE", 1)
    server.queue("1a")
    server.now += UNDER_WAY - 0.1
    server.queue("2b")
    server.now += 0.2
    server.queue("3c")
    server.now += FALLBACK - UNDER_WAY - 0.1
    steps = server.store.acquire(ask_of("1a"))
    first = next(steps)
    server.now += UNDER_WAY - 0.1
    assert server.ask("2b").look == pytest.approx(0.1)
    assert server.sent == []
    server.now += 0.2
    server.ask("3c")
    assert server.sent == ["ask"]
    second = steps.send(server.handle(first))
    with pytest.raises(StopIteration):
        steps.send(server.handle(second))
    assert server.looked_for == ["1a", "2b"]
    assert due(server.ask("2b")) == pytest.approx(FALLBACK)
    assert server.sent == ["ask", "look", "look"]


def test_in_a_long_queue_that_moves_looks_are_for_those_who_have_come(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has just come looks soon. If that were for all each time, it would be a look for each of them."""
    monkeypatch.setattr(redis_store, "_AT_ONCE", 10)
    times: dict[str, float] = {}

    def ask(attempt: str) -> None:
        times[attempt] = server.now + due(server.ask(attempt))

    def come(number: int) -> None:
        server.queues.setdefault("a", []).append(f"{number}a")
        ask(f"{number}a")

    def move(until: float) -> None:
        while min(times.values()) <= until:
            attempt = min(times, key=lambda each: times[each])
            server.now = max(server.now, times[attempt])
            ask(attempt)
        server.now = until

    server.soon = 800_000
    for number in range(100):
        come(number)
    move(server.now + 2 * FALLBACK)
    server.sent.clear()
    for number in range(100, 200):
        move(server.now + 0.1)
        come(number)
        granted = server.queues["a"].pop(0)
        del server.store.waiters[granted], times[granted]
    assert server.sent.count("ask") == 100
    assert server.sent.count("look") <= 50
    assert all(server.now <= each <= server.now + FALLBACK for each in times.values())


def test_in_a_cluster_one_look_is_for_one_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that is away holds up nobody who waits for a name of another."""
    server = Server(monkeypatch, clustered=True)
    server.queue("1a", "2a", "3b", "4b")
    server.now += FALLBACK
    steps = server.store.acquire(ask_of("1a"))
    assert next(steps).script is LOOK_FOR
    assert [server.ask(one).place for one in ("3b", "4b")] == [0, 1]
    assert server.sent == ["look"]


def test_a_look_is_confirmed_like_all_else(server: Server) -> None:
    server.queue("1a", "2b")
    server.now += FALLBACK
    look = next(server.store.acquire(ask_of("1a")))
    assert look.script is LOOK_FOR
    assert round_trip((look,), server.now + 5, replicas=1).commands[-1][:2] == (b"WAIT", b"1")


def test_in_a_forked_child_nobody_waits_and_nobody_looks(server: Server) -> None:
    server.queue("1a", "2b")
    waiters = server.store.waiters
    assert waiters.begin_look()
    waiters.reset()
    assert not waiters
    assert waiters.look_began() is None
    assert waiters.begin_look()


def test_a_look_that_fails_is_told_and_made_again(server: Server) -> None:
    """By all who were told when they have been answered, each by itself."""
    server.queue("1a", "2b")
    server.now += FALLBACK
    server.error = leasehold.StoreUnavailable("away")
    for attempt in ("1a", "2b", "1a"):
        with pytest.raises(leasehold.StoreUnavailable):
            server.ask(attempt)
    server.error = None
    server.sent.clear()
    server.ask("1a")
    server.ask("2b")
    assert server.sent == ["ask", "ask"]
    server.now += FALLBACK
    server.ask("1a")
    server.ask("2b")
    assert server.sent == ["ask", "ask", "look"]


@pytest.mark.parametrize("failed", ["look", "ask"])
def test_who_was_not_answered_does_not_take_what_it_knew_for_an_answer(server: Server, failed: str) -> None:
    """Or how long the server is away would never be known."""
    server.queue("1a", "2b")
    server.now += FALLBACK if failed == "look" else FALLBACK - 0.01
    server.error = leasehold.StoreUnavailable("away")
    with pytest.raises(leasehold.StoreUnavailable):
        server.ask("1a")
    assert server.sent == [failed]
    server.now += 0.01
    look = server.store.waiters.begin_look()
    assert look is not None
    with pytest.raises(leasehold.StoreUnavailable):
        server.ask("1a")
    assert server.sent == [failed, "ask"]
    assert isinstance(server.ask("2b"), Busy)
    look.release()


def test_a_look_that_is_under_way_is_waited_for_but_not_for_long(server: Server) -> None:
    server.queue("1a", "2b")
    server.now += FALLBACK
    look = server.store.waiters.begin_look()
    assert look is not None
    server.now += 0.25
    assert server.ask("2b").look == UNDER_WAY - 0.25
    assert server.sent == []
    server.now += UNDER_WAY - 0.25
    server.ask("2b")
    assert server.sent == ["ask"]
    look.release()


def test_nor_until_it_is_too_late_to_replace_a_dead_holder(server: Server) -> None:
    server.expires = dict.fromkeys("abc", server.now + 3)
    server.expires["c"] += 0.5
    server.queue("1a", "2b", "3c")
    server.now += 3
    look = server.store.waiters.begin_look()
    assert look is not None
    known = server.ask("2b")
    assert (known.look, known.expires_in) == (pytest.approx(RELIED), None)
    server.now += RELIED
    server.ask("2b")
    assert server.sent == ["ask"]
    server.now += 0.5 - RELIED
    assert server.ask("3c") is not None
    assert server.sent == ["ask", "ask"]  # it has waited for the look for long enough when its time comes
    look.release()


def test_a_look_tells_those_who_wait_for_it_when_it_is_over(server: Server) -> None:
    server.expires = dict.fromkeys("ab", server.now + 3)
    server.queue("1a", "2b")
    server.now += 3
    steps = server.store.acquire(ask_of("1a"))
    request = next(steps)
    assert server.ask("2b").look == pytest.approx(RELIED)
    server.expires["b"] = server.now + 0.03
    assert steps.send(server.handle(request)) == Wake("2b")
    assert due(server.ask("2b")) == pytest.approx(0.03, abs=1e-5)


def test_a_look_that_ends_while_one_decides_to_wait_for_it_is_not_waited_for(server: Server) -> None:
    """That is between any two lines, in threads."""
    server.queue("1a", "2b")
    server.now += FALLBACK
    waiters = server.store.waiters
    look = waiters.begin_look()
    assert look is not None
    relied = Waiter.rely

    def rely(waiter: Waiter, began: float) -> Busy | None:
        look.release()
        return relied(waiter, began)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Waiter, "rely", rely)
        assert due(server.ask("2b")) == pytest.approx(FALLBACK)
    assert server.sent == ["look"]


def test_a_look_that_was_interrupted_before_it_was_known_when_it_began(server: Server) -> None:
    """By Ctrl-C, say, right after it has taken the lock. Then each asks for itself."""
    server.queue("1a", "2b")
    server.now += FALLBACK
    waiters = server.store.waiters
    assert waiters.begin_look()
    waiters._began.clear()
    asking = threading.Thread(target=server.ask, args=("2b",), daemon=True)
    asking.start()
    asking.join(30)
    assert server.sent == ["ask"]


def test_who_has_lost_its_place_and_joined_anew_is_new_again(server: Server) -> None:
    server.queue("1a", "2b")
    server.now += FALLBACK - 0.1
    server.soon = 800_000
    assert server.ask("1a").look == 0.8
    server.now += 0.1
    server.ask("2b")
    assert server.sent == ["ask", "look"]
    assert server.store.waiters["1a"].until() == pytest.approx(server.now + 0.7)


def test_who_was_granted_or_has_left_is_forgotten(server: Server) -> None:
    server.queue("1a", "2b")
    assert run_steps(server.store.abandon("a", "1a"), server.handle)
    assert set(server.store.waiters) == {"2b"}


def test_one_that_has_left_meanwhile_is_not_woken(server: Server) -> None:
    server.queue("1a", "2b", "3c")
    server.queues["b"] = []
    server.now += FALLBACK
    steps = server.store.acquire(ask_of("1a"))
    answer = server.handle(next(steps))
    del server.store.waiters["2b"]
    with pytest.raises(StopIteration):
        steps.send(answer)


def test_what_is_told_goes_with_the_time(server: Server) -> None:
    holder = Holding("x", "other", "o", "lock", None, 7, age=10.0, expires_in=8.0)
    waiter = Waiter(ask_of("1x"), 0, Busy(holder, 0, 8.0, now=5 * SECOND), server.now)
    server.now += 2
    known = waiter.answer()
    assert known is not None
    assert known.holder == holder._replace(age=12.0, expires_in=6.0)
    assert known.now == 7 * SECOND + 1  # rounded up: a grant must not be taken for younger than it is
    assert (known.expires_in, known.look) == (6.0, FALLBACK - 2)


def test_a_slow_answer_is_reckoned_from_early_on(server: Server) -> None:
    """Whether it came late or was late on its way is not known."""
    server.takes = 1.0
    server.queue("1a")
    waiter = server.store.waiters["1a"]
    assert waiter.until() == pytest.approx(server.now - 1 + SLOWLY + FALLBACK)
    server.now += 1
    known = waiter.answer()
    assert known is not None
    assert known.now is not None
    assert known.now >= server.clock()


# On servers.


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """No listener gives up a server that is slow to answer: whoever waits would ask again."""
    monkeypatch.setattr(limits, "HEARTBEAT", 600.0)


@pytest.fixture
def client(redis_server: Any) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(redis_server.url)
    client.flushall()
    yield client
    client.flushall()  # what is not leasehold's would be in the way of others
    client.close()


def eventually(true: Callable[[], object], within: float = 60.0) -> None:
    ends = time.monotonic() + within
    while not true():
        assert time.monotonic() < ends, "not so in time"
        time.sleep(0.01)


async def soon(true: Callable[[], object], within: float = 60.0) -> None:
    ends = time.monotonic() + within
    while not true():
        assert time.monotonic() < ends, "not so in time"
        await asyncio.sleep(0.01)


def all_known(locks: Any, count: int) -> bool:
    """They wait, and are called when it is their turn. None of them is new, or about to ask since the listener has come
    up."""
    waiters = list(locks._core.store.waiters.values())
    known = [waiter for waiter in waiters if not waiter.rung and waiter._known[0].look is None]
    return locks._core.driver.listener.up and len(known) == len(waiters) == count


@contextmanager
def listening(target: Any) -> Iterator[leasehold.Locks]:
    """Its listener is up before anybody waits: it has all who wait ask again when it comes up, at any time after."""
    with leasehold.connect(target) as locks:
        driver: Any = locks._core.driver
        driver.listen("", None)
        eventually(lambda: driver.listener.up)
        yield locks


def often(monkeypatch: pytest.MonkeyPatch, seconds: float = 1.0) -> None:
    """Looks come so often."""
    monkeypatch.setattr(timing, "FALLBACK", seconds)
    monkeypatch.setattr(redis_waiter, "FALLBACK", seconds)


def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks by itself: the test does. A place in the queue lasts long enough for that."""
    often(monkeypatch, 600.0)


def rely_on_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when one takes long, on a machine that is busy: who waits for it does not ask for itself."""
    monkeypatch.setattr(redis_waiting, "UNDER_WAY", 60.0)


class Waiting:
    """Threads that wait for a lease, and give it back."""

    def __init__(self, locks: leasehold.Locks, names: Sequence[str]) -> None:
        self.served: list[str] = []
        self._threads = [threading.Thread(target=self._wait, args=(locks, name)) for name in names]
        for thread in self._threads:
            thread.start()

    def _wait(self, locks: leasehold.Locks, name: str) -> None:
        with locks.lock(name).acquire():
            self.served.append(name)

    def end(self, within: float = 60.0) -> None:
        ends = time.monotonic() + within
        for thread in self._threads:
            thread.join(max(0.0, ends - time.monotonic()))
            assert not thread.is_alive()


NAMES = ["a"] * 6 + ["b", "b", "c", "d"]
PERIODS = 4


def check_idle(sent: int, periods: float) -> None:
    """Each by itself would have sent one command per period."""
    assert sent <= len(NAMES) * periods / 2


def test_many_idle_threads_send_as_little_as_one(start_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a server of their own: what others may have left is not counted."""
    often(monkeypatch)
    rely_on_looks(monkeypatch)
    server = start_server(Redis)
    with (
        redis.Redis(port=server.port) as client,
        leasehold.connect(server.url) as ours,
        listening(server.url) as theirs,
    ):
        leases = [ours.lock(name, ttl=600, renew=False).acquire() for name in "abcd"]
        waiting = Waiting(theirs, NAMES)
        eventually(lambda: all_known(theirs, len(NAMES)))
        began, before = time.monotonic(), scripts_run(client)
        time.sleep(PERIODS)
        sent = scripts_run(client) - before
        check_idle(sent, time.monotonic() - began)
        for lease in leases:
            lease.release()
        waiting.end()
        assert sorted(waiting.served) == NAMES
        assert not theirs._core.store.waiters  # type: ignore[attr-defined]


async def wait_in_task(locks: aio.Locks, name: str) -> None:
    async with locks.lock(name):
        pass


async def wait_in_tasks(locks: aio.Locks) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(wait_in_task(locks, name)) for name in NAMES]
    await soon(lambda: all_known(locks, len(NAMES)))
    return tasks


async def test_many_idle_tasks_send_as_little_as_one(start_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    often(monkeypatch)
    rely_on_looks(monkeypatch)
    server = start_server(Redis)
    with redis.Redis(port=server.port) as client:
        async with aio.connect(server.url) as ours, aio.connect(server.url) as theirs:
            leases = [await ours.lock(name, ttl=600, renew=False).acquire() for name in "abcd"]
            tasks = await wait_in_tasks(theirs)
            began, before = time.monotonic(), scripts_run(client)
            await asyncio.sleep(PERIODS)
            sent = scripts_run(client) - before
            check_idle(sent, time.monotonic() - began)
            for lease in leases:
                await lease.release()
            await asyncio.wait_for(asyncio.gather(*tasks), 60)
            assert not theirs._core.store.waiters  # type: ignore[attr-defined]


@pytest.mark.parametrize("side", ["threads", "tasks"])
def test_in_a_cluster_they_send_one_look_per_slot(
    redis_cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    often(monkeypatch)
    rely_on_looks(monkeypatch)
    nodes = [redis.Redis(port=member.port) for member in redis_cluster.members]
    for node in nodes:
        node.flushall()
    url = redis_cluster.url

    async def in_tasks() -> tuple[int, float]:
        async with aio.connect(url) as theirs:
            tasks = await wait_in_tasks(theirs)
            began, before = time.monotonic(), scripts_run(*nodes)
            await asyncio.sleep(PERIODS)
            sent = scripts_run(*nodes) - before, time.monotonic() - began
            await asyncio.to_thread(give_back)
            await asyncio.wait_for(asyncio.gather(*tasks), 60)
            return sent

    def in_threads() -> tuple[int, float]:
        with listening(url) as theirs:
            waiting = Waiting(theirs, NAMES)
            eventually(lambda: all_known(theirs, len(NAMES)))
            began, before = time.monotonic(), scripts_run(*nodes)
            time.sleep(PERIODS)
            sent = scripts_run(*nodes) - before, time.monotonic() - began
            give_back()
            waiting.end()
            return sent

    def give_back() -> None:
        for lease in leases:
            lease.release()

    with leasehold.connect(url) as ours:
        leases = [ours.lock(name, ttl=600, renew=False).acquire() for name in "abcd"]
        sent, seconds = asyncio.run(in_tasks()) if side == "tasks" else in_threads()
    # In slots "a" and "b" one of several looks for all; those of the others are alone.
    assert sent <= 4 * (seconds + 1) + len(NAMES)
    for node in nodes:
        node.close()


class SlotOnItsWay:
    """The slot of a name goes from one node of a cluster to another, which has no scripts yet."""

    def __init__(self, cluster: RedisCluster, name: str) -> None:
        self._nodes = [redis.Redis(port=member.port, decode_responses=True) for member in cluster.members]
        self._slot = key_slot(f"leasehold:{{:{name}}}".encode())
        self._source = next(place for place, node in enumerate(self._nodes) if self._count(node))
        self._target = (self._source + 1) % len(self._nodes)
        self._ids = [node.execute_command("CLUSTER", "MYID") for node in self._nodes]
        source, target = self._nodes[self._source], self._nodes[self._target]
        target.script_flush()
        self._set(target, "IMPORTING", self._source)
        self._set(source, "MIGRATING", self._target)
        keys = source.execute_command("CLUSTER", "GETKEYSINSLOT", self._slot, 10)
        port = cluster.members[self._target].port
        source.execute_command("MIGRATE", "127.0.0.1", port, "", 0, 5000, "KEYS", *keys)

    def _count(self, node: Any) -> int:
        return int(node.execute_command("CLUSTER", "COUNTKEYSINSLOT", self._slot))

    def _set(self, node: Any, state: str, other: int) -> None:
        node.execute_command("CLUSTER", "SETSLOT", self._slot, state, self._ids[other])

    def arrive(self) -> None:
        for node in (self._nodes[self._target], *self._nodes):
            self._set(node, "NODE", self._target)
        for node in self._nodes:
            node.close()


def test_a_slot_that_is_on_its_way_is_looked_at_where_it_goes(
    start_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    never(monkeypatch)
    cluster = start_server(RedisCluster)

    async def in_tasks(name: str, lease: leasehold.Lease) -> Any:
        async with aio.connect(cluster.url) as theirs:
            tasks = [asyncio.create_task(wait_in_task(theirs, name)) for _ in range(2)]
            await soon(lambda: all_known(theirs, 2))
            store: Any = theirs._core.store
            moving = await asyncio.to_thread(SlotOnItsWay, cluster, name)
            steps = store.acquire(make_due(store, next(iter(store.waiters))))
            reply = await theirs._core.driver.run(steps, 30.0)
            await asyncio.to_thread(moving.arrive)
            await asyncio.to_thread(lease.release)
            await asyncio.wait_for(asyncio.gather(*tasks), 60)
            return reply

    def in_threads(name: str, lease: leasehold.Lease) -> Any:
        with listening(cluster.url) as theirs:
            waiting = Waiting(theirs, [name, name])
            eventually(lambda: all_known(theirs, 2))
            moving = SlotOnItsWay(cluster, name)
            reply = run_look(theirs, next(iter(theirs._core.store.waiters)))  # type: ignore[attr-defined]
            moving.arrive()
            lease.release()
            waiting.end()
            assert waiting.served == [name, name]
            return reply

    with leasehold.connect(cluster.url) as ours:
        leases = [ours.lock(name, ttl=600, renew=False).acquire() for name in "ab"]
        for reply in in_threads("a", leases[0]), asyncio.run(in_tasks("b", leases[1])):
            assert isinstance(reply, Busy)
            assert reply.look is not None  # it did not ask for itself


@pytest.mark.slow
def test_an_idle_waiter_costs_less_than_a_command_in_five_seconds(redis_server: Any, client: redis.Redis) -> None:
    """By the clock that users have, with all that their process sends."""
    with leasehold.connect(redis_server.url) as ours, listening(redis_server.url) as theirs:
        leases = [ours.lock(name, ttl=600, renew=False).acquire() for name in "abcd"]
        waiting = Waiting(theirs, NAMES)
        eventually(lambda: all_known(theirs, len(NAMES)))
        began, before = time.monotonic(), scripts_run(client)
        places = client.zrange("leasehold:{:a}:queue", 0, -1)
        time.sleep(4 * FALLBACK + 1)
        sent, seconds = scripts_run(client) - before, time.monotonic() - began
        assert client.zrange("leasehold:{:a}:queue", 0, -1) == places  # a place lasts 15 s without a sign of life
        for lease in leases:
            lease.release()
        waiting.end()
    assert sent <= 2 * (seconds / FALLBACK + 1)
    assert (sent + seconds / 2.5) / seconds / len(NAMES) <= 0.2, sent


def test_places_are_kept_by_the_looks_of_one(
    redis_server: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks refreshes the sign of life of all."""
    never(monkeypatch)
    with leasehold.connect(redis_server.url) as ours, listening(redis_server.url) as theirs:
        lease = ours.lock("a", ttl=600).acquire()
        waiting = Waiting(theirs, "aaa")
        eventually(lambda: all_known(theirs, 3))
        store = theirs._core.store
        assert isinstance(store, RedisStore)
        attempts = [attempt.decode() for attempt in client.zrange("leasehold:{:a}:queue", 0, -1)]
        age(client, attempts)
        run_look(theirs, attempts[1])
        assert [left(client, attempt) for attempt in attempts] == pytest.approx([WAITER_TTL] * 3, abs=5.0)
        lease.release()
        waiting.end()


AGE = """
local waiter = cmsgpack.unpack(redis.call('HGET', KEYS[1], ARGV[1]))
waiter[9] = waiter[9] - ARGV[2] * 1000000
redis.call('HSET', KEYS[1], ARGV[1], cmsgpack.pack(waiter))
"""
LEFT = """
local clock = redis.call('TIME')
return cmsgpack.unpack(redis.call('HGET', KEYS[1], ARGV[1]))[9] - clock[1] * 1000000 - clock[2]
"""


def age(client: redis.Redis, attempts: Sequence[str], seconds: float = 8.0) -> None:
    for attempt in attempts:
        client.eval(AGE, 1, "leasehold:{:a}", f"w{attempt}", str(seconds))


def left(client: redis.Redis, attempt: str) -> float:
    return int(client.eval(LEFT, 1, "leasehold:{:a}", f"w{attempt}")) / SECOND  # type: ignore[arg-type]


def make_due(store: Any, attempt: str) -> Ask:
    """What it is told was seen long ago."""
    waiter = store.waiters[attempt]
    reply, sent, heard = waiter._known
    ago = redis_waiter.FALLBACK + 60
    waiter._known, waiter.due = (reply, sent - ago, heard - ago), 0.0
    ask: Ask = waiter.ask
    return ask


def run_look(locks: leasehold.Locks, attempt: str) -> Any:
    core = locks._core
    return core.driver.run(core.store.acquire(make_due(core.store, attempt)), 30.0)


@pytest.mark.parametrize("lost", ["queue", "everything"])
def test_a_place_that_was_lost_is_had_anew(
    redis_server: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    often(monkeypatch)
    with leasehold.connect(redis_server.url) as ours, listening(redis_server.url) as theirs:
        lease = ours.lock("a", ttl=600).acquire()
        waiting = Waiting(theirs, "aaaa")
        eventually(lambda: all_known(theirs, 4))
        if lost == "queue":
            client.delete("leasehold:{:a}:queue")
            eventually(lambda: client.zcard("leasehold:{:a}:queue") == 4)
            lease.release()
        else:
            client.flushall()
        waiting.end()
        assert len(waiting.served) == 4


def test_a_dead_holder_is_replaced_in_time(redis_server: Any, client: redis.Redis) -> None:
    """A waiter that gets no time from the machine is late all the same: then once more."""
    ttl = 1.0
    in_time(lambda: until_replaced(redis_server.url, ttl), ttl + 0.25)


def until_replaced(url: str, ttl: float) -> float:
    """Seconds from the death of a holder until one of several that wait in another process has its lease; of one that
    stood still and lost it before that says nothing."""
    code = f"import leasehold, time; l = leasehold.connect({url!r}).lock('a', ttl={ttl}).acquire(); " \
        "print('held', flush=True); time.sleep(120)"  # fmt: skip
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    taken: list[float] = []

    def wait() -> None:
        with theirs.lock("a").acquire():
            taken.append(time.monotonic())

    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with leasehold.connect(url) as ours, listening(url) as theirs:
            other = ours.lock("b", ttl=600).acquire()
            waiting = Waiting(theirs, "bb")
            threads = [threading.Thread(target=wait) for _ in range(4)]
            for thread in threads:
                thread.start()
            eventually(lambda: taken or all_known(theirs, 6))
            time.sleep(1.5 * ttl)  # by now one has looked for all
            holder.kill()
            killed = time.monotonic()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive()
            other.release()
            waiting.end()
        return min(taken) - killed if min(taken) > killed else float("inf")
    finally:
        holder.kill()
        holder.wait()
        if holder.stdout is not None:
            holder.stdout.close()


@contextmanager
def paused(server: Redis) -> Iterator[None]:
    server.pause()
    try:
        yield
    finally:
        server.resume()


@pytest.mark.parametrize("side", ["threads", "tasks"])
def test_a_look_that_is_not_answered_holds_up_nobody(
    start_server: Any, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    """Not even while its error is kept."""
    never(monkeypatch)
    server = start_server(Redis)
    with leasehold.connect(server.url) as ours:
        lease = ours.lock("a", ttl=600).acquire()
        if side == "threads":
            with listening(server.url) as theirs:
                waiting = Waiting(theirs, "aaa")
                eventually(lambda: all_known(theirs, 3))
                store: Any = theirs._core.store
                ask = make_due(store, next(iter(store.waiters)))
                with paused(server), pytest.raises(leasehold.StoreUnavailable) as caught:
                    theirs._core.driver.run(store.acquire(ask), 0.3)
                assert caught.value is not None
                assert store.waiters.look_began() is None
                lease.release()
                waiting.end()
            return

        async def scenario() -> None:
            async with aio.connect(server.url) as theirs:
                tasks = [asyncio.create_task(wait_in_task(theirs, "a")) for _ in range(3)]
                await soon(lambda: all_known(theirs, 3))
                store: Any = theirs._core.store
                ask = make_due(store, next(iter(store.waiters)))
                with paused(server):
                    with pytest.raises(leasehold.StoreUnavailable) as caught:
                        await theirs._core.driver.run(store.acquire(ask), 0.3)
                    assert caught.value is not None
                    assert store.waiters.look_began() is None
                    other = next(attempt for attempt, waiter in store.waiters.items() if not waiter.rung)
                    steps = store.acquire(make_due(store, other))
                    looker = asyncio.create_task(theirs._core.driver.run(steps, 60))
                    await soon(lambda: store.waiters.look_began() is not None)
                    looker.cancel()
                    await asyncio.wait({looker})
                    assert store.waiters.look_began() is None
                await asyncio.to_thread(lease.release)
                await asyncio.wait_for(asyncio.gather(*tasks), 60)

        asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("side", ["threads", "tasks"])
def test_each_who_waits_is_told_once_that_the_store_is_away(
    start_server: Any, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    """And ends when it has been for long enough, whoever looks for all meanwhile."""
    often(monkeypatch)
    master = start_server(Redis, "--repl-diskless-sync-delay", "0")
    replica = start_server(Redis, "--replicaof", "127.0.0.1", str(master.port))
    with redis.Redis(port=master.port) as client:
        eventually(lambda: client.info("replication").get("slave0", {}).get("state") == "online")
    url = f"{master.url}?replicas=1"
    told: list[str] = []
    failed: list[str] = []

    def tell(event: leasehold.Event) -> None:
        if event.type == "unavailable":
            told.append(event.name)

    def away() -> None:
        monkeypatch.setattr(timing, "UNAVAILABLE_LIMIT", 6.0)
        replica.pause()

    async def in_tasks() -> None:
        async def wait(name: str) -> None:
            try:
                await theirs.lock(name).acquire()
            except leasehold.StoreUnavailable:
                failed.append(name)

        async with aio.connect(url) as theirs:
            theirs.on_event(tell)
            tasks = [asyncio.create_task(wait(name)) for name in NAMES]
            await soon(lambda: all_known(theirs, len(NAMES)))
            away()
            await asyncio.wait_for(asyncio.gather(*tasks), 100)

    def in_threads() -> None:
        def wait(name: str) -> None:
            try:
                theirs.lock(name).acquire()
            except leasehold.StoreUnavailable:
                failed.append(name)

        with listening(url) as theirs:
            theirs.on_event(tell)
            threads = [threading.Thread(target=wait, args=(name,), daemon=True) for name in NAMES]
            for thread in threads:
                thread.start()
            eventually(lambda: all_known(theirs, len(NAMES)))
            away()
            for thread in threads:
                thread.join(100)

    with leasehold.connect(master.url) as ours:
        leases = [ours.lock(name, ttl=600, renew=False).acquire() for name in "abcd"]
        asyncio.run(in_tasks()) if side == "tasks" else in_threads()
        eventually(lambda: len(told) >= len(NAMES))
        assert sorted(told) == sorted(failed) == NAMES
        for lease in leases:
            lease.release()


def test_an_answer_that_is_lost_costs_nobody_its_turn(
    redis_server: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    often(monkeypatch)
    with Proxy(redis_server.port) as proxy, leasehold.connect(redis_server.url) as ours:
        lease = ours.lock("a", ttl=600).acquire()
        with listening(f"redis://127.0.0.1:{proxy.port}") as theirs:
            waiting = Waiting(theirs, "aaaaa")
            eventually(lambda: all_known(theirs, 5))
            store: Any = theirs._core.store
            before = list(store.waiters)
            proxy.only("to_server")
            eventually(lambda: store.waiters.look_began() is not None)
            proxy.reset()
            proxy.all_well()
            eventually(lambda: store.waiters.look_began() is None)
            assert set(before) == {one.decode() for one in client.zrange("leasehold:{:a}:queue", 0, -1)}
            lease.release()
            waiting.end()


def test_something_else_in_the_way_of_one_name_is_told_to_who_waits_for_it_alone(
    redis_server: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    often(monkeypatch)
    failed: list[str] = []

    def wait(name: str) -> None:
        try:
            with theirs.lock(name).acquire():
                pass
        except leasehold.StoreError:
            failed.append(name)

    with leasehold.connect(redis_server.url) as ours, listening(redis_server.url) as theirs:
        leases = [ours.lock(name, ttl=600, renew=False).acquire() for name in "abcd"]
        threads = [threading.Thread(target=wait, args=(name,)) for name in "aabbccdd"]
        for thread in threads:
            thread.start()
        eventually(lambda: all_known(theirs, 8))
        client.set("leasehold:{:b}", "a text")
        client.hset("leasehold:{:c}", "f", "2")
        client.hset("leasehold:{:d}", "h", b"\xc1")  # nothing in msgpack
        eventually(lambda: sorted(failed) == ["b", "b", "c", "c", "d", "d"])
        leases[0].release()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        client.delete("leasehold:{:b}", "leasehold:{:c}", "leasehold:{:d}")  # what is to be given back can be
    assert sorted(failed) == ["b", "b", "c", "c", "d", "d"]


def test_waiters_are_served_also_when_all_calls_get_lost(
    redis_server: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The push seems to be up, and is deaf."""
    often(monkeypatch)
    with leasehold.connect(redis_server.url) as ours, listening(redis_server.url) as theirs:
        driver: Any = theirs._core.driver
        lease = ours.lock("a", ttl=600).acquire()
        waiting = Waiting(theirs, "aaa")
        eventually(lambda: all_known(theirs, 3))
        driver.listener.hear = lambda payload: False
        lease.release()
        waiting.end()
        assert driver.listener.up


def test_decoded_replies_are_understood(
    redis_server: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a client of the user's own, in both protocols."""
    never(monkeypatch)
    for protocol in (2, 3):
        given = redis.Redis.from_url(redis_server.url, decode_responses=True, protocol=protocol)
        with leasehold.connect(redis_server.url) as ours, listening(given) as theirs:
            lease = ours.lock("a", ttl=600).acquire()
            waiting = Waiting(theirs, "aa")
            eventually(lambda: all_known(theirs, 2))
            store: Any = theirs._core.store
            client.script_flush()
            reply = run_look(theirs, next(iter(store.waiters)))
            assert isinstance(reply, Busy)
            assert reply.look is not None  # it did not ask for itself
            assert reply.holder is not None
            assert (reply.holder.name, reply.holder.token, reply.holder.owner) == ("a", lease.token, lease.owner)
            lease.release()
            waiting.end()
        given.close()


def test_semaphores_are_looked_at_too(redis_server: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for who is light, and a heavy one that waits before all others."""
    never(monkeypatch)
    with leasehold.connect(redis_server.url) as ours, listening(redis_server.url) as theirs:
        reader = ours.rwlock("a", ttl=600).read().acquire()
        writer = threading.Thread(target=lambda: theirs.rwlock("a").write().acquire().release())
        writer.start()
        eventually(lambda: all_known(theirs, 1))
        second = threading.Thread(target=lambda: theirs.rwlock("a").read().acquire().release())
        second.start()
        eventually(lambda: all_known(theirs, 2))
        attempts = [attempt.decode() for attempt in client.zrange("leasehold:{:a}:queue", 0, -1)]
        replies = [run_look(theirs, attempt) for attempt in reversed(attempts)]
        assert [reply.place for reply in replies] == [1, 0]
        assert None not in [reply.look for reply in replies]  # nobody had to ask for itself
        reader.release()
        for thread in (writer, second):
            thread.join(60)
            assert not thread.is_alive()


HOLDER_TTL = """
local holders = cmsgpack.unpack(redis.call('HGET', KEYS[1], 'h'))
local clock = redis.call('TIME')
holders[1][9] = clock[1] * 1000000 + clock[2] + ARGV[1] * 1000000
redis.call('HSET', KEYS[1], 'h', cmsgpack.pack(holders))
"""


def test_when_the_queue_is_to_move_up_a_look_says_so(redis_server: Any, client: redis.Redis) -> None:
    keys = "leasehold:{:a}", "leasehold:{:a}:queue"
    with leasehold.connect(redis_server.url) as locks:
        core = locks._core
        shape = {"shape": "semaphore", "limit": 3}
        for ask in (
            ask_of("1a")._replace(weight=2, queue=False, **shape),
            ask_of("2a")._replace(weight=2, **shape),
            ask_of("3a")._replace(weight=1, **shape),
        ):
            core.driver.run(core.store.acquire(ask), 5.0)

        def moves() -> int:
            (reply,) = client.eval(LOOK_FOR.text, 2, *keys, 3, "2a", "3a", "9a")  # type: ignore[misc]
            _, moves, places, *holder = reply
            assert places == [0, 1, -1]
            assert [holder[0], holder[-1]] == [b"1a", 2]
            return int(moves)

        (reply,) = client.eval(LOOK_FOR.text, 2, *keys, 3, "2a", "3a", "9a")  # type: ignore[misc]
        assert reply[2] == [-2, -2, -1]  # who has just come is not told that it is next, and looks by itself
        came = client.zscore(keys[1], "2a")
        assert came is not None
        for ago, new in ((0.45, True), (0.6, False), (-0.45, True), (-0.6, False)):  # ahead: the clock was set back
            client.zadd(keys[1], {"2a": came - ago * SECOND})
            (reply,) = client.eval(LOOK_FOR.text, 2, *keys, 1, "2a")  # type: ignore[misc]
            assert (reply[2] == [-2]) is new, ago
        client.zadd(keys[1], {"2a": came})
        for attempt in ("2a", "3a"):
            client.zincrby(keys[1], -5 * SECOND, attempt)
        assert moves() == 0  # there is room, but not for who is next
        client.eval(HOLDER_TTL, 1, keys[0], "-1")
        assert moves() == 1
        client.eval(HOLDER_TTL, 1, keys[0], "60")
        assert moves() == 0
        age(client, ["2a"], 60.0)
        (reply,) = client.eval(LOOK_FOR.text, 2, *keys, 1, "3a")  # type: ignore[misc]
        assert reply[1:3] == [1, [1]]  # who is next has died, and there is room for another
        age(client, ["2a"], -60.0)
        client.hdel(keys[0], "h")
        (reply,) = client.eval(LOOK_FOR.text, 2, *keys, 2, "2a", "3a")  # type: ignore[misc]
        assert reply[1:] == [1, [0, 1]]
        for attempt in ("1a", "2a", "3a"):
            core.driver.run(core.store.abandon("a", attempt), 5.0)


def test_the_documented_user_may_look(redis_server: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    never(monkeypatch)
    page = (Path(__file__).parents[2] / "docs" / "stores" / "redis.md").read_text("utf-8")
    user, *rules = next(line for line in page.splitlines() if line.startswith("ACL SETUSER ")).split()[2:]
    password = next(rule[1:] for rule in rules if rule.startswith(">"))
    client.execute_command("ACL", "SETUSER", user, "reset", *rules)
    url = redis_server.url.replace("redis://", f"redis://{user}:{password}@")
    with leasehold.connect(redis_server.url) as ours, listening(url) as theirs:
        lease = ours.lock("a", ttl=600).acquire()
        waiting = Waiting(theirs, "aa")
        eventually(lambda: all_known(theirs, 2))
        attempts = [attempt.decode() for attempt in client.zrange("leasehold:{:a}:queue", 0, -1)]
        age(client, attempts)
        reply = run_look(theirs, attempts[0])
        assert reply.place == 0
        assert reply.look is not None  # it did not ask for itself
        assert left(client, attempts[1]) > WAITER_TTL - 5
        lease.release()
        waiting.end()
    client.execute_command("ACL", "DELUSER", user)


def test_a_fork_does_not_look_for_those_of_its_parent(redis_server: Any, client: redis.Redis) -> None:
    with leasehold.connect(redis_server.url) as ours, listening(redis_server.url) as theirs:
        lease = ours.lock("a", ttl=600).acquire()
        waiting = Waiting(theirs, "aa")
        eventually(lambda: all_known(theirs, 2))
        store: Any = theirs._core.store
        pid = os.fork()
        if pid == 0:
            os._exit(0 if not store.waiters else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert len(store.waiters) == 2
        lease.release()
        waiting.end()


def test_a_new_loop_does_not_look_for_those_of_the_old_one(redis_server: Any, client: redis.Redis) -> None:
    locks = aio.connect(redis_server.url)
    core: Any = locks._core
    waiters = core.store.waiters

    async def leave() -> None:
        await locks.inspect("a")
        while not waiters:
            await core.driver.run(core.store.acquire(ask_of("1a")), 5.0)
        await core.driver.close()

    async def come() -> None:
        async with locks.lock("b"):
            assert not waiters
        await locks.close()

    with leasehold.connect(redis_server.url) as ours, ours.lock("a", ttl=600):
        asyncio.run(leave())
        assert waiters
        asyncio.run(come())


async def test_the_listener_comes_back_when_every_task_was_cancelled(redis_server: Redis, namespace: str) -> None:
    """As some frameworks do when they shut down, and go on all the same."""

    async def until(condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async with (
        aio.connect(redis_server.url, namespace=namespace, ttl=60) as locks,
        aio.connect(redis_server.url, namespace=namespace, ttl=60) as others,
    ):
        driver: Any = locks._core.driver
        theirs = await others.lock("name").acquire()
        for _ in range(2):
            waiter = asyncio.ensure_future(locks.lock("name", timeout=60).acquire())
            await until(lambda: driver.listener.up)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.wait([waiter])
            assert not await driver.listen("", None), "one that ends is not to be relied upon"
        waiter = asyncio.ensure_future(locks.lock("name", timeout=60).acquire())
        await until(lambda: driver.listener.up)
        await theirs.release()
        await (await waiter).release()


def test_a_new_head_replaces_a_dead_one_though_another_has_looked_for_it(
    redis_server: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not told that it is next, since it will look by itself: no look of another may put that off."""
    never(monkeypatch)
    with leasehold.connect(redis_server.url) as ours, listening(redis_server.url) as theirs:
        others = ours.lock("b", ttl=600).acquire()
        waiting = Waiting(theirs, "bb")
        eventually(lambda: all_known(theirs, 2))
        store: Any = theirs._core.store
        another = next(iter(store.waiters))

        def replaced() -> float:
            lease = ours.lock("a", ttl=600).acquire()
            dead = ask_of("dead" + os.urandom(8).hex(), "a")
            ours._core.driver.run(ours._core.store.acquire(dead), 5.0)
            waiter = Waiting(theirs, "a")
            eventually(lambda: client.zcard("leasehold:{:a}:queue") == 2)
            run_look(theirs, another)
            lease.release()
            began = time.monotonic()
            eventually(lambda: waiter.served)
            return time.monotonic() - began

        in_time(replaced, 1.2)
        others.release()
        waiting.end()


def test_who_gives_up_soon_after_it_has_come_is_told_who_holds_the_name(redis_server: Any, client: redis.Redis) -> None:
    """Though it is then that all who have just come look."""
    told: list[str | None] = []

    def wait(timeout: float) -> None:
        try:
            theirs.lock("a").acquire(timeout=timeout)
        except leasehold.AcquireTimeout as error:
            told.append(error.holder and error.holder.owner)

    with leasehold.connect(redis_server.url) as ours, listening(redis_server.url) as theirs:
        with ours.lock("a", ttl=600):
            threads = [threading.Thread(target=wait, args=(0.78 + number / 1000,)) for number in range(40)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        assert told == [ours.owner] * 40
