"""Which watches the waiters need, over one stream: bookkeeping without I/O, for threads and tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...errors import StoreUnavailable
from ...protocol import Busy
from . import wire
from .asking import Watch
from .errors import Refused
from .sessions import ALIVE
from .store import EtcdStore

_WORDS = 1
_REFUSED = 9
"""gRPC's failed precondition."""


def _same(watch: Watch) -> Watch:
    """Equal for those that tell of the same, from whenever on."""
    return watch._replace(revision=0, later=0, then=None)


class Watches:
    def __init__(self, store: EtcdStore) -> None:
        self._store = store
        self.begin()

    def begin(self) -> bytes:
        """There is a new stream, with no watch yet. What to send first: a watch for words to us."""
        self._next = _WORDS + 1
        self._by_number: dict[int, tuple[str, Watch]] = {}
        self._by_attempt: dict[str, list[int]] = {}
        self._called: set[str] = set()
        """Attempts that were told to ask, and have not said since what they found."""
        self._unsaid: list[bytes] = []
        self._followed: dict[str, int] = {}
        self._missed: set[str] = set()
        self.listening = False
        """Whether the server has taken on the watch for words."""
        return wire.watch_create(_WORDS, *self._store.words(), 0, puts=True, deletes=True)

    def add(self, attempt: str, wanted: Sequence[Watch]) -> list[bytes]:
        """What to send so that the attempt is called about these, and nothing else."""
        self._called.discard(attempt)
        have = {_same(self._by_number[number][1]): number for number in self._by_attempt.get(attempt, ())}
        keep = [have[_same(each)] for each in wanted if _same(each) in have]  # whatever has happened since was told
        for number in set(have.values()) - set(keep):
            self._cancel(number)
        for watch in wanted:
            if _same(watch) in have:
                self._by_number[have[_same(watch)]] = (attempt, watch)  # its place may be another by now
            else:
                keep.append(self._create(attempt, watch))
        self._by_attempt[attempt] = keep
        return self.unsaid()

    def drop(self, attempt: str) -> None:
        self._called.discard(attempt)
        for number in self._by_attempt.pop(attempt, ()):
            self._cancel(number)

    def unsaid(self) -> list[bytes]:
        """What is wanted, or no longer, and has yet to be said."""
        unsaid, self._unsaid = self._unsaid, []
        return unsaid

    def _create(self, attempt: str, watch: Watch) -> int:
        number, self._next = self._next, self._next + 1
        self._by_number[number] = (attempt, watch)
        self._unsaid.append(wire.watch_create(number, watch.key, watch.end, watch.revision, puts=False, deletes=True))
        return number

    def _cancel(self, number: int) -> None:
        if self._by_number.pop(number, None) is not None:
            self._unsaid.append(wire.watch_cancel(number))

    def heard(self, told: list[bytes] | None, asked: bool) -> tuple[list[tuple[str, Busy | None]], list[bytes]]:
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
            self._cancel(self._followed.pop(attempt))
            self._missed.discard(attempt)
        for attempt, watch in held.items():
            if attempt not in self._followed:
                revision = 0 if attempt in self._missed else watch.revision
                self._followed[attempt] = self._create(attempt, watch._replace(revision=revision))

    def told(self, message: bytes) -> Iterator[tuple[str, Busy | None]]:
        """Whom to call, with what news. Raises Refused when the server takes on no watches any more.

        It does not say which one it refuses: that of a user who has logged in anew since, or whose role was changed."""
        told = wire.read_watch(message)
        if told.canceled and (told.created or told.watch == _WORDS):
            raise Refused(_REFUSED, f"a watch is refused: {told.reason}")
        if told.watch == _WORDS:
            self.listening = True
            for key in told.puts:
                if not key.endswith(ALIVE):
                    yield key.rpartition(b"\0")[2].decode(), None
            if any(key.endswith(ALIVE) for key in told.deletes):
                yield "", None  # a lease is gone, and all that was on it
            return
        found = self._by_number.get(told.watch)
        if found is None:
            return
        attempt, watch = found
        if told.canceled:  # the revision is compacted: it has to look
            del self._by_number[told.watch]
            if self._followed.get(attempt) == told.watch:
                del self._followed[attempt]
                self._missed.add(attempt)
            else:
                self._by_attempt[attempt] = [each for each in self._by_attempt.get(attempt, ()) if each != told.watch]
            yield attempt, None
        elif told.deletes and watch.then is not None:
            self._cancel(told.watch)
            kept = [number for number in self._by_attempt.get(attempt, ()) if number != told.watch]
            nearer = self._create(attempt, watch.then._replace(revision=told.revision + 1))
            self._by_attempt[attempt] = [*kept, nearer]
        elif told.deletes:
            news = None if attempt in self._called else self._store.heard(watch)
            if news is None and attempt in self._by_attempt:
                self._called.add(attempt)
            yield attempt, news
