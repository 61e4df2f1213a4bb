"""``leasehold once``: COMMAND runs once, however many processes start it."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import leasehold
from intercept import Intercepted
from leasehold.cli.once import Work
from leasehold.cli.options import parse
from leasehold.core.timing import UNAVAILABLE_LIMIT
from leasehold.kinds.once import archive
from leasehold.testing import faults

from .shell import UNAVAILABLE, Shell, finish, until


def test_command_of_once_is_done_once(shell: Shell) -> None:
    first = shell.do("once", "init", "--", "sh", "-c", "echo ran $LEASEHOLD_NAME $LEASEHOLD_TOKEN")
    assert (first.returncode, first.stdout.split()[:2]) == (0, ["ran", "init"])
    again = shell.do("once", "init", "--", "echo", "ran")
    assert (again.returncode, again.stdout) == (0, "")
    assert "'init' version 1 was already done (run by " in again.stderr
    other = shell.do("once", "init", "--version", "2", "echo", "ran")
    assert (other.returncode, other.stdout) == (0, "ran\n")
    outcome = shell.locks.once("init", version=1).outcome()
    assert outcome is not None
    assert outcome.token == int(first.stdout.split()[2])
    assert shell.locks.inspect("init") is None


def test_failed_command_of_once_is_not_repeated_without_retries(shell: Shell, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    command = ("sh", "-c", f"echo >> {runs}; exit 3")
    assert shell.do("once", "x", "--", *command).returncode == 3
    stands = shell.do("once", "x", "--", *command)
    assert stands.returncode == 3
    assert "'x' version 1 failed (run by " in stands.stderr
    assert "): ExitStatus: 3\n" in stands.stderr
    assert shell.do("once", "x", "--retries", "1", "--", *command).returncode == 3
    assert shell.do("once", "x", "--retries", "1", "--", *command).returncode == 3
    assert runs.read_text() == "\n" * 2
    assert shell.do("once", "x", "--retries", "2", "true").returncode == 0
    assert shell.do("once", "x", *command).returncode == 0


def test_others_wait_for_the_command_of_once(shell: Shell, tmp_path: Path) -> None:
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


def test_once_that_is_killed_is_replaced(shell: Shell, tmp_path: Path) -> None:
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


def test_interrupted_once_records_no_outcome(shell: Shell) -> None:
    first = shell.start("once", "x", "sleep", "60")
    until(lambda: shell.locks.inspect("x"))
    until(lambda: shell.runs("sleep"))
    first.send_signal(signal.SIGTERM)
    assert finish(first).returncode == 128 + signal.SIGTERM
    assert shell.locks.once("x").outcome() is None
    assert shell.do("once", "x", "true").returncode == 0


def test_once_waits_for_a_store_that_is_away(shell: Shell) -> None:
    """A container may start before its database."""
    network = faults.install(shell.locks)
    for words, reads in ((("--timeout", "60s"), 3), ((), 3), (("--no-wait",), 1)):
        before = network.calls["read_note"]
        network.lose_request("read_note", times=2)
        work = Work(parse(["once", "x", *words, "true"]), shell.locks)
        if reads == 1:
            with pytest.raises(leasehold.StoreUnavailable):
                work.settled()
        else:
            assert work.settled() is None
        assert network.calls["read_note"] - before == reads


AWAY = """
from leasehold.cli import main, store
from leasehold.testing.faults import install

def open_store(options, opened=store.open_store):
    locks = opened(options)
    install(locks).lose_request("read_note", times=2, noticed_after=1.5)
    return locks

store.open_store = open_store
main()
"""
"""The command, on a store that does not answer for three seconds at first."""


@pytest.mark.slow
def test_timeout_of_once_is_for_the_reading_and_for_the_lease(shell: Shell) -> None:
    """``--timeout`` includes the time for which the store was away."""
    with shell.locks.lock("x"):
        words = [sys.executable, "-c", AWAY, "once", "x", "--timeout", "5s", "true"]
        run = subprocess.Popen(words, env=shell.environment, stderr=subprocess.PIPE, text=True)
        until(lambda: shell.waiters("x") == 1)
        begun = time.monotonic()
        # (On a busy machine the last call may get no answer in time.)
        assert finish(run).returncode in (75, UNAVAILABLE)
        assert time.monotonic() - begun < 5 - 2 * 1.5 + 1.5
        assert shell.do("once", "x", "--no-wait", "true").returncode == 75
        without = shell.start("once", "x", "true")
        until(lambda: shell.waiters("x") == 1)
        time.sleep(0.5)
        assert without.poll() is None
    assert finish(without).returncode == 0


def test_once_that_has_its_lease_does_not_wait_until_that_ends(shell: Shell) -> None:
    network = faults.install(shell.locks)
    work = Work(parse(["once", "x", "true"]), shell.locks)
    with shell.locks.lock("x", ttl=4) as lease:
        network.lose_request("read_note")
        begun = time.monotonic()
        with pytest.raises(leasehold.StoreUnavailable):
            work.settled(lease)
        assert time.monotonic() - begun < UNAVAILABLE_LIMIT / 2


def test_command_whose_outcome_could_not_be_recorded_is_not_run(shell: Shell) -> None:
    """The note is full of versions that belong into one shard, and that is full, too."""
    versions = [each for number in range(250_000) if archive.shard_of(each := f"{number:060}") == 7]
    rows = [{version: ["done", 1] for version in half} for half in (versions[:755], versions[755:])]
    rows[1].update({f"{number:060}": ["done", 1] for number in range(400)})
    store = Intercepted(shell.url)
    for name, stored in (
        ("x", {"format": 2, "outcomes": rows[0], "shards": f"{1 << 7:x}"}),
        (archive.shard_name("x", 7), {"format": 1, "of": "x", "outcomes": rows[1]}),
    ):
        with store.connect() as locks, locks.lock(name) as lease:
            text = json.dumps(stored, separators=(",", ":"))
            written = functools.partial(store.attempt, name)
            assert store.run(lambda sent: sent.write_note(name, written(), lease.token, text))  # noqa: B023
    done = shell.do("once", "x", "--version", "new", "--", "touch", "ran")
    assert done.returncode == 78, done.stderr
    assert "no room to record another version of 'x'" in done.stderr.splitlines()[-1]
    assert not (shell.folder / "ran").exists()
    assert shell.locks.inspect("x") is None
    assert shell.do("once", "x", "--version", versions[800], "--", "touch", "ran").returncode == 0
    assert not (shell.folder / "ran").exists()
    assert shell.do("forget", "x").returncode == 0
    assert shell.do("once", "x", "--version", "new", "--", "touch", "ran").returncode == 0
    assert (shell.folder / "ran").exists()


def test_wrong_usage_of_once_is_explained(shell: Shell) -> None:
    for words, said in (
        (("once",), "NAME is missing"),
        (("once", "x"), "COMMAND is missing"),
        (("once", "x", "--retries", "many", "true"), "--retries"),
        (("once", "x", "--version", "", "true"), "version"),
        (("once", "x", "--min-hold", "1s", "true"), "unknown option '--min-hold'"),
    ):
        done = shell.do(*words)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert "--retries N" in shell.do("once", "--help").stdout
