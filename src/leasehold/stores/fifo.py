"""Waking other processes of this machine, and noticing their death, with a FIFO per session.

A session opens its FIFO for reading *and* writing before its name stands in any record, so there is a reader exactly
as long as the session (or a child it handed the descriptor to) lives. Who opens it for writing learns at once whether
there still is one (ENXIO: no), can send it an attempt to wake, and, polling the descriptor, is told by the kernel
(POLLERR) when the last reader goes.

A FIFO that is missing or may not be opened tells nothing: such a session counts as alive.
"""

from __future__ import annotations

import errno
import os

_SIZE = 32
POKE = "-" * _SIZE
"""What a session sends itself to look up from its poll."""


class Doorbell:
    """The FIFO of one session, and how to reach those of others."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.session = ""
        """Empty when there can be no FIFO here; then nobody is woken and expiry does all."""
        self.fd = -1
        self._rest = b""

    def open(self, mode: int) -> None:
        """Make the FIFO. ``mode`` is the database file's: who may use that may ring here."""
        if not hasattr(os, "mkfifo"):
            return
        session = os.urandom(16).hex()
        path = os.path.join(self.folder, session)
        try:
            if not os.path.isdir(self.folder):
                try:
                    os.mkdir(self.folder)
                    os.chmod(self.folder, mode & 0o777 | (mode & 0o444) >> 2)
                except FileExistsError:
                    pass
            os.mkfifo(path, 0o600)
            os.chmod(path, mode & 0o666)
            self.fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            try:
                os.unlink(path)
            except OSError:
                pass
            return
        self.session = session

    def can_be_rung(self) -> bool:
        """Whether others still find our FIFO: somebody may have removed the folder."""
        try:
            there, here = os.stat(self.path), os.fstat(self.fd)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    def ring(self, session: str, attempt: str) -> bool:
        """Wake ``attempt`` of ``session``. False when the session is dead."""
        fd = self._reach(session)
        if fd is None:
            return False
        if fd >= 0:
            try:
                os.write(fd, attempt.encode())
            except OSError:
                pass  # full: it has enough to wake up for; or it has just died: it will be found out
            finally:
                os.close(fd)
        return True

    def alive(self, session: str) -> bool:
        """False when the session is known to be dead."""
        fd = self._reach(session)
        if fd is not None and fd >= 0:
            os.close(fd)
        return fd is not None

    def watch(self, session: str) -> int | None:
        """A descriptor that polls as error when the session dies; None when it has; -1 when that can't be told."""
        return self._reach(session)

    def read(self) -> list[str]:
        """The attempts that were called since the last read."""
        try:
            data = self._rest + os.read(self.fd, 65536)
        except BlockingIOError:
            return []
        whole = len(data) - len(data) % _SIZE
        self._rest = data[whole:]
        return [data[at : at + _SIZE].decode("ascii", "replace") for at in range(0, whole, _SIZE)]

    def poke(self) -> None:
        try:
            os.write(self.fd, POKE.encode())
        except OSError:
            pass  # full: the reader is awake anyhow

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
            self.unlink()

    @property
    def path(self) -> str:
        return os.path.join(self.folder, self.session)

    def unlink(self) -> None:
        if self.session:
            try:
                os.unlink(self.path)
            except OSError:
                pass

    def after_fork(self) -> None:
        """In the child: let go of the parent's FIFO, or the parent would seem to live as long as the child."""
        fd, self.fd = self.fd, -1
        self.session = ""
        self._rest = b""
        if fd >= 0:
            os.close(fd)

    def tidy(self, before: float) -> None:
        """Remove FIFOs of sessions that died before ``before`` (wall-clock seconds; only the file's age)."""
        try:
            found = os.listdir(self.folder)
        except OSError:
            return
        for session in found:
            path = os.path.join(self.folder, session)
            try:
                if os.stat(path).st_mtime < before and not self.alive(session):
                    os.unlink(path)
            except OSError:
                continue

    def _reach(self, session: str) -> int | None:
        if not session or session == self.session:
            return -1
        try:
            return os.open(os.path.join(self.folder, session), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            return None if error.errno == errno.ENXIO else -1
