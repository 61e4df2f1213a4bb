"""The lease is lost under a running COMMAND: it is stopped before anybody else can have the lease."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .shell import Shell, Stalls, alive, end_input, finish, line_of, state, until

STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: print("SIGTERM", time.time(), flush=True))
sign = os.open("last-sign", os.O_CREAT | os.O_WRONLY)
print("ready", flush=True)
while True:
    os.pwrite(sign, b"%.6f" % time.time(), 0)
    time.sleep(0.005)
"""
"""A COMMAND that ignores SIGTERM, prints when it came, and writes the current time to a file all the while."""


def last_sign(shell: Shell) -> float:
    return float((shell.folder / "last-sign").read_text())


def command_of(shell: Shell, run: int) -> int:
    """The process of a COMMAND that has no child."""
    (found,) = set(shell.processes()) - {run, shell.guardian_of(run)}
    return found


def test_broken_lease_is_free_when_command_has_ended(shell: Shell) -> None:
    """COMMAND may clean up; the name is free when COMMAND has ended, long before the ttl has."""
    script = "trap 'echo stopping; read line; echo stopped; exit 0' TERM; echo ready; while :; do sleep 0.01; done"
    words = ("run", "job", "--ttl", "1h", "--kill-after", "1m", "--", "sh", "-c", script)
    run = shell.start(*words, stdin=subprocess.PIPE)
    assert line_of(run) == "ready"
    assert shell.locks.break_lease("job")
    assert line_of(run) == "stopping"
    assert shell.do("run", "job", "--no-wait", "--", "true").returncode == 75, "its body is still being stopped"
    end_input(run)
    done = finish(run)
    assert done.stdout == "stopped\n"
    assert done.returncode == 74
    assert "lease 'job' is lost: it was broken by an operator" in done.stderr
    assert shell.do("run", "job", "--no-wait", "--", "true").returncode == 0


def test_break_command_ends_a_run(shell: Shell) -> None:
    run = shell.start("run", "job", "--ttl", "1h", "--", "sh", "-c", "echo ready; exec sleep 100")
    assert line_of(run) == "ready"
    broken = shell.do("break", "job")
    assert broken.returncode == 0
    assert "the holder has been notified; 'job' becomes free when it stops, within " in broken.stdout
    assert finish(run).returncode == 74


def test_forced_break_frees_the_name_at_once(shell: Shell) -> None:
    run = shell.start("run", "job", "--ttl", "1h", "--", "sh", "-c", "echo ready; exec sleep 100")
    assert line_of(run) == "ready"
    assert "'job' is free now" in shell.do("break", "job", "--force").stdout
    assert shell.locks.inspect("job") is None
    assert finish(run).returncode == 74


def test_command_that_ignores_sigterm_is_killed(shell: Shell) -> None:
    run = shell.start("run", "job", "--ttl", "1h", "--kill-after", "3s", "--", sys.executable, "-c", STUBBORN)
    assert line_of(run) == "ready"
    command = command_of(shell, run.pid)
    broken = time.monotonic()
    shell.locks.break_lease("job")
    told = float(line_of(run).split()[1])
    until(lambda: not alive(command))
    assert time.monotonic() - broken >= 3, "COMMAND has --kill-after to end"
    assert finish(run).returncode == 74
    assert last_sign(shell) < told + 10
    assert shell.locks.inspect("job") is None
    assert shell.processes() == []


def test_children_of_command_are_killed_too(shell: Shell) -> None:
    """The shell ends at SIGTERM; its child ignores SIGTERM, and gets SIGKILL after --kill-after."""
    script = "sh -c \"trap '' TERM; echo ready; while :; do sleep 0.01; done\" & wait"
    run = shell.start("run", "job", "--ttl", "20s", "--kill-after", "300ms", "--", "sh", "-c", script)
    assert line_of(run) == "ready"
    started = time.monotonic()
    shell.locks.break_lease("job")
    assert finish(run).returncode == 74
    assert time.monotonic() - started >= 0.3
    assert shell.processes() == []


def block_writes(shell: Shell, patience: float = 30.0) -> sqlite3.Connection:
    blocker = sqlite3.connect(shell.database, patience, isolation_level=None)
    try:
        blocker.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError:
        blocker.close()
        raise
    return blocker


def test_command_is_dead_before_an_unrenewed_lease_expires(shell: Shell) -> None:
    """Failed renewals do not end the lease, but COMMAND must be dead when the lease expires.

    Whether COMMAND had time to stop is measured by COMMAND itself, which a busy machine may delay: so several tries."""
    assert any(cut_off(shell) for _ in range(5))


def cut_off(shell: Shell) -> bool:
    """Whether COMMAND got SIGTERM and SIGKILL as early as planned. It must be dead in time in any case."""
    # (The safety margin grows with the ttl. This ttl leaves more time than a busy machine loses.)
    words = ("run", "job", "--ttl", "8s", "--kill-after", "600ms", "--", sys.executable, "-c", STUBBORN)
    run = shell.start(*words)
    assert line_of(run) == "ready"
    with Stalls() as stalls:
        blocker = block_writes(shell)
        asked = time.monotonic()
        held = shell.locks.inspect("job")
        vague = time.monotonic() - asked
        assert held is not None
        expires = held.expires.timestamp()  # or earlier, by at most the time that inspect took
        heard = line_of(run)
        told = float(heard.split()[1]) if heard else float("inf")
        done = finish(run)
        blocker.close()
    assert done.returncode == 74
    assert "is lost: " in done.stderr
    assert expires - vague - 1.5 < told
    assert last_sign(shell) < expires + stalls.worst
    return "it could not be renewed" in done.stderr and told <= expires - 0.6 and told + 0.5 < last_sign(shell)


def test_run_fails_when_the_store_returns_after_command_was_stopped(shell: Shell) -> None:
    """COMMAND was stopped in time. A release that then succeeds does not make the run a success."""
    script = "trap 'echo stopping; read line; exit 0' TERM; echo ready; while :; do sleep 0.01; done"
    words = ("run", "job", "--ttl", "6s", "--kill-after", "3s", "--", "sh", "-c", script)
    run = shell.start(*words, stdin=subprocess.PIPE)
    assert line_of(run) == "ready"
    blocker = block_writes(shell)
    assert line_of(run) == "stopping"
    blocker.close()
    end_input(run)
    assert finish(run).returncode == 74
    assert shell.locks.inspect("job") is None


def test_command_does_not_notice_a_short_outage(shell: Shell) -> None:
    """COMMAND runs on when a later renewal succeeds."""
    words = ("run", "job", "--ttl", "9s", "--kill-after", "300ms", "--", "sh", "-c", "echo ready; read line; exit 5")
    run = shell.start(*words, stdin=subprocess.PIPE)
    assert line_of(run) == "ready"
    held = shell.locks.inspect("job")
    assert held is not None
    blocker = block_writes(shell)
    time.sleep(3.3)  # the first renewal is due after three seconds
    blocker.close()
    until(lambda: (now := shell.locks.inspect("job")) and now.expires > held.expires)
    end_input(run)
    assert run.wait() == 5


def test_failed_release_is_reported(shell: Shell) -> None:
    """COMMAND's status is returned. The next run does not wait for the ttl: it sees that the holder is dead."""
    run = shell.start(
        "run", "job", "--ttl", "1h", "--", "sh", "-c", "echo ready; read line; exit 5", stdin=subprocess.PIPE
    )
    assert line_of(run) == "ready"
    blocker = block_writes(shell)
    end_input(run)
    done = finish(run)
    assert done.returncode == 5
    assert "cannot release lease 'job'; it expires within " in done.stderr
    blocker.close()
    assert shell.do("run", "job", "--no-wait", "--", "true").returncode == 0


def stopped_at_rest(shell: Shell, pid: int) -> bool:
    """Stop a process. False if it was stopped during a write, which would block all other processes."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: state(pid) == "T")
    try:
        block_writes(shell, 0.1).close()
    except sqlite3.OperationalError:
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.01)
        return False
    return True


def test_command_of_a_stopped_run_is_killed_at_the_deadline(shell: Shell) -> None:
    """SIGSTOP stops all renewal. The guardian kills COMMAND before the lease expires."""
    run = shell.start("run", "job", "--ttl", "15s", "--", sys.executable, "-c", STUBBORN)  # for its safety margin
    assert line_of(run) == "ready"
    command = command_of(shell, run.pid)
    with Stalls() as stalls:
        until(lambda: stopped_at_rest(shell, run.pid))
        held = shell.locks.inspect("job")
        assert held is not None
        lease = shell.locks.lock("job").acquire()
    with lease:  # the next holder
        until(lambda: not alive(command))
        at_work = last_sign(shell)
        assert at_work < held.expires.timestamp() + stalls.worst
        run.send_signal(signal.SIGCONT)
        done = finish(run)
        assert done.returncode == 74
        assert "is lost" in done.stderr
        assert last_sign(shell) == at_work


def test_stopped_command_is_ended_when_its_lease_is_lost(shell: Shell) -> None:
    """COMMAND is continued, so that it can handle SIGTERM."""
    script = "trap 'echo tidy; exit 0' TERM; echo $$; while :; do sleep 0.01; done"
    run = shell.start("run", "job", "--ttl", "1h", "--", "sh", "-c", script)
    pid = int(line_of(run))
    os.kill(pid, signal.SIGSTOP)
    until(lambda: state(pid) == "T")
    assert run.poll() is None
    assert state(run.pid) not in "TZ", "only COMMAND was stopped: run keeps its lease"
    shell.locks.break_lease("job")
    done = finish(run)
    assert (done.returncode, done.stdout) == (74, "tidy\n")


def test_command_that_ends_after_the_loss_exits_with_74(shell: Shell) -> None:
    """The record is removed without a notification: only the release can notice."""
    run = shell.start(
        "run", "job", "--ttl", "1h", "--", "sh", "-c", "echo ready; read line; exit 0", stdin=subprocess.PIPE
    )
    assert line_of(run) == "ready"
    with sqlite3.connect(shell.database) as connection:
        connection.execute("UPDATE leasehold SET state = '', version = version + 1")
    connection.close()
    end_input(run)
    done = finish(run)
    assert done.returncode == 74
    assert "lease 'job' was lost before COMMAND ended" in done.stderr


@pytest.mark.parametrize(("ttl", "kill_after"), [("5s", "5s"), ("2s", "1900ms"), ("30s", "29s")])
def test_kill_after_that_does_not_fit_into_ttl_is_refused(shell: Shell, ttl: str, kill_after: str) -> None:
    done = shell.do("run", "job", "--ttl", ttl, "--kill-after", kill_after, "--", "touch", "ran")
    assert done.returncode == 2
    for number in (ttl, kill_after.replace("1900ms", "1.9s"), "--kill-after"):
        assert number in done.stderr
    assert not Path(shell.folder, "ran").exists()
    assert not shell.database.exists()


def test_kill_after_that_fits_into_ttl_is_accepted(shell: Shell) -> None:
    assert shell.do("run", "job", "--ttl", "30s", "--kill-after", "20s", "--", "true").returncode == 0
