"""How a listener to events is told in asyncio: in order and one at a time, though it may be async and take its time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from ..core.log import ERROR, log
from ..model import Event


class Teller:
    """One listener, and what it has yet to be told. An async one is told the next when it is through with the last, so
    that it holds up itself alone. Everything here happens in the loop."""

    def __init__(
        self, listener: Callable[[Event], object], spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]
    ) -> None:
        self._listener = listener
        self._spawn = spawn
        self._events: deque[Event] = deque()
        self._busy = False

    def tell(self, event: Event) -> None:
        self._events.append(event)
        self.resume()

    def resume(self) -> None:
        """Tell what it has yet to be told, unless it is busy: if its task was cancelled, nobody else does."""
        if not self._busy:
            self._go_on()

    def _go_on(self) -> None:
        while self._events:
            event = self._events.popleft()
            try:
                result = self._listener(event)
            except Exception as error:
                self._failed(error)
                continue
            if asyncio.iscoroutine(result):
                self._busy = True
                self._spawn(result).add_done_callback(self._through)
                return

    def _through(self, task: asyncio.Task[Any]) -> None:
        self._busy = False
        if task.cancelled() and task.cancelling():
            return  # by whoever ends all tasks: the loop may be about to end, so the rest is told later (``resume``)
        error = None if task.cancelled() else task.exception()  # cancelled by itself: something that it waited for was
        if isinstance(error, Exception):
            self._failed(error)
        self._go_on()

    def _failed(self, error: Exception) -> None:
        log(ERROR, "the callback %r raised an error", self._listener, exc=error)
