"""Which watches etcd's waiters have, and what they are told, without a server: a watch of the holders that several
share, and the one of those ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from etcd_tools import A, B, C, created, deletion

from leasehold.core.protocol import Busy
from leasehold.stores.etcd import wire
from leasehold.stores.etcd.errors import GrpcError
from leasehold.stores.etcd.store import EtcdStore
from leasehold.stores.etcd.subscriptions import IDLE, TAKING, Interest, Subscriptions, WakeUp
from leasehold.stores.etcd.tasks import EtcdTasks

ASK: Busy | None = None
"""The news of whoever is to ask."""


class Stream:
    """A stream of watches, as the server sees it."""

    def __init__(self) -> None:
        self.store = EtcdStore("")
        self.subscriptions = Subscriptions(self.store)
        self.begin()

    def begin(self) -> None:
        self.open: dict[int, tuple[bytes, bytes]] = {}
        self.said = 0
        self.take([self.subscriptions.begin()])

    def take(self, messages: list[bytes]) -> None:
        for message in messages:
            self.said += 1
            request = wire.read(message)
            if 1 in request:
                fields = wire.read(request[1][0])
                self.open[fields[7][0]] = fields[1][0], fields[2][0]
                assert 3 not in fields, "a watch begins now"
            else:
                del self.open[wire.read(request[2][0])[1][0]]

    def add(self, attempt: str, *wanted: Interest) -> list[WakeUp]:
        found, messages = self.subscriptions.add(attempt, wanted)
        self.take(messages)
        return found

    def drop(self, attempt: str) -> None:
        self.subscriptions.drop(attempt)
        self.take(self.subscriptions.unsent())

    def heard(self, message: bytes) -> list[WakeUp]:
        found, messages = self.subscriptions.heard([message], asked=False)
        self.take(messages)
        return found

    def number(self, key: bytes) -> int:
        """Of the one watch that tells of a key."""
        [found] = [number for number, (start, end) in self.open.items() if start <= key < end]
        return found

    def deleted(self, **keys: int) -> list[WakeUp]:
        """Keys, all of them of one watch, are gone, each at its revision."""
        gone = {key.encode(): revision for key, revision in keys.items()}
        return self.heard(deletion(self.number(min(gone)), gone))

    @property
    def ranges(self) -> list[tuple[bytes, bytes]]:
        """What is watched, but for words to holders."""
        return [watched for number, watched in sorted(self.open.items()) if number > 1]

    def began(self, key: bytes, revision: int) -> list[WakeUp]:
        """The server has accepted the watch of a key, and tells of what comes after that revision."""
        return self.heard(created(self.number(key), revision))


HOLDERS = (b"hx", b"hx~")


def holders(kind: str, revision: int, later: int = 0, name: str = "x") -> Interest:
    return Interest(kind, name, b"h" + name.encode(), b"h" + name.encode() + b"~", revision, later)


def idle(later: int = 0) -> Busy:
    return Busy(None, later, 0.7)


def last(revision: int, key: bytes = b"w3", end: bytes = b"w5") -> Interest:
    return Interest(TAKING, "x", key, end, revision)


def nearing(revision: int, key: bytes = b"w1") -> Interest:
    """Of a waiter further back, whose place is w4; those right ahead are w1, w2 and w3."""
    return Interest(TAKING, "x", key, b"w5", revision)


@pytest.fixture
def stream() -> Stream:
    return Stream()


# The holders' watch, which the first of a queue share.


def test_the_first_in_line_share_a_watch_until_the_last_of_them_leaves(stream: Stream) -> None:
    assert stream.add(A, holders(TAKING, 5)) == []
    assert stream.add(B, holders(IDLE, 6)) == []
    assert stream.add(C, holders(IDLE, 7, later=1)) == []
    assert stream.ranges == [(b"hx", b"hx~")]
    assert stream.deleted(hx1=9) == [(A, ASK), (B, idle()), (C, idle(1))]
    stream.drop(A)
    stream.drop(C)
    assert stream.ranges == [(b"hx", b"hx~")], "somebody still waits"
    assert stream.deleted(hx2=11) == [(B, idle())]
    number = stream.number(b"hx")
    stream.drop(B)
    assert stream.ranges == []
    assert stream.heard(deletion(number, {b"hx3": 12})) == [], "it was on its way"
    assert stream.add(A, holders(TAKING, 20)) == []
    assert stream.ranges == [(b"hx", b"hx~")]


@pytest.mark.parametrize(("kind", "then"), [(TAKING, ASK), (IDLE, idle())])
def test_who_has_looked_before_its_watch_began_looks_again(stream: Stream, kind: str, then: Busy | None) -> None:
    """Asked to begin in the past, the server would tell of what was missed, but up to 100 ms late, and of all that
    comes meanwhile as late."""
    assert stream.add(A, holders(kind, 5)) == []
    assert stream.add(B, holders(kind, 8)) == []
    assert stream.ranges == [(b"hx", b"hx~")]
    assert stream.began(b"hx", 7) == [(A, ASK)], "the other has seen that"
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
    assert stream.add(C, holders(IDLE, 8)) == [(C, ASK)]
    assert stream.add(C, holders(TAKING, 9)) == []


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
    assert stream.ranges == [(b"hx", b"hx~"), (b"hy", b"hy~")]
    assert stream.deleted(hy1=6) == [(B, ASK)]
    stream.drop(B)
    assert stream.deleted(hx1=7) == [(A, ASK)]


@pytest.mark.parametrize("kind", [TAKING, IDLE])
def test_who_joins_is_called_for_what_was_told_before(stream: Stream, kind: str) -> None:
    """It happened after its look, but before it could say what it wants to hear of."""
    stream.add(A, holders(TAKING, 5))
    stream.deleted(hx1=8)
    assert stream.add(B, holders(kind, 8)) == [(B, ASK)]
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
    assert stream.ranges == [(b"hx", b"hx~")]


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


def test_watch_that_the_server_ends_ends_the_stream(stream: Stream) -> None:
    stream.add(A, holders(TAKING, 5))
    number = stream.number(b"hx")
    with pytest.raises(GrpcError, match="refused a watch"):
        stream.heard(wire.number(2, number) + wire.number(4, 1))
    stream.drop(A)
    assert stream.heard(wire.number(2, number) + wire.number(4, 1)) == [], "as it was asked to"


def test_a_new_stream_has_no_watches(stream: Stream) -> None:
    stream.add(A, holders(TAKING, 5))
    stream.deleted(hx1=8)
    stream.begin()
    stream.drop(A)
    assert stream.add(B, holders(TAKING, 7)) == [], "its watch begins there"
    assert stream.ranges == [(b"hx", b"hx~")]


def test_what_is_held_alone_is_followed_beside_those_who_wait_for_it(stream: Stream) -> None:
    held = {C: Interest(TAKING, "x", b"hx1", b"hx1\0", 1)}
    stream.store.held_alone = lambda: held  # type: ignore[method-assign]
    stream.add(A, holders(TAKING, 5))
    assert stream.heard(deletion(99, {})) == []
    assert stream.ranges == [(b"hx", b"hx~"), (b"hx1", b"hx1\0")]
    own = max(stream.open)
    assert stream.heard(created(own, 5)) == [(C, ASK)], "it may have gone before"
    assert stream.heard(deletion(own, {b"hx1": 7})) == [(C, ASK)]
    held.clear()
    assert stream.heard(deletion(99, {})) == []
    assert stream.ranges == [(b"hx", b"hx~")]


# The watch of those ahead.


def test_one_who_is_far_back_asks_when_the_one_three_ahead_goes(stream: Stream) -> None:
    stream.add(B, holders(TAKING, 4))
    stream.add(A, nearing(5))
    said = stream.said
    assert stream.deleted(w1=7) == [(A, ASK)]
    assert stream.add(A, last(8), holders(IDLE, 8, 1)) == []
    assert stream.said == said, "the server is told nothing: it is watched already, and so are the holders"
    assert stream.deleted(w2=9) == [], "it is not right ahead"
    assert stream.deleted(hx1=10) == [(B, ASK), (A, idle(1))], "it is the third now"
    assert stream.deleted(w3=11) == [(A, ASK)]
    assert stream.add(A, holders(TAKING, 12)) == []
    assert stream.said == said + 1
    assert stream.ranges == [(b"hx", b"hx~")]


def test_a_look_in_between_changes_nothing(stream: Stream) -> None:
    stream.add(A, nearing(5))
    assert stream.add(A, nearing(6)) == []
    assert stream.ranges == [(b"w1", b"w5")]
    assert stream.deleted(w1=7) == [(A, ASK)]


@pytest.mark.parametrize("gone", [{"w3": 7}, {"w4": 7}, {"w1": 7, "w3": 8}, {"w1": 7, "w2": 8, "w4": 9}])
def test_who_is_far_back_asks_when_the_one_ahead_goes_or_its_own_place(stream: Stream, gone: dict[str, int]) -> None:
    """Also when more go at once."""
    stream.add(A, nearing(5))
    assert stream.deleted(**gone) == [(A, ASK)]


def test_what_went_before_the_look_is_of_no_concern(stream: Stream) -> None:
    stream.add(A, nearing(5))
    stream.add(A, nearing(8))
    assert stream.deleted(w1=6, w3=7) == []
    assert stream.deleted(w3=8) == [(A, ASK)]


def test_another_waiter_three_ahead_is_another_watch(stream: Stream) -> None:
    """Somebody in between has given up."""
    stream.add(A, nearing(5))
    assert stream.add(A, nearing(8, b"w0")) == []
    assert stream.ranges == [(b"w0", b"w5")]


# Waiters tell the listener, which adds.


class Pipe:
    """A watch stream that accepts all that is watched, and tells what it is given."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.told: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.told.put_nowait(created(1, 1))

    def send(self, messages: list[bytes]) -> None:
        self.sent += messages

    async def read(self, seconds: float) -> list[bytes] | None:
        message = await self.told.get()
        return [] if message is None else [message]

    def failed(self, error: Exception) -> None: ...

    def wake(self) -> None:
        self.told.put_nowait(None)

    def close(self) -> None: ...


class OnePipe:
    """A transport that has nothing but a watch stream."""

    def __init__(self) -> None:
        self.pipe = Pipe()

    async def watch(self, limit: float) -> Pipe:
        return self.pipe

    async def send(self, call: wire.EtcdCall, limit: float) -> list[bytes]:
        raise ConnectionError

    def after_fork(self) -> None: ...

    async def close(self) -> None: ...


async def test_a_driver_wakes_who_has_missed_something() -> None:
    transport = OnePipe()
    driver = EtcdTasks(EtcdStore(""), transport, "", None)  # type: ignore[arg-type]
    woken: list[WakeUp] = []

    async def until(true: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not true():  # noqa: ASYNC110
                await asyncio.sleep(0)

    await driver.listen("", None)
    await until(lambda: driver._wants("", None))
    driver.on_ring = lambda *wake_up: woken.append(wake_up)

    async def listen(attempt: str, *interests: Interest) -> bool:
        return await driver.listen(attempt, Busy(None, 0, None, interests))

    assert await listen(A, holders(TAKING, 5))
    await until(lambda: len(transport.pipe.sent) == 2)
    assert woken == []
    transport.pipe.told.put_nowait(created(2, 4))
    assert await listen(B, holders(TAKING, 4))
    await until(lambda: woken)
    assert woken == [(B, ASK)]
    assert len(transport.pipe.sent) == 2, "one watch for words, one for both"
    await driver.close()
