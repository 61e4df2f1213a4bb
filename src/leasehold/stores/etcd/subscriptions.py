"""Which deletions the server tells this process about, over one watch stream. Books without I/O.

Each watch begins now, not at the revision after its waiter's look: one that begins in the past tells of nothing for up
to 100 ms. The server says when it began; a waiter that looked before that looks once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from ...core.protocol import Busy
from ...errors import StoreUnavailable
from . import wire
from .errors import GrpcError
from .leases import MARK

TAKING, IDLE = "taking", "idle"
_WORDS = 1
_FAILED_PRECONDITION = 9

WakeUp: TypeAlias = tuple[str, Busy | None]
"""An attempt, and news for it; without news it has to ask. An empty attempt: all that wait and all that is held."""


class Interest(NamedTuple):
    """Deletions in ``[key, end)`` that a waiter needs to know, from ``revision`` on.

    TAKING: then it asks. IDLE: a holder is gone, and the name is for the first in the queue to take; only if the first
    does not, it is the turn of this waiter, ``later`` places later. So for now it does not have to ask."""

    kind: str
    name: str
    key: bytes
    end: bytes
    revision: int
    later: int = 0


class Subscriber(Protocol):
    """What the books need of the store."""

    def words(self) -> tuple[bytes, bytes]: ...

    def holder_is_gone(self, interest: Interest) -> Busy: ...

    def held_alone(self) -> Mapping[str, Interest]: ...


class Subscription:
    """A watch that the server has, and whose interests it serves: the first waiters of a queue share that of the
    holders."""

    def __init__(self, number: int, interest: Interest) -> None:
        self.number = number
        self.key, self.end = interest.key, interest.end
        self.told = 0
        """The last revision that it has told of, or after which it tells of everything."""
        self.interests: dict[str, Interest] = {}
        """By attempt. An interest may begin later, and at a later key."""


class Subscriptions:
    def __init__(self, store: Subscriber) -> None:
        self._store = store
        self.begin()

    def begin(self) -> bytes:
        """There is a new stream, with no watch yet. Returns what to send first: a watch for words to this process."""
        self._next = _WORDS + 1
        self._by_number: dict[int, Subscription] = {}
        self._by_range: dict[tuple[bytes, bytes], Subscription] = {}
        self._by_attempt: dict[str, list[Subscription]] = {}
        self._woken: dict[str, int] = {}
        """Attempts that have to ask, and because of which revision: until they have seen it, news would be old."""
        self._unsent: list[bytes] = []
        self._followed: set[str] = set()
        self.listening = False
        """Whether the server has accepted the watch for words."""
        return wire.watch_create(_WORDS, *self._store.words(), puts=True, deletes=True)

    def add(self, attempt: str, wanted: Sequence[Interest]) -> tuple[list[WakeUp], list[bytes]]:
        """What to send so that the attempt is woken for these reasons, and no others; and its wake-up, if there is a
        reason already: what another's subscription has told since this one has looked."""
        if all(interest.revision > self._woken.get(attempt, 0) for interest in wanted):
            self._woken.pop(attempt, None)
        return self._subscribe(attempt, wanted), self.unsent()

    def drop(self, attempt: str) -> None:
        self._woken.pop(attempt, None)
        for subscription in self._by_attempt.pop(attempt, ()):
            self._leave(attempt, subscription)

    def unsent(self) -> list[bytes]:
        """What the server has yet to be told."""
        unsent, self._unsent = self._unsent, []
        return unsent

    def heard(self, told: Iterable[bytes] | None, asked: bool) -> tuple[list[WakeUp], list[bytes]]:
        """Whom to wake, and what to send. ``told`` is None when the server said nothing for a while: then it is asked
        for a sign of life.

        Raises StoreUnavailable when it was ``asked`` already, GrpcError when it refuses a watch."""
        if told is None and asked:
            raise StoreUnavailable("the server does not answer")
        found = [wake_up for message in told or () for wake_up in self._told(message)]
        found += self._follow()
        if told is None:
            self._ping()
        return found, self.unsent()

    def _subscribe(self, attempt: str, wanted: Sequence[Interest]) -> list[WakeUp]:
        had = self._by_attempt.get(attempt, [])
        have = self._by_attempt[attempt] = [self._for(interest, had) for interest in wanted]
        for subscription in had:
            if subscription not in have:
                self._leave(attempt, subscription)
        found = []
        for subscription, interest in zip(have, wanted, strict=True):
            subscription.interests[attempt] = interest
            if subscription.told >= interest.revision:  # to others, or before it was asked
                found.append(self._ask(attempt, subscription.told))
        return found

    def _for(self, interest: Interest, had: list[Subscription]) -> Subscription:
        for subscription in had:
            if subscription.end == interest.end and subscription.key <= interest.key:
                return subscription
        there = self._by_range.get((interest.key, interest.end))
        if there is not None:
            return there
        made = Subscription(self._next, interest)
        self._next += 1
        self._by_number[made.number] = self._by_range[made.key, made.end] = made
        self._unsent.append(wire.watch_create(made.number, made.key, made.end, puts=False, deletes=True))
        return made

    def _leave(self, attempt: str, subscription: Subscription) -> None:
        """The last that leaves cancels it."""
        del subscription.interests[attempt]
        if not subscription.interests:
            del self._by_number[subscription.number]
            del self._by_range[subscription.key, subscription.end]
            self._unsent.append(wire.watch_cancel(subscription.number))

    def _wake(self, attempt: str, interest: Interest, revision: int) -> WakeUp:
        """What a deletion of that revision means to an attempt."""
        news = self._store.holder_is_gone(interest) if interest.kind == IDLE else None
        if news is None or attempt in self._woken:
            return self._ask(attempt, revision)
        return attempt, news

    def _ask(self, attempt: str, revision: int) -> WakeUp:
        self._woken[attempt] = max(revision, self._woken.get(attempt, 0))
        return attempt, None

    def _ping(self) -> None:
        """What a live server answers at once: a watch that begins, tells of nothing, and ends.

        Not a request for progress: current versions of etcd do not answer that until something has been written since
        the newest watch began, and where all wait nothing is."""
        number, self._next = self._next, self._next + 1
        self._unsent.append(wire.watch_create(number, *self._store.words(), puts=False, deletes=False))
        self._unsent.append(wire.watch_cancel(number))

    def _follow(self) -> list[WakeUp]:
        """Learn of it when somebody deletes what is held on a lease of its own.

        What shares a lease is read by each renewal; these holders are often not renewed at all."""
        held = self._store.held_alone()
        for attempt in self._followed.difference(held):
            self.drop(attempt)
        new = [attempt for attempt in held if attempt not in self._followed]
        self._followed = set(held)
        return [wake_up for attempt in new for wake_up in self._subscribe(attempt, [held[attempt]])]

    def _told(self, message: bytes) -> list[WakeUp]:
        told = wire.read_watch(message)
        subscription = self._by_number.get(told.watch)
        if told.canceled and (told.created or told.watch == _WORDS or subscription is not None):
            # The token of the user is no longer valid, or its role was changed.
            raise GrpcError(_FAILED_PRECONDITION, f"the server refused a watch: {told.reason}")
        if told.watch == _WORDS:
            return self._words(told)
        if subscription is None:
            return []
        interests = list(subscription.interests.items())
        if told.created:  # a waiter that has looked before may have missed something
            subscription.told = told.revision
            return [self._ask(attempt, told.revision) for attempt, each in interests if each.revision <= told.revision]
        if not told.deletes:
            return []
        subscription.told = max(told.deletes.values())
        return [
            self._wake(attempt, interest, subscription.told)
            for attempt, interest in interests
            if any(key >= interest.key and at >= interest.revision for key, at in told.deletes.items())
        ]

    def _words(self, told: wire.WatchMessage) -> list[WakeUp]:
        self.listening = True
        words = [key for key in told.puts if not key.endswith(MARK)]
        found: list[WakeUp] = [(key.rpartition(b"\0")[2].decode(errors="replace"), None) for key in words]
        if any(key.endswith(MARK) for key in told.deletes):
            found.append(("", None))  # a lease is gone, and all that was on it
        return found
