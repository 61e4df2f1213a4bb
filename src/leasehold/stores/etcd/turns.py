"""Who may use a connection now: so many threads at once, in the order of arrival.

An exception out of a signal handler may end a thread's wait, or its call, between any two lines. So there is neither a
mutex nor a count that somebody has to put back: whoever waits or is at work has a ``Turn``, and is in the queue for as
long as that object exists. The first ``size`` of the queue are at work.
"""

from __future__ import annotations

import weakref
from collections import deque

from ... import clock
from ...bells import ThreadBell

_LOOK = 0.25
"""How often a thread that waits checks by itself: an interrupt may have kept another from waking it."""


class Turn:
    """What a thread has while it waits or is at work."""

    __slots__ = ("__weakref__", "bell", "works")

    def __init__(self) -> None:
        self.bell = ThreadBell()
        self.works = False


class Turns:
    def __init__(self, size: int) -> None:
        self._size = size
        self._queue: deque[weakref.ref[Turn]] = deque()

    def take(self, limit: float) -> Turn:
        """Wait until it is our turn. The turn ends with ``over``, or when nobody has the object any more."""
        turn = Turn()
        self._queue.append(weakref.ref(turn, self._queue.remove))  # a call of C: no interrupt comes in between
        if not self._has_come(turn):
            ends = clock.now() + limit
            try:
                while not self._has_come(turn):
                    left = ends - clock.now()
                    if left <= 0:
                        raise TimeoutError(f"no connection was free within {limit:.3g} s")
                    turn.bell.wait(min(left, _LOOK))
            except BaseException:  # a traceback keeps objects alive
                self.over(turn)
                raise
        turn.works = True
        return turn

    def _has_come(self, turn: Turn) -> bool:
        try:
            self._queue.index(weakref.ref(turn), 0, self._size)
        except ValueError:
            return False
        return True

    def over(self, turn: Turn) -> None:
        """Leave the queue, and wake whoever is among the first by now."""
        try:
            self._queue.remove(weakref.ref(turn))
        except ValueError:
            return
        for place in range(self._size):
            try:
                other = self._queue[place]()
            except IndexError:
                return  # nobody waits
            if other is not None and not other.works:
                other.bell.ring()
