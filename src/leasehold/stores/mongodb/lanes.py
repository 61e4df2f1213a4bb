"""Calls that wait for their turn with us: a crowd would fight for the connections in the client's pool, each call with
its limit running, and those that keep and give back leases could not get through.

Each lane has so many calls under way at a time; the others wait, in order, half of their limit at most: the rest is for
the call itself. What gives back, and what claims what it was granted, does not wait behind what asks.
Renewals wait for nobody: they are few at a time, and leases depend on them.
"""

from __future__ import annotations

from typing import Any

from ...core import clock
from ...core.protocol import Steps
from ...errors import StoreUnavailable

LANES = 2
_LANE = {"_acquire": 0, "renew": None}


def lane_of(steps: Steps[Any]) -> int | None:
    """The lane of an operation of the store; None: it needs no turn."""
    return _LANE.get(getattr(steps, "__name__", ""), 1)


class Lane:
    def __init__(self, turns: Any) -> None:
        self.turns = turns
        """A semaphore, of threads or of asyncio."""
        self._answered = 0.0

    def done(self, answered: bool) -> None:
        """A call is over."""
        if answered:
            self._answered = clock.now()
        self.turns.release()

    @staticmethod
    def patience(limit: float) -> float:
        """How long a call with that limit waits for its turn."""
        return limit / 2

    def no_turn(self, limit: float) -> StoreUnavailable:
        waited = self.patience(limit)
        error = StoreUnavailable(f"too many concurrent calls in this process: waited {waited:.2g} s for a turn")
        error.queued = clock.now() - self._answered < limit
        return error
