"""``run`` passes the signals that it receives on to COMMAND."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .shell import Shell, finish, line_of, state, until

NOTES = """
import os, signal, sys, time
def note(number, _):
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM:
        os._exit(7)
for number in (1, 2, 3, 10, 12, 15, 18, 28):
    signal.signal(number, note)
print("ready", os.getpid(), flush=True)
while True:
    time.sleep(100)
"""


def test_each_signal_to_run_is_passed_on_to_command(shell: Shell) -> None:
    run = shell.start("run", "job", "--", sys.executable, "-c", NOTES)
    assert line_of(run).startswith("ready")
    for name in ("HUP", "INT", "QUIT", "USR1", "USR2", "WINCH", "CONT", "INT", "TERM"):
        run.send_signal(getattr(signal, f"SIG{name}"))
        assert line_of(run) == f"SIG{name}"
    assert finish(run).returncode == 7
    assert shell.locks.inspect("job") is None


def test_signal_to_run_is_passed_on_to_the_whole_group_of_command(shell: Shell) -> None:
    child = "trap 'echo child; exit' TERM; echo ready; while :; do sleep 0.01; done"
    script = f'trap : TERM; sh -c "{child}" & wait; wait; echo end'
    run = shell.start("run", "job", "--", "sh", "-c", script)
    assert line_of(run) == "ready"
    run.terminate()
    done = finish(run)
    assert done.stdout.split() == ["child", "end"]
    assert done.returncode == 0


def test_run_exits_as_a_command_that_a_signal_has_killed(shell: Shell) -> None:
    run = shell.start("run", "job", "--", "sh", "-c", "echo ready; exec sleep 1000")
    assert line_of(run) == "ready"
    run.send_signal(signal.SIGINT)
    done = finish(run)
    assert (done.returncode, done.stderr) == (130, "")


def test_signal_that_the_caller_ignores_is_ignored_by_run(shell: Shell) -> None:
    """nohup leasehold run …"""
    run = shell.start(
        *("run", "job", "--", sys.executable, "-c", NOTES),
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    assert line_of(run).startswith("ready")
    run.send_signal(signal.SIGHUP)
    run.terminate()
    assert line_of(run) == "SIGTERM"
    assert finish(run).returncode == 7


def test_run_stops_and_continues_together_with_command(shell: Shell) -> None:
    """Ctrl-Z stops COMMAND, and ``run`` with it, so that the shell takes the terminal back."""
    run = shell.start("run", "job", "--ttl", "1h", "--", "sh", "-c", "echo $$; exec sleep 1000", process_group=0)
    command = int(line_of(run))
    for _ in range(2):
        run.send_signal(signal.SIGTSTP)
        until(lambda: state(command) == state(run.pid) == "T")
        run.send_signal(signal.SIGCONT)
        until(lambda: state(command) == state(run.pid) == "S")
    run.terminate()
    assert finish(run).returncode == 143


def counting(rows: int) -> str:
    """A query whose time is proportional to ``rows``."""
    return f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) SELECT count(*) FROM n"


PATIENCE = 1.0
"""How long ``run`` waits, at most, for a write to end before it stops."""


class Writers:
    """Another program that writes to the embedded store, and makes every renewal take a fifth of a second there."""

    def __init__(self, path: Path) -> None:
        self.database = sqlite3.connect(path, isolation_level=None, timeout=0)
        rows = 200_000
        begun = time.monotonic()
        self.database.execute(counting(rows)).fetchall()
        rows = int(rows * 0.2 / (time.monotonic() - begun))
        until(self.can_write)
        self.database.execute(f"CREATE TRIGGER slow BEFORE UPDATE ON leasehold BEGIN {counting(rows)}; END")

    def __enter__(self) -> Writers:
        return self

    def __exit__(self, *exc: object) -> None:
        self.database.close()

    def can_write(self) -> bool:
        try:
            self.database.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        self.database.execute("ROLLBACK")
        return True


def test_stopped_run_is_not_in_the_middle_of_a_write(shell: Shell) -> None:
    """On the embedded store it would block all other processes until it is continued."""
    run = shell.start("run", "job", "--ttl", "6s", "--", "sh", "-c", "echo ready; exec sleep 1000", process_group=0)
    assert line_of(run) == "ready"
    with Writers(shell.database) as others:
        until(lambda: not others.can_write())  # a renewal is being written
        begun = time.monotonic()
        run.send_signal(signal.SIGTSTP)
        until(lambda: state(run.pid) == "T")
        assert others.can_write() or time.monotonic() - begun > PATIENCE
        others.database.execute("DROP TRIGGER slow")
    run.send_signal(signal.SIGCONT)
    run.terminate()
    assert finish(run).returncode == 143


def test_run_in_a_session_of_its_own_is_not_stopped(shell: Shell) -> None:
    """No shell could continue it, so COMMAND is continued at once."""
    run = shell.start("run", "job", "--", "sh", "-c", "echo $$; exec sleep 1000", start_new_session=True)
    command = int(line_of(run))
    run.send_signal(signal.SIGTSTP)
    status = Path(f"/proc/{command}/status")
    until(lambda: state(command) == "S" and "ShdPnd:\t0000000000000000" in status.read_text())
    assert state(run.pid) not in "TZ"
    run.terminate()
    assert finish(run).returncode == 143


AT_ONCE = """
import os, signal, time
from leasehold.cli.child import Child
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])  # on one processor the child runs after the parent
child = Child("/bin/sleep", ["sleep", "1000"])
child.signal(signal.SIGINT)
child.start({}, None)
ends = time.monotonic() + 20
while child.status is None and time.monotonic() < ends:
    child.look()
    time.sleep(0.01)
print(child.status)
child.signal(signal.SIGKILL)
"""


def test_signal_before_command_has_begun_to_run_ends_it(shell: Shell) -> None:
    """Python drops, in a forked child, the signals that came before."""
    for _ in range(3):
        words = [sys.executable, "-c", AT_ONCE]
        done = subprocess.run(words, env=shell.environment, capture_output=True, text=True, timeout=60)
        assert (done.stdout, done.stderr) == ("130\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_in_any_instant_ends_run_and_leaves_nothing(shell: Shell, number: int) -> None:
    """``run`` ends, and leaves no lease and no process."""
    for delay in (0.02, 0.05, 0.08, 0.11, 0.14):
        run = shell.start("run", "job", "--", "sleep", "1000")
        try:
            run.wait(delay)
        except Exception:
            pass
        run.send_signal(number)
        # (Python itself ends with a traceback and 1 when SIGINT comes before leasehold is loaded.)
        assert finish(run).returncode in (128 + number, -number, 1)
        until(lambda: shell.processes() == [])
        until(lambda: shell.locks.lock("job").try_acquire())
