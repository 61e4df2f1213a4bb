"""Who waits here, so that one look at the server every so often is enough for all of them.

The engine has a waiter ask again every few seconds, in case that a call got lost, and when the holder may have expired.
The first whose time has come looks for everybody; the others are answered from what that look has found. Whoever was
called asks for itself.
"""

from __future__ import annotations

import threading
from typing import Generic, NamedTuple, Protocol, TypeVar

from .. import clock
from ..protocol import Busy, Steps

UNDER_WAY = 1.0
"""How long to rely on a look that another has begun."""


class Wake(NamedTuple):
    """What a store asks of its driver: to ring one that waits here."""

    attempt: str


class Waits(Protocol):
    rung: bool
    due: float


W = TypeVar("W", bound=Waits)


class Answers(Waits, Protocol):
    def answer(self) -> Busy | None: ...


def looked(waiter: Answers, look: Steps[Busy | None]) -> Steps[Busy | None]:
    """What is known for one whose time has come, or what a look gives. If that is nothing, or it fails, the waiter asks
    for itself until it is answered: what was known before, or a look that another begins, is no answer of a server that
    may be away. So does one that was called."""
    found = None
    try:
        if not waiter.rung and clock.now() >= waiter.due:
            found = waiter.answer()  # another has looked meanwhile
            if found is None:
                found = yield from look
    finally:
        if found is None:
            waiter.rung = True
    return found


class Waiters(dict[str, W], Generic[W]):
    """By attempt."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """In a forked child nobody waits."""
        self.clear()
        self._looking: dict[int, threading.Lock] = {}
        self._began: dict[int, float] = {}

    def begin_look(self, where: int = 0) -> threading.Lock | None:
        """What the caller, who is to look, has to release after that. None: another looks now.

        ``where``: in stores with several parts that are looked at one by one, one of which may be away."""
        looking = self._looking.setdefault(where, threading.Lock())
        # That of this look, whatever becomes of those who wait meanwhile.
        if not looking.acquire(blocking=False):
            return None
        self._began[where] = clock.now()
        return looking

    def look_began(self, where: int = 0) -> float | None:
        """When the look began that another makes now. None: it is over."""
        looking = self._looking.get(where)
        return None if looking is None or not looking.locked() else self._began.get(where)

    def look_is_under_way(self) -> bool:
        """And has not been for so long that the server may be away."""
        return clock.now() - self._began.get(0, 0.0) < UNDER_WAY

    def ring(self, attempt: str) -> None:
        """It is called, and will ask for itself."""
        waiter = self.get(attempt)
        if waiter is not None:
            waiter.rung = True

    def asleep(self) -> list[W]:
        return [waiter for waiter in list(self.values()) if not waiter.rung]
