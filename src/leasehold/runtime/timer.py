"""The one thread per process that ends leases at their deadline. It does no I/O, so no hanging call delays it."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from ..core.log import ERROR, log
from .thread_start import start_thread
from .wakeups import ThreadBell

if TYPE_CHECKING:
    from ..core.registry import Registry

NAP = 1.0
"""Deadlines count suspended time, waits do not: while anything is held, the timer checks this often."""


class Timer:
    def __init__(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        """Threads do not survive a fork: start again when needed."""
        self._mutex = threading.RLock()  # a signal handler or a destructor may come in the middle and acquire a lease
        self._bell = ThreadBell()
        self._runs = False
        self._cores: dict[weakref.ref[Registry], None] = {}

    def watch(self, core: Registry) -> None:
        """Make sure that ``core.expire()`` is called, now and again at ``core.next_deadline``."""
        self._cores[weakref.ref(core)] = None
        if not self._runs:
            start_thread("leasehold-timer", self._run)
        self._bell.ring()

    def _run(self) -> None:
        with self._mutex:
            if self._runs:
                return  # two threads needed the timer at the same time
            self._runs = True
        try:
            rang = True
            while True:
                rang = self._bell.wait(self._turn(rang))
        finally:
            self._runs = False  # the next deadline starts another

    def _turn(self, rang: bool) -> float | None:
        """End what has passed its deadline. Returns the seconds until the next deadline, at most NAP, or None. Must not
        fail: without a timer no loss would be announced."""
        pause = float("inf")
        for ref in list(self._cores):  # a copy: a destructor may run here and acquire a lease
            core = ref()
            try:
                if core is None:
                    self._cores.pop(ref, None)
                    continue
                if rang or core.next_deadline <= core.now():
                    core.expire()
                pause = min(pause, core.next_deadline - core.now())
            except Exception as error:
                pause = NAP
                if core is not None:
                    core.next_deadline = float("-inf")  # unknown, so it is computed again
                try:
                    log(ERROR, "the timer failed on a deadline; retrying: %s", error, exc=error)
                except Exception:  # from a log handler
                    pass
        return None if pause == float("inf") else min(NAP, pause)


timer = Timer()
