"""The one thread per process that fires deadlines. It does no I/O, so nothing that hangs delays it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator

from .bells import ThreadBell
from .log import ERROR, log
from .starting import start_thread
from .typed import TYPE_CHECKING

if TYPE_CHECKING:
    from .core import Core

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
        self._cores: dict[int, weakref.ref[Core]] = {}

    def watch(self, core: Core) -> None:
        """See to it that ``core.expire()`` is called at ``core.next_deadline``."""
        self._cores[id(core)] = weakref.ref(core)
        if not self._runs:
            start_thread("leasehold-timer", self._run)
        self._bell.ring()

    def _run(self) -> None:
        with self._mutex:
            if self._runs:
                return  # two asked for the first deadline at once
            self._runs = True
        while True:
            pause = min((self._next(core) for core in self._watched()), default=float("inf"))
            self._bell.wait(None if pause == float("inf") else min(NAP, pause))

    def _watched(self) -> Iterator[Core]:
        for key in list(self._cores):  # (a copy of the items is no copy in one go: a destructor may come in its middle)
            ref = self._cores.get(key)
            core = None if ref is None else ref()
            if core is not None:
                yield core
            elif self._cores.get(key) is ref:
                self._cores.pop(key, None)

    def _next(self, core: Core) -> float:
        """Fire what is due; the seconds until the next deadline."""
        try:
            if core.next_deadline <= core.now():
                core.expire()
        except Exception as error:  # a timer that dies would tell nobody of a loss any more
            log(ERROR, "the timer failed on a deadline; retrying: %s", error, exc=error)
            return NAP
        return core.next_deadline - core.now()


timer = Timer()
