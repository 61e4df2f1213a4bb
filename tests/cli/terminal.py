"""A pseudo-terminal with one program on it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
import time

from .shell import LIMIT


class Terminal:
    """A terminal of so many columns, and the program that runs on it."""

    def __init__(self, words: list[str], environment: dict[str, str], folder: str, columns: int = 80) -> None:
        size = struct.pack("HHHH", 24, columns, 0, 0)
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                fcntl.ioctl(0, termios.TIOCSWINSZ, size)
                os.chdir(folder)
                os.execvpe(words[0], words, environment)
            finally:
                os._exit(99)
        self.seen = self.before = ""

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def expect(self, text: str) -> None:
        """Read until this text has appeared."""
        ends = time.monotonic() + LIMIT
        while text not in self.seen:
            assert self._read(ends - time.monotonic()), f"the end came before {text!r}: {self.seen!r}"
        self.before, _, self.seen = self.seen.partition(text)

    def rest(self) -> str:
        """Read until the program has closed the terminal. Returns what was not read yet, with "\\n" line ends."""
        ends = time.monotonic() + LIMIT
        while self._read(ends - time.monotonic()):
            pass
        return self.seen.replace("\r\n", "\n")

    def _read(self, seconds: float) -> bool:
        """Read once. False when the program has closed the terminal."""
        ready, _, _ = select.select([self.fd], [], [], max(0.0, seconds))
        assert ready, f"nothing more appeared after {self.seen!r}"
        try:
            data = os.read(self.fd, 4096)
        except OSError:
            return False
        self.seen += data.decode(errors="replace")
        return bool(data)

    def status(self) -> int:
        ends = time.monotonic() + LIMIT
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < ends, f"the program does not end; it printed {self.seen!r}"
            time.sleep(0.005)
