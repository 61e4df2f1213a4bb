"""Signals that ``run`` gets are COMMAND's."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from leasehold.cli.child import Child
from leasehold.cli.watch import Watch

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


def test_each_is_passed_on(shell: Shell) -> None:
    run = shell.start("run", "job", "--", sys.executable, "-c", NOTES)
    assert line_of(run).startswith("ready")
    for name in ("HUP", "INT", "QUIT", "USR1", "USR2", "WINCH", "CONT", "INT", "TERM"):
        run.send_signal(getattr(signal, f"SIG{name}"))
        assert line_of(run) == f"SIG{name}"
    assert finish(run).returncode == 7
    assert shell.locks.inspect("job") is None


def test_to_the_whole_group(shell: Shell) -> None:
    child = "trap 'echo child; exit' TERM; echo ready; while :; do sleep 0.01; done"
    script = f'trap : TERM; sh -c "{child}" & wait; wait; echo end'
    run = shell.start("run", "job", "--", "sh", "-c", script)
    assert line_of(run) == "ready"
    run.terminate()
    done = finish(run)
    assert done.stdout.split() == ["child", "end"]
    assert done.returncode == 0


def test_a_command_that_the_signal_kills(shell: Shell) -> None:
    run = shell.start("run", "job", "--", "sh", "-c", "echo ready; exec sleep 1000")
    assert line_of(run) == "ready"
    run.send_signal(signal.SIGINT)
    done = finish(run)
    assert (done.returncode, done.stderr) == (130, "")


def test_what_the_caller_ignores_is_ignored(shell: Shell) -> None:
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


def test_stopping_and_going_on(shell: Shell) -> None:
    """Ctrl-Z where the terminal is ours: COMMAND stops, and ``run`` with it, so that the shell notices."""
    run = shell.start("run", "job", "--ttl", "1h", "--", "sh", "-c", "echo $$; exec sleep 1000", process_group=0)
    command = int(line_of(run))
    for _ in range(2):
        run.send_signal(signal.SIGTSTP)
        until(lambda: state(command) == state(run.pid) == "T")
        run.send_signal(signal.SIGCONT)
        until(lambda: state(command) == state(run.pid) == "S")
    run.terminate()
    assert finish(run).returncode == 143


def test_it_does_not_stop_in_the_middle_of_a_write(shell: Shell) -> None:
    """On the embedded store it would hold up everybody until it is continued."""
    writing, written = threading.Event(), threading.Event()
    stopped: list[bool] = []

    def write() -> None:
        with shell.locks._core.driver.at_rest():  # as every request is: one at a time
            writing.set()
            time.sleep(0.3)
            written.set()

    class Command(Child):
        def __init__(self) -> None:
            self.on_terminal = True

        def stop_with_it(self) -> None:
            stopped.append(written.is_set())

    watch = Watch.__new__(Watch)
    watch._child, watch._suspended = Command(), False
    with shell.locks.lock("job") as lease:
        keeper = threading.Thread(target=write)
        keeper.start()
        assert writing.wait(60)
        assert watch._stopped_with(signal.SIGTSTP, lease)
        keeper.join()
    assert stopped == [True]


def test_with_a_session_of_our_own_nobody_could_continue_us(shell: Shell) -> None:
    """So we are not stopped, and COMMAND goes on at once."""
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
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])  # on one processor who forks goes on, and the child comes later
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


def test_a_signal_that_command_gets_before_it_has_run_at_all_ends_it(shell: Shell) -> None:
    """Python forgets in a forked child what has come until then."""
    for _ in range(3):
        words = [sys.executable, "-c", AT_ONCE]
        done = subprocess.run(words, env=shell.environment, capture_output=True, text=True, timeout=60)
        assert (done.stdout, done.stderr) == ("130\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_any_instant(shell: Shell, number: int) -> None:
    """From the first moment to the last: ``run`` ends, and nothing is left of it in the store or among processes."""
    for delay in (0.02, 0.05, 0.08, 0.11, 0.14):
        run = shell.start("run", "job", "--", "sleep", "1000")
        try:
            run.wait(delay)
        except Exception:
            pass
        run.send_signal(number)
        # (Python's own words for a SIGINT that comes before it has loaded us are a traceback and 1.)
        assert finish(run).returncode in (128 + number, -number, 1)
        until(lambda: shell.processes() == [])
        until(lambda: shell.locks.lock("job").try_acquire())
