"""How the library starts its threads."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable


def start_thread(name: str, function: Callable[..., object], *args: object) -> None:
    """Run the function in a daemon thread. Raises RuntimeError when the system has no thread to give.

    ``Thread.start()`` waits for the new thread on an event. An exception out of a signal handler in that wait can leave
    the event's mutex locked, and the new thread waits for it for ever. So a bare thread, which no signal handler
    interrupts, starts the proper one.
    """
    _thread.start_new_thread(_begin, (name, function, args))


def _begin(name: str, function: Callable[..., object], args: tuple[object, ...]) -> None:
    try:
        threading.Thread(target=function, args=args, name=name, daemon=True).start()
    except RuntimeError:  # no second thread to be had: this one does as well
        function(*args)
