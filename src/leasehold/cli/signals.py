"""Signals that come to ``run``: noted by handlers, acted upon by its main loop."""

from __future__ import annotations

import os
import signal
import threading

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""They end a ``run`` that still waits for its lease."""
PATIENCE = 1.0
"""How long a ``run`` that is told to end while it waits may take to leave the queue."""
_ALSO_PASSED_ON = (signal.SIGWINCH, signal.SIGCONT, signal.SIGTSTP)


class Signals(threading.Event):
    """What has come since the last look. As an event it is set when one has come that ends a wait."""

    def __init__(self) -> None:
        super().__init__()
        self._come: list[int] = []
        self._waiting = True
        self.fd, self._bell = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._bell, False)
        signal.set_wakeup_fd(self._bell, warn_on_full_buffer=False)  # rings in whatever thread the signal arrives
        self._hear(*ENDING)

    def is_set(self) -> bool:
        return bool(self._come)

    def _note(self, number: int, frame: object) -> None:
        if self._waiting and not self._come:
            signal.signal(signal.SIGALRM, self._give_up)
            signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        self._come.append(number)

    def _give_up(self, number: int, frame: object) -> None:
        """The store does not answer, so there is no leaving it tidily. It forgets our place in the queue by itself."""
        os._exit(128 + self._come[0])

    def pass_on(self) -> None:
        """COMMAND is about to run: from now on, hear of everything that concerns it."""
        self._waiting = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._hear(*_ALSO_PASSED_ON)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # the wake-up is all that is wanted

    def _hear(self, *numbers: int) -> None:
        for number in numbers:
            # What our caller has chosen to ignore is left alone, for COMMAND too: nohup, and jobs in the background.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)

    def take(self) -> list[int]:
        """What has come, in order."""
        try:
            os.read(self.fd, 4096)
        except BlockingIOError:
            pass
        come, self._come = self._come, []
        return come

    def ring(self) -> None:
        """Have whoever polls ``fd`` look. From any thread."""
        try:
            os.write(self._bell, b"!")
        except BlockingIOError:
            pass  # it has enough to wake up for
