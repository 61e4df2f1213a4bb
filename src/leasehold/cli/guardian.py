"""A small process beside ``leasehold run`` that kills COMMAND when ``run`` no longer can.

It is forked before anything else is loaded and does nothing but sleep on a pipe from ``run``. The pipe closes when
``run`` dies, however it dies: then it kills COMMAND's process group. ``run`` also tells it how far the lease reaches;
when that time comes without news, because ``run`` is stopped or starved, it does the same.

The kernel's parent-death signal (see ``child.py``) alone would not do: it reaches COMMAND but not what COMMAND has
started, is dropped when COMMAND is a set-user-id program, and does not fire for a ``run`` that is merely stopped. The
guardian alone would not do either: ``pkill -9 -f 'leasehold run'`` takes it along with ``run``.
"""

from __future__ import annotations

import os
import signal

from .. import clock
from ..ready import readable
from ..typed import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NoReturn

NAP = 1.0
"""Deadlines count suspended time, waits do not: look this often while there is a deadline."""
_NEVER = float("inf")


class Guardian:
    """``run``'s side of it."""

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
        """COMMAND may live until then, on the local clock."""
        if until != self._told:
            self._told = until
            self._send(f"{until!r}\n")

    def dismiss(self) -> None:
        """COMMAND has ended, so there is nothing to guard. Does not wait: see :meth:`reap`. Again is harmless."""
        if self._pipe >= 0:
            self._send("end\n")
            os.close(self._pipe)
            self._pipe = -1

    def reap(self) -> None:
        """Leave no zombie: where COMMAND runs in a container, there may be nobody else to collect it."""
        os.waitpid(self._pid, 0)

    def _send(self, line: str) -> None:
        try:
            os.write(self._pipe, line.encode())
        except OSError:
            pass  # somebody has killed it; the parent-death signal is still there


def _guard(news: int, group: int) -> NoReturn:
    os.setsid()  # out of the reach of the terminal's signals
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(each, signal.SIG_IGN)  # systemd signals every process of a service; `run` decides what that means
    # Nothing else may stay open: whoever reads COMMAND's output waits for the last writer to close it.
    for fd in _open_files():
        if fd != news:
            try:
                os.close(fd)
            except OSError:
                pass  # the one that listed them
    until = _NEVER
    while (left := until - clock.now()) > 0:
        if not readable(news, within=None if left == _NEVER else min(left, NAP)):
            continue
        lines = os.read(news, 65536).decode().split()
        if not lines:
            break  # `run` is dead
        if lines[-1] == "end":
            os._exit(0)
        until = float(lines[-1])
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass  # it has ended by itself
    os._exit(0)


def _open_files() -> list[int]:
    try:
        return [int(fd) for fd in os.listdir("/dev/fd")]
    except OSError:  # a bare root folder
        return list(range(256))
