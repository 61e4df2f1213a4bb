"""The waiters of this process, so that one query to the server every few seconds serves all of them.

The engine has each waiter check again every few seconds, in case a wake-up was lost, and when the holder may have
expired. The first waiter that is due queries the server for all; the others are answered from its result. A waiter that
got a wake-up queries for itself.
"""

from __future__ import annotations

import threading
from typing import Generic, NamedTuple, Protocol, TypeVar

from ...core import clock
from ...core.protocol import Busy, Steps

UNDER_WAY = 1.0
"""How long waiters rely on a query that another waiter has begun."""


class Wake(NamedTuple):
    """A request of a store to its driver: wake an attempt that waits in this process."""

    attempt: str


class Waits(Protocol):
    rung: bool
    due: float


W = TypeVar("W", bound=Waits)


class Answers(Waits, Protocol):
    def answer(self) -> Busy | None: ...


def looked(waiter: Answers, look: Steps[Busy | None]) -> Steps[Busy | None]:
    """The answer for a waiter that is due: from the last query of another waiter, or from its own query ``look``.

    None if there is none. Then, or if the query fails, or after a wake-up, the waiter queries for itself until it gets
    an answer: earlier results, and queries that others begin, do not show that the server answers."""
    found = None
    try:
        if not waiter.rung and clock.now() >= waiter.due:
            found = waiter.answer()  # of a query that another waiter made meanwhile
            if found is None:
                found = yield from look
    finally:
        if found is None:
            waiter.rung = True
    return found


class Waiters(dict[str, W], Generic[W]):
    """The waiters of this process, by attempt."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all waiters, as a forked child must."""
        self.clear()
        self._looking: dict[int, threading.Lock] = {}
        self._began: dict[int, float] = {}

    def begin_look(self, where: int = 0) -> threading.Lock | None:
        """Begin a query. Returns a lock, which the caller releases after the query; None if another query runs.

        ``where`` is the part that is queried, in stores whose parts are queried one by one and fail one by one."""
        looking = self._looking.setdefault(where, threading.Lock())
        if not looking.acquire(blocking=False):
            return None
        self._began[where] = clock.now()
        return looking

    def look_began(self, where: int = 0) -> float | None:
        """When the running query began. None if none runs."""
        looking = self._looking.get(where)
        return None if looking is None or not looking.locked() else self._began.get(where)

    def look_is_under_way(self) -> bool:
        """Whether a query began less than ``UNDER_WAY`` ago. An older one may mean that the server does not answer."""
        return clock.now() - self._began.get(0, 0.0) < UNDER_WAY

    def ring(self, attempt: str) -> None:
        """Note a wake-up: the waiter will query for itself."""
        waiter = self.get(attempt)
        if waiter is not None:
            waiter.rung = True

    def asleep(self) -> list[W]:
        """The waiters without a wake-up."""
        return [waiter for waiter in list(self.values()) if not waiter.rung]
