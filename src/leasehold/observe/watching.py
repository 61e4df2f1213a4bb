"""A ``Locks`` that is observed: its events, how its acquires end, the time its store takes, who waits.

A ``Locks`` that nobody observes pays nothing: its driver is wrapped only when ``watch`` is called.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from ..core.observing import Observed, Observer, Operation, WaitersChanged, outcome_of
from ..core.protocol import Busy, Steps, Store
from ..core.registry import Registry

T = TypeVar("T")

OPERATIONS = frozenset(name for name in vars(Store) if callable(vars(Store)[name]) and not name.startswith("_"))
"""The names of store operations. What else a driver runs is ``other``."""


def registry_of(locks: object) -> Registry:
    """The registry of a ``Locks`` of threads or asyncio. Raises TypeError for anything else."""
    core = getattr(locks, "_core", None)
    if not isinstance(core, Registry) or not hasattr(locks, "on_event"):
        raise TypeError(f"instrument() expects what connect() returns, not {type(locks).__name__}")
    return core


class Watched:
    """One observed ``Locks``: what it holds now, and who waits."""

    def __init__(self, core: Registry, observer: Callable[[Watched, Observed], object]) -> None:
        self._core = weakref.ref(core)  # and no reference to its driver, which refers to it
        self._observer = observer
        self._waiting: set[str] = set()
        core.driver = (TimedTasks if hasattr(core, "loop") else TimedThreads)(core.driver, self.note, self._waiting)
        core.observers.append(self.note)

    def note(self, observed: Observed) -> None:
        self._observer(self, observed)

    @property
    def held(self) -> int:
        core = self._core()
        return 0 if core is None else len(core.leases)

    @property
    def waiting(self) -> int:
        return 0 if self._core() is None else len(self._waiting)


class _TimedDriver:
    """A driver whose operations are timed, and whose waiters are counted. What it does not know it passes on."""

    def __init__(self, driver: Any, note: Observer, waiting: set[str]) -> None:
        self._timed = driver
        self._note = note
        self._waiting = waiting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._timed, name)

    @property
    def on_ring(self) -> Callable[..., None]:
        ring: Callable[..., None] = self._timed.on_ring
        return ring

    @on_ring.setter
    def on_ring(self, ring: Callable[..., None]) -> None:
        self._timed.on_ring = ring

    def forget(self, attempt: str) -> None:
        if attempt in self._waiting:
            self._waiting.discard(attempt)
            self._note(WaitersChanged())
        self._timed.forget(attempt)

    def after_fork(self) -> None:
        self._waiting.clear()
        self._timed.after_fork()

    def _waits(self, attempt: str, busy: Busy | None) -> None:
        if busy is not None and attempt not in self._waiting:
            self._waiting.add(attempt)
            self._note(WaitersChanged())

    def _ran(self, steps: Steps[Any], began: float, error: BaseException | None = None) -> None:
        name = getattr(steps, "__name__", "")
        outcome = "ok" if error is None else outcome_of(error)
        self._note(Operation(name if name in OPERATIONS else "other", outcome, time.perf_counter() - began))


class TimedThreads(_TimedDriver):
    """A driver for threads that is timed."""

    def run(self, steps: Steps[T], limit: float) -> T:
        began = time.perf_counter()
        try:
            result: T = self._timed.run(steps, limit)
        except BaseException as error:
            self._ran(steps, began, error)
            raise
        self._ran(steps, began)
        return result

    def listen(self, attempt: str, busy: Busy | None) -> bool:
        self._waits(attempt, busy)
        return bool(self._timed.listen(attempt, busy))


class TimedTasks(_TimedDriver):
    """A driver for asyncio that is timed."""

    async def run(self, steps: Steps[T], limit: float) -> T:
        began = time.perf_counter()
        try:
            result: T = await self._timed.run(steps, limit)
        except BaseException as error:
            self._ran(steps, began, error)
            raise
        self._ran(steps, began)
        return result

    async def listen(self, attempt: str, busy: Busy | None) -> bool:
        self._waits(attempt, busy)
        return bool(await self._timed.listen(attempt, busy))
