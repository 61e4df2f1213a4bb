"""Which watches etcd's waiters have, and what they are told, without a server: a watch of the holders that several
share, and the one of those ahead."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from etcd_tools import A, B, created, deletion

from leasehold.core.protocol import Ask, Busy
from leasehold.stores.etcd import wire
from leasehold.stores.etcd.asking import IDLE, NEARING, TAKING, Watch
from leasehold.stores.etcd.store import EtcdStore
from leasehold.stores.etcd.tasks import EtcdTasks
from leasehold.stores.etcd.watches import Ring, Watches

C = "c" * 32
ASK: Busy | None = None
"""The news of whoever is to ask."""


class Stream:
    """A stream of watches, as the server sees it."""

    def __init__(self, watches: Watches | None = None) -> None:
        self.store = EtcdStore("")
        self.watches = watches or Watches(self.store)
        self.begin()

    def begin(self) -> None:
        self.open: dict[int, tuple[bytes, bytes, int]] = {}
        self.said = 0
        self.take([self.watches.begin()])

    def take(self, messages: list[bytes]) -> None:
        for message in messages:
            self.said += 1
            request = wire.read(message)
            if 1 in request:
                fields = wire.read(request[1][0])
                self.open[fields[7][0]] = fields[1][0], fields[2][0], wire.first(fields, 3)
            else:
                del self.open[wire.read(request[2][0])[1][0]]

    def add(self, attempt: str, *wanted: Watch) -> list[Ring]:
        rings, messages = self.watches.add(attempt, wanted)
        self.take(messages)
        return rings

    def drop(self, attempt: str) -> None:
        self.watches.drop(attempt)
        self.take(self.watches.unsaid())

    def heard(self, message: bytes) -> list[Ring]:
        rings, messages = self.watches.heard([message], asked=False)
        self.take(messages)
        return rings

    def number(self, key: bytes) -> int:
        """Of the one watch that tells of a key."""
        [found] = [number for number, (start, end, _) in self.open.items() if start <= key < end]
        return found

    def deleted(self, **keys: int) -> list[Ring]:
        """Keys, all of them of one watch, are gone, each at its revision."""
        gone = {key.encode(): revision for key, revision in keys.items()}
        return self.heard(deletion(self.number(min(gone)), gone))

    @property
    def ranges(self) -> list[tuple[bytes, bytes, int]]:
        """What is watched, and from what revision on (0: from now on), but for words to holders."""
        return [watched for number, watched in sorted(self.open.items()) if number > 1]

    def began(self, key: bytes, revision: int) -> list[Ring]:
        """The server has taken on the watch of a key, and tells of what comes after that revision."""
        return self.heard(created(self.number(key), revision))


def holders(kind: str, revision: int, later: int = 0, name: str = "x") -> Watch:
    return Watch(kind, name, b"h" + name.encode(), b"h" + name.encode() + b"~", revision, later)


def idle(later: int = 0) -> Busy:
    return Busy(None, later, 0.7)


SOON = Busy(None, 0, 0.2)
"""The news of whoever is to ask in a moment, since it may have missed something."""


def last(revision: int, key: bytes = b"w3", end: bytes = b"w5") -> Watch:
    return Watch(TAKING, "x", key, end, revision)


def nearing(revision: int, key: bytes = b"w1") -> Watch:
    """Of one whose place is w4; those ahead are w1, w2 and w3."""
    return Watch(NEARING, "x", key, b"w5", revision, then=(last(revision), holders(IDLE, revision, 1)))


@pytest.fixture
def stream() -> Stream:
    return Stream()


# The holders' watch, which the first of a queue share.


def test_the_first_in_line_share_a_watch_until_the_last_of_them_leaves(stream: Stream) -> None:
    assert stream.add(A, holders(TAKING, 5)) == []
    assert stream.add(B, holders(IDLE, 6)) == []
    assert stream.add(C, holders(IDLE, 7, later=1)) == []
    assert stream.ranges == [(b"hx", b"hx~", 0)]
    assert stream.deleted(hx1=9) == [(A, ASK), (B, idle()), (C, idle(1))]
    stream.drop(A)
    stream.drop(C)
    assert stream.ranges == [(b"hx", b"hx~", 0)], "somebody still waits"
    assert stream.deleted(hx2=11) == [(B, idle())]
    number = stream.number(b"hx")
    stream.drop(B)
    assert stream.ranges == []
    assert stream.heard(deletion(number, {b"hx3": 12})) == [], "it was on its way"
    assert stream.add(A, holders(TAKING, 20)) == []
    assert stream.ranges == [(b"hx", b"hx~", 0)]


@pytest.mark.parametrize(("kind", "news", "then"), [(TAKING, ASK, ASK), (IDLE, SOON, idle())])
def test_who_has_looked_before_its_watch_began_may_have_missed_something(
    stream: Stream, kind: str, news: Busy | None, then: Busy | None
) -> None:
    """Asked to begin in the past, the server would tell of that, but up to 100 ms late, and of all that comes meanwhile
    as late. So who is next looks again; the others will, unless they hear something else in the next moment."""
    assert stream.add(A, holders(kind, 5)) == []
    assert stream.add(B, holders(kind, 8)) == []
    assert stream.ranges == [(b"hx", b"hx~", 0)]
    assert stream.began(b"hx", 7) == [(A, news)], "the other has seen that"
    assert not stream.store._idle, "nobody knows whether the name is free"
    assert stream.add(A, holders(kind, 8)) == []
    assert stream.deleted(hx1=8) == [(A, then), (B, then)]


def test_who_has_looked_when_its_watch_begins_is_not_called(stream: Stream) -> None:
    stream.add(A, holders(TAKING, 5))
    assert stream.began(b"hx", 4) == []
    assert stream.add(B, holders(TAKING, 5)) == []
    assert stream.deleted(hx1=5) == [(A, ASK), (B, ASK)]


def test_who_joins_a_watch_that_began_after_its_look_is_to_ask(stream: Stream) -> None:
    stream.add(A, holders(TAKING, 5))
    assert stream.began(b"hx", 8) == [(A, ASK)]
    assert stream.add(B, holders(TAKING, 8)) == [(B, ASK)]
    assert stream.add(C, holders(IDLE, 8)) == [(C, SOON)]
    assert stream.add(C, holders(TAKING, 9)) == []


def test_who_is_further_back_asks_soon_if_it_may_have_missed_something(stream: Stream) -> None:
    stream.add(A, nearing(5))
    assert stream.began(b"w1", 5) == [(A, SOON)]
    assert stream.deleted(w1=7) == []
    assert stream.began(b"hx", 9) == [(A, SOON)]
    assert stream.add(A, last(10), holders(IDLE, 10, 1)) == []
    assert stream.deleted(hx1=11) == [(A, idle(1))]


def test_who_is_to_ask_is_not_told_that_there_is_time_when_its_watch_begins(stream: Stream) -> None:
    stream.add(A, last(5), holders(IDLE, 5))
    assert stream.began(b"w3", 6) == [(A, ASK)]
    assert stream.began(b"hx", 6) == [(A, ASK)]
    assert stream.add(A, last(5), holders(IDLE, 5)) == [(A, ASK), (A, ASK)], "its look is from before that"
    assert stream.add(A, last(7), holders(IDLE, 7)) == []
    assert stream.deleted(hx1=8) == [(A, idle())], "it has asked"


def test_nobody_is_called_when_a_watch_begins_that_it_has_left(stream: Stream) -> None:
    stream.add(A, holders(TAKING, 5))
    number = stream.number(b"hx")
    stream.drop(A)
    assert stream.heard(created(number, 8)) == []


def test_names_share_nothing(stream: Stream) -> None:
    stream.add(A, holders(TAKING, 5))
    stream.add(B, holders(TAKING, 5, name="y"))
    assert stream.ranges == [(b"hx", b"hx~", 0), (b"hy", b"hy~", 0)]
    assert stream.deleted(hy1=6) == [(B, ASK)]
    stream.drop(B)
    assert stream.deleted(hx1=7) == [(A, ASK)]


@pytest.mark.parametrize(("kind", "news"), [(TAKING, ASK), (IDLE, idle())])
def test_who_joins_is_called_for_what_was_told_before(stream: Stream, kind: str, news: Busy | None) -> None:
    """It happened after its look, but before it could say what it wants to hear of."""
    stream.add(A, holders(TAKING, 5))
    stream.deleted(hx1=8)
    assert stream.add(B, holders(kind, 8)) == [(B, news)]
    assert stream.add(C, holders(kind, 9)) == [], "it has seen that"


def test_who_joins_is_called_for_what_was_before_the_watch(stream: Stream) -> None:
    """Its look is older than that of who has had the watch made: what came in between nobody would tell it."""
    stream.add(A, holders(TAKING, 5))
    assert stream.add(B, holders(TAKING, 4)) == [], "not before it is known when it begins"
    assert stream.began(b"hx", 4) == [(B, ASK)]
    assert stream.add(C, holders(TAKING, 5)) == []


def test_nobody_is_called_for_what_it_has_seen(stream: Stream) -> None:
    stream.add(A, holders(TAKING, 5))
    stream.add(B, holders(TAKING, 9))
    stream.add(C, holders(IDLE, 7))
    assert stream.deleted(hx1=6, hx2=8) == [(A, ASK), (C, idle())]
    assert stream.add(A, holders(TAKING, 10)) == []
    assert stream.deleted(hx3=9) == [(B, ASK), (C, idle())]


def test_a_watch_that_is_kept_tells_of_the_place_that_its_waiter_has_now(stream: Stream) -> None:
    stream.add(A, holders(IDLE, 5, later=1))
    said = stream.said
    assert stream.add(A, holders(IDLE, 6)) == []
    assert stream.deleted(hx1=7) == [(A, idle())]
    assert stream.add(A, holders(TAKING, 8)) == []
    assert stream.deleted(hx2=8) == [(A, ASK)]
    assert stream.said == said, "the server is told nothing"


def test_who_has_become_the_first_is_called_for_what_it_was_told_as_the_second(stream: Stream) -> None:
    """Given back after its look: as the second it has nothing to do about that."""
    stream.add(A, last(5), holders(IDLE, 5))
    assert stream.deleted(w3=6) == [(A, ASK)]
    stream.deleted(hx1=8)
    assert stream.add(A, holders(TAKING, 8)) == [(A, ASK)]
    assert stream.ranges == [(b"hx", b"hx~", 0)]


@pytest.mark.parametrize("ahead", [b"w3", b"w2"])
def test_who_is_to_ask_is_not_told_otherwise_by_what_it_says_about_an_older_look(stream: Stream, ahead: bytes) -> None:
    """The name was given back, and the one ahead has taken it; both after the look."""
    stream.add(A, last(5), holders(IDLE, 5))
    assert stream.deleted(hx1=8) == [(A, idle())]
    assert stream.deleted(w3=9) == [(A, ASK)]
    assert set(stream.add(A, last(8, ahead), holders(IDLE, 8))) == {(A, ASK)}
    assert stream.deleted(hx2=10) == [(A, ASK)]
    assert stream.add(A, last(11, ahead), holders(IDLE, 11)) == []
    assert stream.deleted(hx4=12) == [(A, idle())], "it has asked"


def test_who_is_to_ask_is_so_for_the_newest_reason(stream: Stream) -> None:
    """What another watch tells later may be older."""
    stream.add(A, last(5), holders(IDLE, 5))
    assert stream.deleted(w3=9) == [(A, ASK)]
    assert stream.deleted(hx1=8) == [(A, ASK)]
    assert stream.add(A, last(9, b"w2"), holders(IDLE, 9)) == []
    assert stream.deleted(hx2=10) == [(A, ASK)]


def test_a_watch_that_the_server_ends_is_gone_for_all(stream: Stream) -> None:
    stream.add(A, holders(TAKING, 5))
    stream.add(B, last(6), holders(IDLE, 6))
    number = stream.number(b"hx")
    del stream.open[number]
    assert stream.heard(wire.number(2, number) + wire.number(4, 1)) == [(A, ASK), (B, ASK)]
    assert stream.heard(deletion(number, {b"hx1": 9})) == []
    assert stream.deleted(w3=9) == [(B, ASK)], "its other watch is as it was"
    assert stream.add(A, holders(TAKING, 20)) == []
    assert stream.add(B, last(21), holders(IDLE, 21)) == []
    assert stream.ranges == [(b"w3", b"w5", 0), (b"hx", b"hx~", 0)]
    assert stream.deleted(hx2=22) == [(A, ASK), (B, idle())]
    stream.drop(B)
    stream.drop(A)
    assert stream.ranges == []


def test_a_new_stream_has_no_watches(stream: Stream) -> None:
    stream.add(A, holders(TAKING, 5))
    stream.deleted(hx1=8)
    stream.begin()
    stream.drop(A)
    assert stream.add(B, holders(TAKING, 7)) == [], "its watch begins there"
    assert stream.ranges == [(b"hx", b"hx~", 0)]


def test_what_is_held_is_followed_beside_those_who_wait_for_it(stream: Stream) -> None:
    held = {C: Watch(TAKING, "x", b"hx1", b"hx1\0", 3)}
    stream.store.held_alone = lambda: held  # type: ignore[method-assign]
    stream.add(A, holders(TAKING, 5))
    assert stream.heard(deletion(99, {})) == []
    assert stream.ranges == [(b"hx", b"hx~", 0), (b"hx1", b"hx1\0", 3)]
    own = max(stream.open)
    assert stream.heard(created(own, 5)) == [], "it tells of what came before, a little later: that will do"
    assert stream.heard(deletion(own, {b"hx1": 7})) == [(C, ASK)]
    del stream.open[own]
    assert stream.heard(wire.number(2, own) + wire.number(4, 1)) == [(C, ASK)]
    assert stream.ranges == [(b"hx", b"hx~", 0), (b"hx1", b"hx1\0", 0)], "from now on"
    held.clear()
    assert stream.heard(deletion(99, {})) == []
    assert stream.ranges == [(b"hx", b"hx~", 0)]


# The watch of those ahead.


def test_one_who_is_far_back_watches_the_three_ahead_in_one(stream: Stream) -> None:
    store = stream.store
    ask = Ask("x", A, "me", "lock", None, 30_000_000, queue=True)
    start = store.waiters_of("x")[0]
    places = [start + b"%016x" % number + b"f" * 32 for number in range(5)]
    store._places[A] = places[-1]
    result = wire.Result(8, True, [])
    page = [wire.KeyValue(place, 1, 1, b"", 0) for place in places]
    none = wire.Page([], 0, False)

    def watched(ahead: int) -> tuple[Watch, ...]:
        before = wire.Page(page[:-1][-1 : -1 - min(ahead, 3) : -1], ahead, False)
        view = store._view(ask, result, [none, none, none, wire.Page(page[-1:], 1, False), before])
        return store._watches(ask, view)

    end = places[-1] + b"\0"
    ahead, held = Watch(TAKING, "x", places[3], end, 9), Watch(IDLE, "x", *store.holders_of("x"), 9, 1)
    assert watched(4) == (Watch(NEARING, "x", places[1], end, 9, then=(ahead, held)),)
    assert watched(2) == (ahead, held)
    assert watched(1) == (ahead, held._replace(later=0))
    assert watched(0) == (Watch(TAKING, "x", *store.holders_of("x"), 9),)


def test_when_the_one_three_ahead_goes_its_watch_stays_for_the_one_ahead(stream: Stream) -> None:
    stream.add(B, holders(TAKING, 4))
    stream.add(A, nearing(5))
    said = stream.said
    assert stream.deleted(w2=6) == [], "of no concern"
    assert stream.deleted(w1=7) == []
    assert stream.deleted(hx1=8) == [(B, ASK), (A, idle(1))], "it is the third now"
    assert stream.deleted(w3=9) == [(A, ASK)]
    assert stream.said == said, "the server is told nothing"
    assert stream.add(A, holders(TAKING, 10)) == []
    assert stream.said == said + 1
    assert stream.ranges == [(b"hx", b"hx~", 0)]


def test_a_look_in_between_changes_nothing(stream: Stream) -> None:
    stream.add(A, nearing(5))
    assert stream.add(A, nearing(6)) == []
    stream.deleted(w1=7)
    said = stream.said
    assert stream.ranges == [(b"w1", b"w5", 0), (b"hx", b"hx~", 0)]
    assert stream.add(A, last(8), holders(IDLE, 8, 1)) == []
    assert stream.said == said
    assert stream.deleted(w2=9) == [], "it is not right ahead"
    assert stream.deleted(w3=10) == [(A, ASK)]


@pytest.mark.parametrize(
    "gone", [{"w3": 7}, {"w4": 7}, {"w1": 7, "w3": 8}, {"w3": 7, "w1": 8}, {"w1": 7, "w2": 8, "w4": 9}]
)
def test_who_is_far_back_asks_when_the_one_ahead_goes_or_its_own_place(stream: Stream, gone: dict[str, int]) -> None:
    """Also when more go at once."""
    stream.add(A, nearing(5))
    assert stream.deleted(**gone) == [(A, ASK)]


def test_what_went_before_the_look_is_of_no_concern(stream: Stream) -> None:
    stream.add(A, nearing(5))
    stream.add(A, nearing(8))
    assert stream.deleted(w1=6, w3=7) == []
    assert len(stream.ranges) == 1
    assert stream.deleted(w3=8) == [(A, ASK)]


def test_from_when_the_one_three_ahead_went_nothing_is_missed(stream: Stream) -> None:
    """It went first, then the name was given back, and then another went: two of these came together."""
    stream.add(A, nearing(5))
    assert stream.deleted(w1=6, w2=9) == []
    assert stream.ranges == [(b"w1", b"w5", 0), (b"hx", b"hx~", 0)]


def test_who_nears_is_told_what_those_at_the_head_know_already(stream: Stream) -> None:
    stream.add(B, holders(TAKING, 4))
    stream.add(A, nearing(5))
    assert stream.deleted(hx1=7) == [(B, ASK)]
    assert stream.deleted(w1=6) == [(A, idle(1))]


def test_who_nears_while_it_looks_does_not_wait_for_that_again(stream: Stream) -> None:
    """The look is older than what has been told meanwhile, and says that the entrance is still there."""
    stream.add(A, nearing(5))
    assert stream.deleted(w1=7) == []
    assert stream.add(A, nearing(7)) == [(A, ASK)]


def test_another_entrance_is_another_watch(stream: Stream) -> None:
    """Somebody in between has given up."""
    stream.add(A, nearing(5))
    assert stream.add(A, nearing(8, b"w0")) == []
    assert stream.ranges == [(b"w0", b"w5", 0)]


# The driver for tasks adds at once, that for threads has its listener do it.


class Ear:
    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, messages: list[bytes]) -> None:
        self.sent += messages


async def test_a_driver_calls_who_has_missed_something() -> None:
    class Link:
        def after_fork(self) -> None: ...

    driver: Any = EtcdTasks(EtcdStore(""), Link(), "", None)  # type: ignore[arg-type]
    driver._listener = asyncio.current_task()
    driver._ear = ear = Ear()
    called: list[Ring] = []
    driver.on_ring = lambda *ring: called.append(ring)

    async def listen(attempt: str, *watches: Watch) -> bool:
        return bool(await driver.listen(attempt, Busy(None, 0, None, watches)))

    assert await listen(A, holders(TAKING, 5))
    assert called == []
    driver._watches.heard([created(2, 4)], asked=False)
    assert await listen(B, holders(IDLE, 4, later=1))
    assert called == [(B, SOON)]
    assert await listen(B, holders(TAKING, 4))
    assert called[1:] == [(B, ASK)]
    assert len(ear.sent) == 1
