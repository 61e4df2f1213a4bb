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
        self._cancels: list[bytes] = []
        self._followed: dict[str, int] = {}
        self._missed: set[str] = set()
        self.listening = False
        """Whether the server has taken on the watch for words."""
        return wire.watch_create(_WORDS, *self._store.words(), 0, puts=True, deletes=True)

    def add(self, attempt: str, wanted: Sequence[Watch]) -> list[bytes]:
        """What to send so that the attempt is called about these, and nothing else."""
        self._called.discard(attempt)
        have = {self._by_number[number][1]._replace(revision=0): number for number in self._by_attempt.get(attempt, ())}
        keep = [have[each._replace(revision=0)] for each in wanted if each._replace(revision=0) in have]
        for number in set(have.values()) - set(keep):
            self._cancel(number)
        send = []
        for watch in wanted:
            if watch._replace(revision=0) in have:
                continue  # whatever has happened since was told
            number, self._next = self._next, self._next + 1
            self._by_number[number] = (attempt, watch)
            keep.append(number)
            send.append(
                wire.watch_create(number, watch.key, watch.end, watch.revision, puts=False, deletes=True),
            )
        self._by_attempt[attempt] = keep
        return self.cancels() + send

    def drop(self, attempt: str) -> None:
        self._called.discard(attempt)
        for number in self._by_attempt.pop(attempt, ()):
            self._cancel(number)

    def cancels(self) -> list[bytes]:
        """What is no longer wanted and has yet to be said."""
        cancels, self._cancels = self._cancels, []
        return cancels

    def _cancel(self, number: int) -> None:
        if self._by_number.pop(number, None) is not None:
            self._cancels.append(wire.watch_cancel(number))

    def heard(self, told: list[bytes] | None, asked: bool) -> tuple[list[tuple[str, Busy | None]], list[bytes]]:
        """Whom to call, and what to send; ``told`` is None when nothing was heard for a while.

        Then the server is asked for a sign of life. Raises StoreUnavailable when it was ``asked`` already."""
        if told is None and asked:
            raise StoreUnavailable("the server does not answer")
        rings = [ring for message in told or () for ring in self.told(message)]
        follow = self._follow()
        return rings, self.cancels() + follow + ([wire.WATCH_PROGRESS] if told is None else [])

    def _follow(self) -> list[bytes]:
        """What to send so that we hear of it when somebody deletes what is held on a lease of its own.

        What shares a lease is looked at by each renewal; these are often not renewed at all."""
        held = self._store.held_alone()
        for attempt in [attempt for attempt in self._followed if attempt not in held]:
            self._cancel(self._followed.pop(attempt))
            self._missed.discard(attempt)
        send = []
        for attempt, watch in held.items():
            if attempt not in self._followed:
                revision = 0 if attempt in self._missed else watch.revision
                number, self._next = self._next, self._next + 1
                self._by_number[number] = (attempt, watch)
                self._followed[attempt] = number
                send.append(wire.watch_create(number, watch.key, watch.end, revision, puts=False, deletes=True))
        return send

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
        elif told.deletes:
            news = None if attempt in self._called else self._store.heard(watch)
            if news is None and attempt in self._by_attempt:
                self._called.add(attempt)
            yield attempt, news
