"""What a task sleeps on until a wake-up. The one for threads is in :mod:`leasehold.runtime.wakeups`."""

from __future__ import annotations

import asyncio

from ..core.places import Place
from ..core.protocol import Busy, Grant


class TaskBell:
    """What a task sleeps on. Any thread can ring it."""

    __slots__ = ("_loop", "_rung", "_waiter", "news", "place")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.news: Grant | Busy | None = None
        self.place: Place | None = None
        self._loop = loop
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        self._rung = True
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            pass  # the loop is closed, so nothing sleeps in it

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def rang(self) -> bool:
        rung, self._rung = self._rung, False
        return rung

    async def wait(self, seconds: float | None) -> bool:
        if not self._rung and (seconds is None or seconds > 0):
            self._waiter = self._loop.create_future()
            timer = None if seconds is None else self._loop.call_later(seconds, self._wake)
            try:
                await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        return self.rang()
