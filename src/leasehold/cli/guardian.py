"""A small process beside ``leasehold run`` that kills COMMAND when ``run`` no longer can.

The guardian is forked before anything else is loaded and sleeps on a pipe from ``run``. It kills COMMAND's process
group in two cases: the pipe closes, because ``run`` died; or the lease's deadline, which ``run`` sends through the
pipe, passes without a new one, because ``run`` is stopped or starved.

The kernel's parent-death signal (see ``child.py``) is not enough: it reaches COMMAND but not the processes that COMMAND
started, is dropped when COMMAND is a set-user-id program, and does not fire for a ``run`` that is only stopped. The
guardian is not enough either: ``pkill -9 -f 'leasehold run'`` kills it together with ``run``.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from ..core import clock
from ..runtime.ready import readable

if TYPE_CHECKING:
    from typing import NoReturn

NAP = 1.0
"""How often to check the deadline: deadlines count suspended time, sleeps do not."""
_NEVER = float("inf")


class Guardian:
    """The side of ``run``: starts the guardian and sends it deadlines."""

    def __init__(self, group: int) -> None:
        news, self._pipe = os.pipe()
        self._told = _NEVER
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _guard(news, group)
            finally:
                os._exit(1)
        os.close(news)

    def tell(self, until: float) -> None:
        """Send the deadline until which COMMAND may live, on the local clock."""
        if until != self._told:
            self._told = until
            self._send(f"{until!r}\n")

    def dismiss(self) -> None:
        """End the guardian because COMMAND has ended. Does not wait for that: see :meth:`reap`. Idempotent."""
        if self._pipe >= 0:
            self._send("end\n")
            os.close(self._pipe)
            self._pipe = -1

    def reap(self) -> None:
        """Wait for the guardian's end. In a container no other process may collect the zombie."""
        os.waitpid(self._pid, 0)

    def _send(self, line: str) -> None:
        try:
            os.write(self._pipe, line.encode())
        except OSError:
            pass  # the guardian was killed; the parent-death signal still works


def _guard(news: int, group: int) -> NoReturn:
    os.setsid()  # the terminal's signals do not reach a session of its own
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(each, signal.SIG_IGN)  # systemd signals every process of a service; only `run` reacts to it
    # Close all other files: a reader of COMMAND's output waits until the last writer has closed it.
    for fd in _open_files():
        if fd != news:
            try:
                os.close(fd)
            except OSError:
                pass  # the descriptor that listed them
    until = _NEVER
    while (left := until - clock.now()) > 0:
        if not readable(news, within=None if left == _NEVER else min(left, NAP)):
            continue
        lines = os.read(news, 65536).decode().split()
        if not lines:
            break  # `run` has died
        if lines[-1] == "end":
            os._exit(0)
        until = float(lines[-1])
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass  # COMMAND has ended by itself
    os._exit(0)


def _open_files() -> list[int]:
    try:
        return [int(fd) for fd in os.listdir("/dev/fd")]
    except OSError:  # no /dev, in a chroot for example
        return list(range(256))
