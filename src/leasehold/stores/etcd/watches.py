"""Which watches the waiters need, over one stream: bookkeeping without I/O, for threads and tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from ...core.protocol import Busy
from ...errors import StoreUnavailable
from . import wire
from .asking import Watch
from .errors import Refused
from .sessions import ALIVE
from .store import EtcdStore

_WORDS = 1
_REFUSED = 9
"""gRPC's failed precondition."""


Ring: TypeAlias = tuple[str, Busy | None]
"""Whom to call, and with what news; without any it is to ask."""


class Served:
    """A watch that the server has, and who hears of it: the first waiters of a queue share that of the holders."""

    def __init__(self, number: int, watch: Watch) -> None:
        self.number = number
        self.key, self.end = watch.key, watch.end
        self.began = self.told = 0
        """The revision after which it tells of everything, once it has begun, and the last that it has told of."""
        self.hearers: dict[str, Watch] = {}
        """By attempt. What one of them wants may begin later, and at a later key."""


class Watches:
    def __init__(self, store: EtcdStore) -> None:
        self._store = store
        self.begin()

    def begin(self) -> bytes:
        """There is a new stream, with no watch yet. What to send first: a watch for words to us."""
        self._next = _WORDS + 1
        self._by_number: dict[int, Served] = {}
        self._by_range: dict[tuple[bytes, bytes], Served] = {}
        self._by_attempt: dict[str, list[Served]] = {}
        self._called: dict[str, int] = {}
        """Attempts that were told to ask, and by what revision; they have not seen that one yet."""
        self._unsaid: list[bytes] = []
        self._followed: dict[str, Served] = {}
        self._missed: set[str] = set()
        self.listening = False
        """Whether the server has taken on the watch for words."""
        return wire.watch_create(_WORDS, *self._store.words(), 0, puts=True, deletes=True)

    def add(self, attempt: str, wanted: Sequence[Watch]) -> tuple[list[Ring], list[bytes]]:
        """What to send so that the attempt is called about these, and nothing else.

        And its call, if there is reason for one already: what another's watch has told since this one has looked."""
        if all(watch.revision > self._called.get(attempt, 0) for watch in wanted):
            self._called.pop(attempt, None)
        return self._want(attempt, wanted), self.unsaid()

    def drop(self, attempt: str) -> None:
        self._called.pop(attempt, None)
        for served in self._by_attempt.pop(attempt, ()):
            self._leave(attempt, served)

    def _want(self, attempt: str, wanted: Sequence[Watch]) -> list[Ring]:
        had = self._by_attempt.get(attempt, [])
        have = self._by_attempt[attempt] = [self._serving(watch, had) for watch in wanted]
        for served in had:
            if served not in have:
                self._leave(attempt, served)
        rings = []
        for served, watch in zip(have, wanted, strict=True):
            served.hearers[attempt] = watch
            if served.told >= watch.revision:  # to others, or to this one when it wanted to hear of something else
                rings.append(self._call(attempt, watch, served.told))
            elif served.began >= watch.revision:
                rings.append(self._call(attempt, watch, served.began, certain=False))
        return rings

    def _serving(self, watch: Watch, had: list[Served]) -> Served:
        for served in had:
            if served.end == watch.end and served.key <= watch.key:
                return served
        return self._by_range.get((watch.key, watch.end)) or self._create(watch)

    def _call(self, attempt: str, watch: Watch, revision: int, certain: bool = True) -> Ring:
        """What a deletion of that revision, one that it wanted to hear of, is to an attempt; or, if that is not
        ``certain``, that its watch began only after that revision, and there may have been one."""
        tell = self._store.heard if certain else self._store.may_have_missed
        news = None if attempt in self._called else tell(watch)
        return self._to_ask(attempt, revision) if news is None else (attempt, news)

    def _to_ask(self, attempt: str, revision: int) -> Ring:
        if attempt in self._by_attempt:  # else it does not wait
            self._called[attempt] = max(revision, self._called.get(attempt, 0))
        return attempt, None

    def unsaid(self) -> list[bytes]:
        """What is wanted, or no longer, and has yet to be said."""
        unsaid, self._unsaid = self._unsaid, []
        return unsaid

    def _create(self, watch: Watch, revision: int = 0) -> Served:
        """From now on, for those who wait: one that begins before the newest write, if only by one, tells of nothing
        for up to 100 ms. If something was written since, to look again takes less."""
        served = Served(self._next, watch)
        self._next += 1
        self._by_number[served.number] = self._by_range[watch.key, watch.end] = served
        create = wire.watch_create(served.number, watch.key, watch.end, revision, puts=False, deletes=True)
        self._unsaid.append(create)
        return served

    def _leave(self, attempt: str, served: Served) -> None:
        """The last who leaves cancels it."""
        del served.hearers[attempt]
        if not served.hearers:
            self._end(served)
            self._unsaid.append(wire.watch_cancel(served.number))

    def _end(self, served: Served) -> None:
        del self._by_number[served.number]
        del self._by_range[served.key, served.end]

    def heard(self, told: list[bytes] | None, asked: bool) -> tuple[list[Ring], list[bytes]]:
        """Whom to call, and what to send; ``told`` is None when nothing was heard for a while.

        Then the server is asked for a sign of life. Raises StoreUnavailable when it was ``asked`` already."""
        if told is None and asked:
            raise StoreUnavailable("the server does not answer")
        rings = [ring for message in told or () for ring in self.told(message)]
        self._follow()
        return rings, self.unsaid() + (self._ping() if told is None else [])

    def _ping(self) -> list[bytes]:
        """What a server that is there answers at once: a watch that begins, tells of nothing, and ends.

        Not a request for progress: current versions of etcd do not answer that until something has been written since
        the newest watch began, and where all wait nothing is."""
        number, self._next = self._next, self._next + 1
        nothing = wire.watch_create(number, *self._store.words(), 0, puts=False, deletes=False)
        return [nothing, wire.watch_cancel(number)]

    def _follow(self) -> None:
        """See to it that we hear of it when somebody deletes what is held on a lease of its own.

        What shares a lease is looked at by each renewal; these are often not renewed at all."""
        held = self._store.held_alone()
        for attempt in [attempt for attempt in self._followed if attempt not in held]:
            self._leave(attempt, self._followed.pop(attempt))
            self._missed.discard(attempt)
        for attempt, watch in held.items():
            if attempt not in self._followed:
                wanted = watch._replace(revision=0) if attempt in self._missed else watch
                self._followed[attempt] = self._create(wanted, wanted.revision)
                self._followed[attempt].hearers[attempt] = wanted

    def told(self, message: bytes) -> Iterator[Ring]:
        """Whom to call, with what news. Raises Refused when the server takes on no watches any more.

        It does not say which one it refuses: that of a user who has logged in anew since, or whose role was changed."""
        told = wire.read_watch(message)
        if told.canceled and (told.created or told.watch == _WORDS):
            raise Refused(_REFUSED, f"the server refused a watch: {told.reason}")
        if told.watch == _WORDS:
            self.listening = True
            for key in told.puts:
                if not key.endswith(ALIVE):
                    yield key.rpartition(b"\0")[2].decode(errors="replace"), None
            if any(key.endswith(ALIVE) for key in told.deletes):
                yield "", None  # a lease is gone, and all that was on it
            return
        served = self._by_number.get(told.watch)
        if served is None:
            return
        if told.created:
            yield from self._began(served, told.revision)
        elif told.canceled:  # the revision is compacted: all of them have to look
            yield from self._lost(served)
        elif told.deletes:
            served.told = max(told.deletes.values())
            for attempt, watch in list(served.hearers.items()):
                yield from self._hears(attempt, watch, told.deletes, served.told)

    def _began(self, served: Served, revision: int) -> Iterator[Ring]:
        """It tells of what comes after that revision: whoever has looked before may have missed something."""
        served.began = revision
        for attempt, watch in list(served.hearers.items()):
            if watch.revision <= revision and self._followed.get(attempt) is not served:
                yield self._call(attempt, watch, revision, certain=False)

    def _lost(self, served: Served) -> Iterator[Ring]:
        self._end(served)
        for attempt, watch in served.hearers.items():
            if self._followed.get(attempt) is served:
                del self._followed[attempt]
                self._missed.add(attempt)
            else:
                self._by_attempt[attempt].remove(served)
            yield self._to_ask(attempt, watch.revision)

    def _hears(self, attempt: str, watch: Watch, deletes: Mapping[bytes, int], told: int) -> Iterator[Ring]:
        gone = {key: at for key, at in deletes.items() if key >= watch.key and at >= watch.revision}
        if not gone:
            return
        if not watch.then or max(gone) >= watch.then[0].key:
            yield self._call(attempt, watch, told)
        elif watch.key in gone:
            last, idle = watch.then
            wanted = last._replace(revision=told + 1), idle._replace(revision=gone[watch.key] + 1)
            yield from self._want(attempt, wanted)
