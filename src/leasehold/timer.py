"""The one thread per process that fires deadlines. It does no I/O, so nothing that hangs delays it."""

from __future__ import annotations

import threading
import weakref

from .bells import ThreadBell
from .typed import TYPE_CHECKING

if TYPE_CHECKING:
    from .core import Core

NAP = 1.0
"""Deadlines count suspended time, waits do not: while anything is held, look this often."""


class Timer:
    def __init__(self) -> None:
        self._cores: weakref.WeakSet[Core] = weakref.WeakSet()
        self.after_fork()

    def after_fork(self) -> None:
        """Threads do not survive a fork: start afresh when needed."""
        self._mutex = threading.Lock()
        self._bell = ThreadBell()
        self._thread: threading.Thread | None = None
        self._cores = weakref.WeakSet()

    def watch(self, core: Core) -> None:
        """See to it that ``core.expire()`` is called at ``core.next_deadline``."""
        with self._mutex:
            self._cores.add(core)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="leasehold-timer", daemon=True)
                self._thread.start()
        self._bell.ring()

    def _run(self) -> None:
        while True:
            with self._mutex:
                cores = list(self._cores)
            pause = float("inf")
            for core in cores:
                if core.next_deadline <= core.now():
                    core.expire()
                pause = min(pause, core.next_deadline - core.now())
            del cores  # a Locks that is dropped must not live on here
            core = None  # type: ignore[assignment]
            self._bell.wait(None if pause == float("inf") else min(NAP, pause))


timer = Timer()
