"""Who may use a connection now: so many threads at once, in the order of arrival.

An exception out of a signal handler may end a thread's wait, or its call, between any two lines, and a handler or a
destructor may make a call of its own there. So there is neither a mutex nor a count that somebody has to put back:
whoever waits or is at work has a ``Turn``, and is in the queue for as long as that object exists.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from .. import clock
from ..bells import ThreadBell

_LOOK = 0.25
"""How often a thread that waits checks by itself: an interrupt may have kept another from waking it."""


class Turn:
    """What a thread has while it waits or is at work."""

    __slots__ = ("__weakref__", "bell", "works")

    def __init__(self, bell: Any = None) -> None:
        self.bell = bell or ThreadBell()
        self.works = False


T = TypeVar("T", bound=Turn)


class Queue(Generic[T]):
    """The turns that exist, in the order of arrival. Each method is safe against all others, at any point of them."""

    def __init__(self) -> None:
        self._turns: deque[weakref.ref[T]] = deque()

    def join(self, turn: T) -> None:
        self._turns.append(weakref.ref(turn, self._turns.remove))  # a call of C: no interrupt comes in between

    def leave(self, turn: T) -> None:
        try:
            self._turns.remove(weakref.ref(turn))
        except ValueError:
            pass  # it has left already

    def has(self, turn: T, among: int = 2**31) -> bool:
        """Whether it is among the first so many."""
        try:
            self._turns.index(weakref.ref(turn), 0, among)
        except ValueError:
            return False
        return True

    def waiting(self, among: int) -> Iterator[T]:
        """Of the first so many, those that are not at work."""
        for place in range(among):
            try:
                turn = self._turns[place]()
            except IndexError:
                return
            if turn is not None and not turn.works:
                yield turn


class Turns:
    """The first ``size`` of the queue are at work."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._queue: Queue[Turn] = Queue()

    def take(self, limit: float) -> Turn:
        """Wait until it is our turn. The turn ends with ``over``, or when nobody has the object any more."""
        turn = Turn()
        self._queue.join(turn)
        if not self._queue.has(turn, self._size):
            ends = clock.now() + limit
            try:
                while not self._queue.has(turn, self._size):
                    left = ends - clock.now()
                    if left <= 0:
                        raise TimeoutError(f"no connection was free within {limit:.3g} s")
                    turn.bell.wait(min(left, _LOOK))
            except BaseException:  # a traceback keeps objects alive
                self.over(turn)
                raise
        turn.works = True
        return turn

    def over(self, turn: Turn) -> None:
        """Leave the queue, and wake whoever is among the first by now."""
        self._queue.leave(turn)
        for other in self._queue.waiting(self._size):
            other.bell.ring()
