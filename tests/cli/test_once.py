"""``leasehold once``: COMMAND is done once, whoever starts it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from .shell import Shell, finish, until


def test_it_is_done_once(shell: Shell) -> None:
    first = shell.do("once", "init", "--", "sh", "-c", "echo ran $LEASEHOLD_NAME $LEASEHOLD_TOKEN")
    assert (first.returncode, first.stdout.split()[:2]) == (0, ["ran", "init"])
    again = shell.do("once", "init", "--", "echo", "ran")
    assert (again.returncode, again.stdout) == (0, "")
    assert "'init' version 1 was done, by " in again.stderr
    other = shell.do("once", "init", "--version", "2", "echo", "ran")
    assert (other.returncode, other.stdout) == (0, "ran\n")
    outcome = shell.locks.once("init", version=1).outcome()
    assert outcome is not None
    assert outcome.token == int(first.stdout.split()[2])
    assert shell.locks.inspect("init") is None


def test_a_failure_stands_unless_it_is_retried(shell: Shell, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    command = ("sh", "-c", f"echo >> {runs}; exit 3")
    assert shell.do("once", "x", "--", *command).returncode == 3
    stands = shell.do("once", "x", "--", *command)
    assert stands.returncode == 3
    assert "'x' version 1 has failed (ExitStatus: 3), by " in stands.stderr
    assert shell.do("once", "x", "--retries", "1", "--", *command).returncode == 3
    assert shell.do("once", "x", "--retries", "1", "--", *command).returncode == 3
    assert runs.read_text() == "\n" * 2
    assert shell.do("once", "x", "--retries", "2", "true").returncode == 0
    assert shell.do("once", "x", *command).returncode == 0


def test_the_others_wait_for_it(shell: Shell, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    command = ("sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.02; done; echo ran")
    three = [shell.start("once", "x", *command) for _ in range(3)]
    until(lambda: shell.waiters("x") == 2)
    busy = shell.do("once", "x", "--no-wait", *command)
    assert (busy.returncode, "'x' is busy: held by" in busy.stderr) == (75, True)
    assert shell.timed_out("once", "x", "--timeout", "1s", "--on-busy-exit", "9", *command).returncode == 9
    gate.touch()
    done = [finish(each) for each in three]
    assert [each.returncode for each in done] == [0, 0, 0]
    assert sorted(each.stdout for each in done) == ["", "", "ran\n"]


def test_one_that_is_killed_is_replaced(shell: Shell, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    command = ("sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.02; done; echo ran")
    first = shell.start("once", "x", *command)
    until(lambda: shell.locks.inspect("x"))
    second = shell.start("once", "x", *command)
    until(lambda: shell.waiters("x") == 1)
    os.kill(first.pid, signal.SIGKILL)
    gate.touch()
    done = finish(second)
    assert (done.returncode, done.stdout) == (0, "ran\n")


def test_an_interruption_is_no_outcome(shell: Shell) -> None:
    first = shell.start("once", "x", "sleep", "60")
    until(lambda: shell.locks.inspect("x"))
    until(lambda: shell.runs("sleep"))
    first.send_signal(signal.SIGTERM)
    assert finish(first).returncode == 128 + signal.SIGTERM
    assert shell.locks.once("x").outcome() is None
    assert shell.do("once", "x", "true").returncode == 0


def test_wrong_usage(shell: Shell) -> None:
    for words, said in (
        (("once",), "NAME is missing"),
        (("once", "x"), "COMMAND is missing"),
        (("once", "x", "--retries", "many", "true"), "--retries"),
        (("once", "x", "--version", "", "true"), "version"),
        (("once", "x", "--min-hold", "1s", "true"), "there is no option"),
    ):
        done = shell.do(*words)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert "--retries N" in shell.do("once", "--help").stdout
