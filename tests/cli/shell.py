"""How the tests call the command and watch its processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import leasehold

T = TypeVar("T")
PF_EXITING = 0x4
"""A flag of a process that the kernel is ending."""

UNAVAILABLE = 69
"""The exit code of ``leasehold`` when the store does not answer."""
LIMIT = 60.0
"""Seconds within which everything in these tests ends, even on a busy machine."""


class Shell:
    """Runs ``leasehold`` on a database of its own; kills the processes that are left at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "leases.db"
        self.url = f"sqlite:///{self.database}"
        self.mark = uuid.uuid4().hex
        self.environment = {**os.environ, "LEASEHOLD_URL": self.url, "LEASEHOLD_TEST": self.mark}
        self.environment.pop("LEASEHOLD_TOKEN", None)
        self.locks = leasehold.connect(self.url)
        self.started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *exc: object) -> None:
        self.locks.close()
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for process in self.started:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()

    def words(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "leasehold", *words]

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Start ``leasehold`` with these words, in the background."""
        options = {
            "env": self.environment,
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "cwd": self.folder,
            **options,
        }
        process = subprocess.Popen(self.words(*words), text=True, **options)
        self.started.append(process)
        return process

    def do(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run ``leasehold`` with these words to its end."""
        return finish(self.start(*words, **options))

    def processes(self) -> list[int]:
        """Every live process that this shell started, and their descendants in any session."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            if self.mark.encode() in environment and alive(int(pid)):
                found.append(int(pid))
        return found

    def guardian_of(self, run: int) -> int:
        """The guardian of a ``run``: the process that leads a session of its own."""
        (found,) = until(lambda: [pid for pid in self.processes() if pid != run and stat(pid)[3] == str(pid)])
        return found

    def runs(self, program: str) -> bool:
        """Whether a process of this shell runs this program."""
        return any(program_of(pid) == program for pid in self.processes())

    def timed_out(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run ``leasehold`` with these words, among them ``--timeout``, to its end.

        Its last call of the store may take half a second. On a machine that does not run it for so long, it ends as if
        the store were away: then it is run again."""
        for _ in range(5):
            done = self.do(*words)
            if done.returncode != UNAVAILABLE:
                break
        return done

    def waiters(self, name: str) -> int:
        held = self.locks.inspect(name)
        return (held.waiters or 0) if held else 0


class Stalls:
    """Measures the longest time for which the machine did not run this process.

    Anything with a deadline may be late by as much, without a fault of its own."""

    TICK = 0.005

    def __enter__(self) -> Stalls:
        self.worst = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        over = False
        while not over:
            began = time.monotonic()
            over = self._over.wait(self.TICK)
            self.worst = max(self.worst, time.monotonic() - began - self.TICK)


def finish(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    try:
        stdout, stderr = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def end_input(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None


def line_of(process: subprocess.Popen[str]) -> str:
    """The next line that COMMAND prints."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def until(what: Callable[[], T], seconds: float = LIMIT) -> T:
    """Wait for something to become true."""
    ends = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < ends, "it did not happen in time"
        time.sleep(0.005)
    return found


def stat(pid: int) -> list[str]:
    """State, parent, group, session and more of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def state(pid: int) -> str:
    """R, S, T (stopped), Z (dead, uncollected), or empty when there is no such process."""
    try:
        return stat(pid)[0]
    except OSError:
        return ""


def alive(pid: int) -> bool:
    """Whether a process can still do anything. A process that is ending is not a zombie at once."""
    try:
        state, _, _, _, _, _, flags, *_ = stat(pid)
    except OSError:
        return False
    return state not in "ZX" and not int(flags) & PF_EXITING


def program_of(pid: int) -> str:
    """The name of the program that a process runs; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
    except OSError:
        return ""


def signals_of(pid: int | str, which: str) -> set[int]:
    """The signals that a process ignores (SigIgn), catches (SigCgt), blocks (SigBlk)."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {number for number in range(1, 65) if int(status[which], 16) >> (number - 1) & 1}


def files_of(pid: int) -> set[str]:
    """The open files of a process."""
    found = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:
            pass  # closed since the folder was listed
    return found
