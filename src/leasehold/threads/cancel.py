"""The ``cancel`` event of an acquire: another thread sets it to end a wait, or a slow call of the store."""

from __future__ import annotations

import threading
from _thread import allocate_lock
from collections.abc import Callable
from typing import Any, TypeVar

from ..core import clock
from ..errors import AcquireCancelled
from ..runtime.thread_start import start_thread
from ..runtime.wakeups import ThreadBell

T = TypeVar("T")

CANCEL_SLICE = 0.05
"""How often a wait checks its ``cancel`` event."""


class ThreadCall:
    """A call in a thread of its own, which its caller may leave. Waits on bare locks only."""

    def __init__(self, function: Callable[..., object], args: tuple[object, ...]) -> None:
        self._function, self._args = function, args
        self._begun = allocate_lock()
        self._over = allocate_lock()
        self._over.acquire()
        self._done = False
        self.result: Any = None
        self.error: BaseException | None = None

    def make(self) -> None:
        if not self._begun.acquire(False):
            return  # withdrawn
        try:
            self.result = self._function(*self._args)
        except BaseException as error:
            self.error = error
        self._done = True
        self._over.release()

    def withdraw(self) -> bool:
        """Keep the call from beginning. False if it has begun."""
        return self._begun.acquire(False)

    def wait(self, seconds: float) -> bool:
        """True when the call is over."""
        if not self._done and self._over.acquire(timeout=seconds):
            self._over.release()
        return self._done


class Stop(threading.Event):
    """A ``cancel`` event that wakes its waiters, so that they need not poll it."""

    def __init__(self) -> None:
        super().__init__()
        self.bells: set[ThreadBell] = set()

    def set(self) -> None:
        super().set()
        for bell in list(self.bells):
            bell.ring()


class Cancel:
    """The ``cancel`` event of an acquire. It ends waits, and leaves a call that is under way."""

    def __init__(self, event: threading.Event) -> None:
        if not hasattr(event, "is_set"):
            raise TypeError(f"cancel must be a threading.Event, not {type(event).__name__}")
        self._event = event
        self.under_way: ThreadCall | None = None
        """The store call that was left before its end; None if there is none."""

    def check(self) -> None:
        if self._event.is_set():
            raise AcquireCancelled("the cancel event was set before the lease was acquired")

    def wait(self, bell: ThreadBell, seconds: float | None) -> bool:
        if isinstance(self._event, Stop):
            try:
                self._event.bells.add(bell)
                self.check()
                rung = bell.wait(seconds)
            finally:
                self._event.bells.discard(bell)
            self.check()
            return rung
        end = None if seconds is None else clock.now() + seconds
        while True:
            self.check()
            left = CANCEL_SLICE if end is None else min(CANCEL_SLICE, end - clock.now())
            if left <= 0:
                return False
            if bell.wait(left):
                return True

    def run(self, function: Callable[..., T], *args: object) -> T:
        """Call the function in a thread of its own, and leave it when the event is set."""
        self.under_way = call = ThreadCall(function, args)
        start_thread("leasehold-call", call.make)
        while not call.wait(CANCEL_SLICE):
            self.check()
        self.under_way = None
        if call.error is not None:
            raise call.error
        result: T = call.result
        return result
