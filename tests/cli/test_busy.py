"""Another holder has the lease, or the store does not answer."""

from __future__ import annotations

import re
import signal
import sqlite3
import time
from datetime import datetime, timedelta

import pytest

from leasehold.testing.handles import in_time

from .shell import Shell, files_of, finish, line_of, until


def test_no_wait_says_who_holds_it_since_when(shell: Shell) -> None:
    first = shell.start("run", "job", "--owner", "first", "--", "sh", "-c", "echo $LEASEHOLD_TOKEN; sleep 1000")
    token = line_of(first)
    started = time.monotonic()
    elsewhere = {**shell.environment, "TZ": "Asia/Kolkata"}
    second = shell.do("run", "job", "--no-wait", "--", "touch", "ran", env=elsewhere)
    assert second.returncode == 75
    assert time.monotonic() - started < 30
    said = re.fullmatch(
        r"leasehold: 'job' is busy: held by first since (\S+) \(([\d.]+)s\), token (\d+)\n", second.stderr
    )
    assert said, second.stderr
    held = shell.locks.inspect("job")
    assert held is not None
    since = datetime.fromisoformat(said[1])
    assert since.utcoffset() == timedelta(hours=5.5), "in the time zone of the reader"
    late = time.monotonic() - started  # both have read their clocks within this time
    assert abs((since - held.acquired).total_seconds()) <= 1 + late
    assert float(said[2]) < 30
    assert said[3] == token
    assert not (shell.folder / "ran").exists()
    first.terminate()
    finish(first)
    assert shell.do("run", "job", "--no-wait", "--", "true").returncode == 0


def test_run_times_out_and_names_the_holder(shell: Shell) -> None:
    with shell.locks.lock("job"):
        started = time.monotonic()
        done = shell.timed_out("run", "job", "--timeout", "300ms", "--", "true")
        assert done.returncode == 75
        assert time.monotonic() - started >= 0.3
        assert "timed out after 0.3s waiting for 'job': held by " in done.stderr
        until(lambda: shell.waiters("job") == 0)  # at once, unless its last call got no answer in time
    assert shell.do("run", "job", "--timeout", "30s", "--", "true").returncode == 0


def test_wait_of_more_than_a_second_says_for_whom(shell: Shell) -> None:
    with shell.locks.lock("job"):
        run = shell.start("run", "job", "--", "echo", "mine")
        assert run.stderr is not None
        line = run.stderr.readline()
    assert line.startswith(f"leasehold: waiting for 'job': held by {shell.locks.owner} since 20")
    assert line.endswith(", 0 waiters ahead\n")
    done = finish(run)
    assert (done.stdout, done.stderr) == ("mine\n", "")


def test_on_busy_exit_chooses_the_exit_code(shell: Shell) -> None:
    with shell.locks.lock("job"):
        assert shell.do("run", "job", "--no-wait", "--on-busy-exit", "0", "--", "true").returncode == 0


def test_released_lease_wakes_a_waiting_run(shell: Shell) -> None:
    with shell.locks.lock("job"):
        second = shell.start("run", "job", "--", "echo", "mine")
        until(lambda: shell.waiters("job") == 1)
        assert second.poll() is None
    assert finish(second).stdout == "mine\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signal_ends_the_wait_for_a_lease(shell: Shell, number: int) -> None:
    with shell.locks.lock("job"):
        second = shell.start("run", "job", "--", "touch", "ran")
        until(lambda: shell.waiters("job") == 1)
        second.send_signal(number)
        done = finish(second)
        assert (done.returncode, done.stderr) == (128 + number, "")
        # At once, unless its last call got no answer in time: then the others see that it is dead.
        until(lambda: shell.waiters("job") == 0)
        until(lambda: shell.processes() == [])
    assert not (shell.folder / "ran").exists()


def test_run_killed_while_it_waits_leaves_nothing(shell: Shell) -> None:
    with shell.locks.lock("job"):
        second = shell.start("run", "job", "--", "touch", "ran")
        until(lambda: shell.waiters("job") == 1)
        assert len(shell.processes()) == 3
        second.kill()
        until(lambda: shell.processes() == [])
    assert shell.do("run", "job", "--no-wait", "--", "true").returncode == 0
    assert not (shell.folder / "ran").exists()


@pytest.fixture
def store_away(shell: Shell) -> sqlite3.Connection:
    """Locks the database while this connection is open."""
    shell.do("run", "job", "--", "true")
    shell.locks.close()
    connection = sqlite3.connect(shell.database, isolation_level=None)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("BEGIN EXCLUSIVE")
    return connection


QUICK = ("--ttl", "600ms", "--no-wait")
"""With this ttl a call that gets no answer ends soon."""


def test_run_fails_when_the_store_is_away(shell: Shell, store_away: sqlite3.Connection) -> None:
    done = shell.do("run", "job", *QUICK, "--", "touch", "ran")
    assert done.returncode == 69
    assert done.stderr.startswith("leasehold: ")
    assert str(shell.database) in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (shell.folder / "ran").exists()
    store_away.close()


def test_run_says_that_it_waits_for_a_store_that_is_away(shell: Shell, store_away: sqlite3.Connection) -> None:
    run = shell.start("run", "job", "--ttl", "2s", "--", "echo", "mine")
    assert run.stderr is not None
    line = run.stderr.readline()
    assert "the store is unavailable for lease 'job': " in line
    assert "; retrying for up to 2" in line
    store_away.close()
    done = finish(run)
    assert (done.stdout, done.stderr) == ("mine\n", "")


def test_verbose_run_waits_for_a_store_that_is_away(shell: Shell, store_away: sqlite3.Connection) -> None:
    run = shell.start("run", "job", "--ttl", "2s", "-v", "--", "echo", "mine")
    assert run.stderr is not None
    assert "cannot reach the store; retrying: " in run.stderr.readline()
    store_away.close()
    assert finish(run).stdout == "mine\n"


def test_on_unavailable_skip_does_not_run_command(shell: Shell, store_away: sqlite3.Connection) -> None:
    done = shell.do("run", "job", *QUICK, "--on-unavailable", "skip", "--on-busy-exit", "5", "--", "touch", "ran")
    assert done.returncode == 5
    assert "skipped" in done.stderr
    assert not (shell.folder / "ran").exists()
    store_away.close()


def test_on_unavailable_run_starts_command_without_the_lease(shell: Shell, store_away: sqlite3.Connection) -> None:
    environment = {**shell.environment, "LEASEHOLD_TOKEN": "5", "LEASEHOLD_NAME": "job"}
    words = ("run", "job", *QUICK, "--on-unavailable", "run", "--", "sh", "-c", "env | grep -c LEASEHOLD_[NTO]; exit 3")
    done = shell.do(*words, env=environment)
    assert "without the lease" in done.stderr
    assert (done.returncode, done.stdout) == (3, "1\n"), "only LEASEHOLD_TEST is left of the variables that match"
    store_away.close()


def test_signal_ends_the_wait_for_a_store_that_is_away(shell: Shell, store_away: sqlite3.Connection) -> None:
    """The call that is under way would take 5 s."""

    def ended() -> float:
        run = shell.start("run", "job", "--", "true")
        until(lambda: str(shell.database) in files_of(run.pid))
        started = time.monotonic()
        run.send_signal(signal.SIGTERM)
        assert finish(run).returncode == 128 + signal.SIGTERM
        return time.monotonic() - started

    in_time(ended, 4)
    until(lambda: shell.processes() == [])
    store_away.close()


def test_store_that_is_not_ready_exits_with_78(shell: Shell) -> None:
    shell.locks.close()
    shell.database.write_bytes(b"this is no database, but long enough to be mistaken for one" * 50)
    for words in (("run", "job", "--on-unavailable", "run", "--", "true"), ("ls",)):
        done = shell.do(*words)
        assert done.returncode == 78
        assert "move the file away" in done.stderr
