"""The one thread per process that fires deadlines. It does no I/O, so nothing that hangs delays it."""

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
"""Deadlines count suspended time, waits do not: while anything is held, look this often."""


class Timer:
    def __init__(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        """Threads do not survive a fork: start afresh when needed."""
        self._mutex = threading.RLock()  # a signal handler or a destructor may come in the middle and acquire a lease
        self._bell = ThreadBell()
        self._runs = False
        self._cores: dict[weakref.ref[Registry], None] = {}

    def watch(self, core: Registry) -> None:
        """See to it that ``core.expire()`` is called, now and then at ``core.next_deadline``."""
        self._cores[weakref.ref(core)] = None
        if not self._runs:
            start_thread("leasehold-timer", self._run)
        self._bell.ring()

    def _run(self) -> None:
        with self._mutex:
            if self._runs:
                return  # two asked for the first deadline at once
            self._runs = True
        try:
            rang = True
            while True:
                rang = self._bell.wait(self._turn(rang))
        finally:
            self._runs = False  # whoever has the next deadline starts another

    def _turn(self, rang: bool) -> float | None:
        """Fire what is due; the seconds until the next deadline, at most NAP, or None. Must not fail: a timer that
        dies would tell nobody of a loss any more."""
        pause = float("inf")
        for ref in list(self._cores):  # a copy in one go: a destructor may come and acquire
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
                    core.next_deadline = float("-inf")  # unknown: look for it again
                try:
                    log(ERROR, "the timer failed on a deadline; retrying: %s", error, exc=error)
                except Exception:  # somebody's log handler
                    pass
        return None if pause == float("inf") else min(NAP, pause)


timer = Timer()
