"""Signals to ``run``: handlers note them, the main loop acts on them."""

from __future__ import annotations

import os
import signal
import threading

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that end a ``run`` that still waits for its lease."""
PATIENCE = 1.0
"""How long such a ``run`` may take to leave the queue."""
_ALSO_PASSED_ON = (signal.SIGWINCH, signal.SIGCONT, signal.SIGTSTP)


class Signals(threading.Event):
    """The signals since the last ``take``. As an event it is set by a signal that ends a wait for the lease."""

    def __init__(self) -> None:
        super().__init__()
        self._come: list[int] = []
        self._waiting = True
        self.fd, self._bell = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._bell, False)
        signal.set_wakeup_fd(
            self._bell, warn_on_full_buffer=False
        )  # wakes the main loop, whichever thread is signalled
        self._hear(*ENDING)

    def is_set(self) -> bool:
        return bool(self._come)

    def _note(self, number: int, frame: object) -> None:
        if self._waiting and not self._come:
            signal.signal(signal.SIGALRM, self._give_up)
            signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        self._come.append(number)

    def _give_up(self, number: int, frame: object) -> None:
        """End the process: the store did not answer in time. The place in the queue expires there by itself."""
        os._exit(128 + self._come[0])

    def pass_on(self) -> None:
        """COMMAND is about to start: from now on also note the signals that are only passed on to it."""
        self._waiting = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._hear(*_ALSO_PASSED_ON)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # only to wake the main loop

    def _hear(self, *numbers: int) -> None:
        for number in numbers:
            # A signal that the caller ignores stays ignored, for COMMAND too: nohup, and jobs in the background.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)

    def take(self) -> list[int]:
        """The signals since the last call, in order."""
        try:
            os.read(self.fd, 4096)
        except BlockingIOError:
            pass
        come, self._come = self._come, []
        return come

    def ring(self) -> None:
        """Wake the main loop, which polls ``fd``. May be called from any thread."""
        try:
            os.write(self._bell, b"!")
        except BlockingIOError:
            pass  # the pipe is full: the main loop wakes up anyway
