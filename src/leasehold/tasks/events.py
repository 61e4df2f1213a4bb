"""Passes events to a listener in asyncio: in order and one at a time, even if the listener is async and slow."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from ..core.log import ERROR, log
from ..model import Event


class ListenerQueue:
    """One listener, and the events that it has not had yet. An async listener gets the next event when it has finished
    the last, so a slow one delays only itself. Everything here runs in the loop."""

    def __init__(
        self, listener: Callable[[Event], object], spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]
    ) -> None:
        self._listener = listener
        self._spawn = spawn
        self._events: deque[Event] = deque()
        self._busy = False

    def put(self, event: Event) -> None:
        self._events.append(event)
        self.resume()

    def resume(self) -> None:
        """Call the listener with the waiting events, unless it is busy. Needed after its task was cancelled."""
        if not self._busy:
            self._next()

    def _next(self) -> None:
        while self._events:
            event = self._events.popleft()
            try:
                result = self._listener(event)
            except Exception as error:
                self._failed(error)
                continue
            if asyncio.iscoroutine(result):
                self._busy = True
                self._spawn(result).add_done_callback(self._finished)
                return

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._busy = False
        if task.cancelled() and task.cancelling():
            return  # from outside: the loop may be about to end, so the rest waits for ``resume``
        error = None if task.cancelled() else task.exception()  # None if the listener cancelled itself
        if isinstance(error, Exception):
            self._failed(error)
        self._next()

    def _failed(self, error: Exception) -> None:
        log(ERROR, "the callback %r raised an error", self._listener, exc=error)
