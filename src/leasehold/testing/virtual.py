"""Virtual time: an event loop and a ``Locks`` whose clock the caller advances. No threads, no sockets."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import threading
from collections.abc import Callable
from typing import Any

from ..core.protocol import Store, TaskDriver
from ..core.registry import Registry
from ..core.state import LeaseState
from ..tasks.runner import TaskRegistry


class _NoSockets:
    """A selector that never waits: the caller of the loop decides when time passes."""

    def select(self, timeout: float | None) -> list[Any]:
        return []

    def close(self) -> None:
        pass


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop that runs what is due by ``now``, a turn at a time."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__()
        self._now = now
        self._selector = _NoSockets()
        self._clock_resolution = 1e-6  # a time that went through another clock's rate and back is still the same
        self._thread_id: int | None = threading.get_ident()  # it counts as running, from now until it is closed

    def time(self) -> float:
        return self._now()

    def next_at(self) -> float:
        """When the next callback is due, on this loop's clock."""
        if self._ready:  # type: ignore[attr-defined]
            return self.time()
        scheduled = self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
            self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
        return scheduled[0]._when if scheduled else float("inf")

    def turn(self) -> None:
        """Run what is due now, once; what becomes due by it runs in the next turn."""
        asyncio._set_running_loop(self)
        try:
            self._run_once()  # type: ignore[attr-defined]
        finally:
            asyncio._set_running_loop(None)

    def end(self) -> None:
        """Stop for good: the process has died, with all its tasks."""
        self._thread_id = None
        self.set_exception_handler(lambda loop, context: None)
        for task in asyncio.all_tasks(self):
            with contextlib.suppress(RuntimeError):  # one that would wait for something before it ends
                task.get_coro().close()
        self.close()

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


class VirtualRegistry(TaskRegistry):
    """The registry of a ``Locks`` on a virtual clock. The caller of the loop calls ``expire`` at ``next_deadline``."""

    def __init__(self, store: Store, driver: TaskDriver, now: Callable[[], float], **options: Any) -> None:
        super().__init__(store, driver, **options)
        self.now = now

    def watch_deadline(self) -> None:
        self.expire()

    def report_aside(self, lost: list[LeaseState]) -> None:
        Registry.report(self, lost)  # whether the loop is blocked is known to whoever turns it

    def at_exit(self, limit: float) -> None:
        """Time has stopped: every wait would be endless."""
