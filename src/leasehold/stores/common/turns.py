"""Limits how many threads use a connection at once, in the order of arrival.

An exception from a signal handler can end a wait or a call between any two lines, and a handler or a destructor can
make a call of its own there. So there is no mutex to release and no count to restore: a thread that waits or works has
a ``Turn``, and is in the queue as long as that object exists.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from ...core import clock
from ...runtime.wakeups import ThreadBell

_LOOK = 0.25
"""How often a waiting thread checks its turn: an interrupted thread may have failed to wake it."""


class Turn:
    """The place of one thread in the queue, while it waits or works."""

    __slots__ = ("__weakref__", "bell", "works")

    def __init__(self, bell: Any = None) -> None:
        self.bell = bell
        """Rung when its turn has come; None if the thread does not wait for that."""
        self.works = False


T = TypeVar("T", bound=Turn)


class Queue(Generic[T]):
    """The turns that exist, in the order of arrival. Each method may interrupt any other at any point."""

    def __init__(self) -> None:
        self._turns: deque[weakref.ref[T]] = deque()

    def join(self, turn: T) -> None:
        self._turns.append(weakref.ref(turn, self._turns.remove))  # implemented in C, so not interruptible

    def leave(self, turn: T) -> None:
        try:
            self._turns.remove(weakref.ref(turn))
        except ValueError:
            pass  # left already

    def has(self, turn: T, among: int = 2**31) -> bool:
        """Whether the turn is among the first ``among``."""
        try:
            self._turns.index(weakref.ref(turn), 0, among)
        except ValueError:
            return False
        return True

    def waiting(self, among: int) -> Iterator[T]:
        """The turns among the first ``among`` that do not work yet."""
        for place in range(min(among, len(self._turns))):
            try:
                turn = self._turns[place]()
            except IndexError:
                return
            if turn is not None and not turn.works:
                yield turn


class Turns:
    """At most ``size`` threads work at once: the first of the queue."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._queue: Queue[Turn] = Queue()

    def take(self, limit: float) -> Turn:
        """Wait for a turn. It ends with ``over``, or when the object is collected. Raises TimeoutError."""
        turn = Turn(ThreadBell())
        self._queue.join(turn)
        if not self._queue.has(turn, self._size):
            ends = clock.now() + limit
            try:
                while not self._queue.has(turn, self._size):
                    left = ends - clock.now()
                    if left <= 0:
                        raise TimeoutError(f"no connection was free within {limit:.3g} s")
                    turn.bell.wait(min(left, _LOOK))
            except BaseException:  # the traceback would keep the turn alive
                self.over(turn)
                raise
        turn.works = True
        return turn

    def try_take(self) -> Turn | None:
        """A turn, if there is one at once."""
        turn = Turn()
        self._queue.join(turn)
        if self._queue.has(turn, self._size):
            turn.works = True
            return turn
        self.over(turn)
        return None

    def over(self, turn: Turn) -> None:
        """End the turn, and wake the threads whose turn it is now."""
        self._queue.leave(turn)
        for other in self._queue.waiting(self._size):
            if other.bell is not None:
                other.bell.ring()
