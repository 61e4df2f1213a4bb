"""How the library starts its threads, and waits for their end."""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable
from types import TracebackType

from ..core.log import ERROR, log


class Life:
    """Entered by a thread while it runs. Other threads can wait for its end, on a bare lock."""

    def __init__(self) -> None:
        self.ended = False
        self._thread: int | None = None
        self._end = _thread.allocate_lock()
        self._end.acquire()

    def __enter__(self) -> Life:
        self._thread = _thread.get_ident()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended = True
        self._end.release()

    @property
    def is_mine(self) -> bool:
        """Whether it belongs to the calling thread."""
        return self._thread == _thread.get_ident() and not self.ended

    def join(self, seconds: float | None = None) -> bool:
        """Wait until the thread has ended; in the thread itself, do not wait. True if it has ended."""
        limit = -1 if seconds is None else min(max(seconds, 0.0), 1e6)
        if not self.ended and not self.is_mine and self._end.acquire(timeout=limit):
            self._end.release()
        return self.ended


def start_thread(name: str, function: Callable[..., object], *args: object) -> Life:
    """Run the function in a daemon thread. Raises RuntimeError if the system can start no thread.

    ``Thread.start()`` waits for the new thread on an event. An exception out of a signal handler in that wait can leave
    the event's mutex locked, and the new thread waits for it for ever. So a bare thread, which no signal handler
    interrupts, starts the proper one.
    """
    life = Life()
    _thread.start_new_thread(_begin, (name, function, args, life))
    return life


def _begin(name: str, function: Callable[..., object], args: tuple[object, ...], life: Life) -> None:
    def run() -> None:
        with life:
            function(*args)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError:  # no second thread can be started: this one will do
        run()


def aside(name: str, function: Callable[..., object], *args: object) -> None:
    """Call a function that may be slow in a thread of its own; in this one if none can be started."""
    try:
        start_thread(name, function, *args)
    except RuntimeError as error:
        if sys.is_finalizing() or "shutdown" in str(error):
            return  # the interpreter exits
        log(ERROR, "cannot start a thread (%s): callbacks run in this one and delay it", error, event="no_thread")
        function(*args)
