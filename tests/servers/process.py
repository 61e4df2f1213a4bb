"""A program with its children: paused and killed as a whole, and never left over."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from . import reaper


def wait_until(true: Callable[[], bool], what: str, within: float = 60.0) -> None:
    """Ask until the answer is yes; TimeoutError says what was waited for."""
    end = time.monotonic() + within
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {within:g} s")
        time.sleep(0.02)


class Group:
    """A program that runs in a session of its own, with its output appended to a log file."""

    def __init__(self, command: Sequence[str | Path], log: Path) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd=log.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.id = self._process.pid
        reaper.tell("group", self.id)

    def poll(self) -> int | None:
        """The exit status of the first process, None while it runs."""
        return self._process.poll()

    def ask(self, number: signal.Signals) -> None:
        """A signal to the first process alone, which sees to its children itself."""
        self._process.send_signal(number)

    def signal(self, number: signal.Signals) -> None:
        """A signal to the whole of it."""
        for process in reaper.members(self.id):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def wait(self, timeout: float) -> int | None:
        """The exit status of the first process, None if it still runs after `timeout` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout)
        return None

    def kill(self) -> None:
        """End the whole of it; back when it is gone."""
        self.signal(signal.SIGSTOP)  # so that none of its members starts another
        members = reaper.members(self.id)
        for process in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.wait()
        # The children are not ours to wait for, but a server started now would meet their locks and memory.
        # Zombies are gone enough: whoever adopted them may never collect them.
        wait_until(lambda: _states(members) <= {"Z", "X"}, f"the end of process group {self.id}")
        reaper.sweep_clock(self.id)
        reaper.tell("gone", self.id)

    def pause(self) -> None:
        """Stop every thread of it; back when none can do anything more."""

        def stopped() -> bool:
            self.signal(signal.SIGSTOP)  # again: a process may have been started meanwhile
            return _states(reaper.members(self.id)) <= {"T", "t", "Z", "X"}

        wait_until(stopped, f"process group {self.id} to stop")


def _states(processes: set[int]) -> set[str]:
    """What their threads do, in the letters of /proc: R and S run, T is stopped, Z is a zombie."""
    states: set[str] = set()
    for process in processes:
        with contextlib.suppress(OSError):
            states.update(reaper.stat(thread)[0] for thread in Path("/proc", str(process), "task").iterdir())
    return states
